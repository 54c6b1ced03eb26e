"""What is at engines beside what is booked, as their samples say: see `LiveLoad`, which locks.

What waits there stays until a newer sample, or a report of a request that waited, says otherwise.
In between, as much of it goes each second as went between the last two samples. What it takes to
compute a prompt says nothing of that: engines let requests wait for room in their batch and their
cache, too, which comes as others end.
"""

from collections import OrderedDict
from typing import NamedTuple

import msgspec

from routing.bounds import LOAD_SAMPLE_S, LOAD_SUM_MAX, LOAD_TARGETS_MAX
from routing.fold.booking import Booking
from routing.fold.bookings import LATE
from routing.fold.target_bookings import Load
from routing.overlay.bookings import OverlaidBookings
from schemas.routing_records import (
    DISPATCHED,
    FIRST_TOKEN,
    LoadSample,
    OutcomeEvent,
    Target,
)

BATCH_REQUESTS = 8
"""That an engine is taken to have room for at once, at least."""


class TypicalRequest(NamedTuple):
    """What a request of the model is like, for those of which nothing else is known.

    Attributes:
        compute_s, tokens: of its prompt, but for what is cached.
        token_s: seconds to compute a token.
        stay_s: from its first token to its last.
    """

    compute_s: float
    tokens: float
    token_s: float
    stay_s: float = 0.0


class UnbookedLoad(msgspec.Struct):
    """What is at a target, and not booked.

    Attributes:
        at: when that was observed, Unix seconds.
        requests: that wait or run there; `waiting`: of those, the first.
        tokens: that are to be computed.
        per_s: of those that wait, how many went each second of late; `tokens_per_s`: of the tokens.
        gone: of those that wait, how many have begun, as clients report.
        sample: that says so.
    """

    at: float
    requests: int
    waiting: int
    tokens: int
    sample: LoadSample
    per_s: float = 0.0
    tokens_per_s: float = 0.0
    gone: int = 0

    @property
    def says_late(self) -> bool:
        """Whether it says what of the bookings that are late is there: so many wait; or nothing is,
        and their reports are lost. An engine that runs some may be computing these.
        """
        sample = self.sample
        return self.waiting > 0 or (sample.running == 0 and sample.waiting == 0)

    def waiting_at(self, now: float) -> float:
        """How many wait then."""
        return max(self.waiting - self.gone - self.per_s * max(now - self.at, 0.0), 0.0)

    def numbers(self, usual: TypicalRequest) -> tuple[float, ...]:
        """What `added_to` computes by, as the kernel reads it."""
        sample = self.sample
        left = sample.prefill_tokens
        return (
            self.at,
            max(self.requests - self.waiting, 0),
            self.waiting - self.gone,
            self.per_s,
            self.tokens,
            self.tokens_per_s,
            float("nan") if left is None else left,
            usual.compute_s,
            usual.tokens,
            usual.token_s,
            self._each_s(usual),
        )

    def _each_s(self, usual: TypicalRequest) -> float:
        return usual.stay_s / max(self.sample.running or 0, BATCH_REQUESTS)

    def added_to(self, booked: Load, now: float, usual: TypicalRequest) -> Load:
        """What is booked at the target, and this."""
        sample, waiting = self.sample, self.waiting_at(now)
        each_s = self._each_s(usual)
        if sample.prefill_tokens is None:
            computing, pending = waiting * usual.compute_s, round(waiting * usual.tokens)
        else:
            gone = self.tokens_per_s * max(now - self.at, 0.0)
            computing = max(self.tokens - gone, 0.0) * usual.token_s
            pending = max(sample.prefill_tokens - booked.pending, 0)
        requests = max(self.requests - self.waiting, 0) + round(waiting)
        active = round(requests * usual.tokens)
        return booked._replace(
            wait_s=booked.wait_s + max(computing, waiting * each_s),
            requests=min(booked.requests + requests, LOAD_SUM_MAX),
            pending=min(booked.pending + pending, LOAD_SUM_MAX),
            active=min(booked.active + active, LOAD_SUM_MAX),
        )


def beside(sample: LoadSample, bookings: OverlaidBookings) -> UnbookedLoad:
    """What a sample says beside what is booked."""
    booked, tokens = bookings.queued_at(sample.target, sample.observed_at)
    waiting, left = sample.waiting or 0, sample.prefill_tokens or 0
    there = (sample.running or 0) + waiting
    known = bookings.load(sample.target, sample.observed_at).requests
    waiting = max(waiting - booked, 0)
    return UnbookedLoad(
        sample.observed_at,
        max(there - known, waiting),
        waiting,
        max(left - tokens, 0),
        sample,
    )


class UnbookedLoads:
    """Of the newest sample of each target; at most LOAD_TARGETS_MAX, the oldest goes. O(1) each,
    but for what `OverlaidBookings.queued_at` costs a sample.
    """

    def __init__(self, bookings: OverlaidBookings) -> None:
        self._bookings = bookings
        self._known: OrderedDict[Target, UnbookedLoad] = OrderedDict()

    def __len__(self) -> int:
        """Of how many targets."""
        return len(self._known)

    def note(self, sample: LoadSample) -> None:
        """The newest of its target. One that comes again changes nothing: those that were booked
        then are perhaps done.
        """
        before = self._known.get(sample.target)
        if before is not None and before.at == sample.observed_at:
            return
        found = beside(sample, self._bookings)
        if before is not None and 0.0 < found.at - before.at <= LOAD_SAMPLE_S:
            seconds = found.at - before.at
            found.per_s = max(before.waiting - found.waiting, 0) / seconds
            found.tokens_per_s = max(before.tokens - found.tokens, 0) / seconds
        self._known.pop(sample.target, None)
        self._known[sample.target] = found
        if len(self._known) > LOAD_TARGETS_MAX:
            self._known.popitem(last=False)

    def begun(self, booking: Booking, event: OutcomeEvent) -> None:
        """It waits no more. Where it was late when the sample was taken, its booking did not count
        as one of those that wait, so it was one of these.
        """
        found = None if booking.target is None else self._known.get(booking.target)
        if found is None or event is DISPATCHED or booking.time > found.at:
            return
        is_known = event is not FIRST_TOKEN and booking.first_at > 0.0
        was_late = found.at >= booking.time + LATE * (booking.end_at - booking.time)
        if was_late and not is_known:
            found.gone += 1

    def forget(self, target: Target) -> None:
        """Whoever has its name next is another one."""
        self._known.pop(target, None)

    def of(self, sample: LoadSample) -> UnbookedLoad:
        """What that sample says beside what is booked: as it was when it came, where it is the
        newest.
        """
        found = self._known.get(sample.target)
        if found is not None and (found.sample is sample or found.sample == sample):
            return found
        return beside(sample, self._bookings)
