"""The publishers whose messages wait in the inbox because the sink says so: what they send would
stand before what others do. One loop.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable

from bridge.publisher.ports import RecordSink
from bridge.sockets.inbox import Inbox
from schemas.identities import PublisherKey
from schemas.limits import WRITER_PAUSE_S


class HeldBack:
    """See the module.

    Args:
        sink: says who.
        inbox: where they wait.
        when_ended: called with a publisher that may go on.
    """

    def __init__(
        self, sink: RecordSink, inbox: Inbox, *, when_ended: Callable[[PublisherKey], None]
    ) -> None:
        self._sink = sink
        self._inbox = inbox
        self._when_ended = when_ended
        self._publishers: dict[PublisherKey, None] = {}  # a set, in order
        self._is_allowed = True
        self._released = asyncio.Event()

    def __contains__(self, publisher: object) -> bool:
        """Whether the publisher waits."""
        return publisher in self._publishers

    def look(self, publishers: Iterable[PublisherKey]) -> None:
        """The sink was given records of these: lets those wait that it holds back."""
        for publisher in publishers:
            if not self._is_allowed or not self._sink.holds_back(publisher):
                continue
            if self._inbox.is_filling(publisher):
                self._sink.let_overflow(publisher)
            else:
                self._publishers[publisher] = None
                self._inbox.pause(publisher)

    def let_go_on(self, publishers: Iterable[PublisherKey]) -> None:
        """The sink holds these back no longer."""
        for publisher in publishers:
            if publisher in self._publishers:
                del self._publishers[publisher]
                self._when_ended(publisher)
                self._released.set()

    def watch(self) -> None:
        """Lets those go on whose room in the inbox is nearly used up, and those of whom the sink
        has not said that they may. Cost O(publishers that wait).
        """
        for publisher in list(self._publishers):
            is_filling = self._inbox.is_filling(publisher)
            if is_filling:
                self._sink.let_overflow(publisher)
            if is_filling or not self._sink.holds_back(publisher):
                self.let_go_on([publisher])

    def discard(self, publisher: PublisherKey) -> None:
        """Forgets the publisher."""
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
        began, waiting = time.monotonic(), list(self._publishers)
        self._is_allowed = False
        try:
            self.let_go_on(waiting)
            while time.monotonic() < began + timeout_s:
                oldest = map(self._inbox.waiting_since, waiting)
                if not any(since is not None and since < began for since in oldest):
                    return
                await asyncio.sleep(WRITER_PAUSE_S)
        finally:
            self._is_allowed = True

    def end(self) -> None:
        """Lets all go on, and nobody wait any more."""
        self._is_allowed = False
        self.let_go_on(list(self._publishers))
