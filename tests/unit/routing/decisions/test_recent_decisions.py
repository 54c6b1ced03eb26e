from routing.decisions.recent_decisions import RECENT_CANDIDATES_MAX, RecentDecisions
from schemas.limits import RECENT_DECISIONS_MAX
from schemas.routing_records import DecidedScope, OutcomeEvent
from tests.unit.routing.sample_decisions import candidate, decision, outcome

RUN = 7


def everybody(_: str) -> bool:
    return True


def test_the_latest_come_first_and_the_oldest_go() -> None:
    recent = RecentDecisions()
    for number in range(RECENT_DECISIONS_MAX + 5):
        recent.note(RUN, decision(number))
    found = recent.latest(1_000_000, everybody)
    assert len(found) == RECENT_DECISIONS_MAX
    assert found[0].decision.number == RECENT_DECISIONS_MAX + 4
    assert recent.find(RUN, 4) is None
    assert recent.find(RUN, 5) is found[-1]
    assert recent.noted == RECENT_DECISIONS_MAX + 5


def test_it_says_since_when_it_knows_decisions() -> None:
    recent = RecentDecisions()
    assert recent.since(100.0) == 100.0
    recent.note(RUN, decision(0, time=150.0))
    assert recent.since(100.0) == 100.0, "none is missing since the start"
    assert recent.since(200.0) == 150.0, "the log has brought it"
    for number in range(1, RECENT_DECISIONS_MAX + 1):
        recent.note(RUN, decision(number, time=150.0 + number))
    assert recent.since(100.0) == 151.0, "the first one has gone"


def test_one_that_comes_twice_is_kept_once() -> None:
    recent = RecentDecisions()
    recent.note(RUN, decision(1))
    recent.note(RUN, decision(1))
    recent.note(RUN + 1, decision(1))
    assert [one.run for one in recent.latest(9, everybody)] == [RUN + 1, RUN]


def test_candidates_together_are_bounded_and_the_last_one_stays() -> None:
    recent = RecentDecisions()
    many = tuple(candidate(f"i{number}") for number in range(RECENT_CANDIDATES_MAX // 2))
    for number in range(3):
        recent.note(RUN, decision(number, candidates=many))
    assert [one.decision.number for one in recent.latest(9, everybody)] == [2, 1]
    recent.note(RUN, decision(3, candidates=(*many, *many, *many)))
    assert [one.decision.number for one in recent.latest(9, everybody)] == [3]
    recent.note(RUN, decision(4))
    assert [one.decision.number for one in recent.latest(9, everybody)] == [4]


def test_of_each_event_the_latest_report_is_kept() -> None:
    recent = RecentDecisions()
    recent.note(RUN, decision(1))
    recent.report(RUN, outcome(1, OutcomeEvent.DISPATCHED))
    recent.report(RUN, outcome(1, OutcomeEvent.COMPLETED, cached_tokens=1))
    recent.report(RUN, outcome(1, OutcomeEvent.COMPLETED, cached_tokens=2))
    recent.report(RUN, outcome(9, OutcomeEvent.COMPLETED))
    found = recent.find(RUN, 1)
    assert found is not None
    assert [(one.event, one.cached_tokens) for one in found.outcomes] == [
        (OutcomeEvent.DISPATCHED, None),
        (OutcomeEvent.COMPLETED, 2),
    ]


def test_only_what_is_new_and_of_admitted_tenants() -> None:
    recent = RecentDecisions()
    for number, tenant in enumerate(("a", "b", "a", "b")):
        scope = DecidedScope(tenant, "m", "", 16, "")
        recent.note(RUN, decision(number, scope=scope))
    found = recent.latest(9, lambda tenant: tenant == "a", after=1)
    assert [one.decision.number for one in found] == [2]
    assert recent.latest(9, everybody, after=4) == []
