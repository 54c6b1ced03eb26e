"""The publishers whose messages wait in the inbox because the sink says so: what they send would
stand before what others do. One loop.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

from bridge.bounds import WRITER_PAUSE_S
from bridge.publisher.ports import RecordSink
from bridge.publisher.publisher import Publisher
from bridge.sockets.inbox import Inbox
from schemas.clock import Clock
from schemas.identities import PublisherKey


class HeldBack:
    """See the module.

    Args:
        sink: says who.
        inbox: where they wait.
        followed: the publishers.
        clock: of the same process.
    """

    def __init__(
        self,
        sink: RecordSink,
        inbox: Inbox,
        followed: Mapping[PublisherKey, Publisher],
        clock: Clock,
    ) -> None:
        self._sink = sink
        self._inbox = inbox
        self._followed = followed
        self._clock = clock
        self._publishers: dict[Publisher, None] = {}  # a set, in order
        self._is_allowed = True
        self._released = asyncio.Event()

    def look(self, publishers: Iterable[PublisherKey]) -> None:
        """The sink was given records of these: lets those wait that it holds back."""
        for key in publishers:
            if not self._is_allowed or not self._sink.holds_back(key):
                continue
            publisher = self._followed.get(key)
            if self._inbox.is_filling(key):
                self._sink.let_overflow(key)
            elif publisher is not None:
                publisher.is_held_back = True
                self._publishers[publisher] = None
                self._inbox.pause(key)

    def let_go_on(self, publishers: Iterable[PublisherKey]) -> None:
        """The sink holds these back no longer."""
        for key in publishers:
            publisher = self._followed.get(key)
            if publisher is not None and publisher.is_held_back:
                self._let_go_on(publisher)

    def _let_go_on(self, publisher: Publisher) -> None:
        self.discard(publisher)
        publisher.end_pause(self._inbox)
        self._released.set()

    def watch(self) -> None:
        """Lets those go on whose room in the inbox is nearly used up, and those of whom the sink
        has not said that they may. Cost O(publishers that wait).
        """
        for publisher in list(self._publishers):
            key = publisher.registration.publisher
            is_filling = self._inbox.is_filling(key)
            if is_filling:
                self._sink.let_overflow(key)
            if is_filling or not self._sink.holds_back(key):
                self._let_go_on(publisher)

    def discard(self, publisher: Publisher) -> None:
        """Forgets the publisher."""
        publisher.is_held_back = False
        self._publishers.pop(publisher, None)

    async def gather(self, seconds: float) -> None:
        """Returns after so long, or once somebody goes on who has waited for longer already."""
        self._released.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._released.wait(), seconds)

    async def write_all(self, timeout_s: float) -> None:
        """Lets all that waits now become records, as far as there is time: the publishers may go to
        another bridge, which could only ask their engines for it.
        """
        began = self._clock.monotonic()
        waiting = [publisher.registration.publisher for publisher in self._publishers]
        self._is_allowed = False
        try:
            self.let_go_on(waiting)
            while self._clock.monotonic() < began + timeout_s:
                oldest = map(self._inbox.waiting_since, waiting)
                if not any(since is not None and since < began for since in oldest):
                    return
                await asyncio.sleep(WRITER_PAUSE_S)
        finally:
            self._is_allowed = True

    def end(self) -> None:
        """Lets all go on, and nobody wait any more."""
        self._is_allowed = False
        for publisher in list(self._publishers):
            self._let_go_on(publisher)
