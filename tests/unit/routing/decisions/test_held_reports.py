"""Reports of what another replica has just decided wait for it, bounded, and for nobody else's."""

import pytest

from routing.bounds import EARLY_OUTCOME_S
from routing.decisions.held_reports import HELD_OF_NAME_MAX, HeldReport, HeldReports
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import ClientReport, FeedbackCounts, Router
from schemas.routing_records import DecisionsRecord, LoadRecord, OutcomeEvent, decision_id
from tests.fakes import FakeTable
from tests.unit.routing.sample_decisions import decision, outcome

NOW = 1000.0
OTHER = int(NOW * 1e6)
END = outcome(0, OutcomeEvent.COMPLETED)
ACCEPTED, REPEATED = FeedbackCounts(accepted=1), FeedbackCounts(repeated=1)
UNKNOWN = FeedbackCounts(unknown=1)


class Here:
    """A replica, and the log of another one."""

    def __init__(self, *, shares_log: bool = True) -> None:
        self.now, self.offset = NOW, 0
        self.live, self.queue = LiveLoad(), RoutingQueue()
        self.router = Router(
            FakeTable(), self.queue, self.live, clock=lambda: self.now, shares_log=shares_log
        )

    def tell(self, **names: object) -> FeedbackCounts:
        values: dict[str, object] = {"decision_id": None, "request_id": None} | names
        return self.router.take([ClientReport(outcome=END, at=None, **values)])  # type: ignore[arg-type]

    def bring(self, number: int, request_id: str = "r") -> int:
        """Another replica's decision; how many reports are to be written for it."""
        made = decision(number, self.now, request_id=request_id)
        record = DecisionsRecord(run=OTHER, time=self.now, decisions=(made,))
        found = self.live.follow(self.offset, record, self.now)
        self.offset += 1
        self.queue.push_outcomes(found)
        return len(found)

    def pass_time(self, seconds: float) -> None:
        """And the log says so."""
        self.now += seconds
        self.live.follow(self.offset, LoadRecord(run=0, time=self.now, samples=()), self.now)
        self.offset += 1

    @property
    def under_way(self) -> int:
        return self.live.counts()["under_way"]


def test_a_report_by_the_id_of_its_request_waits_for_the_decision() -> None:
    here = Here()
    assert here.tell(request_id="r") == ACCEPTED
    assert here.tell(request_id="r") == REPEATED
    assert here.bring(0, "another") == 0
    assert here.bring(1) == 1
    assert here.under_way == 1, "the other one's"
    assert here.tell(request_id="r") == REPEATED
    assert here.tell(decision_id=decision_id(OTHER, 1)) == REPEATED


def test_a_decision_of_a_run_that_nobody_has_read_of_is_reported_at_once() -> None:
    here = Here()
    name = decision_id(OTHER, 0)
    assert here.tell(decision_id=name) == ACCEPTED
    assert here.tell(decision_id=name) == REPEATED
    assert len(here.queue) == 1, "it is written ahead of its decision"
    here.bring(0)
    assert here.under_way == 0
    assert here.tell(decision_id=name) == REPEATED


def test_a_report_is_of_no_tenant_that_its_client_may_not_speak_of() -> None:
    here = Here()
    name = decision_id(OTHER, 0)
    assert here.tell(decision_id=name, tenants=frozenset({"t"})) == ACCEPTED
    assert here.tell(request_id="r", tenant_id="t") == ACCEPTED
    assert here.bring(0) == 0
    assert here.under_way == 1
    for _ in range(30):
        here.pass_time(EARLY_OUTCOME_S / 30 + 0.01)
    assert here.live.counts()["unknown"] == 2, "what came of nothing is counted"


def test_who_may_speak_of_it_is_taken_by_its_word() -> None:
    here = Here()
    name, own = decision_id(OTHER, 0), frozenset({"default"})
    assert here.tell(decision_id=name, tenants=own) == ACCEPTED
    assert here.bring(0) == 1
    assert here.under_way == 0
    assert here.tell(decision_id=name, tenants=own) == REPEATED


def test_what_was_decided_by_nobody_is_unknown() -> None:
    here, alone = Here(), Here(shares_log=False)
    later = int((NOW + 3600.0) * 1e6)
    assert here.tell(decision_id=decision_id(later, 0)) == UNKNOWN
    assert here.tell(decision_id=decision_id(here.router.run, 0)) == UNKNOWN
    assert here.tell(decision_id="none") == UNKNOWN
    assert alone.tell(decision_id=decision_id(OTHER, 0)) == UNKNOWN
    assert alone.tell(request_id="r") == UNKNOWN


def test_it_waits_while_the_log_is_away_and_after_idleness() -> None:
    here = Here()
    here.pass_time(1.0)
    here.tell(request_id="r")
    here.pass_time(10 * EARLY_OUTCOME_S)  # the log was away: all of it comes now
    assert here.bring(0) == 1
    here.now += 10 * EARLY_OUTCOME_S  # nobody has had anything to say
    here.tell(request_id="s")
    here.pass_time(0.0)
    assert here.bring(1, "s") == 1
    assert here.live.counts()["unknown"] == 0


def test_what_is_held_is_bounded_and_the_oldest_goes() -> None:
    held = HeldReports(most=3)
    for number in range(5):
        assert held.hold(f"r{number}", HeldReport(END))
    assert (len(held), held.dropped) == (3, 2)
    for number in range(HELD_OF_NAME_MAX + 4):
        assert held.hold("r4", HeldReport(END, f"t{number}"))
    assert (len(held), held.dropped) == (3, 7), "many reports under one name take no other's room"


def test_replicas_that_start_at_once_have_runs_of_their_own() -> None:
    runs = {Here().router.run for _ in range(50)}
    assert len(runs) > 45
    assert all(abs(run / 1e6 - NOW) < 1.1 for run in runs), "it still says when"


@pytest.mark.parametrize("chance", [b"\0\0\0\0", b"\xff\xff\xff\xff"])
def test_a_run_is_a_number_that_the_log_takes(chance: bytes) -> None:
    router = Router(
        FakeTable(), RoutingQueue(), LiveLoad(), clock=lambda: NOW, random_bytes=lambda _: chance
    )
    assert abs(router.run / 1e6 - NOW) < 1.1
