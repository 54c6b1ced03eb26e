"""Compares what an earlier process or session left in the spool with what the log has."""

import logging
from collections.abc import Mapping, Sequence

from bridge.delivery.spool import Spool, SpooledRecord
from bridge.delivery.unreadable_records import drop_unreadable
from bridge.delivery.writer import Writer
from bridge.membership.cursors import UNREGISTERED, Cursors, LogState
from bridge.publisher.anchor import Anchor
from schemas.identities import PublisherKey
from schemas.positions import Cursor
from schemas.records import (
    EventsRecord,
    GapRecord,
    Record,
    RegisteredRecord,
    ResetRecord,
    SequencedRecord,
    UnregisteredRecord,
)

_logger = logging.getLogger(__name__)


def resolve(spool: Spool, publisher: PublisherKey, state: LogState) -> Anchor:
    """For a publisher of ours: what the log and the spool have, together.

    Drops from the spool what the log has, and what is older than the last time that the publisher
    was unregistered: its state starts over then. What came after that is of its present
    registration. Drops all batches where they contradict the log (`_contradicts`): what is missing
    then is asked for, or a gap.
    """
    drop_unreadable(spool, publisher, before=state.cursor)
    records = list(spool.decoded(publisher))
    ends = [at for at, (_, one) in enumerate(records) if isinstance(one, UnregisteredRecord)]
    if ends:
        # It is kept itself: the log does not have it yet.
        spool.delete(publisher, [spooled for spooled, _ in records[: ends[-1]]])
        for _, record in records:
            if isinstance(record, UnregisteredRecord):
                state.unregister(record)
        records = records[ends[-1] + 1 :]
    if state.registered == UNREGISTERED:
        state.begin_registration()
    anchor = state.anchor
    written: list[SpooledRecord] = []
    contradicts = _contradicts([record for _, record in records], state)
    for spooled, record in records:
        if isinstance(record, RegisteredRecord):
            continue
        assert not isinstance(record, UnregisteredRecord), "they end before the last one"
        if contradicts or record.last <= state.cursor:
            written.append(spooled)
        elif record.last > anchor.cursor:
            anchor = anchor.after(record)
    if contradicts:
        _logger.warning(
            "Dropped %d spooled records of %s: another bridge has begun the same incarnation in the"
            " log, or one of another run has; the engine is asked for what is missing, or a gap"
            " stands"
            " for it",
            len(written),
            publisher,
        )
    spool.delete(publisher, written)
    return anchor


def prune(spool: Spool, publisher: PublisherKey, state: LogState) -> None:
    """For another bridge's publisher: keeps in the spool what continues the log without a hole.

    The rest would come before what the owner writes, or contradict it: the owner may repair a gap
    that we found.
    """
    drop_unreadable(spool, publisher, before=None)
    cursor = state.cursor
    gone: list[SpooledRecord] = []
    records = list(spool.decoded(publisher))
    broken = state.registered == UNREGISTERED or _contradicts([one for _, one in records], state)
    for spooled, record in records:
        if isinstance(record, RegisteredRecord | UnregisteredRecord):
            gone.append(spooled)
            continue
        broken = broken or not _continues(record, cursor)
        if broken or record.last <= cursor:
            gone.append(spooled)
        else:
            cursor = max(cursor, record.reached)
    if gone:
        _logger.info(
            "Dropped %d spooled records of %s, which another bridge follows", len(gone), publisher
        )
    spool.delete(publisher, gone)


async def release_foreign(
    writer: Writer, cursors: Cursors, homes: Mapping[PublisherKey, int]
) -> None:
    """Lets what is spooled of other bridges' publishers be written, as far as `prune` keeps it.

    Args:
        writer: whose spool it is.
        homes: their partitions of the registry, none of them ours.

    Raises:
        KafkaError, OSError: Kafka is away.
        StorageError: the spool cannot be written.
    """
    partitions = set(homes.values())
    try:
        await cursors.load(partitions)
        states = await cursors.recover(homes)
    finally:
        cursors.forget(partitions)
    for publisher, state in states.items():
        prune(writer.spool, publisher, state)
        writer.release(publisher)


def _contradicts(records: Sequence[Record], state: LogState) -> bool:
    """Whether the batches may be of another run than those of the same incarnation in the log.

    Who finds that an engine has restarted gives the new incarnation the next number. Two bridges
    that do so apart from each other may mean two runs by it. The one whose reset is spooled here
    has written the log's last batch of it only where that batch ends a record of the spool.
    """
    incarnation, sequence = state.cursor
    begins_it = any(
        isinstance(one, ResetRecord) and one.incarnation == incarnation for one in records
    )
    batches = [one for one in records if isinstance(one, EventsRecord)]
    goes_on = any(one.last > state.cursor for one in batches)
    if not begins_it or sequence < 0 or not goes_on:
        return False
    return all(one.last != state.cursor or one.engine_time != state.engine_time for one in batches)


def _continues(record: SequencedRecord, cursor: Cursor) -> bool:
    if isinstance(record, GapRecord):
        return False
    if isinstance(record, ResetRecord):
        # Folds would skip all that the owner goes on to write of the incarnation before.
        return record.incarnation <= cursor.incarnation
    if record.incarnation > max(cursor.incarnation, 1):
        return False
    return record.incarnation < cursor.incarnation or record.first_sequence <= cursor.sequence + 1
