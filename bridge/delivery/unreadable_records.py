"""Spooled records that cannot be read: written by a newer version, or damaged on disk."""

import logging
from collections import Counter
from collections.abc import Callable

from bridge.bounds import SPOOL_CHANGES_MAX
from bridge.delivery.dropped_records import SPOOL_UNREADABLE, gap_between
from bridge.delivery.spool import Spool
from schemas.clock import REAL_CLOCK
from schemas.identities import PublisherKey
from schemas.positions import Cursor
from schemas.records import RegisteredRecord, UnregisteredRecord, encode_record

_logger = logging.getLogger(__name__)


def drop_unreadable(
    spool: Spool,
    publisher: PublisherKey,
    *,
    before: Cursor | None,
    last: Cursor | None = None,
    clock: Callable[[], float] = REAL_CLOCK.unix,
) -> int:
    """Deletes the publisher's records that cannot be read, and puts gaps in their place.

    Which batches they held can only be told from those around them: the gap record that takes the
    place of one or more of them names the batches between its neighbours. Cost O(lane).

    Args:
        spool: whose publisher it is.
        before: the last batch in the log; None: the records are deleted without a gap.
        last: the last batch that was put into the lane; None where it is not known.
        clock: Unix seconds.

    Returns:
        How many were deleted.

    Raises:
        DiskError: some of them may have been.
    """
    reasons: Counter[str] = Counter()
    run: list[int] = []  # of unreadable records, one after the other
    changes: list[tuple[int, bytes | None]] = []
    for spooled in spool.read(publisher):
        record = spool.decode(publisher, spooled)
        if isinstance(record, str):
            reasons[record] += 1
            run.append(spooled.number)
        elif not isinstance(record, RegisteredRecord | UnregisteredRecord):
            after = Cursor(record.incarnation, record.first_sequence)
            changes += _replacement_of(publisher, run, before, after, clock)
            run = []
            before = None if before is None else max(before, record.reached)
    after_all = None if last is None else last._replace(sequence=last.sequence + 1)
    changes += _replacement_of(publisher, run, before, after_all, clock)
    for start in range(0, len(changes), SPOOL_CHANGES_MAX):
        spool.replace(publisher, changes[start : start + SPOOL_CHANGES_MAX])
    dropped = reasons.total()
    if dropped:
        spool.dropped[publisher, SPOOL_UNREADABLE] += dropped
        _logger.warning(
            "Dropped %d spooled records of %s that cannot be read (%s): the engine is asked for"
            " them, or a gap stands for them",
            dropped,
            publisher,
            ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items())),
        )
    return dropped


def _replacement_of(
    publisher: PublisherKey,
    run: list[int],
    before: Cursor | None,
    after: Cursor | None,
    clock: Callable[[], float],
) -> list[tuple[int, bytes | None]]:
    """What replaces unreadable records that follow each other."""
    replaced: list[tuple[int, bytes | None]] = [(number, None) for number in run]
    if run and before is not None and after is not None:
        gap = gap_between(publisher, before, after, now=clock(), reason=SPOOL_UNREADABLE)
        if gap is not None:
            replaced[0] = (run[0], encode_record(gap))
    return replaced
