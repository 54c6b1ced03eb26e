"""From offsets to a decision: how a table is opened, for the embedded service and for a worker.

The rows are those of the table topic where there is one, copied to this disk, else this disk's.

    the rows                  the log                          decision
    ------------------------  -------------------------------  ---------------------------------
    none, or corrupt          any                              REBUILD: fold the log from its
                                                                 beginning into an empty table
    made with another seed    any                              REBUILD
    cover up to c             has everything after c           RESUME: load the rows, fold from
                                                                 c + 1
    cover up to c, and are    has everything after c           PUBLISH: the same, and send this
      on this disk only                                          disk's rows to the topic
    cover up to c             begins after c + 1               REBUILD
    cover up to c             ends before c, and is our own    ADOPT: load the rows; the log's
                                                                 next offset becomes c + 1
    cover up to c             ends before c, and is not        REBUILD

**What the log no longer proves is degraded.** A rebuild from a log that has lost its beginning, or
that was lost and started over, cannot tell what a publisher holds that was registered before: the
fold is given that (`RecoveryPlan.unproven_before`, `Fold.distrust`), stores it with its first rows,
and degrades each such publisher at its registration. So a kill at any moment forgets nothing. A log
of our own keeps the records of live registrations, so that each stands where it was made; those of
a topic are rewritten now and then, so where one of them stands proves nothing.

After ADOPT the rows are right, but a later rebuild will not have what the log lost: it counts as
complete only from there on.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from schemas.identities import Offset
from schemas.positions import LogBounds

EVERY_OFFSET: Final = Offset(2**63 - 1)


class RecoveryAction(StrEnum):
    """What to do with a table; see the module."""

    RESUME = "resume"
    PUBLISH = "publish"
    REBUILD = "rebuild"
    ADOPT = "adopt"


class RecoveryPlan(NamedTuple):
    """A decision.

    Attributes:
        start: where folding starts.
        reason: why, in words.
        unproven_before: registrations below it prove nothing; see the module. 0 for none.
    """

    action: RecoveryAction
    start: Offset
    reason: str
    unproven_before: Offset = Offset(0)


def plan_recovery(
    *, covered: Offset | None, same_seed: bool, log: LogBounds, own_log: bool, published: bool
) -> RecoveryPlan:
    """The decision, from offsets alone; see the module.

    Args:
        covered: what the rows cover; None where there are none or they cannot be used.
        same_seed: whether they were made with the seed in use.
        log: what the log has; a log of our own also has registrations from before `log.start`.
        own_log: whether the log is this process's, rather than a topic's partition.
        published: whether the rows are where they belong; False where the table topic lost them.
    """
    start = Offset(0 if covered is None else covered + 1)
    lost_its_end = covered is not None and start > log.end
    rebuild = RecoveryPlan(
        RecoveryAction.REBUILD,
        Offset(0 if own_log else log.start),
        "the table is empty",
        _unproven_before(log, lost_its_end=lost_its_end, own_log=own_log),
    )
    if covered is None:
        return rebuild
    if not same_seed:
        return rebuild._replace(reason="the table was made with another hash seed")
    covers = f"the table covers {covered}"
    if lost_its_end and own_log:
        return RecoveryPlan(RecoveryAction.ADOPT, start, f"the log ends at {log.end}, {covers}")
    if not log.start <= start <= log.end:
        return rebuild._replace(reason=f"{covers}, the log has {log.start} to {log.end - 1}")
    if not published:
        return RecoveryPlan(
            RecoveryAction.PUBLISH, start, f"the topic was lost, this disk covers {covered}"
        )
    return RecoveryPlan(RecoveryAction.RESUME, start, covers)


def _unproven_before(log: LogBounds, *, lost_its_end: bool, own_log: bool) -> Offset:
    if own_log:
        return Offset(log.end if lost_its_end else log.start)
    return EVERY_OFFSET if log.start > 0 or lost_its_end else Offset(0)
