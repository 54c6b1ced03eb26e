"""`reprise repair`: what it finds, what it does, and what a start makes of it."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from logs.embedded import EmbeddedLog, repaired_path
from logs.interface import LogEntry
from reprise.embedded.repair import DirectoryRepair, RepairFinding
from schemas.errors import DamagedError, StorageError
from schemas.identities import Offset, PublisherKey
from streams.log.losses import LogLoss, LossNote
from streams.table.driver import RecoveryResult, recover
from streams.table.fold import Fold
from streams.table.recovery import RecoveryAction
from streams.table.suspect_publishers import Suspects
from streams.table.table import Table
from streams.table.threads import run_without_loop
from tests.building import SCOPE, STREAM, events_record, registered_record, registration, stored
from tests.earlier_logs import of_an_earlier_format, without

ME = PublisherKey(STREAM, 0)
BATCHES = 300
MakeFold = Callable[[], Fold]


@pytest.fixture(params=["*.rec", "*.sst"], ids=["in files", "of an earlier format"])
def records(request: pytest.FixtureRequest) -> str:
    """Which files of the log have its records."""
    return f"log/{request.param}"


@pytest.fixture
def data(tmp_path: Path, any_fold: MakeFold, records: str) -> Path:
    """A registration and batches behind it, in the log and in the table."""
    log = EmbeddedLog(tmp_path / "log")
    table = Table(tmp_path / "table", any_fold, log=log)
    recover(table, log)
    numbers = random.Random(1)
    appended = [registered_record(registration())]
    for sequence in range(BATCHES):
        hashes = [numbers.getrandbits(64) for _ in range(5)]
        tokens = [numbers.getrandbits(31) for _ in range(20)]
        appended.append(events_record(sequence, sequence, [stored(sequence, hashes, tokens)]))
    for encoded in appended:
        table.apply([LogEntry(log.append([encoded]), encoded)])
    run_without_loop(table.flush(now=0.0))
    table.close()
    log.close()
    if records == "log/*.sst":
        of_an_earlier_format(tmp_path / "log")
    return tmp_path


def damage(data: Path, pattern: str, *, at: float = 0.5) -> Path:
    """A flipped bit in the first file."""
    file = min(data.glob(pattern))
    content = bytearray(file.read_bytes())
    content[int(at * len(content))] ^= 4
    file.write_bytes(content)
    return file


def started(data: Path, make_fold: MakeFold) -> tuple[Fold, RecoveryResult]:
    log = EmbeddedLog(data / "log")
    table = Table(data / "table", make_fold, log=log)
    recovered = recover(table, log)
    table.close()
    log.close()
    return table.fold, recovered


def repaired(data: Path) -> list[str]:
    found = DirectoryRepair(data)
    return list(found.carry_out(found.examine()))


def remedies(data: Path) -> list[str]:
    return [finding.part for finding in DirectoryRepair(data).examine() if finding.remedy]


def files(data: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(data)): file.read_bytes()
        for file in data.rglob("*")
        if file.is_file() and file.name not in ("LOG", "LOCK")
    }


def test_nothing_is_found_where_nothing_is_damaged(data: Path, any_fold: MakeFold) -> None:
    before = files(data)
    assert DirectoryRepair(data).examine() == [
        RepairFinding("log", f"whole, with records 0 to {BATCHES}"),
        RepairFinding("table", f"whole, covers records up to {BATCHES}"),
    ]
    assert repaired(data) == []
    assert files(data) == before
    assert LossNote(data).read() is None


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Expected a data directory of `reprise up`"):
        DirectoryRepair(tmp_path)


def test_a_look_changes_nothing(data: Path, records: str) -> None:
    damage(data, records)
    damage(data, "table/MANIFEST-*")
    before = files(data)
    assert remedies(data) == ["log", "table"]
    assert files(data) == before


@pytest.mark.parametrize("pattern", ["", "log/MANIFEST-*", "log/CURRENT"], ids=str)
def test_a_damaged_log_is_a_log_again_and_the_table_has_what_it_lost(
    data: Path, any_fold: MakeFold, pattern: str, records: str
) -> None:
    truth, _ = started(data, any_fold)
    blamed = damage(data, pattern or records, at=0.2)
    (finding, _) = DirectoryRepair(data).examine()
    assert blamed.name in finding.text
    assert "log.damaged-1" in finding.remedy
    said = repaired(data)
    assert "log.damaged-1" in said[1]
    assert (data / "log.damaged-1" / blamed.name).exists()
    fold, recovered = started(data, any_fold)
    assert recovered.plan.action is RecoveryAction.RESUME
    assert fold.kernel.contexts() == truth.kernel.contexts()
    assert remedies(data) == []
    loss = LossNote(data).read()
    assert loss is not None
    assert not loss.registrations, "the table has them all"


def test_without_the_table_what_is_left_is_folded_and_nothing_is_exact(
    data: Path, any_fold: MakeFold, records: str
) -> None:
    damage(data, records, at=0.2)
    shutil.rmtree(data / "table")
    repaired(data)
    fold, recovered = started(data, any_fold)
    assert recovered.plan.action is RecoveryAction.REBUILD
    loss = LossNote(data).read()
    assert loss is not None
    assert loss.registrations
    assert Suspects(loss, fold).are_in(SCOPE)
    assert "--all-registered" in DirectoryRepair(data).doubt
    DirectoryRepair(data).end_doubt()
    assert DirectoryRepair(data).doubt == ""
    left = LossNote(data).read()
    assert left is not None
    assert Suspects(left, fold).are_in(SCOPE) is bool(fold.registrations)


def test_a_log_with_a_hole_is_not_folded_past_it_and_counts_from_behind_it(
    data: Path, any_fold: MakeFold
) -> None:
    without(data / "log", 20, 21)
    shutil.rmtree(data / "table")
    with pytest.raises(DamagedError, match=r"records 20 to 21 are missing.*`reprise repair"):
        started(data, any_fold)
    assert "records 20 to 21 are missing" in DirectoryRepair(data).examine()[0].text
    repaired(data)
    fold, _ = started(data, any_fold)
    assert fold.counters["log_holes"] == 1
    assert fold.publishers[ME].degraded_since == 19
    log = EmbeddedLog(data / "log")
    assert log.complete_from == 22
    log.close()


def test_a_repair_that_was_interrupted_is_finished(data: Path, any_fold: MakeFold) -> None:
    (data / "log").rename(repaired_path(data / "log"))
    with pytest.raises(DamagedError, match=r"was interrupted.*`reprise repair"):
        EmbeddedLog(data / "log")
    assert remedies(data) == ["log"]
    repaired(data)
    assert started(data, any_fold)[1].plan.action is RecoveryAction.RESUME


def test_a_damaged_table_is_moved_aside_never_over_another(data: Path, any_fold: MakeFold) -> None:
    truth, _ = started(data, any_fold)
    for number in (1, 2):
        damage(data, "table/MANIFEST-*")
        assert repaired(data) == [f"table  moved to {data}/table.damaged-{number}"]
        fold, recovered = started(data, any_fold)
        assert recovered.plan.action is RecoveryAction.REBUILD
        assert fold.kernel.contexts() == truth.kernel.contexts()


# The note, and whom it is about


def test_a_note_outlives_its_reader_and_keeps_its_doubt(tmp_path: Path) -> None:
    note = LossNote(tmp_path)
    assert note.read() is None
    note.add(LogLoss(what="one", at=1.0, registrations=True))
    note.add(LogLoss(what="two", at=2.0))
    assert LossNote(tmp_path).read() == LogLoss(what="two", at=2.0, registrations=True)
    note.path.write_bytes(b"{")
    unreadable = note.read()
    assert unreadable is not None
    assert str(note.path) in unreadable.what
    note.clear()
    note.clear()
    assert note.read() is None


def test_a_publisher_is_suspect_until_its_next_record(any_fold: MakeFold) -> None:
    fold = any_fold()
    fold.apply(Offset(0), registered_record(registration()))
    fold.apply(Offset(1), events_record(0, 0, [stored(0, [1], range(4))]))
    suspects = Suspects(LogLoss(what="", at=0.0), fold)
    assert suspects.are_in(SCOPE)
    assert not suspects.are_in(SCOPE._replace(tenant_id="other"))
    suspects.prune()
    assert (len(suspects), suspects.are_cleared) == (1, False)
    fold.apply(Offset(2), events_record(1, 1, [stored(1, [2], range(4))]))
    assert not suspects.are_in(SCOPE)
    suspects.prune()
    assert suspects.are_cleared
