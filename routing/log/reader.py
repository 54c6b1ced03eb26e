"""Follows the routing log: what all replicas decided, and what came of it.

It begins with the last checkpoint and folds the log behind it. Decisions go by what was folded, and
by what this replica has told the log and not read back. Until the reader has reached where the log
ended at its start, and after each time that it could not read, what is folded is of the past, and
says nothing of what has come to be known lately.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from brokers.broker_settings import KafkaSettings
from brokers.client_types import Partition
from brokers.options import ClientOptions
from logs.fold_follower import FoldFollower, FollowedLog, LogAccess
from logs.interface import LogEntry
from logs.shared_condition import SharedCondition
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.log.recovery import RecoveredFold, recover_fold
from routing.log.topics import ROUTING_LOG, ROUTING_PARTITION, RoutingTopics
from schemas.clock import REAL_CLOCK
from schemas.codec import decode_routing

ROUTING_READ_WAIT_S: Final = 0.02  # until it is looked again whether a long question is answered


class RoutingReader(FoldFollower):
    """Folds and follows the log; on the loop that calls `run`."""

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        live: LiveLoad,
        queue: RoutingQueue,
        condition: SharedCondition,
        *,
        access: LogAccess | None = None,
        clock: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        """Args:
        live: what is kept up to date.
        condition: set while the log cannot be read.
        access: how the log is reached; None: in Kafka.
        clock: Unix seconds.
        """
        topics = RoutingTopics.of(settings)
        log = FollowedLog(
            ROUTING_LOG.name,
            settings,
            topics,
            Partition(topics.log.name, ROUTING_PARTITION),
            "decisions go by what this replica knows of what others decided",
        )
        super().__init__(log, access or LogAccess.in_kafka(log, options), condition)
        self._live = live
        self._queue = queue
        self._folded = live.folded
        self._options = options
        self._topics = topics
        self._clock = clock

    async def recover(self) -> tuple[int, int]:
        """See `FoldFollower`."""
        recovered = await self.recovered()
        self._live.rebase(recovered.fold)
        return recovered.start, recovered.end

    async def recovered(self) -> RecoveredFold:
        """The fold as of its checkpoint, and what of the log is behind it."""
        return await recover_fold(self._options, self._topics)

    async def fold(self, entries: Iterable[LogEntry]) -> None:
        """See `FoldFollower`."""
        # Somebody reads all of it, and this loop has other work. An event would be set by a thread.
        while not self._folded.begin():  # noqa: ASYNC110
            await asyncio.sleep(ROUTING_READ_WAIT_S)
        try:
            await super().fold(entries)
        finally:
            self._folded.end()

    def apply(self, entry: LogEntry) -> None:
        """See `FoldFollower`."""
        offset, record = entry.offset, decode_routing(entry.value)
        if self.is_following:
            self._queue.push_outcomes(self._live.follow(offset, record, self._clock()))
        else:
            self._live.apply(offset, record)

    def caught_up(self) -> None:
        """See `FoldFollower`: decisions go by all that the log has."""
        self._live.note_samples()
        self._queue.push_outcomes(self._live.take_held(self._clock()))
