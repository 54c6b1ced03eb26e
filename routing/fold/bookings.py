"""What is under way where: a fold of decisions, and of what came of them.

A decision books its request at the instance that was chosen, at once and before the client has
sent it: whoever decides next sees it. The first token releases what was booked of computing, the
end releases all. A booking that nobody reports of expires, by the time of records and not by a
clock, so that every reader of the log drops it at the same place; whatever is reported of it, if it
is for the second time, says that it lives, and prolongs it.

An instance is taken to compute one prompt after the other. `wait_s` is what is booked ahead, less
what has passed since the first of it began; where it takes several at a time, that is how long it
takes until as much has been computed.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from copy import copy
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from routing.fold.booking import BITS, Booking, DecisionKey, booking_of, happened_at
from routing.fold.place import NO_LOAD, Load, Place, load_of
from routing.fold.record_clock import RecordClock
from schemas.limits import (
    BOOKING_LIFE_S,
    BOOKINGS_BYTES_MAX,
    BOOKINGS_MAX,
    EARLY_OUTCOME_S,
    EARLY_OUTCOMES_MAX,
    EXPIRIES_KEPT,
    QUEUED_SUMMED_MAX,
    ROUTING_RUNS_MAX,
)
from schemas.routing_records import Decision, Outcome, OutcomeEvent, Target, Unregistered

LATE: Final = 2.0
"""Times what was expected: estimates are seldom so wrong."""

_ENDS: Final = frozenset(event for event in OutcomeEvent if event.is_end)


class Reported(NamedTuple):
    """A report that was new, and what it was of."""

    booking: Booking
    outcome: Outcome


class Bookings:
    """See the module. Cost O(log(bookings)) a decision and a report.

    Attributes:
        clock: of the records.
        expired: bookings that ended without a report.
        released: bookings of engines that were unregistered before.
        overflowed: decisions that found no room.
        prolonged: reports that said of a booking that it lives.
        repeated: reports that had been made before, or were of bookings that have ended.
        unknown: reports of decisions that never came.
    """

    def __init__(self) -> None:
        self._clock = RecordClock()
        self.prolonged = 0
        self.expired = self.overflowed = self.repeated = self.unknown = self.released = 0
        self._bookings: dict[DecisionKey, Booking] = {}
        self._bytes = 0  # that they take
        self._requests: dict[str, dict[str, DecisionKey]] = {}  # by request, then by tenant
        self._places: dict[Target, Place] = {}
        self._expiry: list[tuple[float, int, int]] = []
        self._last: OrderedDict[int, int] = OrderedDict()  # number of each run's last decision
        self._early: OrderedDict[DecisionKey, tuple[float, list[Outcome]]] = OrderedDict()

    @property
    def clock(self) -> float:
        """Unix seconds; see `RecordClock`."""
        return self._clock.now

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._bookings)

    # The fold

    def advance(self, time: float, run: int | None = None) -> list[Booking]:
        """It is that time, by whoever writes (see `RecordClock`); what has expired is dropped.
        Returns that.

        Args:
            time: Unix seconds.
            run: of the writer, 0 for none; None: it is known to be that time.
        """
        is_known = run is None or run in self._last
        if not self._clock.follow(time, run, is_known=is_known):
            return []
        time = self._clock.now
        gone = []
        while self._expiry and self._expiry[0][0] <= time:
            _, run, number = heapq.heappop(self._expiry)
            booking = self._bookings.get((run, number))
            if booking is None:
                continue
            if booking.expires_at > time:  # it was prolonged
                self._push_expiry(booking)
                continue
            self._end(booking)
            self.expired += 1
            gone.append(booking)
        while self._early and next(iter(self._early.values()))[0] + EARLY_OUTCOME_S <= time:
            _, (_, outcomes) = self._early.popitem(last=False)
            self.unknown += len(outcomes)
        return gone

    def book(self, run: int, decision: Decision) -> list[Reported]:
        """Somebody was chosen; of reports that came before it, those that were new."""
        key = (run, decision.number)
        if not self._note_number(run, decision.number):
            return []  # known already
        if decision.chosen < 0 and decision.decode < 0:
            return []
        if self._is_full:
            self.overflowed += 1
            return []
        booking = booking_of(run, decision, self.clock)
        self._keep(booking)
        self._name(booking)
        self._push_expiry(booking)
        self._begin(booking)
        _, early = self._early.pop(key, (0.0, []))
        return [found for outcome in early for found in self.report(run, outcome)]

    def report(self, run: int, outcome: Outcome) -> list[Reported]:
        """Something came of a decision; what was new of it."""
        key = (run, outcome.number)
        booking = self._bookings.get(key)
        if booking is None:
            self._keep_early(key, outcome)
            return []
        is_prolonged = self._prolong(booking)
        if booking.has(outcome.event):
            self.repeated += not is_prolonged
            return []
        booking.seen |= BITS[outcome.event]
        self._move(booking, outcome)
        at = happened_at(outcome, booking, self.clock)
        if outcome.event in _ENDS:
            self._end(booking, at=at)
        elif outcome.event is OutcomeEvent.FIRST_TOKEN:
            booking.first_at = at
            self._release_prefill(booking, at=at)
        return [Reported(booking, outcome)]

    def release(self, engines: Iterable[Unregistered]) -> int:
        """These are registered no more, and what is registered under their names next has nothing
        of what was booked there; how many bookings ended. Cost O(bookings).
        """
        gone = frozenset(engines)
        found = [booking for booking in self._bookings.values() if booking.is_at(gone)]
        for booking in found:
            self._end(booking)
        self.released += len(found)
        return len(found)

    def _prolong(self, booking: Booking) -> bool:
        """It lives; whether that was not known."""
        until = self.clock + booking.lasts_s
        if until - booking.expires_at < BOOKING_LIFE_S:
            return False
        booking.expires_at = until
        self.prolonged += 1
        return True

    def _push_expiry(self, booking: Booking) -> None:
        heapq.heappush(self._expiry, (booking.expires_at, *booking.key))
        # Those that have ended stay in it, for hours where long outputs were expected.
        if len(self._expiry) > 2 * len(self._bookings) + EXPIRIES_KEPT:
            self._expiry = [(one.expires_at, *one.key) for one in self._bookings.values()]
            heapq.heapify(self._expiry)

    def _note_number(self, run: int, number: int) -> bool:
        """Whether it is new: decisions of a run come in order."""
        if number <= self._last.get(run, -1):
            return False
        self._last[run] = number
        self._last.move_to_end(run)
        if len(self._last) > ROUTING_RUNS_MAX:
            self._last.popitem(last=False)
        return True

    def _keep_early(self, key: DecisionKey, outcome: Outcome) -> None:
        """A report may be told to another service than the one that decided, and come first."""
        run, number = key
        if number <= self._last.get(run, -1):
            self.repeated += 1
            return
        # From now on, whoever told it before: the log brings it again, perhaps much later, and its
        # decision may come as much later.
        _, outcomes = self._early.pop(key, (0.0, []))
        self._early[key] = (self.clock, outcomes)
        if any(known.event is outcome.event for known in outcomes):
            self.repeated += 1
            return
        outcomes.append(outcome)
        if len(self._early) > EARLY_OUTCOMES_MAX:
            _, (_, dropped) = self._early.popitem(last=False)
            self.unknown += len(dropped)

    # What is booked where

    def _begin(self, booking: Booking) -> None:
        for target in filter(None, (booking.target, booking.decode)):
            place = self._place(target)
            place.requests += 1
            place.kv_tokens += booking.prompt + booking.output
            place.active += booking.uncached
            if target == booking.target and not booking.has(OutcomeEvent.FIRST_TOKEN):
                place.pending += booking.uncached
                place.queued[booking.key] = booking
                place.free_at = max(place.free_at, booking.time) + booking.work_s
            else:
                place.decoding += 1

    def _end(self, booking: Booking, *, at: float | None = None) -> None:
        self._release_prefill(booking, at=at)
        for target in filter(None, (booking.target, booking.decode)):
            place = self._places[target]
            place.requests -= 1
            place.decoding -= 1
            place.kv_tokens -= booking.prompt + booking.output
            place.active -= booking.uncached
            if not place.requests:
                del self._places[target]
        if self._bookings.pop(booking.key, None) is not None:
            self._bytes -= booking.size_bytes
        named = self._requests.get(booking.request_id, {})
        if named.get(booking.tenant_id) == booking.key:
            del named[booking.tenant_id]
            if not named:
                del self._requests[booking.request_id]

    @property
    def _is_full(self) -> bool:
        return len(self._bookings) >= BOOKINGS_MAX or self._bytes >= BOOKINGS_BYTES_MAX

    def _keep(self, booking: Booking) -> None:
        self._bookings[booking.key] = booking
        self._bytes += booking.size_bytes

    def _name(self, booking: Booking) -> None:
        if booking.request_id:
            named = self._requests.setdefault(booking.request_id, {})
            named[booking.tenant_id] = booking.key

    def _release_prefill(self, booking: Booking, *, at: float | None) -> None:
        """It has been computed; so have those before it that were to end earlier."""
        if booking.target is None:
            return
        place = self._places[booking.target]
        if place.queued.pop(booking.key, None) is None:
            return
        place.pending -= booking.uncached
        place.decoding += 1
        if at is None:
            return
        # What is left follows from now on. One that was to have ended before now and is not
        # reported of (its client reports nothing, or late) keeps nobody waiting.
        # Of very long queues the first ones stand for the others: nobody is sent there.
        first = islice(place.queued.values(), QUEUED_SUMMED_MAX)
        rest = sum(one.work_s for one in first if one.end_at > at)
        count = len(place.queued)
        place.free_at = at + rest * max(count / QUEUED_SUMMED_MAX, 1.0)

    def _move(self, booking: Booking, outcome: Outcome) -> None:
        """The client sent it elsewhere than it was told."""
        if outcome.instance_id is None or booking.target is None:
            return
        rank = booking.target.dp_rank if outcome.dp_rank is None else outcome.dp_rank
        target = booking.target._replace(instance_id=outcome.instance_id, dp_rank=rank)
        if target == booking.target or target == booking.decode:
            return
        seen = booking.seen
        self._end(booking)
        booking.target, booking.seen, booking.lesson = target, seen, None
        self._keep(booking)
        self._name(booking)
        self._begin(booking)

    def _place(self, target: Target) -> Place:
        place = self._places.get(target)
        if place is None:
            place = self._places[target] = Place()
        return place

    # What is asked

    def load(self, target: Target, now: float) -> Load:
        """What is booked there. Cost O(1)."""
        return self.loads((target,), now)[0]

    def loads(self, targets: Iterable[Target], now: float) -> list[Load]:
        """What is booked at each. Cost O(targets)."""
        places = self._places
        return [
            NO_LOAD if place is None else load_of(place, now) for place in map(places.get, targets)
        ]

    def queued_at(self, target: Target, time: float) -> tuple[int, int]:
        """How many of those that are not computed yet were there at that time, too, and had been
        for no more than twice as long as was expected, and their tokens: of others nobody may ever
        report. Cost O(queued), of QUEUED_SUMMED_MAX at most.
        """
        place = self._places.get(target)
        if place is None:
            return 0, 0
        there = [
            one.uncached
            for one in islice(place.queued.values(), QUEUED_SUMMED_MAX)
            if one.time <= time < one.time + LATE * (one.end_at - one.time)
        ]
        return len(there), sum(there)

    def named(self, request_id: str, tenant_id: str | None = None) -> DecisionKey | None:
        """The decision of a request that is under way.

        Args:
            request_id: of its client.
            tenant_id: of its client; None: whoever it is, if it is one.
        """
        named = self._requests.get(request_id, {})
        if tenant_id is None:
            return next(iter(named.values())) if len(named) == 1 else None
        return named.get(tenant_id)

    def tenant_of(self, run: int, number: int) -> str | None:
        """Whose that decision is; None where it is not under way."""
        found = self._bookings.get((run, number))
        return None if found is None else found.tenant_id

    def is_under_way(self, run: int, number: int) -> bool:
        """Whether it is booked and has not ended."""
        return (run, number) in self._bookings

    def has_seen(self, run: int, number: int) -> bool:
        """Whether that decision, or a later one of the run, has come."""
        return number <= self._last.get(run, -1)

    def knows_run(self, run: int) -> bool:
        """Whether a decision of that run was seen."""
        return run in self._last

    def targets(self) -> Iterable[Target]:
        """Those at which something is booked, sorted."""
        return sorted(self._places)

    # Checkpoints

    def state(self) -> "BookingsState":
        """All of it. Cost O(bookings log(bookings))."""
        return BookingsState(
            clock=self.clock,
            counts=(self.expired, self.overflowed, self.repeated, self.unknown),
            bookings=tuple(self._bookings.values()),
            free_at=tuple(
                (target, place.free_at) for target, place in sorted(self._places.items())
            ),
            last=tuple(self._last.items()),
            early=tuple((*key, at, tuple(found)) for key, (at, found) in self._early.items()),
            writer=self._clock.state(),
            released=self.released,
        )

    def restore(self, state: "BookingsState") -> None:
        """The inverse of `state`, into one that is empty."""
        self._clock.restore(state.clock, state.writer)
        self.expired, self.overflowed, self.repeated, self.unknown = state.counts
        self.released = state.released
        for booking in state.bookings:
            self._add(booking)
        for target, free_at in state.free_at:
            if target in self._places:
                self._places[target].free_at = free_at
        self._last.update(state.last)
        for run, number, at, outcomes in state.early:
            self._early[run, number] = (at, list(outcomes))

    def merge(self, state: "BookingsState") -> list[Reported]:
        """Takes what another fold of the same decisions knows more: its bookings that never came
        here, first tokens, the ends of those that are under way here and not there, and reports
        that wait for their decision. Cost O(bookings).

        What has ended here stays so. Counts stay, too: they are of this one. Returns the reports
        that came before their decisions, and are of it now.
        """
        there = {booking.key for booking in state.bookings}
        last_there = dict(state.last)
        for key in [key for key in self._bookings if key not in there]:
            if key[1] <= last_there.get(key[0], -1):
                self._end(self._bookings[key])
        self._clock.now = max(self.clock, state.clock)
        known = set(self._places)
        added = []
        for booking in state.bookings:
            if self.has_seen(*booking.key):
                self._follow(booking)
            elif self._is_full:
                self.overflowed += 1
            else:
                self._add(booking)
                added.append(booking.key)
        for target, free_at in state.free_at:
            if target in self._places and target not in known:
                self._places[target].free_at = free_at
        for run, number in state.last:
            self._note_number(run, number)
        told: list[tuple[DecisionKey, Iterable[Outcome]]] = [
            (key, self._early.pop(key)[1]) for key in added if key in self._early
        ]
        told += [((run, number), outcomes) for run, number, _, outcomes in state.early]
        repeated = self.repeated
        found = [new for key, some in told for one in some for new in self.report(key[0], one)]
        self.repeated = repeated
        return found

    def _follow(self, booking: Booking) -> None:
        """That of another fold, of a decision that has come here, too."""
        here = self._bookings.get(booking.key)
        first = OutcomeEvent.FIRST_TOKEN
        if here is None:
            return
        here.expires_at = max(here.expires_at, booking.expires_at)
        if here.has(first) or not booking.has(first):
            return
        if here.target != booking.target:  # its client sent it elsewhere
            self._end(here)
            self._add(booking)
            return
        here.seen |= booking.seen
        here.first_at = booking.first_at
        self._release_prefill(here, at=booking.first_at)

    def _add(self, booking: Booking) -> None:
        """A booking of another fold, which goes on with its own."""
        booking = copy(booking)
        if booking.lesson is not None and not booking.model_name:
            booking.model_name = booking.lesson.model_name
        self._keep(booking)
        self._name(booking)
        self._push_expiry(booking)
        self._begin(booking)


class BookingsState(msgspec.Struct, frozen=True, array_like=True):
    """See `Bookings.state`; its encoding is canonical, so equal states have equal bytes."""

    clock: float
    counts: tuple[int, int, int, int]
    bookings: tuple[Booking, ...]
    free_at: tuple[tuple[Target, float], ...]
    last: tuple[tuple[int, int], ...]
    early: tuple[tuple[int, int, float, tuple[Outcome, ...]], ...]
    writer: tuple[int, float] = (0, 0.0)
    released: int = 0
