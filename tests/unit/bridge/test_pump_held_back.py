"""Who is held back by the sink waits in the inbox, and nobody else does: see `pump_bench`."""

import asyncio
import time

import pytest

from bridge import supervision
from bridge.publisher import bulk as bulk_module
from bridge.publisher import window as window_module
from bridge.publisher.ports import EngineAccess
from bridge.publisher.waits import Wait
from bridge.pump import Pump
from bridge.sockets import inbox as inbox_module
from bridge.wire import batch as batch_module
from schemas.identities import PublisherKey
from tests.unit.bridge.messages import registration
from tests.unit.bridge.pump_bench import (
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
from tests.unit.bridge.test_pump_large import EVENTS, events_of, large, until

OTHERS = [registration(instance_id=f"w-{number}") for number in range(10, 13)]


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `test_pump_large`."""
    monkeypatch.setattr(FakeSink, "turn_bytes", 90)
    for module in (batch_module, window_module):
        monkeypatch.setattr(module, "RECORD_BYTES_MAX", 20)
    for bulk in (bulk_module, inbox_module):
        monkeypatch.setattr(bulk, "BULK_BYTES", 60)


def test_what_comes_of_it_waits_until_it_may_go_on_and_others_do_meanwhile() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.begin(REPLAYS)
        bench.sink.full = {ONE}
        await bench.receive(live(0))
        assert Wait.WORKERS in bench.pump.followed[ONE].waits_for
        await bench.receive(live(1), live(0, TWO), live(2), live(1, TWO))
        assert bench.sink.told(ONE) == numbers(0, 0), "its next ones would be far behind"
        assert bench.sink.told(TWO) == numbers(0, 1)
        assert bench.pump.inbox.waiting_since(ONE) is not None
        bench.sink.full = set()
        bench.pump.appender.resume_held_back([ONE, TWO])
        await bench.settle()
        assert Wait.WORKERS not in bench.pump.followed[ONE].waits_for

    bench = play(scene)
    assert bench.sink.told(ONE) == numbers(0, 2)
    assert not bench.pump.faults


def test_it_goes_on_where_its_room_in_the_inbox_is_nearly_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine a turn may end amid the waiting ones; then the rest may wait again.
    monkeypatch.setattr("bridge.pump.TURN_S", 5.0)

    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.pump.inbox._messages_max = 20
        bench.sink.full = {ONE}
        await bench.receive(live(0))
        await bench.receive(*(live(number) for number in range(1, 7)))
        bench.pump.follower.watch()
        await bench.settle()
        assert bench.sink.told() == numbers(0, 0)
        await bench.receive(live(7), live(8))
        bench.pump.follower.watch()
        await bench.settle()
        assert bench.sink.told() == numbers(0, 8), "rather late than lost"
        assert bench.sink.overflowing == {ONE}, "the sink is told why it comes"
        assert Wait.WORKERS in bench.pump.followed[ONE].waits_for, "there is room again"
        await bench.receive(live(9))
        assert bench.sink.told() == numbers(0, 8)

    assert not play(scene).pump.inbox.dropped()


def test_it_goes_on_though_nobody_says_that_it_may() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.sink.full = {ONE}
        await bench.receive(live(0))
        await bench.receive(live(1))
        bench.sink.full = set()
        bench.pump.follower.watch()
        await bench.settle()

    assert play(scene).sink.told() == numbers(0, 1)


def test_at_the_end_all_that_was_held_back_is_written() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.sink.full = {ONE}
        await bench.receive(live(0))
        await bench.receive(live(1), live(2))
        assert bench.running is not None
        await supervision.cancel(bench.running)
        async with asyncio.timeout(5):
            await bench.pump.drain()

    assert play(scene).sink.told() == numbers(0, 2)


def test_before_its_publishers_go_elsewhere_what_was_held_back_is_written() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.sink.full = {ONE}
        await bench.receive(live(0))
        await bench.receive(*(live(number) for number in range(1, 9)))
        assert bench.sink.told() == numbers(0, 0)
        async with asyncio.timeout(5):
            await bench.pump.appender.write_all(60.0)
        assert bench.sink.told() == numbers(0, 8)
        await bench.receive(live(9))
        assert Wait.WORKERS in bench.pump.followed[ONE].waits_for, "as before"

    play(scene)


def test_writing_what_was_held_back_takes_no_longer_than_it_may() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.sink.full = {ONE}
        await bench.receive(live(0))
        await bench.receive(live(1))
        bench.sink.free.clear()
        async with asyncio.timeout(5):
            await bench.pump.appender.write_all(0.05)
        bench.sink.free.set()

    play(scene)


def test_who_is_forgotten_is_held_back_no_longer() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        bench.sink.full = {ONE}
        await bench.receive(live(0))
        forgotten = bench.pump.followed[ONE]
        await bench.pump.follower.unfollow(forgotten)
        assert Wait.WORKERS not in forgotten.waits_for
        bench.pump.appender.resume_held_back([ONE])

    assert not play(scene).pump.faults


def test_what_is_replayed_waits_too() -> None:
    async def scene(bench: Bench) -> None:
        bench.engine.has = {number: live(number, TWO) for number in range(4)}
        bench.sink.full = {TWO}
        await bench.begin(REPLAYS)
        await bench.receive(live(4, TWO))
        assert bench.sink.told(TWO) == numbers(0, 0)
        bench.sink.full = set()
        bench.pump.appender.resume_held_back([TWO])
        await until(lambda: bench.sink.told(TWO) == numbers(0, 4))

    play(scene)


@pytest.mark.usefixtures("in_parts")
def test_a_large_message_that_is_held_back_lets_those_of_others_pass() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.begin(REPLAYS)
        bench.sink.full = {ONE}
        await bench.receive(large(0), large(1), live(2))
        await bench.receive(large(0, TWO), live(1, TWO))
        await until(lambda: bench.sink.told(TWO) == [*events_of(0), *numbers(1, 1)])
        assert bench.sink.told(ONE) == []
        bench.sink.full = set()
        bench.pump.appender.resume_held_back([ONE])
        await until(lambda: len(bench.sink.told(ONE)) == 2 * EVENTS + 1)

    bench = play(scene)
    assert bench.sink.told(ONE) == [*events_of(0, 1), *numbers(2, 2)]
    assert not bench.pump.faults


@pytest.mark.usefixtures("in_parts")
def test_no_more_of_them_are_decoded_than_a_bound_while_they_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_module, "BULK_HELD_BACK_MAX", 2)

    async def scene(bench: Bench) -> None:
        publishers = [one.publisher for one in OTHERS]
        for one in OTHERS:
            await bench.begin(one)
        bench.sink.full = set(publishers)
        await bench.receive(*(large(0, of) for of in publishers))
        await until(lambda: len(bench.pump._bulk_pump.tasks) == 2)
        await asyncio.sleep(0.05)
        assert len(bench.pump._bulk_pump.tasks) == 2
        bench.sink.full = set()
        await until(lambda: all(bench.sink.told(of) == events_of(0) for of in publishers))
        await until(lambda: not bench.pump._bulk_pump.tasks)

    play(scene)


@pytest.mark.parametrize("held", [[], [ONE]])
def test_the_window_ends_where_somebody_has_waited_for_longer(held: list[PublisherKey]) -> None:
    async def run() -> float:
        bench = Bench()
        bench.pump = pump = Pump(
            bench.sink, engines=EngineAccess(bench.receiver, bench.engine, bench.http), window_s=0.3
        )
        bench.engine.pump = pump
        bench.start()
        await bench.begin(PLAIN)
        bench.sink.full = set(held)
        pump.inbox.put([live(0)])
        await until(lambda: bench.sink.told() == numbers(0, 0))
        pump.inbox.put([live(1)])
        began = time.monotonic()
        bench.sink.full = set()
        pump.appender.resume_held_back(held)
        await until(lambda: bench.sink.told() == numbers(0, 1))
        took_s = time.monotonic() - began
        assert bench.running is not None
        await supervision.cancel(bench.running)
        await pump.close()
        return took_s

    took_s = asyncio.run(run())
    assert took_s >= 0.29 or held, "batches come together"
