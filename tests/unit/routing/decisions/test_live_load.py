"""What is taken to wait at an engine: what is booked, and what it says beside that."""

import pytest

from routing.decisions import mean_work
from routing.decisions import unbooked_load as module
from routing.decisions.live_load import LiveLoad
from routing.decisions.mean_work import MeanWork
from routing.decisions.unbooked_load import TypicalRequest
from routing.fold.fold import RoutingFold
from routing.observed.contradictions import ContradictionsState, OutcomeWindow
from schemas.routing_records import (
    DecidedScope,
    Decision,
    LoadRecord,
    LoadSample,
    LoadSource,
    OutcomeEvent,
    PrefixMark,
    Target,
    UnregisteredEngine,
    UnregisteredEngines,
)
from streams.table.scope_states import Contradiction
from tests.unit.routing.sample_decisions import SCOPE, A, B, candidate, decision, outcome

RUN = 7
MEAN_S = 0.5
USUAL = TypicalRequest(MEAN_S, 1000.0, 0.001)


def live_with(*numbers: int, time: float = 100.0) -> LiveLoad:
    """Each is booked at A, for a second."""
    live = LiveLoad()
    for number in numbers:
        live.book(RUN, decision(number, time, predicted_s=number + 1.0))
    return live


def sample(waiting: int, at: float = 100.0, target: Target = A) -> LoadSample:
    return LoadSample(target, at, LoadSource.POSTED, running=1, waiting=waiting)


def wait_s(live: LiveLoad, now: float, target: Target = A, said: LoadSample | None = None) -> float:
    told = {} if said is None else {target: said}
    return live.carried([target], now, USUAL, told)[0].wait_s


def test_those_that_wait_and_are_booked_count_as_they_are_booked() -> None:
    live = live_with(0, 1, 2)
    live.note([sample(2)])
    assert wait_s(live, 100.0) == 3.0
    assert wait_s(live, 101.5) == 1.5


def test_those_that_nobody_has_booked_come_on_top() -> None:
    live = live_with(0)
    live.note([sample(4)])
    assert wait_s(live, 100.0) == 1.0 + 3 * MEAN_S
    assert wait_s(live, 101.0) == 3 * MEAN_S
    assert wait_s(live, 110.0) == 3 * MEAN_S, "until a sample says otherwise"
    assert wait_s(live, 161.0) == 0.0, "of a minute ago"


def test_they_go_as_they_were_seen_to_go() -> None:
    live = LiveLoad()
    live.note([sample(20, at=100.0)])
    live.note([sample(15, at=101.0)])
    assert [wait_s(live, at) for at in (101.0, 102.0, 103.0, 110.0)] == [
        left * MEAN_S for left in (15, 10, 5, 0)
    ]
    live.note([sample(18, at=102.0)])
    assert wait_s(live, 105.0) == 18 * MEAN_S, "it grows"


def test_those_that_were_late_and_begin_wait_no_more() -> None:
    live = live_with(0, 1, 2)
    live.note([sample(3, at=110.0)])
    assert wait_s(live, 110.0) == 3 * MEAN_S, "they should have begun long ago"
    live.report(RUN, outcome(0, OutcomeEvent.FIRST_TOKEN, 110.5))
    live.report(RUN, outcome(0, OutcomeEvent.COMPLETED, 110.6))
    live.report(RUN, outcome(1, OutcomeEvent.CANCELLED, 110.7))
    assert wait_s(live, 110.7) == MEAN_S


def test_where_many_run_those_that_wait_do_so_until_some_have_ended() -> None:
    live = LiveLoad()
    live.note([LoadSample(A, 100.0, LoadSource.SCRAPED, running=30, waiting=50, kv_usage=0.9)])
    short = TypicalRequest(0.005, 60.0, 0.0001, 6.0)
    [load] = live.carried([A], 100.5, short, {})
    assert load.wait_s == pytest.approx(50 * 6.0 / 30)
    assert (load.requests, load.pending, load.active) == (80, 50 * 60, 80 * 60)


def test_what_is_booked_later_comes_on_top_of_what_was_told() -> None:
    live = LiveLoad()
    live.note([sample(2)])
    live.book(RUN, decision(0, 100.5))
    assert wait_s(live, 100.5) == pytest.approx(1.0 + 2 * MEAN_S)


def test_a_sample_of_the_request_counts_in_place_of_what_is_known() -> None:
    live = live_with(0)
    live.note([sample(9)])
    assert wait_s(live, 100.0, said=sample(3)) == 1.0 + 2 * MEAN_S
    assert wait_s(live, 100.0, said=sample(0)) == 1.0


def test_one_that_the_log_brings_again_is_not_taken_for_one_of_now() -> None:
    """By then those that were booked may be done, and it would be of others."""
    live = live_with(0, 1)
    one = sample(2)
    live.note([one])
    for number in (0, 1):
        live.report(RUN, outcome(number, OutcomeEvent.COMPLETED, 100.1))
    live.follow(0, LoadRecord(run=RUN, time=100.2, samples=(one,)), 100.2)
    assert wait_s(live, 100.2) == 0.0


def test_bookings_that_should_be_over_do_not_explain_who_waits() -> None:
    """Their client reports nothing."""
    live = live_with(0, 1)
    live.note([sample(2, at=105.0)])
    assert wait_s(live, 105.0) == 2 * MEAN_S


def test_targets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_TARGETS_MAX", 2)
    live = LiveLoad()
    targets = [Target("default", name, 0) for name in "abc"]
    live.note([sample(2, target=one) for one in targets])
    assert len(live._beside) == 2
    assert wait_s(live, 100.0, targets[0]) == 2 * MEAN_S, "as if none of them were booked"


def work_of(seconds: float, model: str = "m") -> Decision:
    one = candidate("a", prefill_s=seconds)
    scope = DecidedScope(SCOPE.tenant_id, model, *SCOPE[2:])
    return decision(0, candidates=(one,), scope=scope)


def test_what_a_request_takes_is_the_mean_of_the_last_decisions() -> None:
    known = MeanWork()
    assert known.usual("default", "m", USUAL) == USUAL
    for seconds in (1.0, 2.0, 3.0):
        known.note(work_of(seconds))
    assert known.usual("default", "m", USUAL).compute_s == pytest.approx(2.0)
    for _ in range(1000):
        known.note(work_of(5.0))
    assert known.usual("default", "m", USUAL).compute_s == pytest.approx(5.0)
    assert known.usual("default", "m", USUAL).tokens == pytest.approx(1000.0)
    assert known.usual("default", "other", USUAL) == USUAL


def test_a_decision_for_nobody_says_nothing_of_work() -> None:
    known = MeanWork()
    known.note(decision(0, chosen=-1))
    assert known.usual("default", "m", USUAL) == USUAL


def test_models_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mean_work, "LOAD_MODELS_MAX", 2)
    known = MeanWork()
    for model in ("m", "n", "o"):
        known.note(work_of(1.0, model))
    found = [known.usual("default", model, USUAL).compute_s for model in "mno"]
    assert found == [MEAN_S, 1.0, 1.0]


def test_decisions_that_are_not_kept_to_tell_of_work_and_book_nothing() -> None:
    live = LiveLoad()
    live.asked(work_of(0.25))
    assert live.usual("default", "m", USUAL).compute_s == 0.25
    assert live.counts()["under_way"] == 0
    assert wait_s(live, 100.0, B) == 0.0


def test_tokens_that_nobody_has_booked_come_on_top() -> None:
    live = live_with(0)  # 1000 tokens, a second
    live.note([LoadSample(A, 100.0, LoadSource.POSTED, waiting=1, prefill_tokens=3000)])
    [load] = live.carried([A], 100.0, USUAL, {})
    assert load.wait_s == pytest.approx(1.0 + 2.0)
    assert load.pending == 3000


def test_tokens_go_as_they_were_seen_to_go() -> None:
    live = LiveLoad()
    for at, tokens in ((100.0, 5000), (102.0, 4000)):
        live.note([LoadSample(A, at, LoadSource.POSTED, waiting=1, prefill_tokens=tokens)])
        assert wait_s(live, at) == tokens * USUAL.token_s
    assert wait_s(live, 104.0) == pytest.approx(3.0)
    assert wait_s(live, 112.0) == 0.0
    live.note([LoadSample(A, 103.0, LoadSource.POSTED, waiting=1, prefill_tokens=4000)])
    assert wait_s(live, 112.0) == 4.0, "none went"


def test_tokens_take_what_those_of_the_last_decisions_do() -> None:
    live = LiveLoad()
    live.asked(work_of(0.25))
    usual = live.usual("default", "m", USUAL)
    assert usual.token_s == 0.25 / usual.tokens


def test_what_runs_there_counts_as_requests() -> None:
    live = live_with(0)
    live.note([LoadSample(A, 100.0, LoadSource.POSTED, running=7, waiting=2)])
    assert live.carried([A], 100.0, USUAL, {})[0].requests == 9


def test_a_sample_makes_what_is_booked_no_less() -> None:
    live = live_with(0, 1, 2)
    live.note([LoadSample(A, 100.0, LoadSource.POSTED, running=0, waiting=0, prefill_tokens=0)])
    [load] = live.carried([A], 100.0, USUAL, {})
    assert (load.wait_s, load.requests, load.pending) == (3.0, 3, 3000)


@pytest.mark.parametrize(
    ("events", "blocks"),
    [
        ((OutcomeEvent.CANCELLED,), {}),
        ((OutcomeEvent.FAILED,), {}),
        ((OutcomeEvent.FIRST_TOKEN, OutcomeEvent.CANCELLED), {A: 2}),
        ((OutcomeEvent.COMPLETED,), {A: 2}),
    ],
)
def test_what_ended_before_its_first_token_leaves_nothing(
    events: tuple[OutcomeEvent, ...], blocks: dict[Target, int]
) -> None:
    live = LiveLoad()
    live.book(RUN, decision(0, is_approximate=True, marks=(PrefixMark(1, 5), PrefixMark(2, 6))))
    prefixes = (5).to_bytes(8, "little") + (6).to_bytes(8, "little")
    assert live.predicted(SCOPE, prefixes, 100.5) == {A: 2}
    for event in events:
        live.report(RUN, outcome(0, event, 100.1))
    assert live.predicted(SCOPE, prefixes, 100.5) == blocks


def test_where_outcomes_contradict_is_told_at_once_and_as_it_changes() -> None:
    """Also where a fold that was read takes the place of another."""
    fold = RoutingFold()
    contradicted(fold)
    live, told = LiveLoad(fold), list[int]()
    live.tell_contradictions(lambda found: told.append(len(found.publishers)))
    assert told == [1]
    live.follow(0, LoadRecord(run=0, time=100.0, samples=()), 100.0)
    live.rebase(RoutingFold())
    assert told == [1, 0]
    live.tell_contradictions(lambda found: told.append(len(found.publishers)))
    assert told == [1, 0]
    other = RoutingFold()
    contradicted(other)
    live.rebase(other)
    gone = UnregisteredEngines(run=0, time=100.0, engines=(UnregisteredEngine(A, "llama"),))
    live.follow(1, gone, 100.0)
    assert told == [1, 0, 1, 0]


def contradicted(fold: RoutingFold) -> None:
    """What A serves is contradicted."""
    served = (SCOPE._replace(model_name="llama"), A)
    state = ContradictionsState(((served, OutcomeWindow(Contradiction(9.0))),))
    fold.observations.contradictions.restore(state)
