import pytest

from schemas.identities import Offset
from schemas.positions import LogBounds
from streams.table.recovery import EVERY_OFFSET, RecoveryAction, RecoveryPlan, plan_recovery


def plan(
    covered: int | None,
    start: int,
    end: int,
    *,
    own_log: bool,
    same_seed: bool = True,
    published: bool = True,
) -> RecoveryPlan:
    return plan_recovery(
        covered=None if covered is None else Offset(covered),
        same_seed=same_seed,
        log=LogBounds(start, end),
        own_log=own_log,
        published=published,
    )


@pytest.mark.parametrize("own_log", [True, False])
@pytest.mark.parametrize(
    ("covered", "log", "action", "start"),
    [
        (None, (0, 0), RecoveryAction.REBUILD, 0),
        (8, (0, 9), RecoveryAction.RESUME, 9),
        (3, (0, 9), RecoveryAction.RESUME, 4),
        (3, (4, 9), RecoveryAction.RESUME, 4),
        (-1, (0, 0), RecoveryAction.RESUME, 0),
    ],
)
def test_the_decision_follows_from_the_offsets(
    covered: int | None, log: tuple[int, int], action: RecoveryAction, start: int, *, own_log: bool
) -> None:
    decided = plan(covered, *log, own_log=own_log)
    assert (decided.action, decided.start, decided.unproven_before) == (action, start, 0)


@pytest.mark.parametrize("own_log", [True, False])
def test_another_seed_rebuilds(*, own_log: bool) -> None:
    decided = plan(3, 0, 9, own_log=own_log, same_seed=False)
    assert (decided.action, decided.start, decided.unproven_before) == (
        RecoveryAction.REBUILD,
        0,
        0,
    )


@pytest.mark.parametrize("covered", [None, 3])
def test_a_rebuild_from_a_log_without_its_beginning_trusts_no_older_registration(
    covered: int | None,
) -> None:
    own = plan(covered, 5, 9, own_log=True)
    assert (own.action, own.start, own.unproven_before) == (RecoveryAction.REBUILD, 0, 5)
    topic = plan(covered, 5, 9, own_log=False)
    assert (topic.action, topic.start, topic.unproven_before) == (
        RecoveryAction.REBUILD,
        5,
        EVERY_OFFSET,
    )
    assert plan(None, 1, 9, own_log=False).unproven_before == EVERY_OFFSET, "one record is enough"


def test_a_log_that_ends_before_the_table_is_adopted_where_it_is_our_own() -> None:
    own = plan(9, 0, 9, own_log=True)
    assert (own.action, own.start, own.unproven_before) == (RecoveryAction.ADOPT, 10, 0)
    topic = plan(9, 0, 9, own_log=False)
    assert (topic.action, topic.start, topic.unproven_before) == (
        RecoveryAction.REBUILD,
        0,
        EVERY_OFFSET,
    )
    seed = plan(9, 0, 9, own_log=True, same_seed=False)
    assert (seed.action, seed.start, seed.unproven_before) == (RecoveryAction.REBUILD, 0, 9)


def test_rows_that_the_topic_has_lost_are_published() -> None:
    decided = plan(3, 0, 9, own_log=False, published=False)
    assert (decided.action, decided.start) == (RecoveryAction.PUBLISH, 4)
    assert plan(3, 5, 9, own_log=False, published=False).action is RecoveryAction.REBUILD
