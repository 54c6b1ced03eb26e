"""Keeps in the log who is registered: retention drops these records like all others.

A table that is built from what the log still has knows only the publishers that are registered
there. Of all others it takes events, and no heartbeat: they would be `not_followed` for good. So it
is looked where each partition begins, and whose record stands before that is registered again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from brokers.errors import AWAY
from brokers.options import ClientOptions
from brokers.reading import log_bounds
from schemas.identities import PublisherKey, StreamKey

LOG_START_LOOK_S: Final = 10.0  # how often it is looked whose registration the log has dropped

_logger = logging.getLogger(__name__)


class RegistrationsWatch:
    """See the module. One loop.

    Args:
        partition_of: the partition of a stream's records.
        logged: of each publisher that is followed and registered in the log, the offset of the last
            record that says so, or one below it.
        register_again: is given those of which the log has dropped it.
    """

    def __init__(
        self,
        options: ClientOptions,
        topic: str,
        partition_of: Callable[[StreamKey], int],
        *,
        logged: Callable[[], Iterable[tuple[PublisherKey, int]]],
        register_again: Callable[[Sequence[PublisherKey]], None],
    ) -> None:
        self._options = options
        self._topic = topic
        self._partition_of = partition_of
        self._logged = logged
        self._register_again = register_again

    async def run(self) -> None:
        """Looks every LOG_START_LOOK_S, until it is cancelled."""
        while True:
            await asyncio.sleep(LOG_START_LOOK_S)
            try:
                await self.look()
            except AWAY as error:
                _logger.debug("Cannot see where the log begins, looking again: %r", error)

    async def look(self) -> None:
        """Looks once. Cost O(publishers).

        Raises:
            KafkaError, OSError, TimeoutError: the brokers do not answer.
        """
        partitions = {self._partition_of(publisher.stream) for publisher, _ in self._logged()}
        if not partitions:
            return
        bounds = await log_bounds(self._options, self._topic, partitions)
        dropped = [
            publisher
            for publisher, offset in self._logged()
            if (found := bounds.get(self._partition_of(publisher.stream))) and offset < found.start
        ]
        if dropped:
            _logger.info(
                "The log has dropped the registrations of %d publishers; writing them again",
                len(dropped),
            )
            self._register_again(dropped)
