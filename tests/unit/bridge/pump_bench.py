"""A pump over a sink, a receiver and a replay source that are fakes: no network, no real time."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

from bridge import pump as pumps
from bridge import supervision
from bridge.engine_http import inquiries
from bridge.engine_http.answers import Process, PublisherSource
from bridge.engine_http.client import NoAnswerError
from bridge.link_numbers import LinkNumber
from bridge.publisher import follower
from bridge.publisher import publisher as followed_module
from bridge.publisher.anchor import NO_ANCHOR, Anchor
from bridge.publisher.ports import EngineAccess
from bridge.publisher.repair import RepairResult
from bridge.publisher.replay_client import Emit, ReplaySocket
from bridge.publisher.sequencer import Sequencer
from bridge.pump import Pump
from bridge.sockets.raw_message import RawMessage
from bridge.wire.drop_reasons import DropReason
from schemas.errors import EndpointError, RegistrationConflictError
from schemas.identities import PublisherKey
from schemas.limits import TURN_BYTES_MAX
from schemas.positions import Cursor
from schemas.records import Record
from schemas.registration import Registration
from tests.unit.bridge.messages import frames_of, registration
from tests.unit.bridge.publisher.test_sequencer import removed, told

FAULT = str(DropReason.INTERNAL_ERROR)
PLAIN = registration()
REPLAYS = Registration(
    endpoint="tcp://127.0.0.1:5558",
    replay_endpoint="tcp://127.0.0.1:5559",
    kind=PLAIN.kind,
    model_name="m",
    instance_id="w-2",
    block_size=4,
)
ONE, TWO = PLAIN.publisher, REPLAYS.publisher
BORN = 100.0
_PAUSES: tuple[tuple[ModuleType, str], ...] = (
    (supervision, "BRIDGE_RETRY_S"),
    (pumps, "RELINK_CHECK_S"),
    (follower, "ARRIVED_LOOK_S"),
    (followed_module, "LINK_SETTLE_S"),
    (inquiries, "PROCESS_SETTLE_S"),
)


def live(sequence: int, of: PublisherKey = ONE) -> RawMessage:
    batch = [BORN + sequence, [["BlockRemoved", [sequence]]], 0]
    return RawMessage(of, frames_of(batch, sequence), 0.0)


class FakeSink:
    """Takes records, unless it is told to wait or to fail."""

    turn_bytes = TURN_BYTES_MAX

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.failures = 0
        self.free = asyncio.Event()
        self.free.set()
        self.steps: asyncio.Semaphore | None = None  # how often it will be idle
        self.breaks = False  # at its next idle moment, once
        self.full: set[PublisherKey] = set()  # who is held back
        self.overflowing: set[PublisherKey] = set()

    def append(self, records: Iterable[Record]) -> None:
        records = list(records)
        if records and self.failures:
            self.failures -= 1
            raise RuntimeError("for a test")
        self.records += records

    def has_waiting(self, publisher: PublisherKey) -> bool:
        return False

    @property
    def is_ready(self) -> bool:
        return self.free.is_set()

    async def ready(self) -> None:
        await self.free.wait()

    def step(self, count: int = 1) -> None:
        """Lets it be idle so often; from the first call on it waits for that."""
        self.steps = self.steps or asyncio.Semaphore(0)
        for _ in range(count):
            self.steps.release()

    def step_on(self) -> None:
        """It is idle from now on."""
        self.step(100)
        self.steps = None

    async def idle(self) -> None:
        if self.breaks:
            self.breaks = False
            raise RuntimeError("for a test")
        if self.steps is not None:
            await self.steps.acquire()

    def holds_back(self, publisher: PublisherKey) -> bool:
        return publisher in self.full

    def let_overflow(self, publisher: PublisherKey) -> None:
        self.overflowing.add(publisher)

    async def room(self, publisher: PublisherKey) -> None:
        await self.free.wait()
        while publisher in self.full:  # noqa: ASYNC110 -- a test ends it
            await asyncio.sleep(0.001)

    def told(self, publisher: PublisherKey = ONE) -> list[object]:
        records: list[Any] = [one for one in self.records if one.publisher == publisher]
        return told(records)


@dataclass
class FakeReceiver:
    unexpected_errors: int = 0
    followed: set[PublisherKey] = field(default_factory=set)
    ups: Counter[PublisherKey] = field(default_factory=Counter)
    at: dict[PublisherKey, str] = field(default_factory=dict)  # of those that were found
    refuse: bool = False
    refused: set[Registration] = field(default_factory=set)
    stopped: bool = False
    open: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.open.set()

    def start(self) -> None:
        pass

    def follow(self, registration: Registration) -> None:
        assert self.open.wait(10)
        if self.refuse or registration in self.refused:
            raise EndpointError("for a test")
        if registration.publisher in self.followed:
            raise RegistrationConflictError("for a test")
        self.followed.add(registration.publisher)

    def follow_once(self, registration: Registration, *, leaves: bool = False) -> None:
        self.at[registration.publisher] = registration.endpoint
        self.followed.add(registration.publisher)

    def unfollow(self, publisher: PublisherKey) -> None:
        self.followed.discard(publisher)

    def connected(self, publisher: PublisherKey) -> bool:
        return publisher in self.followed

    def links(self, publisher: PublisherKey) -> LinkNumber:
        return LinkNumber(self.ups[publisher])

    def is_silent(self, publisher: PublisherKey) -> bool:
        """Never."""
        return False

    def trouble(self, publisher: PublisherKey) -> str:
        """None."""
        return ""

    def received_until(self, publisher: PublisherKey) -> float:
        return time.monotonic()

    def changed(self) -> tuple[float, Iterable[PublisherKey]]:
        return time.monotonic(), tuple(self.followed)

    def stop(self) -> None:
        self.stopped = True


class FakeEngine:
    """Replays what it still has, straight into the sequencer."""

    requests = 0
    replayed_batches = 0

    def __init__(self) -> None:
        self.pump: Pump
        self.has: dict[int, RawMessage] = {}
        self.asked: list[Cursor] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.fails = False
        self.closed = False

    async def repair(self, sequencer: Sequencer, engine: ReplaySocket, emit: Emit) -> RepairResult:
        cursor = sequencer.stream.cursor
        self.asked.append(cursor)
        await self.answers.wait()
        if self.fails:
            raise RuntimeError("for a test")
        waiting = sequencer.first_waiting()
        for number in sorted(self.has):
            if number > cursor.sequence and (waiting is None or number < waiting.sequence):
                batch = sequencer.decode(self.has[number])
                if batch is not None:
                    await emit(sequencer.accept([batch], 0.0, link=LinkNumber(0)))
        return RepairResult(None, heard_all=True)

    def close(self) -> None:
        self.closed = True


class FakeHttp:
    """The HTTP server of each engine; None: it does not answer."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.says: Process | None = None
        self.there = True
        self.at: list[PublisherSource] = []
        self.probed = self.asked = 0

    async def is_there(self, registration: Registration) -> bool:
        self.probed += 1
        return self.there

    async def process(self, registration: Registration) -> Process | None:
        self.asked += 1
        return self.says

    async def sources(self, registration: Registration) -> list[PublisherSource]:
        if not self.there:
            raise NoAnswerError("for a test")
        return self.at


class Bench:
    """A pump round fakes."""

    def __init__(self) -> None:
        self.sink = FakeSink()
        self.receiver = FakeReceiver()
        self.engine = FakeEngine()
        self.http = FakeHttp()
        self.pump = Pump(self.sink, engines=EngineAccess(self.receiver, self.engine, self.http))
        self.engine.pump = self.pump
        self.running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.running = asyncio.create_task(self.pump.run())

    async def begin(self, registration: Registration, anchor: Anchor = NO_ANCHOR) -> None:
        await self.pump.follower.follow(registration)
        self.pump.follower.begin(self.pump.followed[registration.publisher], anchor)
        await self.settle()

    async def settle(self) -> None:
        """Until nothing happens any more, whatever that was."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def receive(self, *messages: RawMessage) -> None:
        self.pump.inbox.put(messages)
        await self.settle()


Scene = Callable[[Bench], Coroutine[None, None, None]]


def play(scene: Scene) -> Bench:
    """Runs the scene on a pump that is running; returns what came of it."""

    async def run() -> Bench:
        bench = Bench()
        bench.start()
        await bench.settle()
        await scene(bench)
        assert bench.running is not None
        await supervision.cancel(bench.running)
        await bench.pump.close()
        return bench

    with ExitStack() as stack:
        for module, name in _PAUSES:
            stack.enter_context(mock.patch.object(module, name, 0.0))
        return asyncio.run(run())


def numbers(first: int, last: int) -> list[object]:
    return [removed(number, number) for number in range(first, last + 1)]
