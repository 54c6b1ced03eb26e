"""The pump over a sink, a receiver and a replay source that are fakes: no network, no real time."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from bridge import followed as followed_module
from bridge import pump as pumps
from bridge import supervision
from bridge.pace import Pace
from bridge.pump import Pump
from bridge.sequencing import bulk as bulk_module
from bridge.sequencing import window as window_module
from bridge.sequencing.lane import NO_ANCHOR, Anchor
from bridge.sequencing.replay_client import Emit
from bridge.sequencing.sequencer import Sequencer
from bridge.sockets import inbox as inbox_module
from bridge.sockets.raw_message import RawMessage
from bridge.wire import batch as batch_module
from bridge.wire.drop_reasons import DropReason
from schemas.errors import EndpointError, RegistrationConflictError
from schemas.identities import PublisherKey
from schemas.limits import TURN_BYTES_MAX, TURN_S
from schemas.positions import Cursor
from schemas.records import Record
from schemas.registration import Registration
from tests.unit.bridge.messages import frames_of, registration
from tests.unit.bridge.sequencing.test_sequencer import removed, told

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
        self.breaks = False

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
            raise RuntimeError("for a test")
        if self.steps is not None:
            await self.steps.acquire()

    async def room(self) -> None:
        await self.free.wait()

    def told(self, publisher: PublisherKey = ONE) -> list[object]:
        records: list[Any] = [one for one in self.records if one.publisher == publisher]
        return told(records)


@dataclass
class FakeReceiver:
    unexpected_errors: int = 0
    followed: set[PublisherKey] = field(default_factory=set)
    ups: Counter[PublisherKey] = field(default_factory=Counter)
    refuse: bool = False
    stopped: bool = False
    open: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.open.set()

    def start(self) -> None:
        pass

    def follow(self, registration: Registration) -> None:
        assert self.open.wait(10)
        if self.refuse:
            raise EndpointError("for a test")
        if registration.publisher in self.followed:
            raise RegistrationConflictError("for a test")
        self.followed.add(registration.publisher)

    def unfollow(self, publisher: PublisherKey) -> None:
        self.followed.discard(publisher)

    def connected(self, publisher: PublisherKey) -> bool:
        return publisher in self.followed

    def links(self, publisher: PublisherKey) -> int:
        return self.ups[publisher]

    def received_until(self, publisher: PublisherKey) -> float:
        return time.monotonic()

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

    async def repair(self, publisher: PublisherKey, endpoint: str, emit: Emit) -> None:
        sequencer = self.pump.sequencer
        cursor = sequencer.cursor(publisher)
        self.asked.append(cursor)
        await self.answers.wait()
        if self.fails:
            raise RuntimeError("for a test")
        waiting = sequencer.first_waiting(publisher)
        for number in sorted(self.has):
            if number > cursor.sequence and (waiting is None or number < waiting.sequence):
                batch = sequencer.decode(self.has[number])
                if batch is not None:
                    await emit(sequencer.accept(publisher, [batch], 0.0, link=0))

    def close(self) -> None:
        self.closed = True


class Bench:
    """A pump round fakes."""

    def __init__(self) -> None:
        self.sink = FakeSink()
        self.receiver = FakeReceiver()
        self.engine = FakeEngine()
        self.pump = Pump(self.sink, receiver=self.receiver, replayer=self.engine)
        self.engine.pump = self.pump
        self.running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.running = asyncio.create_task(self.pump.run())

    async def begin(self, registration: Registration, anchor: Anchor = NO_ANCHOR) -> None:
        await self.pump.follow(registration)
        self.pump.begin(registration.publisher, anchor)
        await self.settle()

    async def settle(self) -> None:
        """Until nothing happens any more, whatever that was."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def receive(self, *messages: RawMessage) -> None:
        self.pump.inbox.put(messages)
        await self.settle()


Scene = Callable[[Bench], Coroutine[None, None, None]]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "BRIDGE_RETRY_S", 0.0)
    monkeypatch.setattr(pumps, "RELINK_CHECK_S", 0.0)
    monkeypatch.setattr(pumps, "ARRIVED_LOOK_S", 0.0)
    monkeypatch.setattr(followed_module, "LINK_SETTLE_S", 0.0)


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

    return asyncio.run(run())


def numbers(first: int, last: int) -> list[object]:
    return [removed(number, number) for number in range(first, last + 1)]


# Turns


def test_what_is_received_becomes_records_in_order() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.receive(live(0), live(1))
        await bench.receive(live(2))

    assert play(scene).sink.told() == numbers(0, 2)


def test_while_the_sink_is_not_ready_all_that_is_received_waits_in_the_inbox() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.sink.free.clear()
        await bench.receive(live(0))
        await bench.receive(live(1), live(2))
        assert (bench.sink.records, len(bench.pump.inbox)) == ([], 3)
        bench.sink.free.set()
        await bench.settle()

    assert play(scene).sink.told() == numbers(0, 2)


def test_a_turn_that_fails_leaves_nothing_that_waits_for_the_next_arrival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        take = bench.pump.inbox.take
        failures = iter([True])

        def failing(*arguments: Any, **options: Any) -> list[RawMessage]:
            if next(failures, False):
                raise RuntimeError("for a test")
            return take(*arguments, **options)

        monkeypatch.setattr(bench.pump.inbox, "take", failing)
        await bench.receive(live(0), live(1))
        assert bench.pump.faults == 1

    assert play(scene).sink.told() == numbers(0, 1)


def test_a_turn_takes_no_more_messages_than_its_bound() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.pump._pace = Pace(TURN_S, least=2, most=2)
        await bench.receive(*(live(number) for number in range(5)))

    bench = play(scene)
    assert bench.sink.told() == numbers(0, 4)
    assert len(bench.sink.records) == 3


def test_a_turn_is_small_where_messages_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad events, gaps and restarts take longer than their bytes say."""
    now = [0.0]
    process, turns = Sequencer.process, list[int]()

    def slowly(built: Sequencer, messages: Iterable[RawMessage], at: float) -> Any:
        taken = list(messages)
        if taken:
            turns.append(len(taken))
        now[0] += len(taken) * TURN_S / 4
        return process(built, taken, at)

    monkeypatch.setattr(Sequencer, "process", slowly)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.receive(*(live(number) for number in range(100)))
        await bench.receive(*(live(number) for number in range(100, 120)))

    assert play(scene).sink.told() == numbers(0, 119)
    assert turns[0] == 100
    assert set(turns[1:]) == {4}


def test_records_that_the_sink_refuses_are_told_as_a_gap() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.sink.failures = 1
        await bench.receive(live(0), live(1))
        await bench.receive(live(2))
        assert bench.pump.faults == 2

    assert play(scene).sink.told() == [(FAULT, 1, 0, 1), *numbers(2, 2)]


def test_records_that_the_sink_refuses_are_asked_for_again_where_that_can_be() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        bench.engine.has = {number: live(number, TWO) for number in range(2)}
        bench.sink.failures = 1
        await bench.receive(live(0, TWO), live(1, TWO))
        await bench.receive(live(2, TWO))

    assert play(scene).sink.told(TWO) == numbers(0, 2)


def test_replayed_records_that_the_sink_refuses_too_are_a_gap_and_not_asked_for_again() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        bench.engine.has = {0: live(0, TWO)}
        bench.sink.failures = 2
        await bench.receive(live(0, TWO))
        await bench.receive(live(1, TWO))

    bench = play(scene)
    assert bench.sink.told(TWO) == [(FAULT, 1, 0, 0), *numbers(1, 1)]
    assert len(bench.engine.asked) == 2


def test_a_sink_that_refuses_even_the_gap_ends_nothing() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.sink.failures = 2
        await bench.receive(live(0))
        await bench.receive(live(1))
        assert bench.pump.faults == 3

    assert play(scene).sink.told() == numbers(1, 1)


# Repairs


def test_a_gap_is_asked_for_while_the_others_go_on() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.begin(REPLAYS)
        bench.engine.has = {number: live(number, TWO) for number in range(6)}
        bench.engine.answers.clear()
        await bench.receive(live(0, TWO), live(3, TWO), live(0))
        await bench.receive(live(4, TWO), live(1))
        assert bench.sink.told(TWO) == numbers(0, 0)
        assert bench.sink.told() == numbers(0, 1)
        bench.engine.answers.set()
        await bench.settle()

    assert play(scene).sink.told(TWO) == numbers(0, 4)


def test_a_gap_of_a_publisher_that_cannot_replay_is_told_at_once() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.receive(live(0), live(3))

    bench = play(scene)
    assert bench.sink.told() == [*numbers(0, 0), ("missed", 1, 1, 2), *numbers(3, 3)]
    assert bench.engine.asked == []


def test_what_the_inbox_had_no_room_for_is_a_gap_though_nothing_comes_after_it() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.pump.inbox._messages_max = 2
        await bench.receive(live(0), live(1), live(2), live(3))
        await bench.receive(live(4))

    assert play(scene).sink.told() == [
        *numbers(0, 1),
        ("inbox_full", 1, 2, 3),
        *numbers(4, 4),
    ]


def test_what_the_inbox_had_no_room_for_is_asked_for_where_that_can_be() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        bench.engine.has = {number: live(number, TWO) for number in range(4)}
        bench.pump.inbox._messages_max = 2
        await bench.receive(*(live(number, TWO) for number in range(4)))

    bench = play(scene)
    assert bench.sink.told(TWO) == numbers(0, 3)
    assert bench.engine.asked[-1] == Cursor(1, 1)


def test_a_publisher_begins_behind_what_the_log_has_of_it() -> None:
    async def scene(bench: Bench) -> None:
        bench.engine.has = {number: live(number, TWO) for number in range(9)}
        await bench.begin(REPLAYS, Anchor(Cursor(3, 4), BORN + 4))
        await bench.receive(live(9, TWO))

    bench = play(scene)
    assert bench.engine.asked == [Cursor(3, 4)]
    assert bench.sink.told(TWO) == numbers(5, 9)


def test_what_comes_before_the_place_is_known_waits() -> None:
    async def scene(bench: Bench) -> None:
        await bench.pump.follow(PLAIN)
        await bench.receive(live(5), live(6))
        assert bench.sink.records == []
        bench.pump.begin(ONE, Anchor(Cursor(1, 4), BORN + 4))
        await bench.settle()

    assert play(scene).sink.told() == numbers(5, 6)


def test_what_had_arrived_before_the_place_is_known_is_taken_before_the_engine_is_asked() -> None:
    async def scene(bench: Bench) -> None:
        bench.sink.free.clear()
        await bench.pump.follow(REPLAYS)
        bench.pump.inbox.put([live(4, TWO)])
        bench.pump.begin(TWO, Anchor(Cursor(1, 4), BORN + 4))
        for _ in range(100):
            await asyncio.sleep(0)
        assert bench.engine.asked == [], "another bridge may have written it"
        bench.sink.free.set()
        await bench.settle()
        assert bench.engine.asked == [Cursor(1, 4)]
        assert bench.sink.told(TWO) == []

    play(scene)


def test_a_publisher_without_a_replay_whose_messages_waited_has_not_restarted() -> None:
    async def scene(bench: Bench) -> None:
        bench.sink.free.clear()
        await bench.pump.follow(PLAIN)
        bench.pump.inbox.put([live(4)])
        bench.pump.begin(ONE, Anchor(Cursor(1, 4), BORN + 4))
        await bench.settle()
        bench.sink.free.set()
        await bench.settle()
        assert bench.sink.told() == []

    play(scene)


def test_the_engine_is_asked_when_the_link_comes_up_though_no_gap_shows() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        await bench.receive(live(0, TWO))
        asked = len(bench.engine.asked)
        bench.engine.has = {number: live(number, TWO) for number in range(4)}
        bench.receiver.ups[TWO] += 1
        await bench.settle()
        assert len(bench.engine.asked) == asked + 1

    assert play(scene).sink.told(TWO) == numbers(0, 3)


def test_a_replay_that_fails_leaves_the_gap() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        bench.engine.fails = True
        await bench.receive(live(0, TWO), live(2, TWO))
        assert bench.pump.faults == 1

    assert play(scene).sink.told(TWO) == [*numbers(0, 0), ("missed", 1, 1, 1), *numbers(2, 2)]


def test_what_waited_is_not_handed_on_while_the_sink_is_not_ready() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        bench.engine.answers.clear()
        await bench.receive(live(0, TWO), live(2, TWO))
        bench.sink.free.clear()
        bench.engine.answers.set()
        await bench.settle()
        assert bench.sink.told(TWO) == numbers(0, 0)
        bench.sink.free.set()
        await bench.settle()

    assert play(scene).sink.told(TWO) == [*numbers(0, 0), ("missed", 1, 1, 1), *numbers(2, 2)]


# Publishers


def test_a_publisher_that_cannot_be_connected_to_can_be_forgotten() -> None:
    async def scene(bench: Bench) -> None:
        bench.receiver.refuse = True
        with pytest.raises(EndpointError):
            await bench.pump.follow(PLAIN)
        await bench.pump.unfollow(ONE)
        bench.receiver.refuse = False
        await bench.begin(PLAIN)
        await bench.pump.connect_again(PLAIN)
        await bench.receive(live(0))

    assert play(scene).sink.told() == numbers(0, 0)


def test_a_follow_that_is_cancelled_connects_all_the_same() -> None:
    """Its publisher is kept by the next assignment, and would be silent for good."""

    async def scene(bench: Bench) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        other, one = registration(instance_id="a"), registration(instance_id="b")
        bench.receiver.open.clear()
        waiting = asyncio.create_task(bench.pump.follow(other))
        following = asyncio.create_task(bench.pump.follow(one))
        await bench.settle()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        bench.receiver.open.set()
        await waiting
        await bench.pump.follow(registration(instance_id="c"))  # after what was begun before it
        assert following.cancelled()
        assert one.publisher in bench.pump.followed
        assert one.publisher in bench.receiver.followed

    play(scene)


def test_a_publisher_that_is_forgotten_during_its_repair_is_not_heard_of_again() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        bench.engine.answers.clear()
        await bench.receive(live(0, TWO), live(2, TWO))
        await bench.pump.unfollow(TWO)
        bench.engine.answers.set()
        await bench.receive(live(3, TWO))
        assert bench.pump.sequencer.unregistered_messages == 1
        assert bench.pump.sequencer.held_bytes == 0

    assert play(scene).sink.told(TWO) == numbers(0, 0)


def test_a_publisher_that_is_held_again_goes_on_where_it_was() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.receive(live(0))
        bench.pump.hold(ONE)
        await bench.receive(live(1))
        assert bench.sink.told() == numbers(0, 0)
        bench.pump.resume(ONE)
        await bench.receive(live(2))

    assert play(scene).sink.told() == numbers(0, 2)


# Large batches

EVENTS = 8


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `large` sends is large, and each of its events a record."""
    monkeypatch.setattr(FakeSink, "turn_bytes", 90)
    for module in (batch_module, window_module):
        monkeypatch.setattr(module, "RECORD_BYTES_MAX", 20)
    for bulk in (bulk_module, inbox_module):
        monkeypatch.setattr(bulk, "BULK_BYTES", 60)


def large(sequence: int, of: PublisherKey = ONE) -> RawMessage:
    events = [["BlockRemoved", [10 * sequence + number]] for number in range(EVENTS)]
    return RawMessage(of, frames_of([BORN + sequence, events, 0], sequence), 0.0)


def events_of(*sequences: int) -> list[object]:
    return [
        removed(sequence, 10 * sequence + number)
        for sequence in sequences
        for number in range(EVENTS)
    ]


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(5_000):
        if holds():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came so far")


@pytest.mark.usefixtures("in_parts")
def test_records_of_others_come_between_the_parts_of_a_large_batch() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.begin(REPLAYS)
        bench.sink.step(0)
        await bench.receive(large(0), live(1))
        for part in range(EVENTS - 1):
            bench.sink.step(2 if part == 0 else 1)
            await until(lambda: len(bench.sink.told()) > part)  # noqa: B023
            await bench.receive(live(part, TWO), live(2 + part))
            assert bench.sink.told(TWO) == numbers(0, part), "it waits for nobody"
            assert len(bench.sink.told()) == part + 1
        assert len(bench.pump.inbox) == EVENTS, "what comes behind it waits where that is bounded"
        bench.sink.step_on()
        await until(lambda: len(bench.sink.told()) == 2 * EVENTS)

    assert play(scene).sink.told() == [*events_of(0), *numbers(1, EVENTS)]


@pytest.mark.usefixtures("in_parts")
def test_what_others_send_is_written_while_a_large_message_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode, may_end = bulk_module.Bulk.decode, threading.Event()

    def slowly(bulk: bulk_module.Bulk, message: RawMessage) -> RawMessage:
        assert may_end.wait(10), "the loop waits for it"
        return decode(bulk, message)

    monkeypatch.setattr(bulk_module.Bulk, "decode", slowly)

    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.begin(REPLAYS)
        await bench.receive(large(0))
        await bench.receive(live(0, TWO))
        assert (bench.sink.told(), bench.sink.told(TWO)) == ([], numbers(0, 0))
        may_end.set()
        await until(lambda: len(bench.sink.told()) == EVENTS)

    play(scene)


@pytest.mark.usefixtures("in_parts")
def test_a_publisher_that_is_forgotten_between_parts_leaves_nothing_that_waits() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.sink.step(0)
        await bench.receive(large(0))
        bench.sink.step(3)
        await until(lambda: len(bench.sink.told()) == 2)
        await bench.pump.unfollow(ONE)
        bench.pump.inbox.discard(ONE)
        await bench.begin(PLAIN)
        await bench.receive(live(0), large(1))
        bench.sink.step_on()
        await until(lambda: len(bench.sink.told()) == 2 + 1 + EVENTS)
        await bench.receive(live(2))

    assert play(scene).sink.told() == [
        *events_of(0)[:2],
        *numbers(0, 0),
        *events_of(1),
        *numbers(2, 2),
    ]


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("of", [PLAIN, REPLAYS], ids=["a gap", "asked for again"])
def test_a_part_that_the_sink_refuses_takes_the_rest_of_its_batch_with_it(of: Registration) -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(of)
        bench.engine.has = {0: large(0, of.publisher)}
        bench.sink.step(0)
        await bench.receive(large(0, of.publisher))
        bench.sink.step(2)
        await until(lambda: len(bench.sink.told(of.publisher)) == 1)
        bench.sink.failures = 1
        bench.sink.step_on()
        await until(lambda: bench.pump.faults == 2)
        await bench.settle()
        await bench.receive(live(1, of.publisher))
        await until(lambda: numbers(1, 1)[0] in bench.sink.told(of.publisher))

    again = [(FAULT, 1, 0, 0)] if of is PLAIN else events_of(0)
    assert play(scene).sink.told(of.publisher) == [*events_of(0)[:1], *again, *numbers(1, 1)]


@pytest.mark.usefixtures("in_parts")
def test_a_publisher_that_is_held_between_parts_has_all_of_them_written() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.sink.step(0)
        await bench.receive(large(0))
        bench.sink.step(2)
        await until(lambda: len(bench.sink.told()) == 1)
        bench.pump.hold(ONE)
        assert bench.sink.told() == events_of(0)
        bench.sink.step_on()
        await bench.receive(live(1))
        bench.pump.go_on(ONE)
        await bench.settle()

    assert play(scene).sink.told() == [*events_of(0), *numbers(1, 1)]


@pytest.mark.usefixtures("in_parts")
def test_records_of_others_come_between_those_that_have_waited() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.begin(REPLAYS)
        bench.pump.hold(ONE)
        await bench.receive(large(0), live(1), large(2))
        await until(lambda: bench.pump.sequencer.waiting(ONE) == 3)
        bench.sink.step(0)
        bench.pump.resume(ONE)
        await bench.receive(live(3))
        for part in range(2 * EVENTS):
            bench.sink.step()
            await until(lambda: len(bench.sink.told()) > part)  # noqa: B023
            assert bench.pump._received_until(ONE)[1], "something of it waits yet"
            await bench.receive(live(part, TWO))
            assert bench.sink.told(TWO) == numbers(0, part), "it waits for nobody"
            assert len(bench.sink.told()) == part + 1
        bench.sink.step_on()
        await until(lambda: len(bench.sink.told()) == 2 * EVENTS + 2)
        assert not bench.pump._received_until(ONE)[1]

    assert play(scene).sink.told() == [
        *events_of(0),
        *numbers(1, 1),
        *events_of(2),
        *numbers(3, 3),
    ]


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("end", ["is drained", "is closed", "sees an unexpected error"])
def test_what_has_waited_is_written_though_the_pump(end: str) -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.pump.hold(ONE)
        await bench.receive(large(0), live(1))
        await until(lambda: bench.pump.sequencer.waiting(ONE) == 2)
        bench.sink.step(0)
        bench.pump.resume(ONE)
        assert bench.running is not None
        match end:
            case "is drained":
                await supervision.cancel(bench.running)
                await bench.pump.drain()
            case "is closed":
                await supervision.cancel(bench.running)
                await bench.pump.close()
            case _:
                bench.sink.steps = None
                bench.sink.breaks = True
                await bench.receive(live(2))
                assert bench.pump.faults == 1

    written = play(scene).sink.told()
    last = 2 if end == "sees an unexpected error" else 1
    assert written == [*events_of(0), *numbers(1, last)]


@pytest.mark.usefixtures("in_parts")
def test_what_a_repair_brings_goes_in_order_with_what_waited_for_it() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        await bench.receive(live(0, TWO))
        bench.engine.has = {number: large(number, TWO) for number in range(1, 4)}
        bench.engine.answers.clear()
        await bench.receive(large(4, TWO), live(5, TWO))
        await until(lambda: bench.pump.sequencer.waiting(TWO) == 2)
        bench.sink.step(0)
        bench.engine.answers.set()
        for number in range(4 * EVENTS):
            bench.sink.step()
            await bench.receive(live(6 + number, TWO))
        bench.sink.step_on()
        await until(lambda: len(bench.sink.told(TWO)) == 2 + 8 * EVENTS)

    bench = play(scene)
    assert bench.sink.told(TWO) == [
        *numbers(0, 0),
        *events_of(1, 2, 3, 4),
        *numbers(5, 5 + 4 * EVENTS),
    ]


@pytest.mark.usefixtures("in_parts")
def test_a_further_gap_among_what_waited_is_asked_for_though_others_had_turns_meanwhile() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.begin(REPLAYS)
        bench.engine.answers.clear()
        await bench.receive(live(0, TWO), large(2, TWO), large(3, TWO))
        await until(lambda: bench.pump.sequencer.waiting(TWO) == 2)
        await bench.receive(large(5, TWO))
        await until(lambda: bench.pump.sequencer.waiting(TWO) == 3)
        bench.engine.has = {number: large(number, TWO) for number in (1, 4)}
        bench.sink.step(0)
        bench.engine.answers.set()
        for number in range(12 * EVENTS):
            bench.sink.step()
            await bench.receive(live(number))
        bench.sink.step_on()
        await until(lambda: len(bench.sink.told(TWO)) == 1 + 5 * EVENTS)

    assert play(scene).sink.told(TWO) == [*numbers(0, 0), *events_of(1, 2, 3, 4, 5)]


@pytest.mark.usefixtures("in_parts")
def test_at_the_end_a_large_batch_and_what_waits_behind_it_are_written_at_once() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.sink.step(0)
        await bench.receive(large(0), live(1), large(2), live(3))
        assert bench.running is not None
        await supervision.cancel(bench.running)
        draining = asyncio.create_task(bench.pump.drain())
        await bench.settle()
        bench.sink.step()  # what has begun to wait for it
        await draining

    assert play(scene).sink.told() == [*events_of(0), *numbers(1, 1), *events_of(2), *numbers(3, 3)]


# The end


def test_what_was_received_before_the_end_is_written() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.pump.follow(REPLAYS)
        assert bench.running is not None
        await supervision.cancel(bench.running)
        bench.pump.inbox.put([live(0), live(1)])
        await bench.pump.drain()
        assert bench.receiver.stopped

    bench = play(scene)
    assert bench.sink.told() == numbers(0, 1)
    assert bench.engine.closed


def test_what_waits_of_a_publisher_that_cannot_replay_is_written_at_the_end() -> None:
    async def scene(bench: Bench) -> None:
        await bench.pump.follow(PLAIN)
        await bench.receive(live(0))
        bench.pump.begin(ONE, NO_ANCHOR)  # its task has no turn any more
        assert bench.running is not None
        bench.running.cancel()
        await bench.pump.drain()

    assert play(scene).sink.told() == numbers(0, 0)
