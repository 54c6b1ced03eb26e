"""What was booked, should be computed by now, and is not."""

import pytest

from routing.decisions import late_work as module
from routing.decisions.late_work import FIRST_TOKENS_TOLD
from routing.decisions.live_load import LiveLoad
from schemas.routing_records import LoadSample, LoadSource, OutcomeEvent, UnregisteredEngine
from tests.unit.routing.decisions.test_live_load import RUN, wait_s
from tests.unit.routing.sample_decisions import A, decision, outcome

FIRST, END = OutcomeEvent.FIRST_TOKEN, OutcomeEvent.COMPLETED
DECODE_S = 4.0


def told(*events: OutcomeEvent) -> LiveLoad:
    """Clients have told these of requests that are over, one each second up to 100."""
    live = LiveLoad()
    for number, event in enumerate(events):
        at = 100.0 - len(events) + number
        live.book(RUN, decision(number, at))
        live.report(RUN, outcome(number, event, at + 0.5))
        if event is FIRST:
            live.report(RUN, outcome(number, END, at + 0.5))
    return live


def book(live: LiveLoad, number: int, at: float, predicted_s: float = 1.0) -> None:
    """A second of work at A."""
    live.book(RUN, decision(number, at, predicted_s=predicted_s, decode_s=DECODE_S))


@pytest.fixture
def live() -> LiveLoad:
    """Three are booked at A, at 100, behind one another."""
    live = told(*[FIRST] * FIRST_TOKENS_TOLD)
    for place in range(3):
        book(live, 20 + place, 100.0 + 0.01 * place, place + 1.0)
    return live


def test_what_waits_stands_still_while_nothing_begins(live: LiveLoad) -> None:
    assert wait_s(live, 100.5) == pytest.approx(2.5)
    assert [wait_s(live, at) for at in (101.5, 102.5)] == pytest.approx([2.0, 2.0], abs=0.03)
    assert wait_s(live, 160.0) == 3.0, "the first one, too, is taken to wait yet"


def test_it_goes_on_when_the_engine_does(live: LiveLoad) -> None:
    live.report(RUN, outcome(20, FIRST, 104.0))
    assert wait_s(live, 104.0) == pytest.approx(2.0, abs=0.03)
    for number in (21, 22):
        live.report(RUN, outcome(number, FIRST, 105.0))
    assert wait_s(live, 105.0) == 0.0


def test_what_another_has_overtaken_is_taken_to_be_over(live: LiveLoad) -> None:
    live.report(RUN, outcome(22, FIRST, 104.0))
    assert wait_s(live, 160.0) == 0.0


@pytest.mark.parametrize("event", [OutcomeEvent.CANCELLED, OutcomeEvent.FAILED])
def test_what_never_began_overtakes_nothing(live: LiveLoad, event: OutcomeEvent) -> None:
    live.report(RUN, outcome(22, event, 104.0))
    assert wait_s(live, 160.0) == 2.0


def test_where_ends_alone_are_told_one_is_late_when_its_output_is() -> None:
    live = told(END)
    book(live, 20, 100.0)
    assert [wait_s(live, at) for at in (101.0, 105.0, 105.5, 107.0)] == [0.0, 0.0, 0.5, 1.0]


def test_an_end_without_a_first_token_makes_it_so_again() -> None:
    live = told(*[FIRST] * FIRST_TOKENS_TOLD, END)
    book(live, 20, 100.0)
    assert wait_s(live, 105.0) == 0.0


def test_where_nothing_is_told_nothing_is_late() -> None:
    live = LiveLoad()
    book(live, 20, 100.0)
    assert wait_s(live, 160.0) == 0.0


def test_what_an_engine_says_to_wait_is_not_counted_twice(live: LiveLoad) -> None:
    live.note([LoadSample(A, 110.0, LoadSource.POSTED, running=1, waiting=2)])
    assert wait_s(live, 110.0) == 1.0  # two of half a second, not the three that are booked
    live.note([LoadSample(A, 111.0, LoadSource.POSTED, running=3, waiting=0)])
    assert wait_s(live, 111.0) == 3.0, "it has taken them, and has computed none"


def test_of_an_engine_that_says_to_have_nothing_nothing_is_late(live: LiveLoad) -> None:
    """Its clients are silent; what was sent there since, or just before, counts all the same."""

    def idle(at: float) -> LoadSample:
        return LoadSample(A, at, LoadSource.POSTED, running=0, waiting=0)

    live.note([idle(101.5)])
    assert wait_s(live, 101.5) == pytest.approx(2.0, abs=0.03), "not late by twice what was due"
    live.note([idle(110.0)])
    assert wait_s(live, 110.0) == 0.0
    book(live, 30, 110.5)
    assert [wait_s(live, at) for at in (110.5, 160.0)] == [1.0, 1.0]
    live.note([LoadSample(A, 111.0, LoadSource.POSTED, running=0)])
    assert wait_s(live, 111.0) == pytest.approx(3.5, abs=0.03), "it says not what waits"


def test_an_engine_of_the_same_name_begins_with_nothing(live: LiveLoad) -> None:
    live.forget([UnregisteredEngine(A, "m")], 101.0)
    book(live, 30, 98.0)  # its clock is another one's
    assert wait_s(live, 120.0) == 1.0


def test_models_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_MODELS_MAX", 1)
    live = told(*[FIRST] * FIRST_TOKENS_TOLD)
    other = decision(0).scope._replace(model_name="other")
    live.book(RUN, decision(10, 100.0, scope=other))
    live.report(RUN, outcome(10, FIRST, 100.5))
    book(live, 20, 101.0)
    assert wait_s(live, 160.0) == 0.0, "of its model nothing is known any more"


def test_a_long_queue_is_looked_at_in_part(monkeypatch: pytest.MonkeyPatch, live: LiveLoad) -> None:
    monkeypatch.setattr(module, "LATE_LOOKED_AT", 2)
    assert wait_s(live, 160.0) == 2.0
