"""What bridges have of engines, without sockets: links that lose, cut and come back, replays, and
answers over HTTP.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Final, Protocol

from bridge.engine_http.answers import Process, PublisherSource
from bridge.engine_http.bounds import HTTP_ENGINE_WAIT_S
from bridge.engine_http.client import NoAnswerError
from bridge.engine_http.engine import Bodies
from bridge.link_numbers import LinkNumber
from bridge.publisher.replay_client import Replayer, ReplaySocket
from bridge.sockets.raw_message import RawMessage
from schemas.errors import RegistrationConflictError
from schemas.identities import PublisherKey
from schemas.registration import Registration
from tests.simulation.engines import SimulatedEngine
from tests.simulation.loop import SimulatedLoop, current

REPLAY_TIMEOUT_S: Final = 2.0


class Inbox(Protocol):
    """Where received messages go."""

    def put(self, messages: Sequence[RawMessage]) -> None:
        """Appends them."""
        ...


class DiscardingInbox(Inbox, Protocol):
    """An inbox whose messages can be dropped."""

    def discard(self, publisher: PublisherKey) -> None:
        """Drops a publisher's waiting messages."""
        ...


class Link:
    """From one engine to one bridge: in order; what is sent while it is down is lost.

    Args:
        only_at: where the engine must publish, and that it comes up but once; "": it may be
            anywhere, and comes up again and again.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        rng: random.Random,
        engine: SimulatedEngine,
        *,
        only_at: str = "",
    ) -> None:
        self._loop = loop
        self._rng = rng
        self.process = current()
        self._context = None if self.process is None else self.process.context.copy()
        self._last_at = 0.0
        self._inbox: Inbox | None = None
        self.engine = engine
        self.up = False
        self.times_up = 0
        self.arrived = 0
        self.loss = 0.0
        self._epoch = 0
        self._only_at = only_at
        self._is_over = False
        engine.links.append(self)

    def open(self, inbox: Inbox) -> None:
        """Connects; the engine need not be there."""
        self._inbox = inbox
        self.set_up(self.engine.up)

    def set_up_with_engine(self) -> None:
        """Comes up where the engine is there."""
        if self in self.engine.links:
            self.set_up(self.engine.up)

    def set_up(self, up: bool) -> None:
        """Comes up or goes down; what was under way is lost."""
        if self._only_at:
            self._is_over |= self.up and not up
            up = up and not self._is_over and self.engine.source.endpoint == self._only_at
        if up and not self.up:
            self.times_up += 1
        if up != self.up:
            self._epoch += 1
        self.up = up

    def send(self, frames: list[bytes]) -> None:
        """Hands one message on, or loses it: only behind others that are on their way, as an
        engine's socket does whose queue is full.
        """
        if not self.up:
            return
        if self._rng.random() < self.loss and self._last_at > self._loop.now:
            self.engine.note_unseen_loss()
            return
        soon = self._loop.now + self._rng.random() * 0.003
        arrives_at = max(self._last_at + 1e-6, soon)  # timers of one moment have no order
        self._last_at = arrives_at
        self._loop.call_at(arrives_at, self._arrive, frames, self._epoch, context=self._context)

    def _arrive(self, frames: list[bytes], epoch: int) -> None:
        if epoch != self._epoch or self._inbox is None:
            return
        _, number, payload = frames
        self.engine.note_heard(int.from_bytes(number, "big"), payload, is_replayed=False)
        message = RawMessage(
            self.engine.publisher, frames, self._loop.now, LinkNumber(self.times_up)
        )
        self._inbox.put([message])
        self.arrived += 1

    def close(self) -> None:
        """Never delivers again."""
        self.set_up(False)
        if self in self.engine.links:
            self.engine.links.remove(self)


class SimulatedSubscriber:
    """In place of `bridge.sockets.subscriber.Subscriber`, for one process. Its thread may get no
    core for a while (`starve`): it knows of nothing then that comes, nor that a link goes down.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        rng: random.Random,
        engines: Sequence[SimulatedEngine],
        inbox: DiscardingInbox,
    ) -> None:
        self.unexpected_errors = 0
        self._inbox = inbox
        self._loop = loop
        self._rng = rng
        self._engines = {engine.publisher: engine for engine in engines}
        self._links: dict[PublisherKey, Link] = {}
        self._told: dict[PublisherKey, tuple[int, bool, int, int]] = {}
        process = current()
        self._context = None if process is None else process.context.copy()
        self._starved_at: float | None = None
        self._seen: dict[PublisherKey, tuple[bool, int]] = {}  # as of then
        self._unread: list[RawMessage] = []

    def start(self) -> None:
        """Nothing: there is no thread."""

    def stop(self) -> None:
        """Closes every link."""
        for publisher in list(self._links):
            self.unfollow(publisher)

    def follow(self, registration: Registration) -> None:
        """Connects."""
        if registration.publisher in self._links:
            raise RegistrationConflictError(registration.service_key)
        link = Link(self._loop, self._rng, self._engines[registration.publisher])
        self._links[registration.publisher] = link
        link.open(self)

    def follow_once(self, registration: Registration, *, leaves: bool = False) -> None:
        """Connects to where it is now, unless it is connected."""
        publisher = registration.publisher
        link = self._links.get(publisher)
        if link is not None:
            if link.up and not leaves:
                return
            link.close()
        engine = self._engines[publisher]
        once = Link(self._loop, self._rng, engine, only_at=registration.endpoint)
        once.times_up = 0 if link is None else link.times_up
        self._links[publisher] = once
        once.open(self)

    def unfollow(self, publisher: PublisherKey) -> None:
        """Disconnects, if it is connected."""
        link = self._links.pop(publisher, None)
        if link is not None:
            link.close()
            self._unread = [one for one in self._unread if one.publisher != publisher]
            self._seen.pop(publisher, None)
            self._inbox.discard(publisher)

    def put(self, messages: Sequence[RawMessage]) -> None:
        """See `Inbox`."""
        if self._starved_at is None:
            self._inbox.put(messages)
        else:
            self._unread += messages

    def starve(self, seconds: float) -> None:
        """The thread gets no core for so long."""
        if self._starved_at is None:
            self._starved_at = self._loop.now
            self._seen = {key: (one.up, one.times_up) for key, one in self._links.items()}
            self._loop.call_later(seconds, self._go_on, context=self._context)

    def _go_on(self) -> None:
        self._starved_at = None
        self._seen = {}
        unread, self._unread = self._unread, []
        for message in unread:
            self._inbox.put([message._replace(received_at=self._loop.now)])

    def connected(self, publisher: PublisherKey) -> bool:
        """Whether the link is up, as far as the thread knows."""
        return self._look(publisher)[0]

    def _look(self, publisher: PublisherKey) -> tuple[bool, int]:
        link = self._links.get(publisher)
        is_now = (False, 0) if link is None else (link.up, link.times_up)
        return self._seen.get(publisher, is_now)

    def is_silent(self, publisher: PublisherKey) -> bool:
        """Never."""
        return False

    def trouble(self, publisher: PublisherKey) -> str:
        """None."""
        return ""

    def received_until(self, publisher: PublisherKey) -> float:
        """Now, where the thread runs: nothing waits in a socket then."""
        return self._loop.now if self._starved_at is None else self._starved_at

    def changed(self) -> tuple[float, list[PublisherKey]]:
        """Whose link is another, has come up or gone down, or has brought something."""
        if self._starved_at is not None:
            return self._starved_at, []
        seen = {
            publisher: (id(link), link.up, link.times_up, link.arrived)
            for publisher, link in self._links.items()
        }
        told, self._told = self._told, seen
        return self._loop.now, [one for one in seen if seen[one] != told.get(one)]

    def links(self, publisher: PublisherKey) -> LinkNumber:
        """How often it came up."""
        return LinkNumber(self._look(publisher)[1])


class Replays:
    """The engines' replay sockets: they lose replies, end early, or are away."""

    def __init__(
        self, loop: SimulatedLoop, rng: random.Random, engines: Sequence[SimulatedEngine]
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._engines = {engine.publisher: engine for engine in engines}
        self.loss = 0.0

    async def ask(
        self, publisher: PublisherKey, endpoint: str, start: int
    ) -> AsyncGenerator[list[RawMessage], None]:
        """The replies to one request, up to the end marker.

        Raises:
            TimeoutError: no answer, or no end of it.
        """
        engine = self._engines[publisher]
        await asyncio.sleep(self._rng.random() * 0.005)
        if not engine.up:
            await asyncio.sleep(REPLAY_TIMEOUT_S)
            raise TimeoutError
        life = engine.life
        batches = [batch for batch in engine.buffer if batch[0] >= start]
        for first in range(0, len(batches), 8):
            loss = self.loss if first else 0.0  # of a long reply, which a socket has no room for
            await asyncio.sleep(self._rng.random() * 0.002)
            if engine.life != life:
                raise TimeoutError
            chunk = [
                RawMessage(
                    publisher,
                    [b"", sequence.to_bytes(8, "big"), payload],
                    self._loop.now,
                )
                for sequence, payload in batches[first : first + 8]
                if self._rng.random() >= loss
            ]
            for sequence, payload in batches[first : first + 8]:
                engine.note_heard(sequence, payload, is_replayed=True)
            if chunk:
                yield chunk
        if self._rng.random() < self.loss:
            await asyncio.sleep(REPLAY_TIMEOUT_S)
            raise TimeoutError


class SimulatedEngineHttp:
    """In place of `bridge.engine_http.engine.EngineHttp`: the engines' HTTP servers, some of which
    do not always answer.
    """

    def __init__(
        self, loop: SimulatedLoop, rng: random.Random, engines: Sequence[SimulatedEngine]
    ) -> None:
        self.requests: Counter[str] = Counter()
        self._loop = loop
        self._rng = rng
        self._engines = {engine.publisher: engine for engine in engines}

    async def bodies(self, registration: Registration) -> Bodies:
        """Of what they are these say nothing."""
        raise NoAnswerError(f"{registration.http_url} does not say what it is")

    async def is_there(self, registration: Registration) -> bool:
        """See `EngineSource`."""
        return await self._asked(registration) is not None

    async def process(self, registration: Registration) -> Process | None:
        """See `EngineSource`."""
        engine = await self._asked(registration)
        return None if engine is None else engine.tell_process()

    async def sources(self, registration: Registration) -> list[PublisherSource]:
        """See `EngineSource`."""
        engine = await self._asked(registration)
        if engine is None:
            raise NoAnswerError("Expected an answer, got none")
        return [engine.source]

    async def _asked(self, registration: Registration) -> SimulatedEngine | None:
        engine = self._engines[registration.publisher]
        await asyncio.sleep(self._rng.random() * 0.05)
        if engine.up and self._rng.random() < engine.answers_http:
            return engine
        await asyncio.sleep(self._rng.choice((0.0, HTTP_ENGINE_WAIT_S)))
        return None


class SimulatedReplayer(Replayer):
    """The real one, but for the sockets."""

    def __init__(self, replays: Replays) -> None:
        super().__init__()
        self.close()  # its sockets' context, which a killed process would leave behind
        self._replays = replays

    async def _replies(
        self,
        publisher: PublisherKey,
        engine: ReplaySocket,
        start: int,
        *,
        turn: int,
        patience_s: float = 0.0,
    ) -> AsyncGenerator[list[RawMessage], None]:
        async for chunk in self._replays.ask(publisher, engine.endpoint, start):
            yield chunk
