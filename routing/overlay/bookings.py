"""What is under way: the fold's bookings, and over them what own records say that are not back yet.

Three sums make what is booked at a target: those of the base, plus those that are booked here, less
those of the base that count as they are here, or have ended here.

own decision            booked here, until the log brings it
own report, of one that the base has booked
                        the base's booking is hidden, and a copy of it takes the report
one of the base whose time is up by this process's clock
                        the same; the copy expires here (`Bookings.advance`), as it will there
engine that was unregistered here
                        the same of its bookings; the copies are released here

Whatever the log brings of a decision, its copy is made again: of what the base has of it by now,
and the own reports of it that are not back. With the last of them the copy goes.

The base goes by the time of the log, which may be wrong. Where it is ahead of this process's clock,
the difference is taken off. Where it is far behind, as after idleness, it follows in steps of a
minute, and would have what was decided just now expire: then a decision counts here, by this
process's clock, until it ends.

What is queued at a target begins in this order: what the base has, then own decisions. Once an own
report says that a prompt was computed, what is left begins then.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import islice
from typing import Final, NamedTuple

from routing.bounds import (
    BOOKINGS_BYTES_MAX,
    BOOKINGS_MAX,
    LOAD_SUM_MAX,
    LOAD_TARGETS_MAX,
    QUEUED_SUMMED_MAX,
    RECORD_STEP_S,
)
from routing.fold.booking import BITS, Booking, DecisionKey, booking_of, happened_at
from routing.fold.bookings import LATE, BookingReport, Bookings
from routing.fold.fold import BookingChanges
from routing.fold.target_bookings import (
    NO_LOAD,
    BookingsByTarget,
    Load,
    TargetBookings,
    load_of,
    rest_of,
)
from routing.overlay.own_records import OWN_RECORDS_MAX, OwnRecords, Stamps
from routing.request_names import only
from schemas.routing_records import (
    DISPATCHED,
    ENDS,
    FIRST_TOKEN,
    Decision,
    DecisionsRecord,
    FeedbackReport,
    OutcomeEvent,
    OutcomesRecord,
    RoutingRecord,
    Target,
    UnregisteredEngine,
    UnregisteredEngines,
)

_NOTHING: Final = TargetBookings()


class _PrefillEnd(NamedTuple):
    """An own report that a prompt of a target was computed, the last one.

    Attributes:
        at: when that was.
        key: of its decision.
        before: decisions that were booked here before it, and wait.
    """

    at: float
    key: DecisionKey
    before: frozenset[DecisionKey]


class _OwnBookingsByTarget(BookingsByTarget):
    """Those of what is booked here.

    Attributes:
        computed: the last own report of each target that says that a prompt was computed.
        is_told: whether what happens now is an own report, for the first time.
    """

    def __init__(self, own: OwnRecords, derived: dict[Target, float]) -> None:
        super().__init__(derived)
        self.computed: dict[Target, _PrefillEnd] = {}
        self.is_told = False
        self._stamps: Stamps[Target] = Stamps(own, LOAD_TARGETS_MAX)
        self._targets: dict[DecisionKey, Target] = {}  # of what was computed

    def release(self, booking: Booking, *, at: float | None) -> bool:
        has_waited = super().release(booking, at=at)
        if has_waited and self.is_told and at is not None and booking.target is not None:
            self.note_computed(booking.key, booking.target, at)
        return has_waited

    def note_computed(self, key: DecisionKey, target: Target, at: float) -> None:
        """An own report says that a prompt was computed that waited."""
        self._take_out(target)
        place = self.get(target)
        before = frozenset[DecisionKey]() if place is None else frozenset(place.queued)
        self.computed[target] = _PrefillEnd(at, key, before)
        self._targets[key] = target
        for gone in self._stamps.put(target):
            self._take_out(gone)

    def _take_out(self, target: Target) -> None:
        self.derived.pop(target, None)
        known = self.computed.pop(target, None)
        if known is not None:
            self._targets.pop(known.key, None)

    def take_back(self, key: DecisionKey) -> None:
        """The base knows what was reported of a decision, or has it no more."""
        target = self._targets.get(key)
        if target is not None:
            self._take_out(target)
            self._stamps.discard(target)

    def leave(self) -> None:
        """Gives up what came back, or is lost."""
        for target in self._stamps.leaving():
            self._take_out(target)


_NO_BOOKINGS: Final[dict[DecisionKey, Booking]] = {}


class OverlaidBookings:
    """See the module.

    Attributes:
        base: of the fold.
        repeated: reports to this process that had been made before, or came after the end.
    """

    def __init__(self, own: OwnRecords) -> None:
        """Args:
        own: records of this process.
        """
        self.base = Bookings()
        self.repeated = 0
        self._free_at: dict[Target, float] = {}  # as it was computed last
        self._places = _OwnBookingsByTarget(own, self._free_at)
        self._here = Bookings(self._places)
        self._hidden: dict[DecisionKey, Booking] = {}
        self._hidden_places = BookingsByTarget(self._free_at)
        self._told: dict[DecisionKey, dict[OutcomeEvent, FeedbackReport]] = {}
        self._told_last: Stamps[DecisionKey] = Stamps(own, OWN_RECORDS_MAX)
        self._unregistered: Stamps[UnregisteredEngine] = Stamps(own, LOAD_TARGETS_MAX)
        # What counts here though the log has brought it: the log's clock was far behind.
        self._kept: set[DecisionKey] = set()
        self._ahead_s = 0.0  # that the log's clock is ahead of this process's
        self._next_due = 0.0  # of the base: nothing of it is due before
        # By the base alone, since this process follows it.
        self._counts = Counter[str]()
        self._counted = (0, 0)

    # What is told here

    @property
    def clock(self) -> float:
        """The time of this process, Unix seconds, as it was told last."""
        return self._here.clock

    def advance(self, now: float) -> None:
        """It is that time here; what has expired by it ends."""
        self._forget(self._here.advance(now))
        if now >= self._next_due and self._adopt_due(now):
            self._forget(self._here.expire())

    def book(self, run: int, decision: Decision) -> list[BookingReport]:
        """An own decision, told last; see `Bookings.book`."""
        here = self._here
        size = self.base.size_bytes + here.size_bytes
        has_room = len(self) < BOOKINGS_MAX and size < BOOKINGS_BYTES_MAX
        target = None if decision.chosen < 0 else decision.target(decision.chosen)
        free_at = None if target is None else self._free_at.get(target)
        found = here.book(run, decision, has_room=has_room)
        if target is not None and free_at is not None and not found:
            booking = here.get((run, decision.number))
            if booking is not None:  # it begins behind all others
                self._free_at[target] = max(free_at, booking.time) + booking.work_s
        return found

    def report(self, run: int, outcome: FeedbackReport) -> list[BookingReport] | None:
        """A report to this process; what was new of it, nothing of one whose decision has yet to
        come. None where it says nothing new.
        """
        key = (run, outcome.number)
        here = self._here.get(key)
        is_of_base = here is None
        booking = self.base.get(key) if here is None and key not in self._hidden else here
        if booking is None:
            if self.has_seen(*key) or key in self._told:
                self.repeated += 1
                return None
            if any(one.is_early(key, outcome.event) for one in (self.base, self._here)):
                self.repeated += 1
                return None
            self._here.report(run, outcome)  # it waits
            return []
        if is_of_base and outcome.instance_id is None and not booking.has(outcome.event):
            return [self._tell_of_base(booking, outcome)]
        if is_of_base:
            self._hide(booking)
            self._adopt(booking)
        prolonged = self._here.prolonged
        found = self._tell(run, outcome)
        if not found and self._here.prolonged == prolonged:
            self.repeated += 1
            if is_of_base and key not in self._told:
                self._show(key)
            return None
        self._note_told(key, outcome)
        return found

    def _tell_of_base(self, booking: Booking, outcome: FeedbackReport) -> BookingReport:
        """A report that is new of a booking of the base: its copy has it, if it does not end it."""
        self._hide(booking)
        self._note_told(booking.key, outcome)
        event, target, clock = outcome.event, booking.target, self.clock
        at = happened_at(outcome, booking, clock)
        if target is not None and event is not DISPATCHED and not booking.has_begun:
            self._places.note_computed(booking.key, target, at)
        told = copy(booking)
        told.seen |= BITS[event]
        if event not in ENDS:
            if event is FIRST_TOKEN:
                told.first_at = at
            self._here.prolong(told, clock)
            self._here.adopt(told, is_named=self.base.names(booking))
        return BookingReport(told, outcome)

    def _tell(self, run: int, outcome: FeedbackReport) -> list[BookingReport]:
        self._places.is_told = True
        try:
            return self._here.report(run, outcome)
        finally:
            self._places.is_told = False

    def _note_told(self, key: DecisionKey, outcome: FeedbackReport) -> None:
        told = self._told.get(key)
        if told is not None:
            told.setdefault(outcome.event, outcome)
        elif len(self._told) < OWN_RECORDS_MAX:
            self._told[key] = {outcome.event: outcome}
        else:
            return
        self._told_last.put(key)

    def unregister(self, engines: Sequence[UnregisteredEngine]) -> int:
        """These are registered no more, as this process says; how many bookings ended."""
        gone = frozenset(engines)
        for booking in self.base.all():
            if booking.key not in self._hidden and booking.is_at(gone):
                self._hide(booking)
                self._adopt(booking)
        for one in engines:
            self._unregistered.put(one)
        self._free_at.clear()
        released = self._here.release(gone)
        self._forget(released)
        return len(released)

    def _forget(self, ended: Sequence[Booking]) -> None:
        """What was told of copies that have ended without a report."""
        for booking in ended:
            if booking.key not in self._hidden:
                self._told.pop(booking.key, None)

    def _adopt_due(self, now: float) -> bool:
        """Bookings of the base whose time is up here expire here: the log may stand still. Says
        whether there are any.
        """
        due, following = self.base.due(now + self._ahead_s)
        self._next_due = following - self._ahead_s
        due = [booking for booking in due if booking.key not in self._hidden]
        for booking in due:
            self._hide(booking)
            self._adopt(booking)
        return bool(due)

    # What the log brings

    def come(
        self, record: RoutingRecord, changes: BookingChanges, now: float | None = None
    ) -> list[BookingReport]:
        """The base has applied a record. Returns what was reported and is new to this process.

        Args:
            record: that was applied.
            changes: what that changed.
            now: of this process; None: the record is of the past.
        """
        self._next_due = 0.0
        ahead_s = 0.0 if now is None else max(self.base.clock - now, 0.0)
        if ahead_s != self._ahead_s:
            self._ahead_s = ahead_s
            self._free_at.clear()
        told_at = self.base.clock if now is None else min(record.time, now)
        is_behind = told_at - self.base.clock > RECORD_STEP_S
        found = [one for one in changes.reported if not self._is_known(one)]
        self._count(record)
        for name, ended in (("expired", changes.expired), ("released", changes.released)):
            for booking in ended:
                self._counts[name] += booking.key not in self._hidden
                if name == "expired" and booking.key in self._kept:
                    self._hide_again(booking.key)
                else:
                    self._derive(booking.key)
        match record:
            case DecisionsRecord(run=run):
                for decision in record.decisions:
                    if not (is_behind and self._keep(run, decision, told_at)):
                        found += self._come_decided((run, decision.number))
            case OutcomesRecord(run=run):
                for outcome in record.outcomes:
                    found += self._come_reported((run, outcome.number), outcome)
            case UnregisteredEngines():
                for engine in record.engines:
                    self._unregistered.discard(engine)
                self._free_at.clear()
        self._forget(self._here.expire())
        return found

    def _come_decided(self, key: DecisionKey) -> list[BookingReport]:
        """The base has a decision: what is booked here of it is its copy from now on."""
        self._here.leave(key)
        return self._derive(key, self._here.take_early(key))

    def _come_reported(self, key: DecisionKey, outcome: FeedbackReport) -> list[BookingReport]:
        """The base has a report, or keeps it for a decision that is not back."""
        is_hidden = key in self._hidden or self._is_at_unregistered(self.base.get(key))
        if is_hidden and key not in self._kept:
            self._derive(key)
            return []
        if not self._here.is_under_way(*key):
            self._here.forget_early(key, outcome.event)
            if key in self._kept:
                self._hide_again(key)
            return []
        if key in self._kept:
            self._hide_again(key)
        return self._here.report(key[0], outcome)

    def leave(self) -> None:
        """Gives up what came back, or is lost, but for decisions: see the package."""
        self._places.leave()
        for key in self._told_last.leaving():
            if key not in self._hidden and not self._here.is_under_way(*key):
                self._told.pop(key, None)
        self._unregistered.leave()

    def _is_known(self, reported: BookingReport) -> bool:
        return reported.outcome.event in self._told.get(reported.booking.key, ())

    def _derive(
        self, key: DecisionKey, early: Sequence[FeedbackReport] = ()
    ) -> list[BookingReport]:
        """The copy of a booking of the base is made again; what is new to this process of reports
        that had been told here before their decision.
        """
        self._show(key)
        booking, told = self.base.get(key), self._told.get(key, {})
        if booking is None:
            self._told.pop(key, None)
            self._places.take_back(key)
            return []
        if self._is_at_unregistered(booking):
            self._hide(booking)
            return []
        if told:
            told = {event: one for event, one in told.items() if not booking.has(event)}
        if not told or booking.has_begun:
            self._places.take_back(key)
        new = [one for one in early if one.event not in told and not booking.has(one.event)]
        if new and booking.expires_at <= self.clock + self._ahead_s:
            new = []  # it has expired here
        if not told and not new:
            self._told.pop(key, None)
            return []
        self._told[key] = told
        self._hide(booking)
        if not new and any(event in ENDS for event in told):
            return []
        self._adopt(booking)
        for outcome in told.values():
            self._here.report(key[0], outcome)
        here = self._here.get(key)
        if here is not None:  # it lives as of when that was told
            here.expires_at = booking.expires_at
            for outcome in told.values():
                here.expires_at = max(here.expires_at, outcome.time + here.lasts_s)
        for outcome in new:
            self._note_told(key, outcome)
        return [one for outcome in new for one in self._tell(key[0], outcome)]

    def _is_at_unregistered(self, booking: Booking | None) -> bool:
        """Whether the base has it at an engine that the base does not know to be gone."""
        gone = self._unregistered
        return booking is not None and len(gone) > 0 and booking.is_at(gone)

    def rebase(self, base: Bookings) -> list[BookingReport]:
        """Goes on over another fold's. What the one before knew and this one does not (the log has
        lost it, or is read again) stays as it is: under way, or ended. Returns what had been told
        here before its decision, which this one has. Cost O(bookings).
        """
        before, self.base = self.base, base
        lost = [one for one in before.all() if one.key not in self._hidden]
        hidden, self._hidden, self._hidden_places = (
            self._hidden,
            {},
            BookingsByTarget(self._free_at),
        )
        before.places.derived, base.places.derived = {}, self._free_at
        self._free_at.clear()
        self._kept.clear()
        self._ahead_s = self._next_due = 0.0
        self._counted = (base.overflowed, base.unknown)
        for booking in [*self._here.all()]:
            if base.has_seen(*booking.key):
                self._here.leave(booking.key)
        for booking in lost:
            if not base.has_seen(*booking.key):
                self._adopt(booking, is_named=before.names(booking))
        for booking in base.all():
            key = booking.key
            is_ended = before.has_seen(*key) and before.get(key) is None
            if (is_ended or key in hidden) and key not in self._told:
                self._hide(booking)
        for key in [*self._told]:
            if base.has_seen(*key):
                self._derive(key)
        for key, outcomes in base.early():
            for outcome in outcomes:
                if self._here.is_under_way(*key):
                    self._here.report(key[0], outcome)
        early = [key for key, _ in self._here.early() if base.has_seen(*key)]
        self._forget(self._here.expire())
        return [new for key in early for new in self._derive(key, self._here.take_early(key))]

    # Copies

    def _keep(self, run: int, decision: Decision, told_at: float) -> bool:
        """The decision counts here though the base has it; not where it has ended here."""
        key = (run, decision.number)
        booking = self.base.get(key)
        if booking is None or key in self._hidden:
            return False
        if not self._here.is_under_way(*key):
            if self._here.has_seen(*key) or key in self._told:
                return False
            self._here.adopt(booking_of(run, decision, told_at), is_named=self.base.names(booking))
        self._hide(booking)
        self._kept.add(key)
        return True

    def _hide_again(self, key: DecisionKey) -> None:
        """The base has something else of what counts here, or has it no more."""
        self._hidden_places.end(self._hidden.pop(key))
        booking = self.base.get(key)
        if booking is None:
            self._kept.discard(key)
        else:
            self._hide(booking)

    def _hide(self, booking: Booking) -> None:
        hidden = self._hidden[booking.key] = copy(booking)
        self._hidden_places.begin(hidden)

    def _show(self, key: DecisionKey) -> None:
        """The base alone says what is known of it, where it has it."""
        hidden = self._hidden.pop(key, None)
        if hidden is not None:
            self._hidden_places.end(hidden)
            self._here.leave(key)
            self._kept.discard(key)

    def _adopt(self, booking: Booking, *, is_named: bool | None = None) -> None:
        is_named = self.base.names(booking) if is_named is None else is_named
        self._here.adopt(copy(booking), is_named=is_named)

    # What is asked

    def __len__(self) -> int:
        """How many are under way."""
        return len(self.base) - len(self._hidden) + len(self._here)

    def has_room_for(self, count: int) -> bool:
        """Whether so many more have room, of any size that a request may have."""
        size = self.base.size_bytes + self._here.size_bytes
        return len(self) + count <= BOOKINGS_MAX and size <= BOOKINGS_BYTES_MAX / 2

    def get(self, key: DecisionKey) -> Booking | None:
        """The booking of a decision; None where it is not under way."""
        here = self._here.get(key)
        return here if here is not None or key in self._hidden else self.base.get(key)

    def is_under_way(self, run: int, number: int) -> bool:
        """Whether that decision is booked and has not ended."""
        return self.get((run, number)) is not None

    def is_unregistered(self, engine: UnregisteredEngine) -> bool:
        """Whether this process has said so, and the log has yet to."""
        return engine in self._unregistered

    def has_seen(self, run: int, number: int) -> bool:
        """Whether that decision, or a later one of the run, is known."""
        return self.base.has_seen(run, number) or self._here.has_seen(run, number)

    def knows_run(self, run: int) -> bool:
        """Whether a decision of that run was seen."""
        return self.base.knows_run(run) or self._here.knows_run(run)

    def named(self, request_id: str, tenant_id: str | None = None) -> DecisionKey | None:
        """The decision of a request that is under way.

        Args:
            tenant_id: of its client; None: whoever it is, if it is one.
        """
        named = {
            tenant: key
            for tenant, key in self.base.named(request_id).items()
            if key not in self._hidden
        }
        named.update(self._here.named(request_id))
        return only(named, tenant_id)

    def is_named(self, request_id: str) -> bool:
        """Whether a request of that id is under way, whosever it is."""
        return self.named(request_id) is not None or bool(self.base.named(request_id))

    def targets(self) -> set[Target]:
        """Those at which something is booked."""
        base, hidden = self.base.places, self._hidden_places
        counts = ((one, base.get(one), hidden.get(one) or _NOTHING) for one in base.targets())
        found = {one for one, place, less in counts if place and place.requests > less.requests}
        return found.union(self._places.targets())

    def load(self, target: Target, now: float) -> Load:
        """What is booked there. Cost O(1)."""
        return self.loads((target,), now)[0]

    def loads(self, targets: Iterable[Target], now: float) -> list[Load]:
        """What is booked at each. Cost O(targets), and O(queued) of those alone of which the log or
        this process has said something since.
        """
        if not (self._hidden or len(self._here) or self._places.computed):
            return self.base.places.loads(targets, now + self._ahead_s)
        return [self._load(target, now) for target in targets]

    def _load(self, target: Target, now: float) -> Load:
        here, hidden = self._places.get(target), self._hidden_places.get(target)
        base = self.base.places.get(target)
        if here is None and hidden is None and target not in self._places.computed:
            return NO_LOAD if base is None else load_of(base, now + self._ahead_s)
        base, here, hidden = base or _NOTHING, here or _NOTHING, hidden or _NOTHING
        requests = base.requests + here.requests - hidden.requests
        if not requests:
            return NO_LOAD
        wait_s = 0.0
        if len(base.queued) + len(here.queued) - len(hidden.queued):
            free_at = self._free_at.get(target)
            if free_at is None:
                free_at = self._free_at[target] = self._compute_free_at(target, base, here)
            wait_s = max(free_at - now, 0.0)
        return Load(
            wait_s,
            requests,
            min(base.pending + here.pending - hidden.pending, LOAD_SUM_MAX),
            min(base.active + here.active - hidden.active, LOAD_SUM_MAX),
            base.decoding + here.decoding - hidden.decoding,
            min(base.kv_tokens + here.kv_tokens - hidden.kv_tokens, LOAD_SUM_MAX),
        )

    def _compute_free_at(self, target: Target, base: TargetBookings, here: TargetBookings) -> float:
        """When a target would begin with another prompt: see the module."""
        begun = {key: one for key, one in here.queued.items() if not self._is_copy(key)}
        computed = self._places.computed.get(target)
        if computed is not None:
            at, _, before = computed
            begun = {key: one for key, one in begun.items() if key not in before}
            rest = [one for one in self.queued(target) if one.key not in begun]
            free_at = at + rest_of(rest, len(rest), at)
        elif self._unregistered and any(one.target == target for one in self._unregistered):
            free_at = 0.0
        else:
            free_at = base.free_at - self._ahead_s
        for one in begun.values():
            free_at = max(free_at, one.time) + one.work_s
        return free_at

    def _is_copy(self, key: DecisionKey) -> bool:
        """Whether what is booked here of it is a copy of the base's."""
        return key in self._hidden and key not in self._kept

    def queued(self, target: Target) -> Iterator[Booking]:
        """Those whose prompts are not computed yet, in the order in which they begin."""
        base, here = self.base.places.get(target), self._places.get(target)
        copies = _NO_BOOKINGS if here is None else here.queued
        if base is not None:
            for key, booking in base.queued.items():
                if key not in self._hidden:
                    yield booking
                elif key in copies:
                    yield copies[key]
        yield from (
            one
            for key, one in copies.items()
            if key not in self._hidden or base is None or key not in base.queued
        )

    def queued_s(self, target: Target, now: float) -> float:
        """Seconds that the prompts take which are not computed yet, as `rest_of` has them. Cost
        O(queued), of QUEUED_SUMMED_MAX at most.
        """
        return rest_of(self.queued(target), self._queued_count(target), now)

    def _queued_count(self, target: Target) -> int:
        base, here = self.base.places.get(target), self._places.get(target)
        hidden = self._hidden_places.get(target)
        count = 0 if base is None else len(base.queued)
        count += 0 if here is None else len(here.queued)
        return count - (0 if hidden is None else len(hidden.queued))

    def queued_at(self, target: Target, time: float) -> tuple[int, int]:
        """How many of those that are not computed yet were there at that time, too, and had been
        for no more than twice as long as was expected, and their tokens: of others nobody may ever
        report. Cost O(queued), of QUEUED_SUMMED_MAX at most.
        """
        there = [
            one.uncached
            for one in islice(self.queued(target), QUEUED_SUMMED_MAX)
            if one.time <= time < one.time + LATE * (one.end_at - one.time)
        ]
        return len(there), sum(there)

    def counts(self) -> dict[str, int]:
        """For metrics: what has ended otherwise than by a report, or found no room."""
        counts, here = self._counts, self._here
        return {
            "under_way": len(self),
            "expired": counts["expired"] + here.expired,
            "released": counts["released"] + here.released,
            "overflowed": counts["overflowed"] + here.overflowed,
            "repeated": self.repeated,
            "unknown": counts["unknown"] + here.unknown,
        }

    def _count(self, record: RoutingRecord) -> None:
        """What a record made the base count, beside what was counted here already."""
        overflowed, unknown = self._counted
        self._counted = (self.base.overflowed, self.base.unknown)
        self._counts["unknown"] += self.base.unknown - unknown
        overflowed = self.base.overflowed - overflowed
        if overflowed and isinstance(record, DecisionsRecord):
            seen, run = self._here.has_seen, record.run
            unseen = sum(not seen(run, one.number) for one in record.decisions)
            self._counts["overflowed"] += min(overflowed, unseen)
