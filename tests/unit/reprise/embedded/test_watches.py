"""What the embedded service notices beside its work: lost records, and a directory that is gone."""

import logging
import shutil
from pathlib import Path

import pytest

from reprise.embedded.data_watch import DataWatch
from reprise.embedded.loss_watch import LossWatch
from schemas.conditions import Conditions, Level, Part
from schemas.identities import Offset
from streams.kernel import open_kernel
from streams.log.losses import LogLoss, LossNote
from streams.table.fold import Fold
from tests.building import SCOPE, events_record, registered_record, registration, stored


@pytest.fixture
def conditions() -> Conditions:
    return Conditions(lambda: 1.0)


@pytest.fixture
def fold() -> Fold:
    """Of a publisher with one batch."""
    made = Fold(open_kernel(1337, name="reference"))
    made.apply(Offset(0), registered_record(registration()))
    made.apply(Offset(1), events_record(0, 0, [stored(0, [1], range(4))]))
    return made


def test_a_directory_that_is_deleted_replaced_or_put_back_is_noticed(
    tmp_path: Path, conditions: Conditions
) -> None:
    paths = [tmp_path / "data" / name for name in ("log", "table")]
    for path in paths:
        path.mkdir(parents=True)
    watch = DataWatch(paths, conditions)
    watch.check()
    assert not conditions.all()
    shutil.move(tmp_path / "data", tmp_path / "moved")
    watch.check()
    (condition,) = conditions.all()
    assert (condition.part, condition.reason, condition.level) == (
        Part.DATA,
        "deleted",
        Level.DEGRADED,
    )
    assert f"{paths[0]} was deleted" in condition.message
    paths[0].mkdir(parents=True)
    watch.check()
    assert conditions.all()[0].reason == "replaced"
    shutil.rmtree(tmp_path / "data")
    shutil.move(tmp_path / "moved", tmp_path / "data")
    watch.check()
    assert not conditions.all()


def test_a_loss_lasts_over_restarts_until_every_publisher_has_gone_on(
    tmp_path: Path, conditions: Conditions, fold: Fold, caplog: pytest.LogCaptureFixture
) -> None:
    LossWatch(tmp_path, conditions).found("the log has lost its end")
    watch = LossWatch(tmp_path, conditions)
    watch.begin(fold)
    assert watch.covers(SCOPE)
    watch.check()
    (condition,) = conditions.all()
    assert (condition.part, condition.reason) == (Part.LOSS, "records_lost")
    assert "the log has lost its end" in condition.message
    assert "for 1 publishers" in condition.message
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    fold.apply(Offset(2), events_record(1, 1, [stored(1, [2], range(4))]))
    assert not watch.covers(SCOPE)
    watch.check()
    assert not conditions.all()
    assert LossNote(tmp_path).read() is None


def test_without_a_loss_nothing_is_said(tmp_path: Path, conditions: Conditions, fold: Fold) -> None:
    watch = LossWatch(tmp_path, conditions)
    watch.begin(fold)
    watch.check()
    assert not watch.covers(SCOPE)
    assert not conditions.all()


def test_while_registrations_may_be_lost_no_scope_is_trusted(
    tmp_path: Path, conditions: Conditions, fold: Fold
) -> None:
    LossNote(tmp_path).add(LogLoss(what="a repair", at=1.0, registrations=True))
    watch = LossWatch(tmp_path, conditions)
    watch.begin(fold)
    fold.apply(Offset(2), events_record(1, 1, [stored(1, [2], range(4))]))
    watch.check()
    assert watch.covers(SCOPE._replace(tenant_id="unheard-of"))
    assert "--all-registered" in conditions.problem
    LossNote(tmp_path).end_doubt()
    again = LossWatch(tmp_path, conditions)
    again.begin(fold)
    assert not again.covers(SCOPE._replace(tenant_id="unheard-of"))
