"""From offsets to a decision, and from the decision to a table that is up to date.

    the store            the log                   decision
    -------------------  ------------------------  -------------------------------------
    empty                any                       REBUILD: fold all there is
    other seed           any                       REBUILD, the old rows are set aside
    a corrupt row        any                       REBUILD, the old rows are set aside
    covers up to c       has everything after c    RESUME: load the rows, fold from c + 1
    covers up to c       begins after c + 1        REBUILD, the old rows are set aside
    covers up to c       ends before c             ADOPT: load the rows, log on at c + 1

A rebuild from a log whose beginning was retired meets publishers in the middle of their sequence:
the fold finds the hole and degrades them. After ADOPT the rows are right, but a later rebuild will
not have what the log lost, so the log counts as complete only from there on.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from schemas.errors import RowCorruptError
from schemas.identities import Offset
from schemas.limits import TABLE_FLUSH_CHANGES_MAX
from streams.log.interface import ReadableLog, WritableLog
from streams.table.fold import DUPLICATE, NO_OFFSET, Fold, SkippedRecord
from streams.table.store import TableStore


class Action(StrEnum):
    """What to do with a store."""

    RESUME = "resume"
    REBUILD = "rebuild"
    ADOPT = "adopt"


class Plan(NamedTuple):
    """A decision, where folding starts, and the reason in words."""

    action: Action
    start: Offset
    reason: str


def plan_recovery(
    *, covered: Offset | None, same_seed: bool, log_complete_from: Offset, log_end: Offset
) -> Plan:
    """The decision, from offsets alone; see the module.

    Args:
        covered: what the store covers; None where it is empty or cannot be used.
        same_seed: whether the store's rows were made with the seed in use.
        log_complete_from: from here on the log lacks nothing.
        log_end: the offset that the next record will get.
    """
    everything = Offset(0)
    if covered is None:
        return Plan(Action.REBUILD, everything, "the table is empty")
    if not same_seed:
        return Plan(Action.REBUILD, everything, "the table was made with another hash seed")
    start = Offset(covered + 1)
    if start > log_end:
        return Plan(Action.ADOPT, start, f"the log ends at {log_end}, the table covers {covered}")
    if start < log_complete_from:
        reason = f"the table covers {covered}, the log is complete from {log_complete_from}"
        return Plan(Action.REBUILD, everything, reason)
    return Plan(Action.RESUME, start, f"the table covers {covered}")


class Recovered(NamedTuple):
    """What a recovery did: the plan, how many records were folded, and the first that were
    skipped.
    """

    fold: Fold
    plan: Plan
    records: int
    skipped: list[SkippedRecord]


SKIPPED_NAMED_MAX = 20
"""Skipped records that a recovery names one by one; all are counted by the fold."""


def recover(store: TableStore, log: WritableLog, make_fold: Callable[[], Fold]) -> Recovered:
    """Brings a table up to the end of the log, from whatever the store and the log still have.

    Args:
        store: open; on return it covers the end of the log.
        log: open for writing.
        make_fold: an empty fold with a kernel of its own; called again when the rows prove corrupt.

    Raises:
        RowVersionError: a newer Reprise wrote the rows; nothing was changed.
        DiskError: the disk failed; call again with both opened anew.
    """
    log.sync()  # a row may cover only what is durable
    fold = make_fold()
    plan = _load(store, log, fold)
    if plan.action is Action.REBUILD and (fold.offset != NO_OFFSET or fold.kernel.contexts()):
        fold = make_fold()
    if plan.action is Action.ADOPT:
        log.advance_to(plan.start)
    records, skipped = replay(fold, log, plan.start, store)
    if plan.action is Action.REBUILD and log.complete_from > 0:
        fold.degrade_older_than(log.complete_from)
    if fold.offset not in (NO_OFFSET, store.covered()):
        store.flush(fold, fold.take_changes())
    return Recovered(fold, plan, records, skipped)


def _load(store: TableStore, log: WritableLog, fold: Fold) -> Plan:
    try:
        plan = plan_recovery(
            covered=store.covered(),
            same_seed=store.seed() in (None, fold.kernel.seed),
            log_complete_from=log.complete_from,
            log_end=log.end_offset,
        )
        if plan.action is not Action.REBUILD:
            store.load_into(fold)
            return plan
        reason = plan.reason
        if store.covered() is None:
            return plan
    except RowCorruptError as error:
        reason = str(error)
    aside = store.set_aside()
    return Plan(Action.REBUILD, Offset(0), f"{reason}; the old rows were moved to {aside}")


def replay(
    fold: Fold, log: ReadableLog, start: Offset, store: TableStore | None = None
) -> tuple[int, list[SkippedRecord]]:
    """Folds the log from `start` to its end, flushing into the store on the way where one is given.

    Returns:
        How many records there were, and the first `SKIPPED_NAMED_MAX` that are none.

    Raises:
        DiskError: the log cannot be read to its end.
    """
    records = 0
    skipped: list[SkippedRecord] = []
    for entry in log.read(start):
        records += 1
        problem = fold.apply(entry.offset, entry.value)
        named = problem is not None and problem.reason != DUPLICATE  # a log may have many of those
        if problem is not None and named and len(skipped) < SKIPPED_NAMED_MAX:
            skipped.append(problem)
        if fold.kernel.pending_changes() >= TABLE_FLUSH_CHANGES_MAX:
            if store is None:
                fold.take_changes()
            else:
                store.flush(fold, fold.take_changes())
    return records, skipped


def fresh_fold(fold: Fold, log: ReadableLog) -> int:
    """Folds a whole log into an empty fold: the truth to which any recovery is compared.

    Returns:
        How many records the log has.
    """
    assert fold.offset == NO_OFFSET, "a fresh fold starts empty"
    return replay(fold, log, Offset(0))[0]
