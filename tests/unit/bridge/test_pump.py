"""The pump follows and repairs publishers: see `pump_bench`."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from bridge import supervision
from bridge.bounds import TURN_S
from bridge.pace import TurnPace
from bridge.publisher.anchor import NO_ANCHOR, Anchor
from bridge.publisher.publisher import CHECK_HOLD_MAX_S, LOOK_REST_S, Publisher
from schemas.errors import EndpointError, RegistrationConflictError
from schemas.identities import PublisherKey
from schemas.positions import Cursor
from tests.unit.bridge.messages import registration
from tests.unit.bridge.pump_bench import (
    BORN,
    ONE,
    PLAIN,
    REPLAYS,
    TWO,
    Bench,
    live,
    numbers,
    play,
)

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


@pytest.mark.parametrize("incarnation", [1, 3])
def test_what_the_inbox_had_no_room_for_is_a_gap_though_nothing_comes_after_it(
    incarnation: int,
) -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN, Anchor(Cursor(incarnation, -1), BORN - 1))
        bench.pump.inbox._messages_max = 4
        await bench.receive(live(0), live(1), live(2), live(3))
        await bench.receive(live(4))

    assert play(scene).sink.told() == [
        *numbers(0, 1),
        ("inbox_full", incarnation, 2, 3),
        *numbers(4, 4),
    ]


def test_what_the_inbox_had_no_room_for_is_asked_for_where_that_can_be() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        bench.engine.has = {number: live(number, TWO) for number in range(4)}
        bench.pump.inbox._messages_max = 4
        await bench.receive(*(live(number, TWO) for number in range(4)))

    bench = play(scene)
    assert bench.sink.told(TWO) == numbers(0, 3)
    assert bench.engine.asked[-1] == Cursor(1, 1)


def test_what_the_inbox_had_no_room_for_is_told_while_another_one_floods_it() -> None:
    """Until it is told, answers without it are exact; and a flood may never end."""

    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.begin(REPLAYS)
        bench.engine.has = {number: live(number, TWO) for number in range(5)}
        bench.pump._pace = TurnPace(TURN_S, least=1, most=1)
        inbox = bench.pump.inbox
        inbox._messages_max = 9
        flood = iter(range(1000))
        inbox.put([live(next(flood)) for _ in range(4)])
        inbox.put([live(number, TWO) for number in range(5)])
        assert inbox.dropped()[TWO] > 0
        for _ in range(40):
            inbox.put([live(next(flood)) for _ in range(4 - len(inbox))])
            await asyncio.sleep(0)
            assert inbox, "it is never empty"
        assert bench.sink.told(TWO) == numbers(0, 4)

    assert play(scene).engine.asked[-1].sequence < 4


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
        await bench.pump.follower.follow(PLAIN)
        await bench.receive(live(5), live(6))
        assert bench.sink.records == []
        bench.pump.follower.begin(bench.pump.followed[ONE], Anchor(Cursor(1, 4), BORN + 4))
        await bench.settle()

    assert play(scene).sink.told() == numbers(5, 6)


def test_what_had_arrived_before_the_place_is_known_is_taken_before_the_engine_is_asked() -> None:
    async def scene(bench: Bench) -> None:
        bench.sink.free.clear()
        await bench.pump.follower.follow(REPLAYS)
        bench.pump.inbox.put([live(4, TWO)])
        bench.pump.follower.begin(bench.pump.followed[TWO], Anchor(Cursor(1, 4), BORN + 4))
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
        await bench.pump.follower.follow(PLAIN)
        bench.pump.inbox.put([live(4)])
        bench.pump.follower.begin(bench.pump.followed[ONE], Anchor(Cursor(1, 4), BORN + 4))
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


def test_a_gap_that_shows_while_the_engine_is_checked_is_asked_for() -> None:
    """What comes live ends a check only where it follows on."""

    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        await bench.receive(live(0, TWO))
        bench.engine.has = {number: live(number, TWO) for number in range(4)}
        bench.engine.answers.clear()
        bench.pump.follower.repair(bench.pump.followed[TWO], is_check=True)
        await bench.receive(live(3, TWO))
        bench.pump.follower.end_checks(time.monotonic() + CHECK_HOLD_MAX_S)
        bench.pump.follower.end_checks(time.monotonic() + 2 * CHECK_HOLD_MAX_S)
        await bench.settle()
        bench.engine.answers.set()
        await bench.settle()

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
            await bench.pump.follower.follow(PLAIN)
        await bench.pump.follower.unfollow(bench.pump.followed[ONE])
        bench.receiver.refuse = False
        await bench.begin(PLAIN)
        await bench.pump.follower.connect_again(PLAIN)
        await bench.receive(live(0))

    assert play(scene).sink.told() == numbers(0, 0)


def test_a_follow_that_is_cancelled_connects_all_the_same() -> None:
    """Its publisher is kept by the next assignment, and would be silent for good."""

    async def scene(bench: Bench) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        other, one = registration(instance_id="a"), registration(instance_id="b")
        bench.receiver.open.clear()
        waiting = asyncio.create_task(bench.pump.follower.follow(other))
        following = asyncio.create_task(bench.pump.follower.follow(one))
        await bench.settle()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        bench.receiver.open.set()
        await waiting
        await bench.pump.follower.follow(
            registration(instance_id="c")
        )  # after what was begun before it
        assert following.cancelled()
        assert one.publisher in bench.pump.followed
        assert one.publisher in bench.receiver.followed

    play(scene)


def test_a_publisher_that_is_forgotten_during_its_repair_is_not_heard_of_again() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(REPLAYS)
        bench.engine.answers.clear()
        await bench.receive(live(0, TWO), live(2, TWO))
        await bench.pump.follower.unfollow(bench.pump.followed[TWO])
        bench.engine.answers.set()
        await bench.receive(live(3, TWO))
        assert bench.pump.intake.unregistered_messages == 1
        assert bench.pump.follower.totals.held_bytes == 0

    assert play(scene).sink.told(TWO) == numbers(0, 0)


def test_a_publisher_that_is_held_again_goes_on_where_it_was() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.receive(live(0))
        bench.pump.follower.hold(bench.pump.followed[ONE])
        await bench.receive(live(1))
        assert bench.sink.told() == numbers(0, 0)
        bench.pump.follower.resume(bench.pump.followed[ONE])
        await bench.receive(live(2))

    assert play(scene).sink.told() == numbers(0, 2)


# The end


def test_what_was_received_before_the_end_is_written() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.pump.follower.follow(REPLAYS)
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
        await bench.pump.follower.follow(PLAIN)
        await bench.receive(live(0))
        bench.pump.follower.begin(
            bench.pump.followed[ONE], NO_ANCHOR
        )  # its task has no turn any more
        assert bench.running is not None
        bench.running.cancel()
        await bench.pump.drain()

    assert play(scene).sink.told() == numbers(0, 0)


def test_a_publisher_is_followed_once() -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        publisher = bench.pump.followed[ONE]
        with pytest.raises(RegistrationConflictError):
            await bench.pump.follower.follow(PLAIN)
        assert bench.pump.followed == {ONE: publisher}

    play(scene)


def test_who_rests_is_not_looked_at_until_something_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[PublisherKey] = []
    changed: list[PublisherKey] = []
    clock = [time.monotonic() + 100.0]
    look = Publisher.look

    def counted(followed: Publisher, *seen: Any) -> None:
        looked.append(followed.registration.publisher)
        look(followed, *seen)

    def watched(bench: Bench) -> list[PublisherKey]:
        looked.clear()
        bench.pump.follower.watch()
        return list(looked)

    async def scene(bench: Bench) -> None:
        await bench.begin(PLAIN)
        await bench.begin(REPLAYS)
        bench.receiver.followed.clear()  # both links go down
        monkeypatch.setattr(bench.receiver, "changed", lambda: (clock[0], tuple(changed)))
        monkeypatch.setattr(bench.receiver, "received_until", lambda _: clock[0])
        faked = SimpleNamespace(monotonic=lambda: clock[0], unix=time.time)
        monkeypatch.setattr(bench.pump.follower, "_clock", faked)
        bench.pump.follower.watched_at = clock[0]
        changed.extend([ONE, TWO])
        assert watched(bench) == [ONE, TWO]
        changed.clear()
        clock[0] += 0.25
        assert watched(bench) == []
        assert bench.pump.followed[ONE].as_of == clock[0] - 0.25, "of the last look"
        changed.append(TWO)
        assert watched(bench) == [TWO]
        changed.clear()
        clock[0] += LOOK_REST_S
        assert watched(bench) == [ONE, TWO], "whatever was forgotten is seen then"
        received = clock[0]
        monkeypatch.setattr(bench.receiver, "changed", lambda: (received, ()))
        clock[0] += 2.0
        assert watched(bench) == [ONE, TWO], "nothing is received"
        monkeypatch.undo()

    monkeypatch.setattr(Publisher, "look", counted)
    play(scene)
