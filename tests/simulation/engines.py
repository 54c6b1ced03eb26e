"""Publishers without sockets: a cache, a replay buffer, and links that lose, cut and come back.

An engine's cache is the truth to which every answer is compared.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Final, Protocol

from bridge.sequencing.replay_client import END_SEQUENCE
from bridge.sockets.raw_message import RawMessage
from schemas.identities import PublisherKey
from schemas.registration import PublisherKind, Registration
from simulation.engines.cache import BlockChain, CacheSizes, EngineCache
from simulation.engines.wire import EngineEvent, EventEncoder
from tests.simulation.loop import EPOCH_S, Process, SimulatedLoop, State, current

BLOCK_SIZE: Final = 4
MODEL: Final = "m"
REPLAY_TIMEOUT_S: Final = 2.0
_WIRES: Final = ("0.9", "0.20", "0.26", "0.33")


class Inbox(Protocol):
    """Where received messages go."""

    def put(self, messages: Sequence[RawMessage]) -> None:
        """Appends them."""
        ...


class SimulatedEngine:
    """One rank of an engine, with the socket of one incarnation after another.

    Args:
        replays: whether it has a replay socket.
        buffer_batches: how many batches that has.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        rng: random.Random,
        number: int,
        *,
        replays: bool,
        buffer_batches: int,
        gpu_blocks: int = 24,
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._sizes = CacheSizes(block_size=BLOCK_SIZE, gpu_blocks=gpu_blocks)
        self._encoder = EventEncoder(rng.choice(_WIRES))
        self.registration = Registration(
            endpoint=f"tcp://engine-{number}:5557",
            replay_endpoint=f"tcp://engine-{number}:5558" if replays else "",
            kind=PublisherKind("vLLM"),
            model_name=MODEL,
            instance_id=f"engine-{number}",
            block_size=BLOCK_SIZE,
        )
        self.links: list[Link] = []
        self.buffer_batches = buffer_batches
        self.up = False
        self.start()

    @property
    def publisher(self) -> PublisherKey:
        """Its identity."""
        return self.registration.publisher

    def start(self) -> None:
        """Starts a new incarnation: empty, and numbering from 0."""
        root = self._rng.randbytes(32)
        self.cache = EngineCache(self._sizes, chain=BlockChain(BLOCK_SIZE, root))
        self.sequence = 0
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=self.buffer_batches)
        self.up = True

    def stop(self) -> None:
        """Ends the incarnation: links go down, what was under way is lost."""
        self.up = False
        for link in self.links:
            link.set_up(False)

    def serve(self, prompt: Sequence[int]) -> None:
        """One request: its events are one batch."""
        self._publish(self.cache.run(prompt).events)

    def clear(self) -> None:
        """Forgets everything, and says so."""
        self._publish(self.cache.clear())

    def _publish(self, events: list[EngineEvent]) -> None:
        now = EPOCH_S + self._loop.now
        payload = self._encoder.encode(events, timestamp_s=now, dp_rank=0)
        self.buffer.append((self.sequence, payload))
        for link in self.links:
            link.send([b"", self.sequence.to_bytes(8, "big"), payload])
        self.sequence += 1


class Link:
    """From one engine to one bridge: in order; what is sent while it is down is lost."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, engine: SimulatedEngine) -> None:
        self._loop = loop
        self._rng = rng
        self._process = current()
        self._context = None if self._process is None else self._process.context.copy()
        self._last_at = 0.0
        self._inbox: Inbox | None = None
        self.engine = engine
        self.up = False
        self.times_up = 0
        self.loss = 0.0
        self._epoch = 0
        engine.links.append(self)

    def open(self, inbox: Inbox) -> None:
        """Connects; the engine need not be there."""
        self._inbox = inbox
        self.set_up(self.engine.up)

    def set_up(self, up: bool) -> None:
        """Comes up or goes down; what was under way is lost."""
        if up and not self.up:
            self.times_up += 1
        if up != self.up:
            self._epoch += 1
        self.up = up

    def send(self, frames: list[bytes]) -> None:
        """Hands one message on, or loses it."""
        if not self.up or self._rng.random() < self.loss:
            return
        arrives_at = max(self._last_at, self._loop.now + self._rng.random() * 0.003)
        self._last_at = arrives_at
        self._loop.call_at(arrives_at, self._arrive, frames, self._epoch, context=self._context)

    def _arrive(self, frames: list[bytes], epoch: int) -> None:
        if epoch != self._epoch or self._inbox is None:
            return
        received_at = EPOCH_S + self._loop.now
        self._inbox.put([RawMessage(self.engine.publisher, frames, received_at)])

    def close(self) -> None:
        """Never delivers again."""
        self.set_up(False)
        if self in self.engine.links:
            self.engine.links.remove(self)


class SimulatedSubscriber:
    """In place of `bridge.sockets.subscriber.Subscriber`, for one process."""

    def __init__(
        self, loop: SimulatedLoop, rng: random.Random, engines: Sequence[SimulatedEngine]
    ) -> None:
        self.unexpected_errors = 0
        self._loop = loop
        self._rng = rng
        self._engines = {engine.publisher: engine for engine in engines}
        self._links: dict[PublisherKey, Link] = {}
        self.inbox: Inbox | None = None

    def start(self) -> None:
        """Nothing: there is no thread."""

    def stop(self) -> None:
        """Closes every link."""
        for publisher in list(self._links):
            self.unfollow(publisher)

    def follow(self, registration: Registration) -> None:
        """Connects."""
        assert self.inbox is not None
        link = Link(self._loop, self._rng, self._engines[registration.publisher])
        self._links[registration.publisher] = link
        link.open(self.inbox)

    def unfollow(self, publisher: PublisherKey) -> None:
        """Disconnects, if it is connected."""
        link = self._links.pop(publisher, None)
        if link is not None:
            link.close()

    def connected(self, publisher: PublisherKey) -> bool:
        """Whether the link is up."""
        return publisher in self._links and self._links[publisher].up

    def links(self, publisher: PublisherKey) -> int:
        """How often it came up."""
        return self._links[publisher].times_up if publisher in self._links else 0


class Replays:
    """The engines' replay sockets: they lose replies, end early, or are away."""

    def __init__(
        self, loop: SimulatedLoop, rng: random.Random, engines: Sequence[SimulatedEngine]
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._by_endpoint = {engine.registration.replay_endpoint: engine for engine in engines}
        self.loss = 0.0
        self.requests = 0

    async def ask(
        self, publisher: PublisherKey, endpoint: str, start: int
    ) -> AsyncGenerator[list[RawMessage], None]:
        """The replies to one request, up to the end marker.

        Raises:
            TimeoutError: no answer, or no end of it.
        """
        self.requests += 1
        engine = self._by_endpoint[endpoint]
        await asyncio.sleep(self._rng.random() * 0.005)
        if not engine.up:
            await asyncio.sleep(REPLAY_TIMEOUT_S)
            raise TimeoutError
        batches = [batch for batch in engine.buffer if batch[0] >= start]
        for first in range(0, len(batches), 8):
            await asyncio.sleep(self._rng.random() * 0.002)
            chunk = [
                RawMessage(
                    publisher,
                    [b"", sequence.to_bytes(8, "big"), payload],
                    EPOCH_S + self._loop.now,
                )
                for sequence, payload in batches[first : first + 8]
                if self._rng.random() >= self.loss
            ]
            if chunk:
                yield chunk
        if self._rng.random() < self.loss:
            await asyncio.sleep(REPLAY_TIMEOUT_S)
            raise TimeoutError


__all__ = [
    "END_SEQUENCE",
    "Link",
    "Process",
    "Replays",
    "SimulatedEngine",
    "SimulatedSubscriber",
    "State",
]
