"""The states of a publisher, and why it is not confirmed: each case of each table."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest

from bridge.publisher.publisher import (
    NOTHING_SEEN,
    RECEIVED_LATE_S,
    TRANSITIONS,
    UNDER_WAY,
    Publisher,
    State,
)
from schemas.answer_states import Doubt
from schemas.limits import LINK_SETTLE_S
from schemas.registration import Registration
from tests.unit.bridge.messages import registration

ONE = registration()
REPLAYS = Registration(
    endpoint="tcp://127.0.0.1:5558",
    replay_endpoint="tcp://127.0.0.1:5559",
    kind=ONE.kind,
    model_name="m",
    instance_id="w-2",
    block_size=4,
)


class Task:
    """Stands for what is under way."""

    is_done = False

    def done(self) -> bool:
        return self.is_done

    def cancel(self) -> None:
        self.is_done = True


def task() -> "asyncio.Task[None]":
    return cast("asyncio.Task[None]", Task())


def check(publisher: Publisher) -> bool:
    return publisher.ask(task, is_check=True)


def repair(publisher: Publisher) -> bool:
    return publisher.ask(task, is_check=False)


def resume(publisher: Publisher) -> None:
    publisher.repair = publisher.repair or task()
    publisher.resume()


WAYS: dict[State, list[Callable[[Publisher], object]]] = {
    State.HELD: [],
    State.LIVE: [Publisher.place],
    State.CHECKING: [Publisher.place, check],
    State.REPAIRING: [Publisher.place, repair],
    State.RESUMING: [Publisher.place, resume],
    State.GONE: [Publisher.leave],
}
"""How each is come to."""


def publisher_in(state: State) -> Publisher:
    publisher = Publisher(REPLAYS)
    for step in WAYS[state]:
        step(publisher)
    assert publisher.state is state
    return publisher


EVENTS: dict[str, Callable[[Publisher], object]] = {
    "place": Publisher.place,
    "check": check,
    "repair": repair,
    "promote": Publisher.promote,
    "resume": resume,
    "end": Publisher.end,
    "cancel": Publisher.cancel_repair,
    "hold": lambda publisher: publisher.hold(1.0),
    "stop": Publisher.stop,
    "leave": Publisher.leave,
}

REFUSED = None
TABLE: dict[State, dict[str, State | None]] = {
    State.HELD: {
        "place": State.LIVE,
        "check": REFUSED,
        "repair": REFUSED,
        "promote": State.HELD,
        "resume": REFUSED,
        "end": State.LIVE,
        "cancel": State.HELD,
    },
    State.LIVE: {
        "place": State.LIVE,
        "check": State.CHECKING,
        "repair": State.REPAIRING,
        "promote": State.LIVE,
        "resume": State.RESUMING,
        "end": State.LIVE,
        "cancel": State.LIVE,
    },
    State.CHECKING: {
        "place": State.CHECKING,
        "check": State.CHECKING,  # it is being asked: nothing changes
        "repair": State.CHECKING,
        "promote": State.REPAIRING,
        "resume": State.RESUMING,
        "end": State.LIVE,
        "cancel": State.LIVE,
    },
    State.REPAIRING: {
        "place": State.REPAIRING,
        "check": State.REPAIRING,
        "repair": State.REPAIRING,
        "promote": State.REPAIRING,
        "resume": State.RESUMING,
        "end": State.LIVE,
        "cancel": State.LIVE,
    },
    State.RESUMING: {
        "place": State.RESUMING,
        "check": State.RESUMING,
        "repair": State.RESUMING,
        "promote": State.RESUMING,
        "resume": State.RESUMING,
        "end": State.LIVE,
        "cancel": State.LIVE,
    },
    State.GONE: dict.fromkeys(("check", "repair", "resume", "end"), REFUSED)
    | dict.fromkeys(("place", "promote", "cancel"), State.GONE),
}
"""What each comes to by each event; all but GONE are held, stopped and left at any time."""
for state in State:
    ends = (State.HELD, State.HELD, State.GONE) if state is not State.GONE else 3 * (REFUSED,)
    TABLE[state] |= dict(zip(("hold", "stop", "leave"), ends, strict=True))


@pytest.mark.parametrize(
    ("state", "event"),
    list(itertools.product(State, EVENTS)),
    ids=lambda one: getattr(one, "value", one),
)
def test_each_event_leads_from_each_state_to_one_state_or_is_refused(
    state: State, event: str
) -> None:
    publisher, wanted = publisher_in(state), TABLE[state][event]
    if wanted is REFUSED:
        with pytest.raises(AssertionError):
            EVENTS[event](publisher)
        assert publisher.state is state
    else:
        EVENTS[event](publisher)
        assert publisher.state is wanted


def test_no_other_transitions_are_allowed_than_those_that_events_make() -> None:
    for state, allowed in TRANSITIONS.items():
        made = {to for to in TABLE[state].values() if to is not None and to is not state}
        assert made <= allowed
    assert State.CHECKING not in TRANSITIONS[State.REPAIRING], "a repair asks for more"
    assert not TRANSITIONS[State.GONE]


@pytest.mark.parametrize("state", State)
def test_what_a_state_means(state: State) -> None:
    publisher = publisher_in(state)
    assert publisher.is_placed is (state not in (State.HELD, State.GONE))
    assert publisher.is_at_rest is (state is State.LIVE)
    assert publisher.is_catching_up is (state in (State.REPAIRING, State.RESUMING))
    assert (publisher.repair is not None) is (state in UNDER_WAY)


def test_a_task_that_has_failed_is_followed_by_another_one() -> None:
    publisher = publisher_in(State.RESUMING)
    cast("Any", publisher.repair).is_done = True
    assert repair(publisher) is True
    assert publisher.state is State.REPAIRING


def test_what_is_held_while_something_is_under_way_is_asked_for_again() -> None:
    for state in State:
        if state is not State.GONE:
            publisher = publisher_in(state)
            publisher.hold(1.0)
            assert publisher.interrupted is (state in UNDER_WAY)


# Why it is not confirmed: each case beside those that are stronger

SEEN = NOTHING_SEEN._replace(connected=True, links=1, received_until=100.0)
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
    publisher.answered(now, publisher.begin_asking(now, heard=1), None)
    assert publisher.doubted.doubt is not Doubt.LINK_DOWN
    facts: dict[str, Any] = {}
    for one in shown:
        facts |= one
    publisher.has_no_endpoint = facts.pop("has_no_endpoint", False)
    if facts.pop("is_repairing", False):
        repair(publisher)
    if facts.pop("is_held", False):
        publisher.hold(1.0)
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
