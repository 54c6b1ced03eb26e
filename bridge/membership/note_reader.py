"""Reads what bridges say to each other of handovers: the later notes of some partitions of the
registry, each behind those that were read.
"""

import logging
from collections.abc import Callable, Collection, Mapping

from bridge.bounds import BRIDGE_RETRY_S
from bridge.membership.bounds import HANDOVER_LOOK_S
from bridge.membership.cursors import Cursors
from brokers.client_types import Consumer, Partition
from logs.attempts import LogLostError
from logs.follower import Follower, Messages
from schemas.codec import CursorEntry
from schemas.limits import BRIDGE_LEAVE_S

_logger = logging.getLogger(__name__)


class NoteReader(Follower):
    """See the module.

    Args:
        homes: the partitions that are to be read now.

    Attributes:
        faults: unexpected errors.
    """

    def __init__(
        self,
        cursors: Cursors,
        homes: Callable[[], Collection[int]],
        take: Callable[[CursorEntry], None],
    ) -> None:
        super().__init__(
            poll_ms=round(1000 * HANDOVER_LOOK_S),
            retry_first_s=HANDOVER_LOOK_S,
            retry_max_s=BRIDGE_RETRY_S,
            leave_s=BRIDGE_LEAVE_S,
        )
        self.faults = 0
        self._cursors = cursors
        self._homes = homes
        self._take = take
        self._next: dict[int, int] = {}  # by partition
        self._reads: tuple[int, ...] = ()

    def read_behind(self, offsets: Mapping[int, int]) -> None:
        """These partitions are read from there on; or again, where they were read already."""
        self._next |= offsets
        self._reads = ()

    def make_consumer(self) -> Consumer:
        """See `Follower`."""
        return self._cursors.open_reader()

    async def begin(self, consumer: Consumer) -> None:
        """See `Follower`."""
        self._reads = ()
        self._assign(consumer)

    def _assign(self, consumer: Consumer) -> None:
        homes = tuple(sorted(set(self._homes())))
        if not homes or homes == self._reads:
            return
        topic = self._cursors.topic
        consumer.assign([Partition(topic, home) for home in homes])
        for home in homes:
            consumer.seek(Partition(topic, home), self._next.get(home, 0))
        self._reads = homes

    async def take(self, messages: Messages) -> None:
        """See `Follower`."""
        for part, some in messages.items():
            for message in some:
                self._next[part.partition] = message.offset + 1
                entry = self._cursors.read_note(message)
                if entry is not None:
                    self._take(entry)

    async def turned(self, consumer: Consumer, *, has_read: bool) -> None:
        """See `Follower`."""
        self.backoff.reset()
        self._assign(consumer)

    def lost(self, error: LogLostError) -> bool:
        """See `Attempts`."""
        self.away(error)
        return False

    def away(self, error: Exception) -> None:
        """See `Attempts`."""
        _logger.debug("Cannot read how far handovers are, retrying: %r", error)

    def failed(self, error: Exception) -> None:
        """See `Attempts`."""
        self.faults += 1
        _logger.exception("Unexpected error in a handover; continuing")
