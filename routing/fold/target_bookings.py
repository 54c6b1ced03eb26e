"""What is booked at each target, added up.

A target is taken to compute one prompt after the other. `free_at` is when it would begin with
another one.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from routing.bounds import LOAD_SUM_MAX, QUEUED_SUMMED_MAX
from routing.fold.booking import Booking, DecisionKey
from schemas.routing_records import (
    Target,
)


class Load(NamedTuple):
    """What is booked at a target.

    Attributes:
        wait_s: seconds until it would begin with another request.
        pending: tokens that it has yet to compute of these.
        active: tokens that they take in its KV cache, but for prefixes that others hold, too.
        decoding: of the requests, those that have had their first token, or are only decoded there.
        kv_tokens: that they take in the end, prefixes included.
    """

    wait_s: float = 0.0
    requests: int = 0
    pending: int = 0
    active: int = 0
    decoding: int = 0
    kv_tokens: int = 0


NO_LOAD: Final = Load()


class TargetBookings:
    """What is booked at one target.

    Attributes:
        queued: what is not computed yet, in order.
    """

    __slots__ = (
        *("_free_at", "_went_on_at", "active", "decoding", "kv_tokens", "pending", "queued"),
        "requests",
    )

    def __init__(self) -> None:
        self.queued: dict[DecisionKey, Booking] = {}
        self._free_at = 0.0
        self._went_on_at: float | None = None  # it is what is queued then that it has to do yet
        self.requests = self.pending = self.active = self.decoding = self.kv_tokens = 0

    @property
    def free_at(self) -> float:
        """When it would begin with another prompt. Cost O(1), but for the first time after
        `go_on`: O(queued), of QUEUED_SUMMED_MAX at most. So a list of reports costs that once.
        """
        self.settle()
        return self._free_at

    @free_at.setter
    def free_at(self, at: float) -> None:
        self._free_at, self._went_on_at = at, None

    def go_on(self, at: float) -> None:
        """A prompt was computed then, and is not queued any more."""
        self._went_on_at = at

    def settle(self) -> None:
        """What is queued is about to be another thing, which says nothing of how it goes on."""
        at = self._went_on_at
        if at is not None:
            queued = self.queued
            self.free_at = at + rest_of(queued.values(), len(queued), at) if queued else at


class BookingsByTarget:
    """The place of each target at which something is booked. Cost O(1) each.

    Attributes:
        derived: what somebody has computed of each target; a change of its place drops that.
    """

    def __init__(self, derived: dict[Target, float] | None = None) -> None:
        self.derived: dict[Target, float] = {} if derived is None else derived
        self._places: dict[Target, TargetBookings] = {}

    def __len__(self) -> int:
        """At how many targets something is booked."""
        return len(self._places)

    def get(self, target: Target) -> TargetBookings | None:
        """That of a target; None where nothing is booked."""
        return self._places.get(target)

    def targets(self) -> list[Target]:
        """Those at which something is booked, sorted."""
        return sorted(self._places)

    def free_at(self) -> tuple[tuple[Target, float], ...]:
        """When each target would begin with another prompt, sorted by target."""
        return tuple((target, place.free_at) for target, place in sorted(self._places.items()))

    def begin(self, booking: Booking) -> None:
        """The booking counts at its targets."""
        uncached, time = booking.prompt - booking.cached, booking.time
        for target in booking.targets:
            self.derived.pop(target, None)
            place = self._places.get(target)
            if place is None:
                place = self._places[target] = TargetBookings()
            place.requests += 1
            place.kv_tokens += booking.prompt + booking.output
            place.active += uncached
            if target == booking.target and not booking.has_begun:
                place.pending += uncached
                free_at = place.free_at
                place.queued[booking.key] = booking
                place.free_at = (time if time > free_at else free_at) + booking.work_s
            else:
                place.decoding += 1

    def end(self, booking: Booking, *, at: float | None = None) -> None:
        """The booking counts no more; `at`: when its prompt was reported to be computed."""
        self.release(booking, at=at)
        for target in booking.targets:
            self.derived.pop(target, None)
            place = self._places[target]
            if place.requests == 1:
                del self._places[target]
                continue
            place.requests -= 1
            place.decoding -= 1
            place.kv_tokens -= booking.prompt + booking.output
            place.active -= booking.prompt - booking.cached

    def release(self, booking: Booking, *, at: float | None) -> bool:
        """Its prompt has been computed; so have those before it that were to end earlier. Says
        whether it waited for that.
        """
        target = booking.target
        if target is None:
            return False
        place = self._places[target]
        if booking.key not in place.queued:
            return False
        if at is None:
            place.settle()
        del place.queued[booking.key]
        self.derived.pop(target, None)
        place.pending -= booking.prompt - booking.cached
        place.decoding += 1
        if at is not None:
            place.go_on(at)
        return True

    def loads(self, targets: Iterable[Target], now: float) -> list[Load]:
        """What is booked at each. Cost O(targets)."""
        return [
            NO_LOAD if place is None else load_of(place, now)
            for place in map(self._places.get, targets)
        ]


def rest_of(queued: Iterable[Booking], count: int, at: float) -> float:
    """Seconds that so many queued prompts take from that moment on, one after the other.

    One that was to have ended before and is not reported of (its client reports nothing, or late)
    keeps nobody waiting. Of very long queues the first ones stand for the others: nobody is sent
    there.
    """
    rest = sum(one.work_s for one in islice(queued, QUEUED_SUMMED_MAX) if one.end_at > at)
    return rest * max(count / QUEUED_SUMMED_MAX, 1.0)


def load_of(place: TargetBookings, now: float) -> Load:
    """What is booked there, at that time."""
    wait = place.free_at - now if place.queued else 0.0
    pending, active, tokens = place.pending, place.active, place.kv_tokens
    return Load(
        wait if wait > 0.0 else 0.0,
        place.requests,
        pending if pending < LOAD_SUM_MAX else LOAD_SUM_MAX,
        active if active < LOAD_SUM_MAX else LOAD_SUM_MAX,
        place.decoding,
        tokens if tokens < LOAD_SUM_MAX else LOAD_SUM_MAX,
    )
