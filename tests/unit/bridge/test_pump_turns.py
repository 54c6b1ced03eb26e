"""What becomes records in a turn of the pump: see `pump_bench`."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from bridge.bounds import TURN_S
from bridge.pace import TurnPace
from bridge.publisher import bulk as bulk_module
from bridge.publisher import follower
from bridge.publisher.sequencer import Intake
from bridge.publisher.stream import BatchStream
from bridge.pump import Pump
from bridge.sockets import inbox as inbox_module
from bridge.sockets.raw_message import RawMessage, RawRun, Received
from schemas.clock import REAL_CLOCK
from schemas.registration import Registration
from streams.kernel import message_run
from tests.unit.bridge.messages import frames_of
from tests.unit.bridge.pump_bench import (
    BORN,
    FAULT,
    ONE,
    PLAIN,
    REPLAYS,
    TWO,
    Bench,
    live,
    numbers,
    play,
)


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

        def failing(*arguments: Any, **options: Any) -> list[Received]:
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
        bench.pump._pace = TurnPace(TURN_S, least=2, most=2)
        await bench.receive(*(live(number) for number in range(5)))

    bench = play(scene)
    assert bench.sink.told() == numbers(0, 4)
    assert len(bench.sink.records) == 3


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each batch takes a quarter of a turn to decode; how many each turn was given, and took."""
    now, decode, process_until = [0.0], BatchStream.decode, Intake.process_until
    turns: list[int] = []

    def decode_slowly(stream: BatchStream, message: RawMessage) -> Any:
        now[0] += TURN_S / 4
        return decode(stream, message)

    def noting(intake: Intake, messages: Sequence[RawMessage], *arguments: float) -> Any:
        records, count = process_until(intake, messages, *arguments)
        if count:
            turns.append(count)
        return records, count

    monkeypatch.setattr(BatchStream, "take_run", lambda *_: 0)
    monkeypatch.setattr(BatchStream, "decode", decode_slowly)
    monkeypatch.setattr(Intake, "process_until", noting)
    clock = REAL_CLOCK._replace(monotonic=lambda: now[0])
    defaults = Pump.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "clock", clock)
    return turns


def test_a_turn_is_short_where_messages_take_long(slowly: list[int]) -> None:
    """Bad events, gaps and restarts take longer than their bytes say."""

    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.receive(*(live(number) for number in range(30)))
        await bench.receive(*(live(number) for number in range(30, 42)))

    assert play(scene).sink.told() == numbers(0, 41)
    assert slowly[:3] == [4, 4, 4], "from the first one on"
    assert max(slowly) == 4


@pytest.mark.usefixtures("slowly")
def test_what_a_turn_has_no_time_for_keeps_its_place_before_a_large_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_module, "BULK_BYTES", 500)
    monkeypatch.setattr(inbox_module, "BULK_BYTES", 500)
    many = [["BlockRemoved", [6]]] * 60
    large = RawMessage(ONE, frames_of([BORN + 6, many, 0], 6), 0.0)

    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.receive(*map(live, range(6)), large, *map(live, range(7, 20)))
        for _ in range(10**6):  # another thread decodes
            if len(bench.sink.told()) == 79:
                break
            await asyncio.sleep(0)

    bench = play(scene)
    assert bench.sink.told() == [*numbers(0, 5), *60 * numbers(6, 6), *numbers(7, 19)]
    assert bench.pump.faults == 0


def in_a_run(*messages: RawMessage) -> RawRun:
    assert message_run is not None
    return RawRun(ONE, message_run([one.frames for one in messages]), 0.0)


@pytest.mark.skipif(message_run is None, reason="the Rust kernel is not built")
@pytest.mark.usefixtures("slowly")
def test_a_run_keeps_its_place_around_a_large_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a turn has no time for of the run before it, and all of the one behind it."""
    monkeypatch.setattr(bulk_module, "BULK_BYTES", 500)
    monkeypatch.setattr(inbox_module, "BULK_BYTES", 500)
    many = [["BlockRemoved", [6]]] * 60
    large = RawMessage(ONE, frames_of([BORN + 6, many, 0], 6), 0.0)

    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        before, after = in_a_run(*map(live, range(6))), in_a_run(*map(live, range(7, 20)))
        bench.pump.inbox.put([before, large, after])
        for _ in range(10**6):  # another thread decodes
            if len(bench.sink.told()) == 79:
                break
            await asyncio.sleep(0)
        assert bench.pump.counters()[ONE].messages == 20

    bench = play(scene)
    assert bench.sink.told() == [*numbers(0, 5), *60 * numbers(6, 6), *numbers(7, 19)]
    assert bench.pump.faults == 0


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waited follows a batch at a time."""
    monkeypatch.setattr(follower, "HELD_TURN_S", -1.0)


@pytest.mark.usefixtures("in_parts")
def test_what_waited_for_a_repair_follows_while_others_have_their_turns() -> None:

    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.begin(REPLAYS)
        bench.engine.answers.clear()
        await bench.receive(live(0, TWO), *(live(number, TWO) for number in range(2, 40)))
        bench.engine.has = {1: live(1, TWO)}
        bench.engine.answers.set()
        for number in range(10):
            bench.pump.inbox.put([live(number), live(40 + number, TWO)])
            for _ in range(3):
                await asyncio.sleep(0)
        assert bench.pump.followed[TWO].sequencer.is_resuming
        await bench.settle()

    bench = play(scene)
    assert bench.sink.told(ONE) == numbers(0, 9)
    assert bench.sink.told(TWO) == numbers(0, 49)
    turns = [record.publisher for record in bench.sink.records]
    assert turns.index(ONE) < len(turns) - turns[::-1].index(TWO) - 10
    assert not bench.pump.followed[TWO].sequencer.is_held


@pytest.mark.usefixtures("in_parts")
def test_what_comes_while_what_waited_follows_waits_in_the_inbox() -> None:
    """Else it would take the room of what waits for repairs, while nothing is wrong."""

    async def scene(bench: Bench) -> None:
        bench.sink.turn_bytes = 1  # each record waits for its turn
        await bench.begin(PLAIN)
        bench.pump.follower.hold(bench.pump.followed[ONE])
        await bench.receive(*(live(number) for number in range(20)))
        bench.pump.follower.release(bench.pump.followed[ONE])
        waited = bench.pump.followed[ONE].sequencer.waiting
        for number in range(20, 25):
            bench.pump.inbox.put([live(number)])
            for _ in range(3):
                await asyncio.sleep(0)
            assert bench.pump.followed[ONE].sequencer.waiting <= waited
            waited = bench.pump.followed[ONE].sequencer.waiting
        assert bench.pump.followed[ONE].sequencer.is_resuming
        assert len(bench.pump.inbox) == 5
        await bench.settle()
        await bench.settle()

    assert play(scene).sink.told() == numbers(0, 24)


@pytest.mark.usefixtures("in_parts")
def test_a_gap_among_what_waited_is_asked_for_though_it_is_met_later() -> None:

    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        bench.pump.follower.hold(bench.pump.followed[TWO])
        await bench.receive(*(live(number, TWO) for number in (0, 1, 2, 5, 6)))
        bench.engine.has = {number: live(number, TWO) for number in range(9)}
        bench.pump.follower.release(bench.pump.followed[TWO])
        await bench.settle()

    bench = play(scene)
    assert bench.sink.told(TWO) == numbers(0, 6)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("of", [PLAIN, REPLAYS], ids=["plain", "replays"])
@pytest.mark.parametrize("how", ["held again", "forgotten", "at the end"])
def test_what_follows_in_parts_can_be_cut_short(how: str, of: Registration) -> None:
    publisher = of.publisher

    async def scene(bench: Bench) -> None:
        await bench.begin(of)
        bench.pump.follower.hold(bench.pump.followed[publisher])
        await bench.receive(*(live(number, publisher) for number in range(20)))
        bench.pump.follower.release(bench.pump.followed[publisher])
        for _ in range(5):
            await asyncio.sleep(0)
        assert bench.pump.followed[publisher].sequencer.is_resuming
        bench.pump.inbox.put([live(20, publisher)])
        if how == "held again":
            bench.pump.follower.hold(bench.pump.followed[publisher])
            written = len(bench.sink.records)
            await bench.settle()
            assert len(bench.sink.records) == written
            bench.pump.follower.release(bench.pump.followed[publisher])
        elif how == "forgotten":
            await bench.pump.follower.unfollow(bench.pump.followed[publisher])
        else:
            bench.sink.free.clear()  # until it has stopped to receive
            asyncio.get_running_loop().call_later(0.05, bench.sink.free.set)
            await bench.pump.drain()
        await bench.settle()
        await bench.settle()

    bench = play(scene)
    told = bench.sink.told(publisher)
    if how == "forgotten":
        assert told == numbers(0, len(told) - 1)
        assert len(told) < 20
    elif how == "at the end" and of is REPLAYS:
        assert numbers(0, 19) == told[:20], "what comes after that is asked for at the next start"
    else:
        assert told == numbers(0, 20)
    assert bench.pump.faults == 0


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
