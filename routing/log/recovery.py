"""The topics of routing as a worker and a replica begin with them: the last checkpoint, and from
where the log is to be folded on.
"""

import logging
from typing import NamedTuple

from brokers.client_types import Message
from brokers.options import ClientOptions
from brokers.reading import log_bounds, opened_reader, read_to_end
from logs.checkpoint import start_behind
from routing.fold.chunks import ChunkReader
from routing.fold.fold import RoutingFold
from routing.log.topics import ROUTING_LOG, ROUTING_PARTITION, RoutingTopics
from schemas.errors import NewerVersionError, RecordFormatError
from schemas.positions import LogBounds

logger = logging.getLogger(__name__)


class RecoveredFold(NamedTuple):
    """What a fold begins with.

    Attributes:
        fold: of the last whole checkpoint, or empty.
        start: the offset to go on at.
        end: where the log ended then.
        newer: why the last checkpoint was not read, where a newer Reprise wrote it: whoever writes
            the next one would take its place.
    """

    fold: RoutingFold
    start: int
    end: int
    newer: NewerVersionError | None = None


async def recover_fold(options: ClientOptions, topics: RoutingTopics) -> RecoveredFold:
    """Reads the last checkpoint, and where the log stands.

    Raises:
        KafkaError: the broker is away.
    """
    # The log after the checkpoint, which is of records that were in the log.
    reader = ChunkReader()

    def take(message: Message) -> None:
        reader.put(message.key, message.value)

    def corrupt(partition: int, offset: int) -> None:
        reader.skipped += 1

    async with opened_reader(options, committed=True) as consumer:
        await read_to_end(consumer, topics.state.name, {ROUTING_PARTITION: 0}, take, corrupt)
    if reader.skipped:
        logger.warning(
            "Cannot read %d messages of %s; they are left out", reader.skipped, topics.state.name
        )
    bounds = await log_bounds(options, topics.log.name, [ROUTING_PARTITION])
    fold, newer = _fold_of(reader)
    if newer is not None:
        newer.where = f"topic {topics.state.name}"
        logger.warning("%s. The routing log is folded without it", newer)
    return place_fold(fold, bounds[ROUTING_PARTITION])._replace(newer=newer)


def _fold_of(reader: ChunkReader) -> tuple[RoutingFold, NewerVersionError | None]:
    """The fold of the last checkpoint that can be read, and why the last one was not."""
    try:
        if reader.state is not None:
            return RoutingFold.load(reader.state), reader.newer
    except NewerVersionError as error:
        return RoutingFold(), error
    except RecordFormatError as error:
        logger.warning("%s. The routing log is folded from its beginning", error)
    return RoutingFold(), reader.newer


def place_fold(fold: RoutingFold, bounds: LogBounds) -> RecoveredFold:
    """Where the log is to be folded on; see `logs.checkpoint.start_behind`."""
    return RecoveredFold(fold, start_behind(fold, bounds, ROUTING_LOG), bounds.end)
