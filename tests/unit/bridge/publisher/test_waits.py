"""For what a publisher waits, and why it is not confirmed: each case of each table."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from bridge.link_numbers import LinkNumber
from bridge.publisher import waits
from bridge.publisher.publisher import NOTHING_SEEN, RECEIVED_LATE_S, EngineQuestion, Publisher
from bridge.publisher.waits import AFTER, BatchWait, Wait, WaitChange, WaitOrderError
from bridge.sockets.inbox import Inbox
from bridge.sockets.raw_message import RawMessage
from schemas.answer_states import Doubt
from schemas.limits import LINK_SETTLE_S
from schemas.registration import Registration
from tests.unit.bridge.messages import frames_of, registration

ONE = registration()
REPLAYS = Registration(
    endpoint="tcp://127.0.0.1:5558",
    replay_endpoint="tcp://127.0.0.1:5559",
    kind=ONE.kind,
    model_name="m",
    instance_id="w-2",
    block_size=4,
)
BEHIND_A_GAP = 7


class Task:
    """Stands for what is under way."""

    def cancel(self) -> None:
        """Nothing is."""


def task() -> "asyncio.Task[None]":
    return cast("asyncio.Task[None]", Task())


def receive(publisher: Publisher, *ahead: int) -> None:
    """Batches come live, so many after the last one."""
    sequencer = publisher.sequencer
    last = sequencer.stream.cursor.sequence + sequencer.waiting
    sequencer.begin_turn(1.0)
    for number in ahead:
        frames = frames_of([100.0 + last + number, [], 0], last + number)
        sequencer.take([RawMessage(publisher.key, frames, 0.0)], 0)
    sequencer.end_turn()


def check(publisher: Publisher) -> bool:
    return publisher.ask(task, is_check=True)


def repair(publisher: Publisher) -> bool:
    return publisher.ask(task, is_check=False)


def follow(*ahead: int, until: float) -> Callable[[Publisher], object]:
    """What is held follows, these batches last."""

    def step(publisher: Publisher) -> None:
        if publisher.sequencer.is_held:
            receive(publisher, *ahead)
        publisher.sequencer.resume(1.0, until=until)

    return step


ALWAYS = float("inf")
SOME_FOLLOW = follow(1, 2, until=0.0)
WAYS: dict[Wait, list[Callable[[Publisher], object]]] = {
    Wait.PLACE: [],
    Wait.GAP: [Publisher.place],
    Wait.NOTHING: [Publisher.place, follow(until=ALWAYS)],
    Wait.CHECK: [Publisher.place, check],
    Wait.REPAIR: [Publisher.place, repair],
    Wait.HELD_BATCHES: [Publisher.place, repair, Publisher.resume, SOME_FOLLOW],
    Wait.ENDING: [Publisher.place, follow(until=ALWAYS), Publisher.stop],
    Wait.GONE: [Publisher.leave],
}
"""How each is come to."""
UNDER_WAY = (Wait.CHECK, Wait.REPAIR, Wait.HELD_BATCHES)
"""While a task is."""


def publisher_of(wait: Wait) -> Publisher:
    publisher = Publisher(REPLAYS)
    for step in WAYS[wait]:
        step(publisher)
    assert publisher.sequencer.waits_for is wait
    return publisher


EVENTS: dict[str, Callable[[Publisher], object]] = {
    "place": Publisher.place,
    "check": check,
    "repair": repair,
    "promote": Publisher.promote,
    "hand on": Publisher.resume,
    "end": Publisher.end,
    "cancel": Publisher.cancel_repair,
    "ask again": Publisher.restart_repair,
    "hold": lambda publisher: publisher.unplace(1.0),
    "stop": Publisher.stop,
    "leave": Publisher.leave,
    "gap": lambda publisher: receive(publisher, BEHIND_A_GAP),
    "miss": lambda publisher: publisher.sequencer.hold(),
    "follow some": SOME_FOLLOW,
    "follow all": follow(1, until=ALWAYS),
    "follow to a gap": follow(1, BEHIND_A_GAP, until=ALWAYS),
}

REFUSED = None
NOTHING, PLACE, GAP, CHECK, REPAIR, HELD, ENDING, GONE = WAITS = (
    Wait.NOTHING,
    Wait.PLACE,
    Wait.GAP,
    Wait.CHECK,
    Wait.REPAIR,
    Wait.HELD_BATCHES,
    Wait.ENDING,
    Wait.GONE,
)
TABLE: dict[str, tuple[Wait | None, ...]] = {
    # from:            NOTHING  PLACE    GAP     CHECK    REPAIR  HELD    ENDING   GONE
    "place": (NOTHING, GAP, GAP, CHECK, REPAIR, HELD, NOTHING, GONE),
    "check": (CHECK, REFUSED, CHECK, CHECK, REPAIR, HELD, REFUSED, REFUSED),
    "repair": (REPAIR, REFUSED, REPAIR, CHECK, REPAIR, HELD, REFUSED, REFUSED),
    "promote": (NOTHING, PLACE, GAP, REPAIR, REPAIR, HELD, ENDING, GONE),
    "hand on": WAITS,
    "end": (NOTHING, REFUSED, GAP, GAP, GAP, GAP, ENDING, GONE),
    "cancel": (NOTHING, PLACE, GAP, GAP, GAP, GAP, ENDING, GONE),
    "ask again": (REPAIR, REFUSED, REPAIR, REPAIR, REPAIR, REPAIR, REFUSED, REFUSED),
    "hold": (PLACE, PLACE, PLACE, PLACE, PLACE, PLACE, PLACE, REFUSED),
    "stop": (ENDING, PLACE, PLACE, PLACE, PLACE, PLACE, REFUSED, REFUSED),
    "leave": (GONE, GONE, GONE, GONE, GONE, GONE, GONE, REFUSED),
    "gap": (GAP, PLACE, GAP, CHECK, REPAIR, HELD, PLACE, REFUSED),
    "miss": (GAP, PLACE, GAP, CHECK, REPAIR, GAP, PLACE, REFUSED),
    "follow some": (NOTHING, REFUSED, HELD, REFUSED, HELD, HELD, REFUSED, REFUSED),
    "follow all": (NOTHING, REFUSED, NOTHING, REFUSED, NOTHING, NOTHING, REFUSED, REFUSED),
    "follow to a gap": (NOTHING, REFUSED, GAP, GAP, GAP, GAP, REFUSED, REFUSED),
}
"""What each comes to by each event."""
CASES_OF_WAITS = [
    (wait, event, wanted)
    for event, row in TABLE.items()
    for wait, wanted in zip(WAITS, row, strict=True)
]
assert TABLE.keys() == EVENTS.keys()


def run(wait: Wait, event: str, wanted: Wait | None) -> None:
    publisher = publisher_of(wait)
    if wanted is REFUSED:
        with pytest.raises(WaitOrderError):
            EVENTS[event](publisher)
        assert publisher.sequencer.waits_for in (wait, Wait.GAP), (
            "what was under way had ended by then"
        )
    else:
        EVENTS[event](publisher)
        assert publisher.sequencer.waits_for is wanted
    assert publisher.sequencer.is_held is (publisher.sequencer.waits_for in waits.HELD)


@pytest.mark.parametrize(
    ("wait", "event", "wanted"), CASES_OF_WAITS, ids=lambda one: getattr(one, "value", one)
)
def test_each_event_leads_from_each_wait_to_one_wait_or_is_refused(
    wait: Wait, event: str, wanted: Wait | None
) -> None:
    run(wait, event, wanted)


def test_the_events_make_every_change_that_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no arrow of the table is dead."""
    made: set[tuple[WaitChange, Wait, Wait]] = set()
    change = BatchWait.change

    def noting(self: BatchWait, by: WaitChange) -> None:
        before = self.now
        change(self, by)
        made.add((by, before, self.now))

    monkeypatch.setattr(BatchWait, "change", noting)
    for case in CASES_OF_WAITS:
        run(*case)
    assert made == {
        (by, before, after) for by, arrows in AFTER.items() for before, after in arrows.items()
    }


@pytest.mark.parametrize("wait", WAITS, ids=lambda one: one.value)
def test_what_a_wait_means(wait: Wait) -> None:
    publisher = publisher_of(wait)
    assert publisher.is_placed is (wait not in (PLACE, ENDING, GONE))
    assert publisher.is_at_rest is (wait in (NOTHING, GAP))
    assert publisher.is_catching_up is (wait in (REPAIR, HELD))
    assert publisher.is_checked is (wait is CHECK)
    assert (publisher.repair is not None) is (wait in UNDER_WAY)
    assert publisher.sequencer.is_held is (wait in (PLACE, GAP, CHECK, REPAIR, HELD))
    assert publisher.sequencer.is_resuming is (wait is HELD)
    assert publisher.waits_for[0] is wait


def test_what_is_held_while_something_is_under_way_is_asked_for_again() -> None:
    for wait in WAITS:
        if wait is not GONE:
            publisher = publisher_of(wait)
            publisher.unplace(1.0)
            assert publisher.interrupted is (wait in UNDER_WAY)


# Messages

OF_MESSAGES = [wait for wait in Wait if wait not in WAITS]


@pytest.mark.parametrize("order", list(itertools.permutations(OF_MESSAGES)))
def test_messages_wait_in_the_inbox_until_nothing_is_left_that_they_wait_for(
    order: tuple[Wait, ...],
) -> None:
    inbox = Inbox()
    inbox.put([RawMessage(REPLAYS.publisher, [b""], 0.0)])
    publisher = Publisher(REPLAYS, inbox=inbox)
    for count, wait in enumerate(OF_MESSAGES, 1):
        assert bool(inbox) is (count == 1)
        publisher.waits.begin(wait)
        publisher.waits.begin(wait)
        assert publisher.waits_for == (PLACE, *OF_MESSAGES[:count])
    for wait in order:
        assert not inbox, "nothing of it can be taken"
        publisher.waits.end(wait)
        publisher.waits.end(wait)
    assert (publisher.waits_for, bool(inbox)) == ((PLACE,), True)


def test_every_wait_is_told_of_in_the_module() -> None:
    told = (waits.__doc__ or "").split()
    assert [wait for wait in Wait if wait.name not in told] == []


# Why it is not confirmed: each case beside those that are stronger

SEEN = NOTHING_SEEN._replace(connected=True, link=LinkNumber(1), received_until=100.0)
CASES: list[tuple[Doubt, dict[str, object]]] = [
    (Doubt.CATCHING_UP, {"is_held": True}),
    (Doubt.NO_ENDPOINT, {"connected": False, "has_no_endpoint": True}),
    (Doubt.LINK_DOWN, {"connected": False}),
    (Doubt.LINK_SILENT, {"is_silent": True}),
    (Doubt.CATCHING_UP, {"is_repairing": True}),
    (Doubt.CATCHING_UP, {"is_doubted": True}),
    (Doubt.UNREADABLE, {"unplaced": 3}),
    (Doubt.SPOOLED, {"has_waiting": True}),
    (Doubt.RECEIVED_LATE, {"received_until": 100.0 - RECEIVED_LATE_S - 0.1}),
]
"""What each is shown by, the strongest first."""


def doubt_of(*shown: dict[str, object]) -> Doubt | None:
    """Of one that is confirmed, but for this."""
    publisher, now = Publisher(REPLAYS), 100.0
    publisher.place()
    publisher.look(now - LINK_SETTLE_S, 1.0, SEEN._replace(received_until=now - LINK_SETTLE_S))
    publisher.look(now, 1.0, SEEN)
    publisher.answered(now, publisher.begin_asking(now, heard=LinkNumber(1)), None)
    assert publisher.doubted.doubt is not Doubt.LINK_DOWN
    facts: dict[str, Any] = {}
    for one in shown:
        facts |= one
    publisher.has_no_endpoint = facts.pop("has_no_endpoint", False)
    if facts.pop("is_repairing", False):
        repair(publisher)
    if facts.pop("is_held", False):
        publisher.unplace(1.0)
    publisher.look(now, 1.0, SEEN._replace(**facts))
    return publisher.doubted.doubt


def test_one_that_is_confirmed_is_in_no_doubt() -> None:
    assert doubt_of() is None


@pytest.mark.parametrize("at", range(len(CASES)), ids=lambda at: f"{at}-{CASES[at][0].value}")
def test_a_doubt_counts_beside_all_that_are_weaker(at: int) -> None:
    doubt, shown = CASES[at]
    assert doubt_of(shown) is doubt
    for others in range(len(CASES) - at):
        for weaker in itertools.combinations(CASES[at + 1 :], others):
            assert doubt_of(*(one for _, one in weaker), shown) is doubt


# What is asked of its engine


@pytest.mark.parametrize("has_replay", [False, True])
@pytest.mark.parametrize("has_http", [False, True])
def test_what_is_asked_of_an_engine(has_replay: bool, has_http: bool) -> None:
    """In words: over a link that is up, at rest, and once it is time, all that may be missing where
    it was not asked over this link yet, and else whether anything is, where it can say.
    """
    registered = msgspec.structs.replace(
        REPLAYS,
        replay_endpoint=REPLAYS.replay_endpoint if has_replay else "",
        http_endpoint="http://127.0.0.1:8000" if has_http else "",
    )
    for facts in itertools.product((False, True), repeat=6):
        is_under_way, connected, is_silent, is_waiting, is_due, is_asked = facts
        publisher, now = Publisher(registered), 100.0
        publisher.place()
        if is_under_way:
            repair(publisher)
        publisher._asked_link = LinkNumber(int(is_asked))
        publisher._ask_at = now - 1.0 if is_due else now + 1.0
        seen = SEEN._replace(connected=connected, is_silent=is_silent, is_waiting=is_waiting)
        publisher.look(now - LINK_SETTLE_S, 1.0, seen)
        can_be = not is_under_way and connected and not is_silent and not is_waiting and is_due
        wanted = EngineQuestion.NOTHING
        if can_be and (has_replay or has_http):
            wanted = EngineQuestion.CHECK if has_replay else EngineQuestion.NOTHING
            wanted = wanted if is_asked else EngineQuestion.REPAIR
        assert publisher.asks(now) is wanted, facts
