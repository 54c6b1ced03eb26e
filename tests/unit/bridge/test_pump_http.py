"""The pump over engines that say over HTTP whether they are there, and which process they are."""

import asyncio
import time
from typing import Final

import msgspec
import pytest

from bridge.engine_http import watch as watch_module
from bridge.engine_http.answers import Process, PublisherSource
from bridge.engine_http.watch import PROBE_FAILURES_MAX
from bridge.link_numbers import LinkNumber
from bridge.publisher import publisher as followed_module
from bridge.publisher.anchor import Anchor
from bridge.sockets.raw_message import RawMessage
from schemas.answer_states import Activity, Doubt
from schemas.engine_facts import EngineFacts
from schemas.identities import PublisherKey
from schemas.positions import Cursor, ProcessMark
from schemas.registration import Registration
from tests.unit.bridge.messages import frames_of
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

HTTP: Final = msgspec.structs.replace(PLAIN, http_endpoint="http://127.0.0.1:8000")
BOTH: Final = msgspec.structs.replace(REPLAYS, http_endpoint="http://127.0.0.1:8001")
FIRST, SECOND = Process("first", BORN - 10), Process("second", BORN + 100)


def over(link: int, sequence: int, of: PublisherKey = ONE) -> RawMessage:
    """A batch that comes over this link."""
    return live(sequence, of)._replace(link=LinkNumber(link))


def reborn(link: int, sequence: int, of: PublisherKey = ONE) -> RawMessage:
    """One of the second process, with other bytes."""
    batch = [BORN + 200 + sequence, [["BlockRemoved", [sequence]]], 0]
    return RawMessage(of, frames_of(batch, sequence), 0.0, LinkNumber(link))


async def look(bench: Bench, times: int = 3) -> None:
    for _ in range(times):
        bench.pump.follower.watch()
        await bench.settle()


async def link_up(bench: Bench, link: int, of: PublisherKey = ONE) -> None:
    """The link comes up, and the pump sees it."""
    bench.receiver.ups[of] = link
    await look(bench, 6)


async def live_in(bench: Bench, registration: Registration, process: Process | None) -> None:
    """Its first three batches have come over its first link."""
    bench.http.says = process
    bench.receiver.ups[registration.publisher] = 1
    await bench.begin(registration)
    await bench.receive(*[over(1, number, registration.publisher) for number in range(3)])
    await look(bench)
    assert bench.sink.told(registration.publisher) == numbers(0, 2)


def doubt(bench: Bench, of: PublisherKey = ONE) -> Doubt | None:
    return bench.pump.followed[of].doubted.doubt


# Where it publishes


URL: Final = msgspec.structs.replace(PLAIN, endpoint="http://127.0.0.1:8000", instance_id="w-3")
HERE: Final = PublisherSource(0, "tcp://127.0.0.1:41001", "tcp://127.0.0.1:41002", None)


@pytest.mark.parametrize("replay_endpoint", ["", "tcp://127.0.0.1:7"])
def test_an_engine_is_connected_to_where_it_says_and_its_replay_socket_is_its_own(
    replay_endpoint: str,
) -> None:
    one = msgspec.structs.replace(URL, replay_endpoint=replay_endpoint)

    async def scene(bench: Bench) -> None:
        bench.http.there = False
        await bench.begin(one)
        await look(bench)
        assert one.publisher not in bench.receiver.followed
        assert doubt(bench, one.publisher) is Doubt.LINK_DOWN
        bench.http.there, bench.http.at = True, [HERE]
        bench.pump.follower.discovery.watch(time.monotonic() + 100.0)
        await look(bench)
        assert bench.receiver.at[one.publisher] == HERE.endpoint
        followed = bench.pump.followed[one.publisher]
        assert followed.replay.endpoint == (replay_endpoint or HERE.replay_endpoint)
        assert bench.pump.followed[one.publisher].sequencer.stream.pairing.is_trusted == (
            not replay_endpoint
        )
        await bench.pump.follower.unfollow(bench.pump.followed[one.publisher])
        bench.pump.follower.discovery.watch(time.monotonic() + 1000.0)
        await look(bench)
        assert one.publisher not in bench.receiver.followed

    play(scene)


def test_a_link_that_leads_to_another_engine_is_not_believed_and_left() -> None:
    """Its HTTP server has said where it was before; or says another place a while later."""
    key, there = URL.publisher, HERE._replace(endpoint="tcp://127.0.0.1:52001")

    async def is_at(bench: Bench, source: PublisherSource) -> None:
        for _ in range(50):
            await look(bench)
            bench.pump.follower.discovery.watch(time.monotonic() + 100.0)
            if bench.receiver.at[key] == source.endpoint:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it is not there")

    async def scene(bench: Bench) -> None:
        bench.http.at, bench.http.says = [HERE], FIRST
        await bench.begin(URL)
        await look(bench)
        bench.http.at = [there]
        await link_up(bench, 1, key)
        await is_at(bench, there)
        publisher = bench.pump.followed[key]
        assert publisher.doubted.doubt is Doubt.CATCHING_UP
        assert publisher.engine is not None
        await link_up(bench, 2, key)
        await bench.settle()
        assert publisher._own_link == 2
        assert publisher.engine.has_read(LinkNumber(2))
        bench.http.at = [HERE]
        publisher.facts = EngineFacts(endpoint="tcp://*:52001")
        assert publisher._own_link == 2
        publisher.facts = EngineFacts(endpoint="tcp://*:41001")
        await is_at(bench, HERE)

    play(scene)


def test_an_engine_that_does_not_say_where_it_publishes_is_told_from_one_that_is_away() -> None:
    async def scene(bench: Bench) -> None:
        bench.http.at = []
        await bench.begin(URL)
        await look(bench)
        assert doubt(bench, URL.publisher) is Doubt.NO_ENDPOINT

    play(scene)


# Restarts


def test_an_engine_that_has_restarted_and_passed_its_old_number_is_found_out() -> None:
    async def scene(bench: Bench) -> None:
        await live_in(bench, HTTP, FIRST)
        assert doubt(bench) is None
        bench.http.says = SECOND
        await link_up(bench, 2)
        await bench.receive(reborn(2, 5))
        await look(bench)

    bench = play(scene)
    assert bench.sink.told()[3:] == [
        ("restarted", 2, -1, -1),
        ("joined_late", 2, 0, 4),
        *numbers(5, 5),
    ]


def test_what_the_new_process_can_still_replay_is_asked_for_from_its_first_batch() -> None:
    async def scene(bench: Bench) -> None:
        await live_in(bench, BOTH, FIRST)
        bench.http.says = SECOND
        bench.engine.has = {number: reborn(2, number, TWO) for number in range(6)}
        bench.engine.asked.clear()
        await link_up(bench, 2, TWO)
        await bench.receive(reborn(2, 6, TWO))
        await look(bench)
        assert bench.engine.asked[0] == Cursor(2, -1)

    assert play(scene).sink.told(TWO)[3:] == [("restarted", 2, -1, -1), *numbers(0, 6)]


def test_what_waited_of_the_process_before_is_written_before_the_reset() -> None:
    async def scene(bench: Bench) -> None:
        await live_in(bench, HTTP, FIRST)
        bench.pump.follower.hold(bench.pump.followed[ONE])
        await bench.receive(over(1, 3))
        bench.http.says = SECOND
        bench.receiver.ups[ONE] = 2
        bench.pump.follower.begin(bench.pump.followed[ONE], Anchor(Cursor(1, 2), BORN + 2))
        await look(bench)
        await bench.receive(reborn(2, 4))
        await look(bench)

    assert play(scene).sink.told()[3:] == [
        *numbers(3, 3),
        ("restarted", 2, -1, -1),
        ("joined_late", 2, 0, 3),
        *numbers(4, 4),
    ]


def test_what_came_over_a_link_between_is_of_nobody_knows_whom() -> None:
    async def scene(bench: Bench) -> None:
        await live_in(bench, HTTP, FIRST)
        bench.pump.follower.hold(bench.pump.followed[ONE])
        await bench.receive(over(2, 3), reborn(3, 0))
        bench.http.says = SECOND
        bench.receiver.ups[ONE] = 3
        bench.pump.follower.begin(bench.pump.followed[ONE], Anchor(Cursor(1, 2), BORN + 2))
        await look(bench)
        dropped = bench.pump.followed[ONE].sequencer.stream.counters.dropped
        assert dropped["earlier_incarnation"] == 1

    assert play(scene).sink.told()[3:] == [("restarted", 2, -1, -1), *numbers(0, 0)]


def test_a_process_that_is_told_late_ends_the_incarnation_late() -> None:
    """Its first batches follow on the old ones' numbers: until then they are doubted, and then they
    are withdrawn with the old ones, and lost where nothing replays them.
    """

    async def scene(bench: Bench) -> None:
        await live_in(bench, HTTP, FIRST)
        bench.http.says = None
        await link_up(bench, 2)
        await bench.receive(reborn(2, 3))
        await look(bench)
        assert doubt(bench) is Doubt.NO_REPLAY
        engine = bench.pump.followed[ONE].engine
        assert engine is not None
        bench.http.says = SECOND
        engine.read(time.monotonic(), LinkNumber(2), SECOND)
        await look(bench)
        assert bench.pump.followed[ONE].sequencer.stream.cursor == Cursor(2, 3)

    told = play(scene).sink.told()
    assert told[3:] == [*numbers(3, 3), ("restarted", 2, -1, -1), ("restarted", 2, 0, 3)]


def test_what_the_log_says_of_the_process_finds_a_restart_while_nobody_listened() -> None:
    async def scene(bench: Bench) -> None:
        bench.http.says = SECOND
        bench.receiver.ups[ONE] = 1
        await bench.pump.follower.follow(HTTP)
        anchor = Anchor(Cursor(4, 7), BORN + 7)
        bench.pump.follower.begin(bench.pump.followed[ONE], anchor, process=ProcessMark(4, "first"))
        await bench.settle()
        await bench.receive(reborn(1, 9))
        await look(bench)

    assert play(scene).sink.told() == [
        ("restarted", 5, -1, -1),
        ("joined_late", 5, 0, 8),
        *numbers(9, 9),
    ]


# The same process


def test_the_same_process_is_confirmed_by_its_next_batch_without_a_replay_socket() -> None:
    async def scene(bench: Bench) -> None:
        await live_in(bench, HTTP, FIRST)
        await link_up(bench, 2)
        assert doubt(bench) is Doubt.NO_REPLAY, "what it sent meanwhile may be missing"
        await bench.receive(over(2, 3))
        await look(bench)
        assert doubt(bench) is None

    bench = play(scene)
    assert bench.sink.told() == numbers(0, 3)
    assert all(getattr(one, "doubted", None) is not True for one in bench.sink.records)


def test_what_the_same_process_sent_while_its_link_was_down_is_a_gap_of_these_numbers() -> None:
    async def scene(bench: Bench) -> None:
        await live_in(bench, HTTP, FIRST)
        await link_up(bench, 2)
        await bench.receive(over(2, 6))

    assert play(scene).sink.told()[3:] == [("reconnected", 1, 3, 5), *numbers(6, 6)]


def test_without_an_answer_it_is_as_if_it_had_no_address() -> None:
    async def scene(bench: Bench) -> None:
        await live_in(bench, HTTP, None)
        assert doubt(bench) is None, "its first batch came over this link"
        await link_up(bench, 2)
        await bench.receive(over(2, 3))
        await look(bench)
        assert doubt(bench) is Doubt.NO_REPLAY

    assert play(scene).sink.told() == numbers(0, 3)


def test_it_is_asked_once_for_each_link() -> None:
    async def scene(bench: Bench) -> None:
        await live_in(bench, HTTP, FIRST)
        await look(bench, 10)
        assert bench.http.asked == 1
        await link_up(bench, 2)
        await look(bench, 10)
        assert bench.http.asked == 2

    play(scene)


def test_an_address_that_names_two_processes_over_one_link_is_a_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_module, "PROCESS_AGAIN_S", 0.0)

    async def scene(bench: Bench) -> None:
        await live_in(bench, HTTP, FIRST)
        bench.http.says = SECOND
        await look(bench, 5)
        assert doubt(bench) is Doubt.PROCESS_CHANGED
        await bench.receive(over(1, 3))

    assert play(scene).sink.told() == numbers(0, 3)


# Sleep


def test_an_engine_that_sleeps_is_doubted_until_it_is_awake_and_something_has_come() -> None:
    """It gives up its cache, and says so with its first step after it was woken."""

    async def scene(bench: Bench) -> None:
        await live_in(bench, HTTP, FIRST)
        followed = bench.pump.followed[ONE]
        assert doubt(bench) is None
        for is_asleep in (None, False):
            followed.facts = EngineFacts(is_asleep=is_asleep)
            await look(bench)
            assert doubt(bench) is None
        followed.facts = EngineFacts(is_asleep=True)
        await look(bench)
        assert doubt(bench) is Doubt.ASLEEP
        for facts in (EngineFacts(is_asleep=False), None):
            followed.facts = facts
            await look(bench)
            assert doubt(bench) is Doubt.ASLEEP, "what it gave up is not known to be told"
        await bench.receive(over(1, 3))
        await look(bench)
        assert doubt(bench) is None

    play(scene)


def test_an_engine_that_serves_the_model_no_more_is_doubted() -> None:
    async def scene(bench: Bench) -> None:
        await live_in(bench, HTTP, FIRST)
        followed, name = bench.pump.followed[ONE], ONE.stream.model_name
        doubts = []
        for models in (("other",), (), (name, "lora"), ("other",), (), ("lora", name)):
            followed.facts = EngineFacts(models=models)
            await look(bench)
            doubts.append(doubt(bench))
        changed = Doubt.MODEL_CHANGED
        assert doubts == [None, None, None, changed, changed, None], "first a name of the router's"

    play(scene)


def test_what_came_before_an_engine_was_seen_asleep_says_nothing_of_its_waking() -> None:
    async def scene(bench: Bench) -> None:
        await live_in(bench, HTTP, FIRST)
        followed = bench.pump.followed[ONE]
        followed.facts = EngineFacts(is_asleep=True)
        await bench.receive(over(1, 3))
        await look(bench)
        assert doubt(bench) is Doubt.ASLEEP, "it may sleep again"
        followed.facts = EngineFacts(is_asleep=True)
        followed.facts = EngineFacts(is_asleep=False)
        await look(bench)
        assert doubt(bench) is Doubt.ASLEEP

    play(scene)


# Silence


@pytest.mark.parametrize("there", [True, False])
def test_a_silent_engine_is_confirmed_for_as_long_as_it_is_there(
    monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.setattr(followed_module, "CHECK_SILENCE_S", 0.0)
    monkeypatch.setattr(watch_module, "PROBE_AGAIN_S", 0.0)
    monkeypatch.setattr(watch_module, "PROBE_RETRY_S", 0.0)

    async def scene(bench: Bench) -> None:
        await live_in(bench, HTTP, FIRST)
        bench.http.there = there
        await look(bench, 2 * PROBE_FAILURES_MAX + 2)
        assert bench.http.probed >= PROBE_FAILURES_MAX
        assert doubt(bench) is (None if there else Doubt.ENGINE_AWAY)
        bench.http.there = True
        await look(bench, 4)
        assert doubt(bench) is None
        assert bench.pump.followed[ONE].activity.kind is Activity.SILENT

    play(scene)


def test_an_engine_whose_replay_socket_tells_is_not_probed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(followed_module, "CHECK_SILENCE_S", 0.0)

    async def scene(bench: Bench) -> None:
        await live_in(bench, BOTH, FIRST)
        await look(bench, 8)
        assert bench.http.probed == 0

    play(scene)


def test_one_whose_replay_socket_is_silent_is_probed_and_told_from_one_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(followed_module, "CHECK_SILENCE_S", 0.0)
    monkeypatch.setattr(watch_module, "PROBE_RETRY_S", 0.0)

    async def scene(bench: Bench) -> None:
        await live_in(bench, BOTH, FIRST)
        followed = bench.pump.followed[TWO]
        for _ in range(3):
            followed.answered(time.monotonic(), LinkNumber(1), Doubt.REPLAY_SILENT)
        await look(bench)
        assert doubt(bench, TWO) is Doubt.REPLAY_SILENT
        bench.http.there = False
        engine = followed.engine
        assert engine is not None
        for _ in range(PROBE_FAILURES_MAX):
            engine.probed(0.0, is_there=False)
        followed.wake()
        await look(bench)
        assert doubt(bench, TWO) is Doubt.ENGINE_AWAY

    play(scene)
