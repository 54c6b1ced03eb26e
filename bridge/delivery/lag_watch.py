"""Looks how far the workers are, while publishers wait for that or may soon; see `partition_lag`.

What the workers' group has committed is asked for, up to fifty times a second while it moves,
less and less often while it does not, and not at all while little is under way. Where it cannot be
asked for, or does not move, nobody waits.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bridge.bounds import LAG_SILENT_S
from bridge.delivery.partition_lag import PartitionLag
from brokers.availability import describe
from brokers.errors import AWAY
from brokers.group_offsets import GroupOffset, GroupOffsets
from logs.attempts import Attempts
from schemas.clock import REAL_CLOCK
from schemas.folded_work import read_work
from schemas.identities import PublisherKey

LAG_LOOK_S: Final = 0.02  # how often it is looked how far the workers are, while some may wait
LAG_LOOK_MAX_S: Final = 0.08  # the same where they have not got on; a look is 0.5 ms of CPU

_logger = logging.getLogger(__name__)


class LagWatch(Attempts):
    """See the module. One loop.

    Args:
        offsets: what the workers' group has committed.
        on_released: given the publishers that need not wait any more.
        clock: monotonic seconds.
    """

    away_when = AWAY

    def __init__(
        self,
        lags: Sequence[PartitionLag],
        offsets: GroupOffsets,
        *,
        on_released: Callable[[Sequence[PublisherKey]], None],
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        super().__init__(retry_first_s=LAG_LOOK_S, retry_max_s=LAG_LOOK_MAX_S)
        self._clock = clock
        self._lags = lags
        self._offsets = offsets
        self._on_released = on_released
        self._asking: list[PartitionLag] = []
        self._is_failing = False  # logged already
        self._seen: dict[int, GroupOffset] = {}  # what was committed, by partition

    async def run(self) -> None:
        """Looks until it is cancelled."""
        try:
            await super().run()
        finally:
            await self._offsets.close()

    async def attempt(self) -> None:
        """See `Attempts`: looks once, and waits until it is to be looked again."""
        now = self._clock()
        self._asking = [lag for lag in self._lags if lag.asks(now)]
        if self._asking:
            offsets = await self._offsets.fetch([lag.partition for lag in self._asking])
            self._is_failing = False
            self._release(offsets)
            if any(self._seen.get(place) != offset for place, offset in offsets.items()):
                self.backoff.reset()
            self._seen.update(offsets)
        else:
            self.backoff.reset()
        await self.pause()

    def away(self, error: Exception) -> None:
        """See `Attempts`: nobody waits meanwhile."""
        _logger.log(
            logging.DEBUG if self._is_failing else logging.INFO,
            "Cannot read how far the workers have folded: %s. Not waiting for them; retrying",
            describe(error),
        )
        self._is_failing = True
        self._release({})

    async def pause(self) -> None:
        """See `Attempts`."""
        if self._is_failing:
            await asyncio.sleep(LAG_SILENT_S)
        else:
            await super().pause()

    def _release(self, offsets: Mapping[int, GroupOffset]) -> None:
        """The publishers go on that need not wait any more, by what was committed."""
        now = self._clock()
        for lag in self._asking:
            found = offsets.get(lag.partition)
            if found is None:
                released = lag.folded(None, now)
            else:
                released = lag.folded(found.offset, now, read_work(found.metadata))
            if released:
                self._on_released(released)
