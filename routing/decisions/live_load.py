"""What a decision reads: the fold of the routing log, and over it what this service has told the
log and not read back (`routing.overlay`).

So a decision sees all that this service has decided before, and what others decided some
milliseconds ago; what comes back of its own counts once.

Any thread may call it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from enum import Enum
from itertools import repeat
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from routing.by_target import ByTarget
from routing.decisions.folded_routing import FoldedRouting
from routing.decisions.held_reports import HeldName, HeldReport, HeldReports
from routing.decisions.late_work import Late, LateWork, late_seconds
from routing.decisions.mean_work import MeanWork
from routing.decisions.recent_decisions import RecentDecision, RecentDecisions
from routing.decisions.unbooked_load import TypicalRequest, UnbookedLoad, UnbookedLoads
from routing.fold.booking import DecisionKey
from routing.fold.bookings import BookingReport
from routing.fold.failures import FailureState
from routing.fold.fold import BookingChanges, RoutingFold
from routing.fold.target_bookings import NO_LOAD, Load
from routing.overlay.bookings import OverlaidBookings
from routing.overlay.failures import OverlaidFailures
from routing.overlay.own_records import OwnRecords
from routing.overlay.predictions import OverlaidPredictions
from routing.overlay.samples import OverlaidSamples
from routing.overlay.sessions import OverlaidSessions
from routing.policies.recent_work import RecentWork
from routing.request_names import only
from schemas.routing_records import (
    BriefDecisions,
    DecidedScope,
    Decision,
    DecisionsRecord,
    FeedbackReport,
    LoadRecord,
    LoadSample,
    OutcomeEvent,
    OutcomesRecord,
    RoutingRecord,
    Target,
    UnregisteredEngine,
    UnregisteredEngines,
)
from streams.table.scope_states import NO_CONTRADICTIONS, Contradictions


class ReportKind(Enum):
    """What a report is to this service."""

    NEW = "new"
    REPEATED = "repeated"
    EARLY = "early"
    """Of a decision that the log has yet to bring."""


OwnReport = tuple[int, FeedbackReport]
"""With the run that it is about."""


class TargetLoad(NamedTuple):
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


class LoadParts(NamedTuple):
    """What makes up what a target carries: each part goes on by its own rule.

    Attributes:
        booked: drains.
        late: stands still, or grows; see `LateWork`.
        beside: what is there and not booked.
        sample: see `TargetLoad`.
        work: what was sent there of late.
        queued_s: what prompts take that are not computed yet; where that is asked for.
    """

    booked: Load
    late: list[Late]
    beside: UnbookedLoad | None
    sample: LoadSample | None
    work: RecentWork | None
    queued_s: float = 0.0

    def carried(self, now: float, usual: TypicalRequest) -> TargetLoad:
        """What they come to, where a request is like `usual`. The kernel does the same by itself:
        `Load::carried` in `streams/kernel/native/routing/src/boards.rs`.
        """
        booked = self.booked
        if self.late:
            booked = booked._replace(wait_s=booked.wait_s + late_seconds(self.late, now))
        if self.beside is not None:
            # Those that are booked are known better: what each takes, and when it is done.
            booked = self.beside.added_to(booked, now, usual)
        wait, requests, pending, active, decoding, tokens = booked
        others = 0.0 if self.work is None else self.work.others(now)
        return TargetLoad(wait, requests, pending, active, self.sample, tokens, decoding, others)


NOTHING: Final = TargetLoad(0.0, 0, 0, 0, None)


class KernelCounts(NamedTuple):
    """What was done without Python.

    Attributes:
        decided: decisions that were made; `repeated`: answers given again.
        left: requests that were left to Python since too many decisions waited.
        reported: reports that were taken.
        rested: requests and reports that waited until others were booked.
    """

    decided: int = 0
    repeated: int = 0
    left: int = 0
    reported: int = 0
    rested: int = 0


class KernelSource(Protocol):
    """Has decisions and reports that are yet to be booked: see
    `routing.decisions.kernel_decisions`.
    """

    @property
    def waiting(self) -> int:
        """How many."""
        ...

    def catch_up(self) -> None:
        """Books them."""
        ...

    def take_over(self, run: int, number: int) -> bool:
        """It takes no reports of that decision any more; says whether some are yet to be booked."""
        ...

    def take_over_all(self) -> None:
        """It takes none of those that were made so far."""
        ...

    def counts(self) -> KernelCounts:
        """What it has done."""
        ...


class _CaughtUpLock:
    """A lock: whoever has taken it knows all that the kernel has decided.

    Attributes:
        lock: the same, of who need not know that.
        stills: how many hold it so that nothing is booked meanwhile, all on one thread.
    """

    __slots__ = ("_live", "lock", "stills")

    def __init__(self, live: "LiveLoad", lock: AbstractContextManager[bool]) -> None:
        self._live = live
        self.lock = lock
        self.stills = 0

    def __enter__(self) -> bool:
        self.lock.__enter__()
        try:
            if not self.stills:
                self._live.catch_up()
        except BaseException:
            self.lock.__exit__(None, None, None)
            raise
        return True

    def __exit__(self, *error: Any) -> None:
        self.lock.__exit__(*error)


class _StillLock:
    """The same lock: what the kernel decides meanwhile stays as it is, however often it is taken
    within.
    """

    __slots__ = ("_caught_up",)

    def __init__(self, caught_up: _CaughtUpLock) -> None:
        self._caught_up = caught_up

    def __enter__(self) -> bool:
        self._caught_up.lock.__enter__()
        self._caught_up.stills += 1
        return True

    def __exit__(self, *error: Any) -> None:
        self._caught_up.stills -= 1
        self._caught_up.lock.__exit__(*error)


class LiveLoad:
    """See the module.

    Attributes:
        folded: of the log, as far as it was read.
        lock: held by each call; whoever holds it makes several as one.
        still: the same, of who follows the log, or speaks of what is known, or looks again and
            again: what the kernel has decided meanwhile is not booked for that. Booked apart from
            its window of the log, a decision is folded twice.
        when_rebased: called with another fold, once this goes on over it.
        forgotten: what those that decide by it had to give up for want of room, by what it is.
    """

    def __init__(self, fold: RoutingFold | None = None) -> None:
        """Args:
        fold: what was read of the log so far; None: nothing.
        """
        self.folded = FoldedRouting(fold)
        self.forgotten: Counter[str] = Counter()
        self.lock: AbstractContextManager[bool] = self.folded.lock
        self.still: AbstractContextManager[bool] = self.folded.lock
        self.when_rebased: Callable[[RoutingFold], None] = lambda fold: None
        self._kernel: KernelSource | None = None
        self._sent: dict[DecisionKey | _ReportName, tuple[Decision, bytes] | FeedbackReport] = {}
        self._sent_number = 0  # as own records have one
        self._own = OwnRecords()
        self._bookings = OverlaidBookings(self._own)
        self._failures = OverlaidFailures(self._own)
        self._predictions = OverlaidPredictions(self._own)
        self._sessions = OverlaidSessions(self._own)
        self._samples = OverlaidSamples()
        # What this process has come to know, whoever decided it; no log has it.
        self._beside = UnbookedLoads(self._bookings)
        self._late_work = LateWork()
        self._mean_work = MeanWork()
        self._recent_work: ByTarget[RecentWork] = ByTarget()
        self._recent = RecentDecisions()
        self._held = HeldReports()
        self._matched: list[tuple[int, Decision, FeedbackReport]] = []  # held, and to be reported
        self._tell: Callable[[Contradictions], None] = lambda found: None
        self._told = NO_CONTRADICTIONS
        self.rebase(self.folded.fold)

    def tell_contradictions(self, tell: Callable[[Contradictions], None]) -> None:
        """Tells where outcomes contradict the index, now and whenever that has changed."""
        with self.lock:
            self._tell, self._told = tell, NO_CONTRADICTIONS
            self._tell_contradictions()

    def _tell_contradictions(self) -> None:
        found = self.folded.fold.observations.contradictions.current
        if found is not self._told:
            self._told = found
            self._tell(found)

    # What the log brings

    def rebase(self, fold: RoutingFold) -> None:
        """Goes on over another fold of the log: see `OverlaidBookings.rebase`."""
        with self.folded.changing, self.lock:
            self.folded.fold = fold
            found = self._bookings.rebase(fold.bookings)
            self._failures.base = fold.failures
            self._predictions.base = fold.observations
            self._sessions.base = fold.observations.sessions
            self._samples.base = fold.samples
            self.note_samples()
            self._note_reported(found)
            self._tell_contradictions()
            self.when_rebased(fold)

    def catch_up_with(self, source: KernelSource) -> None:
        """Whoever takes the lock books what that has decided, before anything else."""
        self._kernel = source
        self.lock = caught_up = _CaughtUpLock(self, self.folded.lock)
        self.still = _StillLock(caught_up)

    def kernel_counts(self) -> KernelCounts:
        """See `KernelSource.counts`; of none where the kernel decides nothing."""
        return KernelCounts() if self._kernel is None else self._kernel.counts()

    def note_samples(self) -> None:
        """What the fold's samples say beside what is booked; where their records were not followed
        but read again, once that is done.
        """
        with self.lock:
            self._note_newest(self._samples.base.all())

    def _note_newest(self, samples: Iterable[LoadSample]) -> None:
        for sample in samples:
            if self._samples.is_newest(sample):
                self._beside.note(sample)

    def apply(self, offset: int, record: RoutingRecord) -> None:
        """Folds a record of the past, which says nothing of what has come to be known lately."""
        with self.folded.changing, self.lock:
            fold = self.folded.fold
            if offset > fold.offset:
                self._come(record, fold.apply(offset, record), None)

    def follow(self, offset: int, record: RoutingRecord, now: float) -> list[OwnReport]:
        """Folds what the log has brought, of this service or of others; it is `now` here. Returns
        the reports that waited for that: what this process has yet to write.
        """
        # A sample is compared with what is booked, and an engine that is gone loses that.
        is_of_requests = isinstance(record, DecisionsRecord | OutcomesRecord)
        with self.folded.changing, self.still if is_of_requests else self.lock:
            fold = self.folded.fold
            if offset <= fold.offset:
                return []
            new: list[tuple[Decision, bytes]] = []
            gone: list[UnregisteredEngine] = []
            if isinstance(record, DecisionsRecord):
                seen = self._bookings.has_seen
                encoded = record.encoded if isinstance(record, BriefDecisions) else repeat(b"")
                both = zip(record.decisions, encoded, strict=False)
                new = [one for one in both if not seen(record.run, one[0].number)]
            elif isinstance(record, UnregisteredEngines):
                # Those that were unregistered here may be registered again by now, and chosen.
                known = self._bookings.is_unregistered
                gone = [one for one in record.engines if not known(one)]
            reported = self._come(record, fold.apply(offset, record), now)
            self._bookings.advance(now)
            for decision in new:
                self._note_decision(record.run, *decision)
            self._note_reported(reported)
            self._forget(gone)
            if isinstance(record, LoadRecord):
                self._note_newest(record.samples)
            self._held.expire(now)
            return self.take_held(now)

    def take_held(self, now: float) -> list[OwnReport]:
        """What waited for decisions that have come is reported; see `follow`."""
        with self.lock:
            matched, self._matched = self._matched, []
            made = []
            for run, decision, held in matched:
                outcome = msgspec.structs.replace(
                    held,
                    number=decision.number,
                    traceparent=decision.traceparent,
                    tracestate=decision.tracestate,
                )
                if self.report(run, outcome, now) is not ReportKind.REPEATED:
                    made.append((run, outcome))
            return made

    def _come(
        self, record: RoutingRecord, changes: BookingChanges, now: float | None
    ) -> list[BookingReport]:
        """What is back leaves the overlay."""
        back = self._own.back
        match record:
            case DecisionsRecord(run=run):
                for decision in record.decisions:
                    key = (run, decision.number)
                    self._come_back(key)
                    if len(self._held):
                        held = self._held.take(run, decision)
                        self._matched += [(run, decision, one) for one in held]
            case OutcomesRecord(run=run):
                for outcome in record.outcomes:
                    if not self._come_back(_name_of(run, outcome)) and self._kernel is not None:
                        self._kernel.take_over(run, outcome.number)  # another one was told
            case LoadRecord():
                self._samples.come(record.samples)
            case UnregisteredEngines():
                for engine in record.engines:
                    self._own.come(engine, is_own=False)
                self._samples.forgotten(record.engines)
                self._predictions.forgotten(record.engines)
        if self._own.back > back:
            self._failures.leave()
            self._predictions.leave()
            self._sessions.leave()
            self._bookings.leave()
        self._tell_contradictions()
        return self._bookings.come(record, changes, now)

    def _come_back(self, name: "DecisionKey | _ReportName") -> bool:
        """The log has brought that; says whether it is of this service."""
        if self._sent and self._sent.pop(name, None) is not None:
            self._own.come_back(self._sent_number)
            return True
        return self._own.come(name)

    # What this service tells

    def book(self, run: int, decision: Decision, encoded: bytes = b"") -> None:
        """A decision of this service; `encoded`: all of it, where that has its chosen candidate
        alone.
        """
        with self.lock:
            self.book_sent()
            self._book(run, decision, encoded)

    def _book(self, run: int, decision: Decision, encoded: bytes) -> None:
        self._bookings.advance(decision.time)
        if self._bookings.has_seen(run, decision.number):
            return
        self._own.begin()
        self._own.expect((run, decision.number))
        early = self._bookings.book(run, decision)
        now = self._bookings.clock
        self._failures.decided(now, decision)
        self._predictions.decided(run, now, decision)
        self._sessions.decided(now, decision)
        self._note_decision(run, decision, encoded)
        self._note_reported(early)

    def send(self, run: int, decision: Decision, encoded: bytes) -> None:
        """The queue of the log has a decision of this service, that nobody has booked. It is booked
        here once somebody asks, or tells what stands behind it in the log; if the log brings it
        before, the fold alone has it. With the lock, in the order of the queue.
        """
        self._begin_sent()
        self._sent[run, decision.number] = decision, encoded

    def send_report(self, run: int, outcome: FeedbackReport) -> None:
        """The same of a report."""
        self._begin_sent()
        self._sent[_name_of(run, outcome)] = outcome

    def _begin_sent(self) -> None:
        if not self._sent:
            self._own.begin()
            self._sent_number = self._own.last

    def book_sent(self) -> None:
        """Books what was sent and is not back; with the lock."""
        if self._sent:
            sent, self._sent = self._sent, {}
            for (run, *_), one in sent.items():
                if isinstance(one, FeedbackReport):
                    self._report(run, one, None)
                else:
                    self._book(run, *one)

    def catch_up(self) -> None:
        """Books all that the kernel has decided; with the lock, which its users have taken so."""
        kernel = self._kernel
        if kernel is not None and (self._sent or kernel.waiting):
            with self.still:
                self.book_sent()
                kernel.catch_up()

    def refuse(self, run: int, decision: Decision) -> None:
        """A decision of this service that nobody was chosen by."""
        with self.lock:
            self._recent.note(run, decision)

    def report(self, run: int, outcome: FeedbackReport, now: float | None = None) -> ReportKind:
        """A report to this service; `now`: Unix seconds, None: of the report."""
        with self.lock:
            if self._kernel is not None and self._kernel.take_over(run, outcome.number):
                self.catch_up()  # it was told of that before
            return self.book_report(run, outcome, now)

    def book_report(
        self, run: int, outcome: FeedbackReport, now: float | None = None
    ) -> ReportKind:
        """The same, of one that the kernel was told, or of whose decision it knows nothing."""
        self.book_sent()
        return self._report(run, outcome, now)

    def _report(self, run: int, outcome: FeedbackReport, now: float | None) -> ReportKind:
        self._bookings.advance(outcome.time if now is None else now)
        self._own.begin()
        found = self._bookings.report(run, outcome)
        if found is None:
            return ReportKind.REPEATED
        self._own.expect(_name_of(run, outcome))
        now = self._bookings.clock
        for booking, _ in found:
            self._failures.reported(now, booking, outcome.event)
            self._predictions.reported(run, now, outcome)
        self._note_reported(found)
        return ReportKind.NEW if self._bookings.has_seen(run, outcome.number) else ReportKind.EARLY

    def hold(self, name: HeldName, report: HeldReport) -> bool:
        """A report to this service of a decision that the log may bring; False where the same is
        held already.
        """
        with self.lock:
            return self._held.hold(name, report)

    def note(self, samples: Iterable[LoadSample]) -> None:
        """What targets carry."""
        with self.lock:
            for sample in samples:
                if self._samples.note(sample):
                    self._beside.note(sample)

    def forget(self, engines: Iterable[UnregisteredEngine], now: float) -> int:
        """Engines that are registered no more; how many of their bookings were released."""
        engines = list(engines)
        with self.lock:
            self._own.begin()
            for engine in engines:
                self._own.expect(engine)
            self._failures.forget(engines)
            self._predictions.forget(engines)
            self._samples.forget(engines, now)
            self._forget(engines)
            return self._bookings.unregister(engines)

    # What is known of both, and is in no log

    def asked(self, decision: Decision) -> None:
        """A decision that is not kept to: it tells what requests of its model take."""
        with self.lock:
            self._mean_work.note(decision)

    def _note_decision(self, run: int, decision: Decision, encoded: bytes = b"") -> None:
        self._recent.note(run, decision, encoded)
        self._mean_work.note(decision)
        if decision.chosen < 0:
            return
        target, one = decision.target(decision.chosen), decision.candidates[decision.chosen]
        work = self._recent_work.get(target) or RecentWork()
        work.note(decision.time, one.work_s)
        self._recent_work.put(target, work)

    def _note_reported(self, found: Iterable[BookingReport]) -> None:
        for booking, outcome in found:
            self._recent.report(booking.run, outcome)
            self._beside.begun(booking, outcome.event)
            self._late_work.begun(booking, outcome.event)

    def _forget(self, engines: Collection[UnregisteredEngine]) -> None:
        if engines and self._kernel is not None:
            self._kernel.take_over_all()  # it does not know what ends by that
        for one in engines:
            self._beside.forget(one.target)
            self._late_work.forget(one.target)
            self._recent_work.pop(one.target)

    # What is asked

    def usual(self, tenant_id: str, model_name: str, default: TypicalRequest) -> TypicalRequest:
        """What a request of a model is like, by the last decisions; the default before them."""
        with self.lock:
            return self._mean_work.usual(tenant_id, model_name, default)

    def named(self, request_id: str, tenant_id: str | None = None) -> DecisionKey | None:
        """The decision of a request that is under way, else of one of the last ones; see
        `OverlaidBookings.named`.
        """
        with self.lock:
            found = self._bookings.named(request_id, tenant_id)
            return only(self._recent.named(request_id), tenant_id) if found is None else found

    def is_named(self, request_id: str) -> bool:
        """Whether any decision is known about a request of that id, whosever it is."""
        with self.lock:
            return self._bookings.is_named(request_id) or bool(self._recent.named(request_id))

    def is_under_way(self, run: int, number: int) -> bool:
        """Whether that decision is booked and has not ended."""
        with self.lock:
            return self._bookings.is_under_way(run, number)

    def tenant_of(self, run: int, number: int) -> str | None:
        """Whose that decision is; None where it is not under way, and none of the last ones."""
        with self.lock:
            found = self._bookings.get((run, number))
            if found is not None:
                return found.tenant_id
            recent = self._recent.find(run, number)
            return None if recent is None else recent.brief.scope.tenant_id

    def has_seen(self, run: int, number: int) -> bool:
        """Whether that decision, or a later one of the run, is known."""
        with self.lock:
            return self._bookings.has_seen(run, number)

    def has_room_for(self, count: int) -> bool:
        """Whether so many more requests are sure to be booked; with the lock."""
        return self._bookings.has_room_for(count)

    def predicted(self, scope: DecidedScope, prefixes: bytes, now: float) -> dict[Target, int]:
        """The longest prefix of a prompt that each target will hold, as decisions say, in blocks.

        Args:
            prefixes: prefix hashes of its blocks, u64 LE.
            now: Unix seconds.
        """
        with self.lock:
            return self._predictions.longest(scope, prefixes, now)

    def last_of_session(self, tenant_id: str, session_id: str, now: float) -> Target | None:
        """Where the last request of a session went."""
        with self.lock:
            return self._sessions.last(tenant_id, session_id, now)

    def knows_run(self, run: int) -> bool:
        """Whether a decision of that run was ever seen."""
        with self.lock:
            return self._bookings.knows_run(run)

    def carried(
        self,
        targets: Sequence[Target],
        now: float,
        usual: TypicalRequest,
        said: dict[Target, LoadSample],
    ) -> list[TargetLoad]:
        """What each target carries. Cost O(targets).

        Args:
            now: Unix seconds.
            usual: what a request is like, for those that are there and not booked.
            said: samples that count in place of what is known.
        """
        with self.lock:
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
        usual: TypicalRequest,
        said: LoadSample | None,
    ) -> TargetLoad:
        sample = said or self._samples.newest(target, now)
        work = self._recent_work.get(target)
        if sample is None and work is None and booked is NO_LOAD:
            return NOTHING
        return self._parts(target, booked, sample, work, now).carried(now, usual)

    def _parts(
        self,
        target: Target,
        booked: Load,
        sample: LoadSample | None,
        work: RecentWork | None,
        until: float,
    ) -> LoadParts:
        """See `parts`."""
        beside = None if sample is None else self._beside.of(sample)
        late: Iterable[Late] = ()
        if booked.pending:
            # Of those that were late when a sample was taken, it says how many wait.
            since = beside.at if beside is not None and beside.says_late else 0.0
            late = self._late_work.late(target, self._bookings.queued(target), until, since)
        return LoadParts(booked, [*late], beside, sample, work)

    def parts(self, targets: Sequence[Target], now: float, until: float) -> list[LoadParts]:
        """What makes up what each carries; to be read with the lock. Cost O(targets).

        Args:
            now: Unix seconds.
            until: likewise; what is late by then is among it.
        """
        self._bookings.advance(now)
        newest, work_of, queued_s = (
            self._samples.newest,
            self._recent_work.get,
            self._bookings.queued_s,
        )
        return [
            self._parts(target, booked, newest(target, now), work_of(target), until)._replace(
                queued_s=queued_s(target, now) if booked.requests > booked.decoding else 0.0
            )
            for target, booked in zip(targets, self._bookings.loads(targets, now), strict=True)
        ]

    def is_any_failing(self, targets: Iterable[Target], now: float) -> bool:
        """Whether any of them gets single requests on trial alone."""
        with self.lock:
            if not len(self._failures):
                return False
            failing = {target for target, _ in self._failures.failing(now)}
            return not failing.isdisjoint(targets)

    def recent(self, limit: int, admits: Callable[[str], bool]) -> list[RecentDecision]:
        """The last decisions, the latest first; see `RecentDecisions.latest`."""
        with self.lock:
            return self._recent.latest(limit, admits)

    def note_by_load(self, run: int, number: int, why: str) -> None:
        """See `RecentDecisions.note_by_load`."""
        with self.lock:
            self._recent.note_by_load(run, number, why)

    def recent_since(self, started: float) -> float:
        """See `RecentDecisions.since`."""
        with self.lock:
            return self._recent.since(started)

    def noted(self) -> int:
        """How many decisions have come to be known in this process."""
        with self.still:
            return self._recent.noted

    def recent_after(
        self, after: int, limit: int, admits: Callable[[str], bool]
    ) -> tuple[int, list[RecentDecision]]:
        """How many decisions are known by now, and those behind that place, the latest first."""
        with self.still:
            return self._recent.noted, self._recent.latest(limit, admits, after=after)

    def trace_of(self, run: int, number: int) -> str:
        """The context of the span that decided; "" where it has none, or is not kept."""
        found = self.find_recent(run, number)
        return "" if found is None else found.brief.context

    def find_recent(self, run: int, number: int) -> RecentDecision | None:
        """One of the last decisions; None where it is not kept."""
        with self.lock:
            return self._recent.find(run, number)

    def targets(self) -> list[Target]:
        """Those of which something is known, sorted."""
        with self.lock:
            failing = (target for target, _ in self._failures.failing(self._bookings.clock))
            return sorted({*self._bookings.targets(), *self._samples.targets(), *failing})

    def left_out(self, targets: Iterable[Target], now: float) -> frozenset[Target]:
        """Those of them that are to be sent nothing now, since what they are sent fails."""
        with self.lock:
            if not len(self._failures):
                return frozenset()
            return frozenset(one for one in targets if self._failures.is_left_out(one, now))

    def failing(self, now: float) -> list[tuple[Target, FailureState]]:
        """Those that get single requests on trial alone, sorted."""
        with self.still:
            return [(target, copy(one)) for target, one in self._failures.failing(now)]

    def counts(self) -> dict[str, int]:
        """For metrics."""
        with self.lock:
            counts = self._bookings.counts()
            counts["unknown"] += self._held.dropped
            return counts | {
                "samples": len(self._samples.targets()),
                "samples_dropped": self._samples.dropped,
            }


_ReportName = tuple[int, int, OutcomeEvent, float]


def _name_of(run: int, outcome: FeedbackReport) -> _ReportName:
    """By which a report of this service is known when the log brings it: another one has another
    clock.
    """
    return run, outcome.number, outcome.event, outcome.time
