"""When a publisher is confirmed, and when its engine is asked; over a clock of numbers."""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import cast

import msgspec
import pytest

from bridge.bounds import WATCH_LATE_S
from bridge.link_numbers import NO_LINK, LinkNumber
from bridge.publisher.publisher import (
    CHECK_AGAIN_MAX_S,
    CHECK_AGAIN_S,
    CHECK_FAILURES_MAX,
    CHECK_HOLD_MAX_S,
    CHECK_HOLD_S,
    CHECK_RETRY_MAX_S,
    CHECK_RETRY_S,
    CHECK_SILENCE_S,
    LINK_RESUME_S,
    LOOK_REST_S,
    PAUSE_SETTLE_S,
    RECEIVED_LATE_S,
    EngineQuestion,
    Look,
    Publisher,
    PublisherDoubt,
    PublisherStatement,
)
from bridge.publisher.waits import Wait
from bridge.wire.drop_reasons import DropReason
from schemas.answer_states import Doubt
from schemas.limits import CHECK_LATE_S, LINK_SETTLE_S, REPEATS_DOUBTED
from schemas.registration import Registration
from schemas.troubles import NO_TROUBLES, Troubles
from tests.unit.bridge.messages import registration

PLAIN = registration()
REPLAYS = msgspec.structs.replace(PLAIN, replay_endpoint="tcp://127.0.0.1:5558")
BY_HTTP = [
    msgspec.structs.replace(one, http_endpoint="http://127.0.0.1:8000") for one in (PLAIN, REPLAYS)
]


UNSEEN = Look(
    connected=False,
    link=LinkNumber(0),
    is_silent=False,
    messages=0,
    unplaced=0,
    proven_link=LinkNumber(0),
    is_doubted=False,
    received_until=100.0,
    is_waiting=False,
    late_s=0.0,
    has_waiting=False,
)


@dataclass
class Scene:
    """One publisher, and what is seen of it."""

    registration: Registration = REPLAYS
    now: float = 100.0
    seen: Look = UNSEEN
    followed: Publisher = field(init=False)

    def __post_init__(self) -> None:
        self.followed = Publisher(self.registration)
        self.followed.place()

    def see(self, after_s: float = 0.0, **changes: object) -> Doubt | None:
        """What it is doubted for once some time has passed."""
        self.now += after_s
        self.seen = self.seen._replace(received_until=self.now)._replace(**changes)  # type: ignore[arg-type]
        self.followed.look(self.now, 1e9 + self.now, self.seen)
        return self.followed.doubted.doubt

    def asks(self) -> EngineQuestion:
        return self.followed.asks(self.now)

    def ask(self, doubt: Doubt | None, *, heard: int = 0) -> Doubt | None:
        """Its engine is asked, and answers so."""
        link = self.followed.begin_asking(self.now, heard=LinkNumber(heard))
        self.followed.answered(self.now, link, doubt)
        return self.see()


def test_an_answer_that_was_asked_for_before_a_pause_confirms_nothing() -> None:
    """It may have waited in our socket since then."""
    scene = Scene()
    scene.see(connected=True, link=1)
    scene.now += LINK_SETTLE_S
    link = scene.followed.begin_asking(scene.now, heard=NO_LINK)
    scene.now += 6.0
    scene.followed.distrust(scene.now)
    scene.followed.answered(scene.now, link, None)
    assert scene.see(PAUSE_SETTLE_S) is Doubt.CATCHING_UP
    assert scene.asks() is EngineQuestion.REPAIR, "at once"
    assert scene.ask(None) is None


def test_what_was_heard_while_its_engine_was_asked_is_asked_for_once_more() -> None:
    """The engine may have answered before, and its socket may have dropped what came behind."""
    scene = Scene()
    scene.see(connected=True, link=1)
    scene.now += LINK_SETTLE_S
    link = scene.followed.begin_asking(scene.now, heard=NO_LINK)
    heard_at = scene.now = scene.now + 0.5
    scene.see(messages=1)
    scene.followed.answered(scene.now, link, None)
    assert scene.see(0.5) is None
    assert scene.followed.as_of <= heard_at, "until its engine is asked again"
    scene.now = heard_at
    assert scene.see(CHECK_SILENCE_S) is None
    assert scene.asks() is EngineQuestion.CHECK
    assert scene.ask(None) is None
    assert scene.followed.as_of == scene.now


def test_an_engine_that_was_not_heard_to_the_end_is_asked_again_once_it_is_silent() -> None:
    """Its reply was read up to a live batch, behind which its socket may have dropped another."""
    scene = Scene()
    heard_at = scene.now
    scene.see(connected=True, link=1, messages=1)
    scene.now += LINK_SETTLE_S
    link = scene.followed.begin_asking(scene.now, heard=LinkNumber(1))
    scene.followed.answered(scene.now, link, None, heard_all=False)
    assert scene.see() is None, "it is confirmed"
    assert scene.followed.as_of <= heard_at
    scene.now = heard_at
    assert scene.see(CHECK_SILENCE_S) is None
    assert scene.asks() is EngineQuestion.CHECK
    assert scene.ask(None) is None
    assert scene.followed.as_of == scene.now


@pytest.mark.parametrize("doubt", [Doubt.REPLAY_UNMATCHED, Doubt.REPLAY_SILENT])
def test_one_whose_engine_does_not_say_that_there_is_nothing_newer_is_doubted_for_that(
    confirmed: Scene, doubt: Doubt
) -> None:
    confirmed.see(0.5, messages=5)
    assert confirmed.see(CHECK_LATE_S + 0.1) is Doubt.CATCHING_UP, "it is about to be asked"
    assert confirmed.ask(doubt) is doubt
    assert confirmed.ask(None) is None


def test_what_its_replay_has_not_shown_is_asked_for_once_something_comes_live() -> None:
    scene = Scene()
    scene.see(connected=True, link=1)
    scene.now += LINK_SETTLE_S
    assert scene.ask(Doubt.REPLAY_UNMATCHED) is Doubt.REPLAY_UNMATCHED
    assert not scene.followed.fails, "it answers"
    pauses = []
    for _ in range(8):
        since = scene.now
        while scene.asks() is EngineQuestion.NOTHING:
            scene.see(0.5)
        pauses.append(scene.now - since)
        scene.ask(Doubt.REPLAY_UNMATCHED)
    assert pauses == sorted(pauses)
    assert pauses[0] <= CHECK_RETRY_S + 0.5
    assert pauses[-1] == CHECK_AGAIN_S
    scene.see(2 * CHECK_RETRY_S)
    assert scene.asks() is EngineQuestion.NOTHING
    scene.see(messages=1)
    assert scene.asks() is EngineQuestion.CHECK
    assert scene.ask(None) is None


@pytest.fixture
def confirmed() -> Scene:
    scene = Scene()
    scene.see(connected=True, link=1)
    scene.see(LINK_SETTLE_S)
    assert scene.ask(None) is None
    return scene


def test_an_engine_is_asked_once_its_link_has_settled_and_is_confirmed_by_its_answer() -> None:
    scene = Scene()
    assert scene.see() is Doubt.LINK_DOWN
    assert scene.asks() is EngineQuestion.NOTHING
    assert scene.see(connected=True, link=1) is Doubt.CATCHING_UP
    assert scene.asks() is EngineQuestion.NOTHING, "the subscription may not have arrived"
    scene.see(LINK_SETTLE_S)
    assert scene.asks() is EngineQuestion.REPAIR
    assert scene.ask(None) is None


def test_a_link_that_was_up_before_it_was_first_looked_at_has_to_settle_too() -> None:
    scene = Scene()
    scene.see(connected=True, link=1, messages=1)
    assert scene.asks() is EngineQuestion.NOTHING


def test_no_moment_of_the_clock_is_a_special_one() -> None:
    """It may be 0 when the first publisher is followed."""
    scene = Scene(now=0.0)
    assert scene.see(connected=True, link=1, proven_link=1) is None
    scene.see(LINK_SETTLE_S)
    assert scene.asks() is EngineQuestion.REPAIR
    assert scene.ask(None) is None


def test_a_message_without_a_place_is_a_doubt_until_its_engine_or_a_batch_dispels_it(
    confirmed: Scene,
) -> None:
    assert confirmed.see(messages=5, unplaced=5) is Doubt.UNREADABLE
    assert confirmed.see(messages=6, unplaced=0) is None, "a batch came behind it"
    assert confirmed.see(messages=7, unplaced=7) is Doubt.UNREADABLE
    assert confirmed.ask(None) is None
    assert confirmed.see(messages=8, unplaced=7) is None
    link = confirmed.followed.begin_asking(confirmed.now, heard=NO_LINK)
    assert confirmed.see(messages=9, unplaced=9) is Doubt.UNREADABLE
    confirmed.followed.answered(confirmed.now, link, None)
    assert confirmed.see() is Doubt.UNREADABLE, "it came after that was asked"
    assert confirmed.ask(Doubt.REPLAY_SILENT) is Doubt.UNREADABLE


def test_one_whose_place_is_no_longer_known_is_doubted_at_once(confirmed: Scene) -> None:
    confirmed.followed.unplace(7.0)
    assert confirmed.followed.doubted == (Doubt.CATCHING_UP, 7.0)
    assert confirmed.followed.has_news
    assert confirmed.followed.waits_for == (Wait.PLACE,)
    down = Scene()
    down.see()
    down.followed.unplace(7.0)
    assert down.followed.doubted == (Doubt.LINK_DOWN, 1e9 + down.now), "it was doubted already"


def test_the_repair_of_one_whose_place_is_no_longer_known_ends(confirmed: Scene) -> None:
    async def scene() -> None:
        under_way = asyncio.create_task(asyncio.sleep(60))
        assert confirmed.followed.ask(lambda: under_way, is_check=False)
        confirmed.followed.unplace(7.0)
        assert confirmed.followed.repair is None
        assert confirmed.followed.interrupted
        await asyncio.wait([under_way], timeout=10)
        assert under_way.cancelled()

    asyncio.run(scene())


def test_however_often_its_engine_did_not_answer_it_is_asked_again(confirmed: Scene) -> None:
    for _ in range(3000):
        confirmed.ask(Doubt.REPLAY_SILENT)
    assert confirmed.followed.fails
    assert confirmed.followed.patience_s == CHECK_HOLD_MAX_S
    confirmed.see(CHECK_RETRY_MAX_S)
    assert confirmed.asks() is EngineQuestion.CHECK
    assert confirmed.ask(None) is None
    assert not confirmed.followed.fails


def test_an_answer_from_before_the_link_was_up_confirms_nothing() -> None:
    scene = Scene()
    assert scene.ask(None) is Doubt.LINK_DOWN
    assert scene.see(connected=True, link=1) is Doubt.CATCHING_UP
    assert scene.ask(None) is Doubt.CATCHING_UP, "not settled"
    assert scene.ask(None, heard=1) is None, "it has brought something"


def test_a_link_that_was_down_is_another_one(confirmed: Scene) -> None:
    assert confirmed.see(connected=False) is Doubt.LINK_DOWN
    assert confirmed.see(connected=True, link=2) is Doubt.CATCHING_UP
    confirmed.see(LINK_SETTLE_S)
    assert confirmed.asks() is EngineQuestion.REPAIR
    assert confirmed.ask(None) is None


def test_a_silent_link_is_doubted_not_asked_over_and_is_what_it_was_once_it_speaks(
    confirmed: Scene,
) -> None:
    assert confirmed.see(is_silent=True) is Doubt.LINK_SILENT
    assert confirmed.see(CHECK_AGAIN_S) is Doubt.LINK_SILENT
    assert confirmed.asks() is EngineQuestion.NOTHING
    assert confirmed.see(is_silent=False) is Doubt.RECEIVED_LATE, "more may be on its way"
    assert confirmed.see(LINK_RESUME_S) is None


def test_what_was_held_up_while_a_link_was_silent_is_late_until_it_has_come(
    confirmed: Scene,
) -> None:
    confirmed.see(is_silent=True)
    confirmed.see(is_silent=False)
    late = confirmed.see(LINK_RESUME_S, messages=2, late_s=RECEIVED_LATE_S + 1)
    assert late is Doubt.RECEIVED_LATE
    assert confirmed.see(0.1, messages=3, late_s=0.0) is None


def test_a_link_that_came_back_between_two_looks_is_another_one(confirmed: Scene) -> None:
    assert confirmed.see(link=2) is Doubt.CATCHING_UP


def test_a_link_that_is_lost_while_its_engine_is_asked_is_not_confirmed(confirmed: Scene) -> None:
    link = confirmed.followed.begin_asking(confirmed.now, heard=LinkNumber(1))
    confirmed.see(link=2)
    confirmed.followed.answered(confirmed.now, link, None)
    assert confirmed.see() is Doubt.CATCHING_UP


def test_a_silent_engine_is_asked_again_at_first_soon_and_then_now_and_then(
    confirmed: Scene,
) -> None:
    confirmed.see(1.0, messages=1)
    confirmed.see(CHECK_SILENCE_S - 0.1)
    assert confirmed.asks() is EngineQuestion.NOTHING
    confirmed.see(0.1)
    assert confirmed.asks() is EngineQuestion.CHECK
    assert confirmed.ask(None) is None
    confirmed.see(CHECK_AGAIN_S - 0.1)
    assert confirmed.asks() is EngineQuestion.NOTHING
    confirmed.see(0.1)
    assert confirmed.asks() is EngineQuestion.CHECK


def _pauses(scene: Scene, questions: int) -> list[float]:
    """Until its engine is asked, each time; it says that nothing is missing."""
    pauses = []
    for _ in range(questions):
        since = scene.now
        while scene.asks() is EngineQuestion.NOTHING:
            scene.see(0.5)
        pauses.append(scene.now - since)
        assert scene.ask(None) is None
    return pauses


def test_an_engine_that_stays_silent_is_asked_less_often(confirmed: Scene) -> None:
    confirmed.see(1.0, messages=1)
    usual = [CHECK_SILENCE_S, CHECK_AGAIN_S, CHECK_SILENCE_S + CHECK_AGAIN_S]
    expected = [*usual, 2 * usual[-1], CHECK_AGAIN_MAX_S, CHECK_AGAIN_MAX_S]
    assert _pauses(confirmed, 6) == expected
    confirmed.see(1.0, messages=2)
    assert _pauses(confirmed, 3) == usual, "as soon as before once it was heard"
    confirmed.see(CHECK_AGAIN_S, link=2)
    expected = [LINK_SETTLE_S, CHECK_AGAIN_S, CHECK_AGAIN_S + LINK_SETTLE_S]
    assert _pauses(confirmed, 3) == pytest.approx(expected, abs=0.5), "and over another link"


def test_an_engine_that_has_answered_at_its_last_message_is_not_soon_asked_again(
    confirmed: Scene,
) -> None:
    confirmed.see(1.0, messages=1)
    confirmed.ask(None)
    confirmed.see(CHECK_SILENCE_S)
    assert confirmed.asks() is EngineQuestion.NOTHING


def test_an_engine_that_goes_on_sending_is_not_asked(confirmed: Scene) -> None:
    for messages in range(100):
        confirmed.see(1.0, messages=messages + 1)
        assert confirmed.asks() is EngineQuestion.NOTHING


def test_a_replay_socket_that_falls_silent_is_told_after_some_tries(confirmed: Scene) -> None:
    for _ in range(CHECK_FAILURES_MAX - 1):
        assert confirmed.ask(Doubt.REPLAY_SILENT) is None
    assert confirmed.ask(Doubt.REPLAY_SILENT) is Doubt.REPLAY_SILENT
    assert confirmed.asks() is EngineQuestion.NOTHING, "not at once"
    confirmed.see(CHECK_RETRY_MAX_S)
    assert confirmed.asks() is EngineQuestion.CHECK
    assert confirmed.ask(None) is None


def test_an_answer_ends_the_count_of_failures_and_the_wait_after_them(confirmed: Scene) -> None:
    confirmed.ask(Doubt.REPLAY_SILENT)
    confirmed.ask(None)
    confirmed.see(is_doubted=True)
    assert confirmed.asks() is EngineQuestion.CHECK
    confirmed.see(is_doubted=False)
    for _ in range(CHECK_FAILURES_MAX - 1):
        assert confirmed.ask(Doubt.REPLAY_SILENT) is None


def test_what_is_of_an_unknown_incarnation_is_asked_for(confirmed: Scene) -> None:
    assert confirmed.see(is_doubted=True) is Doubt.CATCHING_UP
    confirmed.see(CHECK_RETRY_MAX_S)
    assert confirmed.asks() is EngineQuestion.CHECK


def test_nothing_is_asked_before_what_has_arrived_is_taken(confirmed: Scene) -> None:
    """A replay must not overtake it."""
    confirmed.see(CHECK_AGAIN_S, is_waiting=True)
    assert confirmed.asks() is EngineQuestion.NOTHING
    behind = confirmed.now - WATCH_LATE_S
    confirmed.see(is_waiting=False, received_until=behind - 0.1)
    assert confirmed.asks() is EngineQuestion.NOTHING
    confirmed.see(received_until=behind)
    assert confirmed.asks() is EngineQuestion.CHECK


def test_what_was_received_and_waits_for_too_long_is_told(confirmed: Scene) -> None:
    assert confirmed.see(received_until=confirmed.now - RECEIVED_LATE_S) is None
    late = confirmed.now - RECEIVED_LATE_S - 0.1
    assert confirmed.see(received_until=late) is Doubt.RECEIVED_LATE
    assert confirmed.see() is None


def test_what_is_confirmed_is_so_as_of_what_had_been_received_by_then(confirmed: Scene) -> None:
    confirmed.see(1.0, received_until=confirmed.now + 0.5)
    assert confirmed.followed.as_of == confirmed.now - 0.5
    confirmed.see(1.0, messages=1, late_s=0.25)
    assert confirmed.followed.as_of == confirmed.now - 0.25, "its link is as much behind"
    plain = Scene(PLAIN)
    plain.see(connected=True, link=1, proven_link=1, messages=1)
    plain.see(CHECK_SILENCE_S, late_s=0.25)
    assert plain.followed.as_of == plain.now, "what was on its way has come"


def test_an_engine_that_can_be_asked_is_confirmed_as_of_what_was_heard_until_it_has_answered(
    confirmed: Scene,
) -> None:
    """What its socket drops when it is full comes behind what is heard."""
    confirmed.see(1.0, messages=1, received_until=confirmed.now + 0.75)
    heard = confirmed.now - 0.25
    assert confirmed.followed.as_of == heard
    assert confirmed.see(CHECK_SILENCE_S) is None
    assert confirmed.followed.as_of == heard
    assert confirmed.see(CHECK_LATE_S - CHECK_SILENCE_S - 0.25) is None
    assert confirmed.see(0.1) is Doubt.CATCHING_UP, "it alone, and not all of its partition"
    assert confirmed.ask(None) is None
    assert confirmed.followed.as_of == confirmed.now
    confirmed.see(1.0)
    assert confirmed.followed.as_of == confirmed.now, "whose socket is empty drops nothing"


def test_an_engine_that_answers_as_it_is_heard_is_confirmed_as_of_then(confirmed: Scene) -> None:
    confirmed.see(1.0, messages=1, received_until=confirmed.now + 0.75)
    confirmed.ask(None)
    assert confirmed.followed.as_of == confirmed.now


def test_records_that_wait_on_the_disk_are_told(confirmed: Scene) -> None:
    assert confirmed.see(has_waiting=True) is Doubt.SPOOLED


def test_after_a_pause_of_this_process_the_engine_is_asked_again(confirmed: Scene) -> None:
    confirmed.followed.distrust(confirmed.now)
    assert confirmed.see() is Doubt.CATCHING_UP
    assert confirmed.asks() is EngineQuestion.REPAIR


def test_after_a_pause_what_the_system_has_kept_is_received_first() -> None:
    scene = Scene(PLAIN)
    assert scene.see(connected=True, link=1, proven_link=1) is None
    scene.followed.distrust(scene.now)
    assert scene.see() is Doubt.RECEIVED_LATE
    assert scene.see(PAUSE_SETTLE_S) is None


def test_an_answer_over_a_link_that_is_gone_does_not_end_the_wait_after_a_pause(
    confirmed: Scene,
) -> None:
    confirmed.followed.distrust(confirmed.now)
    link = confirmed.followed.begin_asking(confirmed.now, heard=LinkNumber(1))
    confirmed.see(link=2)
    confirmed.followed.answered(confirmed.now, link, None)
    assert confirmed.see(proven_link=2) is Doubt.RECEIVED_LATE


def test_batches_that_come_late_by_their_own_time_are_told_while_they_come(
    confirmed: Scene,
) -> None:
    assert confirmed.see(1.0, messages=1, late_s=RECEIVED_LATE_S) is None
    late = RECEIVED_LATE_S + 0.1
    assert confirmed.see(0.1, messages=2, late_s=late) is Doubt.RECEIVED_LATE
    assert confirmed.see(CHECK_SILENCE_S, late_s=late) is None, "what was on its way has come"


def test_what_comes_live_waits_longer_for_each_check_that_was_too_short() -> None:
    scene = Scene()
    scene.see(connected=True, link=1)
    patience = []
    for _ in range(5):
        patience.append(scene.followed.patience_s)
        scene.ask(Doubt.REPLAY_SILENT)
    assert patience[:2] == [CHECK_HOLD_S, 2 * CHECK_HOLD_S]
    assert patience[-1] == CHECK_HOLD_MAX_S


def test_what_a_confirmed_publisher_sends_does_not_wait_for_a_check(confirmed: Scene) -> None:
    assert confirmed.followed.patience_s == 0.0


def test_without_a_replay_socket_only_what_came_over_the_link_confirms() -> None:
    scene = Scene(PLAIN)
    assert scene.see(connected=True, link=1) is Doubt.NO_REPLAY
    scene.see(LINK_SETTLE_S)
    assert scene.asks() is EngineQuestion.NOTHING
    assert scene.see(proven_link=1, messages=1) is None, "the first batch of its incarnation"
    assert scene.see(60.0) is None
    assert scene.see(connected=False) is Doubt.LINK_DOWN
    assert scene.see(connected=True, link=2) is Doubt.NO_REPLAY
    assert scene.see(is_doubted=True, proven_link=0) is Doubt.NO_REPLAY, "it may be another life"
    assert scene.see(is_doubted=False, proven_link=2) is None, "it has cleared its cache"
    for _ in range(CHECK_FAILURES_MAX):
        assert scene.ask(Doubt.REPLAY_SILENT) is None, "nothing was to be expected of it"


# Where nothing has happened yet, and what ends what


def test_of_a_publisher_without_a_place_in_the_log_nothing_is_known_or_asked() -> None:
    scene = Scene()
    scene.followed = Publisher(REPLAYS)
    assert scene.followed.doubted == PublisherDoubt(Doubt.CATCHING_UP, 0.0)
    assert scene.see(connected=True, link=1) is Doubt.CATCHING_UP
    scene.see(LINK_SETTLE_S)
    assert scene.ask(None, heard=1) is Doubt.CATCHING_UP
    scene.followed.answered(scene.now, LinkNumber(0), Doubt.REPLAY_SILENT)
    scene.see(CHECK_AGAIN_S)
    assert scene.asks() is EngineQuestion.NOTHING
    scene.followed.place()
    assert scene.see() is None


def test_of_a_new_one_nothing_is_under_way_and_nothing_was_said() -> None:
    followed = Publisher(REPLAYS)
    assert (followed.repair, followed.waits_for, followed.interrupted) == (
        None,
        (Wait.PLACE,),
        False,
    )
    assert (followed.held_since, followed.last_statement) == (None, None)
    followed.cancel_repair()
    assert not followed.interrupted, "there was none"


class Task:
    """Stands for a repair."""

    cancelled = False

    def done(self) -> bool:
        return self.cancelled

    def cancel(self) -> None:
        self.cancelled = True


def test_a_repair_that_is_cancelled_is_interrupted() -> None:
    followed, task = Publisher(REPLAYS), Task()
    followed.place()
    followed.ask(lambda: cast("asyncio.Task[None]", task), is_check=False)
    followed.cancel_repair()
    assert task.cancelled
    assert followed.repair is None
    assert followed.interrupted


def test_while_something_is_missing_it_is_catching_up_while_it_is_checked_it_stays_confirmed(
    confirmed: Scene,
) -> None:
    task = cast("asyncio.Task[None]", Task())
    assert confirmed.followed.ask(lambda: task, is_check=False)
    assert confirmed.see() is Doubt.CATCHING_UP
    confirmed.followed.end()
    assert confirmed.followed.ask(lambda: task, is_check=True)
    assert confirmed.see() is None
    confirmed.see(CHECK_AGAIN_S)
    assert confirmed.asks() is EngineQuestion.NOTHING, "it is being asked"


def test_what_was_written_of_it_is_remembered_and_is_news_no_more() -> None:
    followed = Publisher(REPLAYS)
    assert followed.has_news
    followed.last_statement = followed.statement
    assert followed.last_statement.doubted == PublisherDoubt(Doubt.CATCHING_UP, 0.0)
    assert not followed.has_news
    followed.last_statement = PublisherStatement(PublisherDoubt(None, 8.0), None, None)
    assert followed.has_news


def test_a_link_that_is_down_is_not_asked_over(confirmed: Scene) -> None:
    confirmed.see(CHECK_AGAIN_S, connected=False)
    assert confirmed.asks() is EngineQuestion.NOTHING
    assert confirmed.followed.begin_asking(confirmed.now, heard=LinkNumber(1)) == 0


@pytest.mark.parametrize(
    "changes", [{"link": 2}, {"connected": False}, {"link": 2, "connected": False}]
)
def test_an_answer_confirms_only_the_link_on_which_it_was_asked_and_only_while_it_is_up(
    changes: dict[str, object],
) -> None:
    scene = Scene()
    scene.see(connected=True, link=1)
    scene.see(LINK_SETTLE_S)
    link = scene.followed.begin_asking(scene.now, heard=NO_LINK)
    scene.see(**changes)  # type: ignore[arg-type]
    scene.followed.answered(scene.now, link, None)
    assert scene.see(connected=True) is not None


def test_before_there_is_a_link_an_answer_confirms_none() -> None:
    scene = Scene()
    scene.see(connected=True)
    scene.followed.answered(scene.now, LinkNumber(0), None)
    scene.see(CHECK_AGAIN_S)
    scene.followed.distrust(scene.now)
    assert scene.see(connected=True, link=1) is Doubt.CATCHING_UP


def test_a_pause_takes_back_what_the_bridge_had_proven_by_itself_until_the_engine_answers(
    confirmed: Scene,
) -> None:
    assert confirmed.see(proven_link=1) is None
    confirmed.followed.distrust(confirmed.now)
    assert confirmed.see(proven_link=1) is Doubt.CATCHING_UP, "that was before the pause"
    assert confirmed.ask(None) is None


def test_what_is_proven_again_over_the_same_link_confirms_it_again() -> None:
    scene = Scene(PLAIN)
    assert scene.see(connected=True, link=1, proven_link=1) is None
    scene.followed.begin_again()
    assert scene.see(proven_link=0) is Doubt.NO_REPLAY, "the log had something else of it"
    assert scene.see(proven_link=1) is None, "it has cleared its cache"


def test_after_a_pause_the_doubt_of_before_is_not_told(confirmed: Scene) -> None:
    confirmed.ask(Doubt.REPLAY_SILENT)
    confirmed.followed.distrust(confirmed.now)
    confirmed.followed.begin_asking(confirmed.now, heard=LinkNumber(1))
    assert confirmed.see() is Doubt.CATCHING_UP


def test_an_engine_that_is_silent_is_asked_at_growing_intervals(confirmed: Scene) -> None:
    waits = []
    for _ in range(12):
        confirmed.ask(Doubt.REPLAY_SILENT)
        confirmed.see(is_doubted=True)
        began = confirmed.now
        while confirmed.asks() is EngineQuestion.NOTHING:
            confirmed.see(0.25)
        waits.append(confirmed.now - began)
    doubling = [CHECK_RETRY_S * 2**number for number in range(12)]
    assert waits == [min(wait, CHECK_RETRY_MAX_S) for wait in doubling]


def test_since_is_when_the_doubt_began(confirmed: Scene) -> None:
    confirmed.see(1.0, connected=False)
    since = confirmed.followed.doubted.since
    confirmed.see(5.0)
    assert confirmed.followed.doubted.since == since == 1e9 + confirmed.now - 5.0


# When it rests


def test_who_is_away_rests_for_a_bounded_time() -> None:
    scene = Scene()
    assert scene.see(connected=False) is Doubt.LINK_DOWN
    assert scene.followed.rests_until == scene.now + LOOK_REST_S


def test_who_was_heard_just_now_does_not_rest_and_who_is_silent_and_confirmed_does(
    confirmed: Scene,
) -> None:
    assert confirmed.see(0.1, messages=1) is None
    assert confirmed.followed.rests_until == 0.0
    confirmed.see(CHECK_SILENCE_S)
    assert confirmed.followed.rests_until == 0.0, "its engine is to be asked first"
    confirmed.ask(None)
    assert confirmed.followed.rests_until == confirmed.now + LOOK_REST_S


def test_it_rests_no_longer_than_until_its_engine_is_to_be_asked(confirmed: Scene) -> None:
    confirmed.see(CHECK_AGAIN_S - 1)
    assert confirmed.asks() is EngineQuestion.NOTHING
    assert confirmed.followed.rests_until == pytest.approx(confirmed.now + 1)
    confirmed.see(1)
    assert confirmed.asks() is EngineQuestion.CHECK


def test_an_engine_that_does_not_answer_is_asked_again_in_time(confirmed: Scene) -> None:
    confirmed.see(CHECK_SILENCE_S)
    for _ in range(CHECK_FAILURES_MAX):
        confirmed.ask(Doubt.REPLAY_SILENT)
    assert confirmed.asks() is EngineQuestion.NOTHING
    confirmed.see(confirmed.followed.rests_until - confirmed.now)
    assert confirmed.asks() is EngineQuestion.CHECK
    assert confirmed.followed.rests_until <= confirmed.now, "until it has a place it does not rest"


def test_what_is_done_with_it_or_waits_of_it_ends_its_rest(confirmed: Scene) -> None:
    def rested() -> Publisher:
        confirmed.see(3.0)
        assert confirmed.followed.rests_until > confirmed.now
        return confirmed.followed

    confirmed.ask(None)
    rested().unplace(0.0)
    assert confirmed.followed.rests_until == 0.0
    confirmed.followed.place()
    rested().begin_again()
    assert confirmed.followed.rests_until == 0.0
    confirmed.ask(None)
    rested().distrust(confirmed.now)
    assert confirmed.followed.rests_until == 0.0
    confirmed.ask(None)
    confirmed.see(is_waiting=True)
    assert confirmed.followed.rests_until == 0.0
    confirmed.see(is_waiting=False, has_waiting=True)
    assert confirmed.followed.rests_until == 0.0


def happen(scene: Scene, random: Random) -> None:
    """Something of what ends a rest, or begins one."""
    followed, engine = scene.followed, scene.followed.engine
    match random.randrange(10):
        case 0:
            link = LinkNumber(scene.seen.link + 1)
            scene.see(random.choice([0.0, 0.3]), connected=True, link=link)
        case 1:
            scene.see(random.choice([0.0, 2.0]), connected=random.random() < 0.7)
        case 2:
            scene.see(0.3, messages=scene.seen.messages + 1, late_s=random.choice([0.0, 9.0]))
        case 3:
            scene.see(0.2, is_waiting=random.random() < 0.3, has_waiting=random.random() < 0.3)
        case 4:
            scene.see(proven_link=scene.seen.link, is_doubted=random.random() < 0.3)
        case 5:
            followed.distrust(scene.now)
        case 6:
            scene.see(is_silent=random.random() < 0.3, received_until=scene.now - 1.5)
        case 7:
            followed.place() if followed.sequencer.is_held else followed.unplace(0.0)
        case 8 if engine is not None:
            engine.probed(scene.now, is_there=random.random() < 0.7)
            engine.read(scene.now, scene.seen.link, None)
        case _ if followed.can_replay and scene.seen.connected:
            scene.ask(random.choice([None, None, Doubt.REPLAY_SILENT, Doubt.REPLAY_UNMATCHED]))
    scene.see()


@pytest.mark.parametrize("seed", range(100))
def test_while_it_rests_nothing_changes_but_by_what_ends_its_rest(seed: int) -> None:
    """So a look at it would have said the same, and asked nothing."""
    random = Random(seed)
    scene = Scene(random.choice([PLAIN, REPLAYS, *BY_HTTP]))
    followed = scene.followed
    for _ in range(40):
        happen(scene, random)
        doubt, until = followed.doubted.doubt, followed.rests_until
        assert until <= scene.now + LOOK_REST_S
        while scene.now + 0.25 < until:
            assert scene.asks() is EngineQuestion.NOTHING, f"seed {seed}"
            assert not followed.probes(scene.now), f"seed {seed}"
            assert not followed.reads_process(scene.now), f"seed {seed}"
            assert scene.see(0.25) is doubt, f"seed {seed}, {until - scene.now} s before its end"


def test_a_replay_socket_that_has_never_answered_is_said_once_and_until_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    scene.see(connected=True, link=1, messages=1, proven_link=1)
    scene.now += LINK_SETTLE_S
    assert not scene.followed.statement.troubles.has_dead_replay
    for _ in range(2):
        scene.ask(Doubt.REPLAY_SILENT)
        assert scene.followed.statement.troubles.has_dead_replay
    (record,) = caplog.records
    assert "does not answer" in record.getMessage()
    scene.ask(None)
    assert not scene.followed.statement.troubles.has_dead_replay
    scene.ask(Doubt.REPLAY_SILENT)
    assert not scene.followed.statement.troubles.has_dead_replay, "it has answered"


def test_batches_under_one_number_are_a_doubt(confirmed: Scene) -> None:
    for repeats in range(REPEATS_DOUBTED):
        assert confirmed.see(messages=repeats, troubles=Troubles(repeats=repeats)) is None
    repeating = Troubles(repeats=REPEATS_DOUBTED)
    assert confirmed.see(messages=9, troubles=repeating) is Doubt.UNREADABLE
    assert confirmed.see(messages=10, troubles=NO_TROUBLES) is None


def test_a_pool_of_others_alone_is_a_doubt(confirmed: Scene) -> None:
    others = Troubles(dropped=3, reason=DropReason.OTHER_STREAM, detail="got x")
    assert confirmed.see(messages=9, troubles=others) is Doubt.UNREADABLE
    assert confirmed.see(messages=10, troubles=NO_TROUBLES) is None


def test_a_number_that_rises_is_worth_a_record_as_it_doubles(confirmed: Scene) -> None:
    followed = confirmed.followed

    def has_news(dropped: int) -> bool:
        confirmed.see(troubles=Troubles(dropped, "bad_tokens", f"got {dropped}"))
        return followed.has_news

    followed.last_statement = followed.statement
    assert has_news(1)
    followed.last_statement = followed.statement
    assert [has_news(dropped) for dropped in (1, 2)] == [False, True]
    followed.last_statement = followed.statement
    assert [has_news(dropped) for dropped in (2, 3, 4)] == [False, False, True]
