"""Publishers without sockets: a cache, a replay buffer, and links that lose, cut and come back.

An engine's cache is the truth to which every answer is compared.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from bridge.engine_http.answers import Process, PublisherSource
from bridge.engine_http.client import NoAnswerError
from bridge.sequencing.replay_client import Replayer, ReplaySocket
from bridge.sequencing.sequencer import Sequencer
from bridge.sockets.raw_message import RawMessage
from schemas.errors import RegistrationConflictError
from schemas.identities import PublisherKey
from schemas.limits import HTTP_ENGINE_WAIT_S
from schemas.records import EventsRecord, GapRecord
from schemas.registration import PublisherKind, Registration
from simulation.engines.cache import BlockChain, CacheSizes, EngineCache
from simulation.engines.wire import AllBlocksCleared, BlockStored, EngineEvent, EventEncoder
from tests.building import prefix_hashes
from tests.simulation.loop import EPOCH_S, SimulatedLoop, current

BLOCK_SIZE: Final = 4
MODEL: Final = "m"
REPLAY_TIMEOUT_S: Final = 2.0
PAST_S: Final = 30.0
"""For how long it is remembered what an engine had cached."""
_WIRES: Final = ("0.9", "0.20", "0.26", "0.33")


class Spoilt(StrEnum):
    """How a batch is not as an engine sends it; each is the word by which it is dropped."""

    BATCH = "undecodable"
    EVENT = "unknown_event"


_BAD_BATCH: Final = b"\xc1"
_BAD_EVENT: Final[dict[bool, object]] = {False: ["BlockPinned", [1]], True: {"type": "BlockPinned"}}
"""By whether the events are maps."""


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


class SimulatedEngine:
    """One rank of an engine, with the socket of one incarnation after another.

    Args:
        replays: whether it has a replay socket.
        buffer_batches: how many batches that has.
        answers_http: how many of the questions to its HTTP server it answers while it is up; 0:
            it is registered without one.
        by_url: whether it is registered by that alone, and publishes elsewhere in each life.
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
        answers_http: float = 0.0,
        by_url: bool = False,
    ) -> None:
        self.number = number
        self._loop = loop
        self._rng = rng
        self._sizes = CacheSizes(block_size=BLOCK_SIZE, gpu_blocks=gpu_blocks)
        self._encoder = EventEncoder(rng.choice(_WIRES))
        self.answers_http = answers_http
        self.registration = Registration(
            endpoint=f"http://engine-{number}:8000" if by_url else f"tcp://engine-{number}:5557",
            replay_endpoint=f"tcp://engine-{number}:5558" if replays else "",
            http_endpoint=f"http://engine-{number}:8000" if answers_http and not by_url else "",
            kind=PublisherKind("vLLM"),
            model_name=MODEL,
            instance_id=f"engine-{number}",
            block_size=BLOCK_SIZE,
        )
        self.links: list[Link] = []
        self._lives: dict[float, int] = {}  # by the time of a batch, the incarnation that sent it
        self._heard: set[tuple[int, int]] = set()
        self.arrived: set[tuple[int, int]] = set()  # over links: life, sequence
        self.replayed: set[tuple[int, int]] = set()
        self.published: dict[int, list[list[bytes]]] = {}  # the frames of all batches, by life
        self.spoilt: dict[tuple[int, int], Spoilt] = {}  # life, sequence
        self._spoils: Spoilt | None = None
        self._life = 0
        self._skew_s = 0.0
        self._prefixes: dict[int, int] = {}  # by block hash, of all incarnations
        self.lost_unseen = False  # see `note_unseen_loss`
        self.past: deque[tuple[float, set[int] | None]] = deque()
        self.buffer_batches = buffer_batches
        self.up = False
        self.start()

    @property
    def encoded_registration(self) -> bytes:
        """As the registry has it."""
        return msgspec.msgpack.encode(self.registration)

    @property
    def publisher(self) -> PublisherKey:
        """Its identity."""
        return self.registration.publisher

    @property
    def lives_heard(self) -> int:
        """How many of its lives anybody has received something of."""
        return len({life for life, _ in self._heard})

    def start(self) -> None:
        """Starts a new incarnation: empty, and numbering from 0."""
        root = self._rng.randbytes(32)
        self.cache = EngineCache(self._sizes, chain=BlockChain(BLOCK_SIZE, root))
        self.sequence = 0
        self._life += 1
        self._skew_before_s = self._skew_s
        if self._life > 1 and self.registration.replay_endpoint:
            self._skew_s = self._rng.choice((0.0, 0.0, -50.0, 20.0))  # of its clock
        self._started_at = EPOCH_S + self._loop.now + self._skew_s
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=self.buffer_batches)
        self.up = True
        self._note_past(set())

    def stop(self) -> None:
        """Ends the incarnation: links go down, what was under way is lost."""
        self.up = False
        self._note_past(None)
        for link in self.links:
            link.set_up(False)

    def _note_past(self, held: set[int] | None) -> None:
        self.past.append((self._loop.now, held))
        while len(self.past) > 1 and self.past[1][0] < self._loop.now - PAST_S:
            self.past.popleft()

    def _note_events(self, events: Sequence[EngineEvent]) -> None:
        """What was held after each block of a batch: its records may have a part of it each."""
        held = self.past[-1][1] or set()
        for event in events:
            if isinstance(event, AllBlocksCleared):
                held = set()
                self._note_past(held)
                continue
            for block in event.block_hashes:
                prefix = self._prefixes[int(block)]
                held = held | {prefix} if isinstance(event, BlockStored) else held - {prefix}
                self._note_past(held)
        self._note_past(self.held())

    def was_so(self, found: set[int], *, within_s: float) -> bool:
        """Whether this is all that was cached at some time of the last seconds."""
        since = self._loop.now - within_s
        past = [held for _, held in self.past]
        begun = [at for at, _ in self.past]
        return any(
            held == found
            for number, held in enumerate(past)
            if number + 1 == len(past) or begun[number + 1] >= since
        )

    def serve(self, prompt: Sequence[int]) -> None:
        """One request: its events are one batch."""
        hashes = self.cache.chain.hashes(prompt)
        self._prefixes.update(zip(hashes, prefix_hashes(prompt, BLOCK_SIZE), strict=True))
        self._publish(self.cache.run(prompt).events)

    def held(self) -> set[int]:
        """The prefix hashes of what is cached: the truth."""
        return {self._prefixes[block] for block, _ in self.cache.snapshot().held}

    def note_unseen_loss(self) -> None:
        """A link has lost a message and has not gone down: without a replay socket, what comes next
        shows it, and nothing else.
        """
        self.lost_unseen = self.lost_unseen or not self.registration.replay_endpoint

    def note_heard(self, sequence: int, *, is_replayed: bool) -> None:
        """A batch of the present incarnation has been received by somebody."""
        self._heard.add((self._life, sequence))
        (self.replayed if is_replayed else self.arrived).add((self._life, sequence))

    def life_at(self, engine_time: float) -> int | None:
        """Which of its lives has sent the batch of this time; None where the time is not known."""
        return self._lives[engine_time] if engine_time else None

    @property
    def life(self) -> int:
        """The present one, from 1."""
        return self._life

    @property
    def is_set_back(self) -> bool:
        """Whether its clock shows less than that of the life before."""
        return self._skew_s < self._skew_before_s

    def spoilt_in(self, life: int, how: Spoilt) -> set[int]:
        """The batches of one of its lives that were spoilt in this way."""
        return {number for (of, number), one in self.spoilt.items() if (of, one) == (life, how)}

    def spoil_next(self, how: Spoilt) -> None:
        """What it publishes next is not as it should be, live and in its buffer."""
        self._spoils = how

    @property
    def source(self) -> PublisherSource:
        """Where it publishes in its present life."""
        replay_endpoint = self.registration.replay_endpoint
        return PublisherSource(0, f"tcp://engine-{self.number}:{self._life}", replay_endpoint, None)

    def tell_process(self) -> Process:
        """What its HTTP server says of the present incarnation; somebody has heard of it then."""
        self._heard.add((self._life, -1))
        return Process(f"life {self._life}", self._started_at)

    def hid_a_restart(self, records: Iterable[EventsRecord | GapRecord]) -> bool:
        """Whether the numbers of its batches could not show that it was started again: the first
        one of an incarnation that anybody heard came just after the last one of another.
        """
        last: dict[int, tuple[int | None, int]] = {}  # by incarnation in the log, the last batch
        for record in records:
            if isinstance(record, GapRecord) and record.reason != Spoilt.BATCH:
                continue
            before, sequence = last.get(record.incarnation, (None, -1))
            life = self._life_of(record, before)
            before = life if before is None else before
            sequences = range(record.first_sequence, record.last_sequence + 1)
            if before != life and record.first_sequence == sequence + 1:
                return True
            if any((life, one) not in self._heard for one in sequences):
                return True  # one record has batches of both
            if record.last_sequence > sequence:
                last[record.incarnation] = (life, record.last_sequence)
        return False

    def _life_of(self, record: EventsRecord | GapRecord, before: int | None) -> int | None:
        """Which of its lives has sent what is in a record; `before` is that of the record before
        it in the incarnation. What cannot be decoded has no time.
        """
        if isinstance(record, EventsRecord) and record.engine_time:
            return self.life_at(record.engine_time)
        numbers = range(record.first_sequence, record.last_sequence + 1)
        lives = {life for life, one in self.spoilt if one in numbers and (life, one) in self._heard}
        return before if before in lives or not lives else min(lives)

    def clear(self) -> None:
        """Forgets everything, and says so."""
        self._publish(self.cache.clear())

    def _publish(self, events: list[EngineEvent]) -> None:
        now = EPOCH_S + self._loop.now + self._skew_s
        while now in self._lives:
            now += 1e-6
        payload = self._encoder.encode(events, timestamp_s=now, dp_rank=0)
        how, self._spoils = self._spoils, None
        if how is not None:
            payload = _spoilt(payload, how)
            self.spoilt[self._life, self.sequence] = how
        self._lives[now] = self._life
        self.buffer.append((self.sequence, payload))
        self._note_events(events)
        frames = [b"", self.sequence.to_bytes(8, "big"), payload]
        self.published.setdefault(self._life, []).append(frames)
        for link in self.links:
            link.send(frames)
        self.sequence += 1


def _spoilt(payload: bytes, how: Spoilt) -> bytes:
    """The batch with an event that nobody knows in place of its last one, or no batch at all."""
    if how is Spoilt.BATCH:
        return _BAD_BATCH + payload
    batch: list[list[object]] = msgspec.msgpack.decode(payload)
    events = batch[1]
    events[-1:] = [_BAD_EVENT[bool(events) and isinstance(events[-1], dict)]]
    return msgspec.msgpack.encode(batch)


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
        self.engine.note_heard(int.from_bytes(frames[1], "big"), is_replayed=False)
        message = RawMessage(self.engine.publisher, frames, self._loop.now, self.times_up)
        self._inbox.put([message])
        self.arrived += 1

    def close(self) -> None:
        """Never delivers again."""
        self.set_up(False)
        if self in self.engine.links:
            self.engine.links.remove(self)


class SimulatedSubscriber:
    """In place of `bridge.sockets.subscriber.Subscriber`, for one process."""

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
        link.open(self._inbox)

    def follow_once(self, registration: Registration) -> None:
        """Connects to where it is now, unless it is connected."""
        publisher = registration.publisher
        link = self._links.get(publisher)
        if link is not None:
            if link.up:
                return
            link.close()
        engine = self._engines[publisher]
        once = Link(self._loop, self._rng, engine, only_at=registration.endpoint)
        once.times_up = 0 if link is None else link.times_up
        self._links[publisher] = once
        once.open(self._inbox)

    def unfollow(self, publisher: PublisherKey) -> None:
        """Disconnects, if it is connected."""
        link = self._links.pop(publisher, None)
        if link is not None:
            link.close()
            self._inbox.discard(publisher)

    def connected(self, publisher: PublisherKey) -> bool:
        """Whether the link is up."""
        return publisher in self._links and self._links[publisher].up

    def is_silent(self, publisher: PublisherKey) -> bool:
        """Never."""
        return False

    def received_until(self, publisher: PublisherKey) -> float:
        """Now: nothing waits in a socket."""
        return self._loop.now

    def changed(self) -> tuple[float, list[PublisherKey]]:
        """Whose link is another, has come up or gone down, or has brought something."""
        seen = {
            publisher: (id(link), link.up, link.times_up, link.arrived)
            for publisher, link in self._links.items()
        }
        told, self._told = self._told, seen
        return self._loop.now, [one for one in seen if seen[one] != told.get(one)]

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

    async def ask(
        self, publisher: PublisherKey, endpoint: str, start: int
    ) -> AsyncGenerator[list[RawMessage], None]:
        """The replies to one request, up to the end marker.

        Raises:
            TimeoutError: no answer, or no end of it.
        """
        engine = self._by_endpoint[endpoint]
        await asyncio.sleep(self._rng.random() * 0.005)
        if not engine.up:
            await asyncio.sleep(REPLAY_TIMEOUT_S)
            raise TimeoutError
        batches = [batch for batch in engine.buffer if batch[0] >= start]
        for first in range(0, len(batches), 8):
            loss = self.loss if first else 0.0  # of a long reply, which a socket has no room for
            await asyncio.sleep(self._rng.random() * 0.002)
            chunk = [
                RawMessage(
                    publisher,
                    [b"", sequence.to_bytes(8, "big"), payload],
                    self._loop.now,
                )
                for sequence, payload in batches[first : first + 8]
                if self._rng.random() >= loss
            ]
            for sequence, _ in batches[first : first + 8]:
                engine.note_heard(sequence, is_replayed=True)
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

    async def bodies(self, registration: Registration) -> dict[str, bytes]:
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

    def __init__(self, sequencer: Sequencer, replays: Replays) -> None:
        super().__init__(sequencer)
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
