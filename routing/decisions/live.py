"""What is under way, as far as this service knows it.

Its own decisions and reports count at once, those of others as soon as the routing log has brought
them; what comes back of its own changes nothing. So a decision sees all that this service has
decided before, and what others decided some milliseconds ago.

Any thread may call it.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from enum import Enum
from typing import Final, NamedTuple

from routing.by_target import ByTarget
from routing.decisions.beside import BesideBooked, Usual
from routing.decisions.mean_work import MeanWork
from routing.decisions.predictions import LivePredictions
from routing.decisions.recent import RecentDecision, RecentDecisions
from routing.fold.booking import DecisionKey
from routing.fold.bookings import Bookings, Reported
from routing.fold.failures import Failing, Failures
from routing.fold.fold import RoutingFold
from routing.fold.place import NO_LOAD, Load
from routing.fold.samples import Samples
from routing.observed.sessions import Sessions
from routing.policies.recent_work import RecentWork
from schemas.limits import LOAD_SAMPLE_S
from schemas.routing_records import (
    DecidedScope,
    Decision,
    DecisionsRecord,
    LoadRecord,
    LoadSample,
    Outcome,
    OutcomesRecord,
    RoutingRecord,
    Target,
    Unregistered,
    UnregisteredEngines,
)


class Report(Enum):
    """What a report is to this service."""

    NEW = "new"
    REPEATED = "repeated"
    EARLY = "early"
    """Of a decision that the log has yet to bring."""


class Carried(NamedTuple):
    """What a target carries.

    Attributes:
        wait_s: until it would begin: of what is booked, and of what waits beside that by its
            sample.
        requests, pending, active, kv_tokens, decoding: see `routing.fold.bookings.Load`.
        sample: by its own or another client's word, or None.
        others: whom its queue delays; see `routing.policies.recent_work`.
    """

    wait_s: float
    requests: int
    pending: int
    active: int
    sample: LoadSample | None
    kv_tokens: int = 0
    decoding: int = 0
    others: float = 0.0


NOTHING: Final = Carried(0.0, 0, 0, 0, None)


def _carried_of(booked: Load, sample: LoadSample | None, others: float) -> Carried:
    wait, requests, pending, active, decoding, tokens = booked
    return Carried(wait, requests, pending, active, sample, tokens, decoding, others)


class LiveLoad:
    """See the module.

    Attributes:
        forgotten: what those that decide by it had to give up for want of room, by what it is.
    """

    def __init__(self) -> None:
        self.forgotten: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._bookings = Bookings()
        self._samples = Samples()
        self._beside = BesideBooked(self._bookings)
        self._forgotten_at: dict[Unregistered, float] = {}  # what the log is to bring again
        self._mean_work = MeanWork()
        self._recent_work: ByTarget[RecentWork] = ByTarget()
        self._predicted = LivePredictions()
        self._sessions = Sessions()
        self._failures = Failures()
        self._recent = RecentDecisions()

    def merge(self, fold: RoutingFold) -> None:
        """Goes on from what the log said up to now, and from its own that the log has yet to bring.

        For a start, and for a log that was read again: record by record, its past would set the
        time back.
        """
        with self._lock:
            found = self._bookings.merge(fold.bookings.state())
            for sample in fold.samples.all():
                self._note(sample)
            self._predicted.merge(fold.observations)
            self._note_reported(found)
            self._sessions.restore(fold.observations.sessions.state())
            self._failures.restore(fold.failures.state())

    def book(self, run: int, decision: Decision) -> None:
        """A decision of this service."""
        with self._lock:
            self._bookings.advance(decision.time)
            self._book(run, decision)

    def refuse(self, run: int, decision: Decision) -> None:
        """A decision of this service that nobody was chosen by."""
        with self._lock:
            self._recent.note(run, decision)

    def _book(self, run: int, decision: Decision) -> None:
        if self._bookings.has_seen(run, decision.number):
            return
        self._recent.note(run, decision)
        early = self._bookings.book(run, decision)
        self._mean_work.note(decision)
        self._note_work(decision)
        now = self._bookings.clock
        self._sessions.decided(now, decision)
        self._failures.decided(now, decision)
        self._predicted.decided(run, now, decision, self._bookings.is_under_way)
        self._note_reported(early)

    def _note_work(self, decision: Decision) -> None:
        if decision.chosen < 0:
            return
        target, one = decision.target(decision.chosen), decision.candidates[decision.chosen]
        work = self._recent_work.get(target) or RecentWork()
        work.note(decision.time, one.load_s + one.transfer_s + one.prefill_s)
        self._recent_work.put(target, work)

    def _report(self, run: int, outcome: Outcome) -> bool:
        """Whether it was new."""
        found = self._bookings.report(run, outcome)
        self._note_reported(found)
        return bool(found)

    def _note_reported(self, found: Iterable[Reported]) -> None:
        now = self._bookings.clock
        for booking, outcome in found:
            self._predicted.reported(booking.run, now, outcome)
            self._recent.report(booking.run, outcome)
            self._beside.begun(booking, outcome.event)
            self._failures.reported(now, booking, outcome.event)

    def report(self, run: int, outcome: Outcome) -> Report:
        """A report to this service."""
        with self._lock:
            bookings = self._bookings
            self._bookings.advance(outcome.time)
            early = not bookings.has_seen(run, outcome.number)
            prolonged = bookings.prolonged
            if self._report(run, outcome) or bookings.prolonged > prolonged:
                return Report.NEW
            return Report.EARLY if early else Report.REPEATED

    def note(self, samples: Iterable[LoadSample]) -> None:
        """What targets carry."""
        with self._lock:
            for sample in samples:
                self._note(sample)

    def asked(self, decision: Decision) -> None:
        """A decision that is not kept to: it tells what requests of its model take."""
        with self._lock:
            self._mean_work.note(decision)

    def usual(self, tenant_id: str, model_name: str, default: Usual) -> Usual:
        """What a request of a model is like, by the last decisions; the default before them."""
        with self._lock:
            return self._mean_work.usual(tenant_id, model_name, default)

    def _note(self, sample: LoadSample) -> None:
        if self._forgotten_at and self._is_of_before(sample):
            return
        if self._samples.note(sample):
            self._beside.note(sample)

    def _is_of_before(self, sample: LoadSample) -> bool:
        """Whether it is of an engine that was unregistered since; the log brings it again."""
        found = (at for one, at in self._forgotten_at.items() if one.target == sample.target)
        return any(sample.observed_at <= at for at in found)

    def forget(self, engines: Iterable[Unregistered], now: float) -> int:
        """Engines that are registered no more; how many of their bookings were released."""
        engines = list(engines)
        with self._lock:
            before = self._forgotten_at
            self._forgotten_at = {one: at for one, at in before.items() if at > now - LOAD_SAMPLE_S}
            self._forgotten_at.update(dict.fromkeys(engines, now))
            return self._forget(engines)

    def _forget(self, engines: Sequence[Unregistered]) -> int:
        self._predicted.forget(engines)
        self._failures.forget(engines)
        for one in engines:
            self._samples.forget(one.target)
            self._beside.forget(one.target)
            self._recent_work.pop(one.target)
        return self._bookings.release(engines)

    def follow(self, record: RoutingRecord, now: float) -> None:
        """What the log has brought, of this service or of others; it is `now` here."""
        with self._lock:
            repeated = self._bookings.repeated
            self._bookings.advance(min(record.time, now))
            match record:
                case DecisionsRecord():
                    for decision in record.decisions:
                        self._book(record.run, decision)
                case OutcomesRecord():
                    for outcome in record.outcomes:
                        self._report(record.run, outcome)
                case LoadRecord():
                    for sample in record.samples:
                        self._note(sample)
                case UnregisteredEngines():
                    # Those that were unregistered here may be registered again by now, and chosen.
                    known = [self._forgotten_at.pop(one, None) for one in record.engines]
                    engines = zip(record.engines, known, strict=True)
                    self._forget([one for one, at in engines if at is None])
            self._bookings.repeated = repeated  # what was told to this service comes back

    def named(self, request_id: str, tenant_id: str | None = None) -> DecisionKey | None:
        """The decision of a request that is under way; see `Bookings.named`."""
        with self._lock:
            return self._bookings.named(request_id, tenant_id)

    def is_under_way(self, run: int, number: int) -> bool:
        """Whether that decision is booked and has not ended."""
        with self._lock:
            return self._bookings.is_under_way(run, number)

    def tenant_of(self, run: int, number: int) -> str | None:
        """Whose that decision is; None where it is not under way."""
        with self._lock:
            return self._bookings.tenant_of(run, number)

    def predicted(self, scope: DecidedScope, prefixes: bytes, now: float) -> dict[Target, int]:
        """The longest prefix of a prompt that each target will hold, as decisions say, in blocks.

        Args:
            scope: of the prompt.
            prefixes: prefix hashes of its blocks, u64 LE.
            now: Unix seconds.
        """
        with self._lock:
            return self._predicted.longest(scope, prefixes, now)

    def last_of_session(self, tenant_id: str, session_id: str, now: float) -> Target | None:
        """Where the last request of a session went."""
        with self._lock:
            found = self._sessions.last(tenant_id, session_id, now)
        return None if found is None else found[1]

    def knows_run(self, run: int) -> bool:
        """Whether a decision of that run was ever seen."""
        with self._lock:
            return self._bookings.knows_run(run)

    def carried(
        self,
        targets: Sequence[Target],
        now: float,
        usual: Usual,
        said: dict[Target, LoadSample],
    ) -> list[Carried]:
        """What each target carries. Cost O(targets).

        Args:
            targets: that are asked about.
            now: Unix seconds.
            usual: what a request is like, for those that are there and not booked.
            said: samples that count in place of what is known.
        """
        with self._lock:
            self._bookings.advance(now)
            loads = self._bookings.loads(targets, now)
            return [
                self._carried(target, booked, now, usual, said.get(target))
                for target, booked in zip(targets, loads, strict=True)
            ]

    def _carried(
        self,
        target: Target,
        booked: Load,
        now: float,
        usual: Usual,
        said: LoadSample | None,
    ) -> Carried:
        sample = said or self._samples.newest(target, now)
        work = self._recent_work.get(target)
        if sample is None and work is None and booked is NO_LOAD:
            return NOTHING
        if sample is not None:
            # Those that are booked are known better: what each takes, and when it is done.
            booked = self._beside.of(sample).added_to(booked, now, usual)
        return _carried_of(booked, sample, 0.0 if work is None else work.others(now))

    def recent(self, limit: int, admits: Callable[[str], bool]) -> list[RecentDecision]:
        """The last decisions, the latest first; see `RecentDecisions.latest`."""
        with self._lock:
            return self._recent.latest(limit, admits)

    def noted(self) -> int:
        """How many decisions have come to be known in this process."""
        with self._lock:
            return self._recent.noted

    def recent_after(
        self, after: int, limit: int, admits: Callable[[str], bool]
    ) -> tuple[int, list[RecentDecision]]:
        """How many decisions are known by now, and those behind that place, the latest first."""
        with self._lock:
            return self._recent.noted, self._recent.latest(limit, admits, after=after)

    def trace_of(self, run: int, number: int) -> str:
        """The context of the span that decided; "" where it has none, or is not kept."""
        found = self.find_recent(run, number)
        return "" if found is None else found.decision.context

    def find_recent(self, run: int, number: int) -> RecentDecision | None:
        """One of the last decisions; None where it is not kept."""
        with self._lock:
            return self._recent.find(run, number)

    def targets(self) -> list[Target]:
        """Those of which something is known, sorted."""
        with self._lock:
            sampled = (sample.target for sample in self._samples.all())
            failing = (target for target, _ in self._failures.failing(self._bookings.clock))
            return sorted({*self._bookings.targets(), *sampled, *failing})

    def left_out(self, targets: Iterable[Target], now: float) -> frozenset[Target]:
        """Those of them that are to be sent nothing now, since what they are sent fails."""
        with self._lock:
            if not len(self._failures):
                return frozenset()
            return frozenset(one for one in targets if self._failures.is_left_out(one, now))

    def failing(self, now: float) -> list[tuple[Target, Failing]]:
        """Those that get single requests on trial alone, sorted."""
        with self._lock:
            return [(target, copy(one)) for target, one in self._failures.failing(now)]

    def counts(self) -> dict[str, int]:
        """For metrics."""
        with self._lock:
            bookings = self._bookings
            return {
                "under_way": len(bookings),
                "expired": bookings.expired,
                "released": bookings.released,
                "overflowed": bookings.overflowed,
                "repeated": bookings.repeated,
                "unknown": bookings.unknown,
                "samples": len(self._samples),
                "samples_dropped": self._samples.dropped,
            }
