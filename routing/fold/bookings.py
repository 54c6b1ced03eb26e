"""What is under way where: a fold of decisions, and of what came of them.

A decision books its request at the instance that was chosen, at once and before the client has
sent it: whoever decides next sees it. The first token releases what was booked of computing, the
end releases all. A booking that nobody reports of expires, by the time of records and not by a
clock, so that every reader of the log drops it at the same place; whatever is reported of it, if it
is for the second time, says that it lives, and prolongs it.

An instance is taken to compute one prompt after the other. `wait_s` is what is booked ahead, less
what has passed since the first of it began; where it takes several at a time, that is how long it
takes until as much has been computed (`routing.fold.target_bookings`).
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Final, NamedTuple

import msgspec

from routing.bounds import BOOKINGS_BYTES_MAX, BOOKINGS_MAX, EARLY_OUTCOME_S
from routing.fold.booking import BITS, Booking, DecisionKey, booking_of, happened_at
from routing.fold.record_clock import RecordClock
from routing.fold.target_bookings import BookingsByTarget, Load
from routing.request_names import RequestNames
from schemas.routing_records import (
    ENDS,
    FIRST_TOKEN,
    Decision,
    FeedbackReport,
    OutcomeEvent,
    Target,
    UnregisteredEngine,
)

EXPIRIES_KEPT: Final = 1024  # of bookings that have ended, beside as many as are open: memory
BOOKING_LIFE_S: Final = 1.0  # a report that only says again that it lives counts this often at most
EARLY_OUTCOMES_MAX: Final = 4096  # decisions that are reported of before the log has them
ROUTING_RUNS_MAX: Final = 1024  # services whose last decision is remembered; some 100 bytes each

LATE: Final = 2.0
"""Times what was expected: estimates are seldom so wrong."""


class BookingReport(NamedTuple):
    """A report that was new, and what it was of."""

    booking: Booking
    outcome: FeedbackReport


class Bookings:
    """See the module. Cost O(log(bookings)) a decision and a report.

    Attributes:
        places: what is booked at each target.
        expired: bookings that ended without a report.
        released: bookings of engines that were unregistered before.
        overflowed: decisions that found no room.
        prolonged: reports that said of a booking that it lives.
        repeated: reports that had been made before, or were of bookings that have ended.
        unknown: reports of decisions that never came.
    """

    def __init__(self, places: BookingsByTarget | None = None) -> None:
        """Args:
        places: what is booked at each target; None: none of it yet.
        """
        self.places = BookingsByTarget() if places is None else places
        self._clock = RecordClock()
        self.prolonged = 0
        self.expired = self.overflowed = self.repeated = self.unknown = self.released = 0
        self._bookings: dict[DecisionKey, Booking] = {}
        self._sizes: dict[DecisionKey, int] = {}  # of each, bytes
        self._bytes = 0  # that they take
        self._requests: RequestNames[DecisionKey] = RequestNames()
        self._expiry: list[tuple[float, int, int]] = []
        self._last: OrderedDict[int, int] = OrderedDict()  # number of each run's last decision
        self._early: OrderedDict[DecisionKey, tuple[float, list[FeedbackReport]]] = OrderedDict()

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
        return self.expire()

    def expire(self) -> list[Booking]:
        """What has expired by now is dropped. Returns that."""
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

    def book(self, run: int, decision: Decision, *, has_room: bool = True) -> list[BookingReport]:
        """Somebody was chosen; of reports that came before it, those that were new. `has_room`:
        beside what is booked elsewhere.
        """
        if not self._note_number(run, decision.number):
            return []  # known already
        if decision.chosen < 0 and decision.decode < 0:
            return []
        if self.is_full or not has_room:
            self.overflowed += 1
            return []
        booking = booking_of(run, decision, self.clock)
        self._add(booking)
        self._push_expiry(booking)
        if not self._early:
            return []
        early = self.take_early(booking.key)
        return [found for outcome in early for found in self.report(run, outcome)]

    def report(self, run: int, outcome: FeedbackReport) -> list[BookingReport]:
        """Something came of a decision; what was new of it."""
        key = (run, outcome.number)
        booking = self._bookings.get(key)
        if booking is None:
            self._keep_early(key, outcome)
            return []
        clock, event, bit = self._clock.now, outcome.event, BITS[outcome.event]
        is_prolonged = self.prolong(booking, clock)
        if booking.seen & bit:
            self.repeated += not is_prolonged
            return []
        booking.seen |= bit
        if outcome.instance_id is not None:
            self._move(booking, outcome)
        at = happened_at(outcome, booking, clock)
        if event in ENDS:
            self._end(booking, at=at)
        elif event is FIRST_TOKEN:
            booking.first_at = at
            self.places.release(booking, at=at)
        return [BookingReport(booking, outcome)]

    def release(self, engines: Iterable[UnregisteredEngine]) -> list[Booking]:
        """These are registered no more, and what is registered under their names next has nothing
        of what was booked there; the bookings that ended by it. Cost O(bookings).
        """
        gone = frozenset(engines)
        found = [booking for booking in self._bookings.values() if booking.is_at(gone)]
        for booking in found:
            self._end(booking)
        self.released += len(found)
        return found

    def prolong(self, booking: Booking, clock: float) -> bool:
        """It lives at that time; whether that was not known."""
        until = clock + booking.lasts_s
        if until - booking.expires_at < BOOKING_LIFE_S:
            return False
        booking.expires_at = until
        self.prolonged += 1
        return True

    def _push_expiry(self, booking: Booking) -> None:
        heapq.heappush(self._expiry, (booking.expires_at, booking.run, booking.number))
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

    def _keep_early(self, key: DecisionKey, outcome: FeedbackReport) -> None:
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

    def _end(self, booking: Booking, *, at: float | None = None) -> None:
        key = booking.key
        self.places.end(booking, at=at)
        self._bookings.pop(key, None)
        self._bytes -= self._sizes.pop(key, 0)
        self._requests.discard(booking.request_id, booking.tenant_id, key)

    @property
    def is_full(self) -> bool:
        """Whether no other booking has room."""
        return len(self._bookings) >= BOOKINGS_MAX or self._bytes >= BOOKINGS_BYTES_MAX

    @property
    def size_bytes(self) -> int:
        """That all of them take, about."""
        return self._bytes

    def _add(self, booking: Booking, *, is_named: bool = True) -> None:
        key, size = booking.key, booking.size_bytes
        self._bytes += size - self._sizes.get(key, 0)
        self._bookings[key] = booking
        self._sizes[key] = size
        if is_named:
            self._requests.put(booking.request_id, booking.tenant_id, key)
        self.places.begin(booking)

    def _move(self, booking: Booking, outcome: FeedbackReport) -> None:
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
        self._add(booking)

    # What is asked

    def load(self, target: Target, now: float) -> Load:
        """What is booked there. Cost O(1)."""
        return self.places.loads((target,), now)[0]

    def get(self, key: DecisionKey) -> Booking | None:
        """The booking of a decision; None where it is not under way."""
        return self._bookings.get(key)

    def all(self) -> Iterable[Booking]:
        """All that is under way, in the order in which it was decided."""
        return self._bookings.values()

    def named(self, request_id: str) -> Mapping[str, DecisionKey]:
        """The decisions of requests of that id that are under way, by tenant."""
        return self._requests.by_tenant(request_id)

    def names(self, booking: Booking) -> bool:
        """Whether it is the last one of its request."""
        return self.named(booking.request_id).get(booking.tenant_id) == booking.key

    def is_under_way(self, run: int, number: int) -> bool:
        """Whether it is booked and has not ended."""
        return (run, number) in self._bookings

    def has_seen(self, run: int, number: int) -> bool:
        """Whether that decision, or a later one of the run, has come."""
        return number <= self._last.get(run, -1)

    def knows_run(self, run: int) -> bool:
        """Whether a decision of that run was seen."""
        return run in self._last

    def due(self, now: float) -> tuple[list[Booking], float]:
        """Those that expire once the clock is there, and when the next one may. Cost O(1) where
        there is none, else O(these).
        """
        found, following, places = [], float("inf"), [0]
        while places:
            place = places.pop()
            if place >= len(self._expiry):
                continue
            at, run, number = self._expiry[place]
            booking = self._bookings.get((run, number))
            if at <= now:
                places += (2 * place + 1, 2 * place + 2)
                at = at if booking is None else booking.expires_at
            if at > now:
                following = min(following, at)
            elif booking is not None:
                found.append(booking)
        return found, following

    # What an overlay does: see `routing.overlay.bookings`

    def adopt(self, booking: Booking, *, is_named: bool) -> None:
        """Books a copy of another fold's, which goes on with its own."""
        if booking.lesson is not None and not booking.model_name:
            booking.model_name = booking.lesson.model_name
        self._add(booking, is_named=is_named)
        self._push_expiry(booking)

    def leave(self, key: DecisionKey) -> None:
        """The booking is another fold's from now on; nothing where it is not under way."""
        booking = self._bookings.get(key)
        if booking is not None:
            self._end(booking)

    def take_early(self, key: DecisionKey) -> list[FeedbackReport]:
        """The reports that wait for a decision, which wait no more."""
        return self._early.pop(key, (0.0, []))[1]

    def forget_early(self, key: DecisionKey, event: OutcomeEvent) -> None:
        """A report that waits for its decision waits elsewhere, too."""
        at, outcomes = self._early.get(key, (0.0, []))
        outcomes = [one for one in outcomes if one.event is not event]
        if outcomes:
            self._early[key] = (at, outcomes)
        else:
            self._early.pop(key, None)

    def is_early(self, key: DecisionKey, event: OutcomeEvent) -> bool:
        """Whether such a report waits for its decision."""
        return any(one.event is event for one in self._early.get(key, (0.0, []))[1])

    def early(self) -> Iterable[tuple[DecisionKey, list[FeedbackReport]]]:
        """All reports that wait for their decisions."""
        return ((key, outcomes) for key, (_, outcomes) in self._early.items())

    # Checkpoints

    def state(self) -> "BookingsState":
        """All of it. Cost O(bookings log(bookings))."""
        return BookingsState(
            clock=self.clock,
            counts=(self.expired, self.overflowed, self.repeated, self.unknown),
            bookings=tuple(self._bookings.values()),
            free_at=self.places.free_at(),
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
            self.adopt(copy(booking), is_named=True)
        for target, free_at in state.free_at:
            place = self.places.get(target)
            if place is not None:
                place.free_at = free_at
        self._last.update(state.last)
        for run, number, at, outcomes in state.early:
            self._early[run, number] = (at, list(outcomes))


class BookingsState(msgspec.Struct, frozen=True, array_like=True):
    """See `Bookings.state`; its encoding is canonical, so equal states have equal bytes."""

    clock: float
    counts: tuple[int, int, int, int]
    bookings: tuple[Booking, ...]
    free_at: tuple[tuple[Target, float], ...]
    last: tuple[tuple[int, int], ...]
    early: tuple[tuple[int, int, float, tuple[FeedbackReport, ...]], ...]
    writer: tuple[int, float] = (0, 0.0)
    released: int = 0
