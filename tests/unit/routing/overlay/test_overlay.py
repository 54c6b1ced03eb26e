"""What was told here counts until the log has brought it, and then as the log says; no more."""

import pytest

from routing.bounds import LOAD_SAMPLE_S
from routing.decisions.live_load import LiveLoad, ReportKind
from routing.decisions.unbooked_load import TypicalRequest
from routing.fold.booking import BOOKING_EXPIRY_S
from routing.fold.fold import RoutingFold
from routing.overlay import bookings as module
from routing.overlay.own_records import OwnRecords, Stamps
from schemas.routing_records import (
    DecisionsRecord,
    LoadRecord,
    LoadSample,
    LoadSource,
    OutcomeEvent,
    OutcomesRecord,
    PrefixMark,
    RoutingRecord,
    UnregisteredEngine,
    UnregisteredEngines,
)
from tests.unit.routing.sample_decisions import SCOPE, A, B, decision, outcome

RUN, OTHER = 7, 8
FIRST, FAILED, END = OutcomeEvent.FIRST_TOKEN, OutcomeEvent.FAILED, OutcomeEvent.COMPLETED
GONE = UnregisteredEngine(A, "m")
PREFIXES = (5).to_bytes(8, "little")


class Service:
    """One that decides, and the log that it reads."""

    def __init__(self) -> None:
        self.live = LiveLoad()
        self.now = 100.0

    def bring(self, *records: RoutingRecord) -> None:
        for record in records:
            self.live.follow(self.live.folded.offset + 1, record, self.now)

    def decide(self, number: int, **fields: object) -> DecisionsRecord:
        made = decision(number, self.now, **fields)
        self.live.book(RUN, made)
        return DecisionsRecord(run=RUN, time=self.now, decisions=(made,))

    def tell(self, number: int, event: OutcomeEvent, run: int = RUN) -> OutcomesRecord:
        told = outcome(number, event, self.now)
        self.live.report(run, told)
        return OutcomesRecord(run=run, time=self.now, outcomes=(told,))

    def others(self, *numbers: int, time: float | None = None) -> DecisionsRecord:
        at = self.now if time is None else time
        made = tuple(decision(number, at) for number in numbers)
        return DecisionsRecord(run=OTHER, time=at, decisions=made)

    @property
    def requests(self) -> int:
        return self.live.carried([A], self.now, TypicalRequest(0.0, 0.0, 0.0), {})[0].requests

    @property
    def wait_s(self) -> float:
        return self.live.carried([A], self.now, TypicalRequest(0.0, 0.0, 0.0), {})[0].wait_s


@pytest.fixture
def service() -> Service:
    return Service()


def test_a_decision_counts_once_before_it_is_back_and_after(service: Service) -> None:
    record = service.decide(0)
    assert (service.requests, service.wait_s) == (1, 1.0)
    service.bring(record, record)
    assert (service.requests, service.wait_s) == (1, 1.0)


def test_own_decisions_begin_behind_those_of_others(service: Service) -> None:
    service.bring(service.others(0, 1))
    service.decide(0)
    assert (service.requests, service.wait_s) == (3, 3.0)


def test_an_own_report_of_what_another_decided_counts_at_once(service: Service) -> None:
    service.bring(service.others(0, 1))
    record = service.tell(0, END, OTHER)
    assert (service.requests, service.wait_s) == (1, 1.0)
    service.bring(record)
    assert (service.requests, service.wait_s) == (1, 1.0)


def test_a_decision_that_comes_back_before_its_end_stays_ended(service: Service) -> None:
    decided, ended = service.decide(0), service.tell(0, END)
    service.bring(decided)
    assert service.requests == 0
    assert not service.live.is_under_way(RUN, 0)
    service.bring(ended)
    assert service.requests == 0


def test_a_decision_that_the_log_lost_stays_until_its_end(service: Service) -> None:
    service.decide(0)  # no record of it is written
    service.bring(service.decide(1))
    assert service.requests == 2
    service.tell(0, END)
    assert service.requests == 1


def test_a_decision_that_the_log_lost_expires(service: Service) -> None:
    service.decide(0)
    service.now += BOOKING_EXPIRY_S
    assert service.requests == 0
    assert service.live.counts()["expired"] == 1


def test_while_the_log_stands_still_bookings_expire_here_and_once(service: Service) -> None:
    service.bring(service.others(0))
    service.now += BOOKING_EXPIRY_S
    assert service.requests == 0
    assert service.live.counts()["expired"] == 1
    service.bring(LoadRecord(run=0, time=service.now - 300.0 + 60.0 * 5, samples=()))
    for _ in range(6):
        service.bring(LoadRecord(run=0, time=service.now, samples=()))
    assert service.live.folded.fold.bookings.expired == 1
    assert service.live.counts()["expired"] == 1


def test_one_that_has_expired_here_and_lives_by_the_log_is_under_way_again(
    service: Service,
) -> None:
    service.bring(service.others(0))
    service.now += BOOKING_EXPIRY_S
    assert service.requests == 0
    told = outcome(0, FIRST, service.now)
    service.bring(OutcomesRecord(run=OTHER, time=service.now - 1.0, outcomes=(told,)))
    assert service.requests == 1


def test_after_idleness_what_is_decided_stays_though_the_logs_clock_is_led(
    service: Service,
) -> None:
    """Two services write, so the fold believes neither, and goes on by a minute each record."""
    service.bring(service.decide(0), service.others(0))
    service.now += 10_000.0
    service.bring(service.decide(1), service.others(1))
    assert service.requests == 2
    for _ in range(20):
        service.bring(LoadRecord(run=0, time=service.now, samples=()))
    assert service.live.folded.fold.bookings.expired == 4
    assert (service.requests, service.live.counts()["expired"]) == (2, 2)
    told = outcome(1, END, service.now)
    service.bring(OutcomesRecord(run=OTHER, time=service.now, outcomes=(told,)))
    service.tell(1, END)
    assert service.requests == 0


def test_where_the_logs_clock_is_ahead_nobody_waits_longer(service: Service) -> None:
    service.bring(service.others(0, time=service.now + 600.0))
    assert (service.requests, service.wait_s) == (1, 1.0)
    service.now += 0.5
    assert service.wait_s == pytest.approx(0.5)


def test_what_was_unregistered_here_is_so_at_once_and_its_successor_is_not(
    service: Service,
) -> None:
    service.bring(service.others(0))
    mine = service.decide(0)
    assert service.live.forget([GONE], service.now) == 2
    late, gone = service.others(1), UnregisteredEngines(run=0, time=service.now, engines=(GONE,))
    successor = service.decide(1)
    assert service.requests == 1
    service.bring(late, mine)
    assert service.requests == 1, "the log has yet to say that these are gone"
    service.bring(gone, successor)
    assert service.requests == 1
    assert service.live.folded.fold.bookings.load(A, service.now).requests == 1
    assert service.live.counts()["released"] == 2


def test_failures_told_here_leave_out_an_engine_at_once_and_once(service: Service) -> None:
    records: list[RoutingRecord] = []
    for number in range(10):
        records += [service.decide(number), service.tell(number, FAILED)]
    assert service.live.left_out([A, B], service.now) == {A}
    service.bring(*records)
    failing = service.live.failing(service.now)
    assert [target for target, _ in failing] == [A]
    found = service.live.folded.fold.failures.failing(service.now)
    assert [(target, one.run) for target, one in found] == [(A, 10)]
    assert failing[0][1].run == 10


def test_a_prompt_is_predicted_until_a_failure_that_is_not_back(service: Service) -> None:
    marks = (PrefixMark(1, 5),)
    decided = service.decide(0, marks=marks)
    assert service.live.predicted(SCOPE, PREFIXES, service.now) == {A: 1}
    service.bring(decided)
    assert service.live.predicted(SCOPE, PREFIXES, service.now) == {A: 1}
    failed = service.tell(0, FAILED)
    assert service.live.predicted(SCOPE, PREFIXES, service.now) == {}
    service.bring(failed)
    assert service.live.predicted(SCOPE, PREFIXES, service.now) == {}
    service.bring(service.decide(1, marks=marks))
    assert service.live.predicted(SCOPE, PREFIXES, service.now) == {A: 1}


def test_what_is_back_leaves_nothing_behind(service: Service) -> None:
    records: list[RoutingRecord] = []
    for number in range(5):
        records.append(service.decide(number, session_id="s", marks=(PrefixMark(1, 5),)))
        records += [service.tell(number, event) for event in (FIRST, END)]
    sample = LoadSample(A, service.now, LoadSource.POSTED, waiting=3)
    service.live.note([sample])
    service.bring(*records, LoadRecord(run=0, time=service.now, samples=(sample,)))
    live = service.live
    assert len(live._own._numbers) == 0
    assert len(live._bookings._here) == len(live._bookings._hidden) == 0
    assert not live._bookings._told
    assert not live._bookings._places.computed
    assert not live._predictions._promises
    assert not len(live._predictions._holders.present)
    assert not live._predictions._holders._made
    assert not len(live._sessions._own)
    assert not len(live._failures._known)
    assert not live._failures._ends
    assert not len(live._samples._own)


def test_what_is_not_back_is_bounded(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OWN_RECORDS_MAX", 3)
    monkeypatch.setattr(module, "BOOKINGS_MAX", 4)
    service.bring(service.others(0, 1))
    for number in range(4):
        service.decide(number)
    assert service.live.counts()["under_way"] == 4
    assert service.live.counts()["overflowed"] == 2
    for number in range(6):
        service.tell(number, FIRST)
    assert len(service.live._bookings._told) <= 3


def test_a_report_is_repeated_whoever_has_it(service: Service) -> None:
    service.bring(service.others(0))
    assert service.live.report(OTHER, outcome(0, FIRST, service.now)) is ReportKind.NEW
    assert service.live.report(OTHER, outcome(0, FIRST, service.now)) is ReportKind.REPEATED
    service.bring(service.others(1))
    told = outcome(1, END, service.now)
    service.bring(OutcomesRecord(run=OTHER, time=service.now, outcomes=(told,)))
    assert service.live.report(OTHER, told) is ReportKind.REPEATED
    assert service.live.report(OTHER, outcome(2, END, service.now)) is ReportKind.EARLY
    assert service.live.counts()["repeated"] == 2


def test_an_older_sample_of_the_log_does_not_replace_an_own_one(service: Service) -> None:
    new, old = (LoadSample(A, at, LoadSource.POSTED, waiting=3) for at in (99.0, 98.0))
    service.live.note([new])
    service.bring(LoadRecord(run=0, time=service.now, samples=(old,)))
    [load] = service.live.carried([A], service.now, TypicalRequest(0.0, 0.0, 0.0), {})
    assert load.sample == new
    service.now += LOAD_SAMPLE_S
    [load] = service.live.carried([A], service.now, TypicalRequest(0.0, 0.0, 0.0), {})
    assert load.sample is None


def test_a_service_goes_on_over_what_was_kept(service: Service) -> None:
    service.bring(service.others(0, 1))
    kept = service.live.folded.read_all(RoutingFold.dump)
    again = LiveLoad(RoutingFold.load(kept))
    assert again.counts()["under_way"] == 2


class TestOwnRecords:
    def test_what_was_told_before_one_that_is_back_has_come_or_is_lost(self) -> None:
        own = OwnRecords()
        for name in "abc":
            own.begin()
            own.expect(name)
        own.come("b")
        assert (own.back, len(own._numbers)) == (2, 1)
        own.come("a")
        own.come("of another process")
        assert own.back == 2
        own.come("c")
        assert own.back == own.last == 3

    def test_a_stamp_leaves_with_the_last_record_that_put_it(self) -> None:
        own = OwnRecords()
        stamps: Stamps[str] = Stamps(own, 2)
        for name, keys in (("first", "xy"), ("second", "x")):
            own.begin()
            own.expect(name)
            for key in keys:
                stamps.put(key)
        own.come("first")
        assert list(stamps.leaving()) == ["y"]
        own.come("second")
        assert list(stamps.leaving()) == ["x"]
        assert [gone for key in "abc" for gone in stamps.put(key)] == ["a"]
        assert list(stamps) == ["b", "c"]
