"""Large batches in the pump, and what comes beside them: see `pump_bench`."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from bridge import supervision
from bridge.publisher import bulk as bulk_module
from bridge.publisher import follower
from bridge.publisher import window as window_module
from bridge.publisher.sequencer import Sequencer
from bridge.publisher.waits import Wait
from bridge.sockets import inbox as inbox_module
from bridge.sockets.raw_message import RawMessage
from bridge.wire import batch as batch_module
from schemas.identities import PublisherKey
from schemas.registration import Registration
from tests.unit.bridge.messages import frames_of
from tests.unit.bridge.publisher.test_sequencer import removed
from tests.unit.bridge.pump_bench import (
    BORN,
    FAULT,
    ONE,
    PLAIN,
    REPLAYS,
    TWO,
    Bench,
    FakeSink,
    live,
    numbers,
    play,
)

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
    decode, may_end = Sequencer.decoded, threading.Event()

    def slowly(sequencer: Sequencer, message: RawMessage) -> RawMessage:
        assert may_end.wait(10), "the loop waits for it"
        return decode(sequencer, message)

    monkeypatch.setattr(Sequencer, "decoded", slowly)

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
        await bench.pump.follower.unfollow(bench.pump.followed[ONE])
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
        bench.pump.follower.hold(bench.pump.followed[ONE])
        assert bench.sink.told() == events_of(0)
        bench.sink.step_on()
        await bench.receive(live(1))
        bench.pump.follower.release(bench.pump.followed[ONE])
        await bench.settle()

    assert play(scene).sink.told() == [*events_of(0), *numbers(1, 1)]


@pytest.mark.usefixtures("in_parts")
def test_records_of_others_come_between_those_that_have_waited() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.begin(REPLAYS)
        bench.pump.follower.hold(bench.pump.followed[ONE])
        await bench.receive(large(0), live(1), large(2))
        await until(lambda: bench.pump.followed[ONE].sequencer.waiting == 3)
        bench.sink.step(0)
        bench.pump.follower.resume(bench.pump.followed[ONE])
        await bench.receive(live(3))
        for part in range(2 * EVENTS):
            bench.sink.step()
            await until(lambda: len(bench.sink.told()) > part)  # noqa: B023
            assert bench.pump.follower.received_until(bench.pump.followed[ONE])[1], (
                "something of it waits yet"
            )
            await bench.receive(live(part, TWO))
            assert bench.sink.told(TWO) == numbers(0, part), "it waits for nobody"
            assert len(bench.sink.told()) == part + 1
        bench.sink.step_on()
        await until(lambda: len(bench.sink.told()) == 2 * EVENTS + 2)
        assert not bench.pump.follower.received_until(bench.pump.followed[ONE])[1]

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
        bench.pump.follower.hold(bench.pump.followed[ONE])
        await bench.receive(large(0), live(1))
        await until(lambda: bench.pump.followed[ONE].sequencer.waiting == 2)
        bench.sink.step(0)
        bench.pump.follower.resume(bench.pump.followed[ONE])
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
        await until(lambda: bench.pump.followed[TWO].sequencer.waiting == 2)
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
        await until(lambda: bench.pump.followed[TWO].sequencer.waiting == 2)
        await bench.receive(large(5, TWO))
        await until(lambda: bench.pump.followed[TWO].sequencer.waiting == 3)
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


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("at", ["before it has followed", "while it is written"])
def test_what_waited_for_a_repair_follows_though_that_met_an_unexpected_error(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No error leaves a publisher waiting for a repair that nobody makes."""
    monkeypatch.setattr(follower, "BRIDGE_RETRY_S", 0.0)

    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        publisher = bench.pump.followed[TWO]
        bench.engine.answers.clear()
        await bench.receive(live(0, TWO), large(2, TWO))
        await until(lambda: publisher.sequencer.waiting == 1)
        bench.engine.has = {1: live(1, TWO)}
        ready = bench.sink.ready

        async def fail() -> None:
            if asyncio.current_task() is publisher.repair:
                monkeypatch.setattr(bench.sink, "ready", ready)
                raise RuntimeError("for a test")
            await ready()

        if at == "while it is written":
            bench.sink.breaks = True
        else:
            monkeypatch.setattr(bench.sink, "ready", fail)
        bench.engine.answers.set()
        await until(lambda: bench.pump.faults > 0)
        bench.sink.breaks = False
        await until(lambda: publisher.waits_for == (Wait.NOTHING,) and publisher.is_at_rest)
        await bench.receive(live(3, TWO))

    bench = play(scene)
    assert bench.pump.faults == 1
    assert bench.sink.told(TWO) == [*numbers(0, 1), *events_of(2), *numbers(3, 3)]
