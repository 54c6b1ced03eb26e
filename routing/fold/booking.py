"""One request under way: what its decision books, and when what is reported of it happened."""

from collections.abc import Container
from typing import Final

import msgspec

from routing.fold.expectations import Expectation, lesson_of
from routing.sizes import OBJECT_SIZE, target_bytes, text_bytes
from schemas.routing_records import (
    FIRST_TOKEN,
    Decision,
    FeedbackReport,
    OutcomeEvent,
    Target,
    UnregisteredEngine,
)

BOOKING_EXPIRY_S: Final = 300.0  # without a report: reprise_routing_expired_total
BOOKING_ESTIMATES: Final = 10.0  # or so many times what it was expected to take, if that is longer
BOOKING_EXPIRY_MAX_S: Final = 4 * 3600.0  # at most: a silent router keeps no place for a day

DecisionKey = tuple[int, int]
"""Run, and number in it."""


class Booking(msgspec.Struct, array_like=True, gc=False):
    """A request under way; what a report of it is compared with stands here, too.

    Attributes:
        run, number: its decision's name.
        target: where its prompt is computed; None where it is only decoded.
        decode: where it is decoded, if that is another one.
        time: of the decision.
        expires_at: by the time of records.
        work_s: that it is expected to take of the target, waiting left out.
        end_at: when it was expected to have its first token.
        prompt, cached: tokens; and how many of them it was said not to have to compute.
        output: tokens that it is expected to have.
        seen: bits of the events that were reported.
        first_at: when its first token was reported; 0 before.
        lesson: what it was expected to take; None where a report teaches nothing.
        model_name: of the prompt; "" where that is not known, in checkpoints of before.
        decode_s: that its tokens behind the first were expected to take; likewise 0.
    """

    run: int
    number: int
    request_id: str
    target: Target | None
    decode: Target | None
    time: float
    expires_at: float
    work_s: float
    end_at: float
    prompt: int
    cached: int
    output: int
    seen: int = 0
    first_at: float = 0.0
    lesson: Expectation | None = None
    model_name: str = ""
    decode_s: float = 0.0

    @property
    def key(self) -> DecisionKey:
        """Of its decision."""
        return self.run, self.number

    @property
    def targets(self) -> tuple[Target, ...]:
        """Where it counts: where its prompt is computed, and where it is decoded."""
        if self.decode is None:
            return () if self.target is None else (self.target,)
        return (self.decode,) if self.target is None else (self.target, self.decode)

    @property
    def tenant_id(self) -> str:
        """Of its request."""
        target = self.target or self.decode
        assert target is not None, "one of both is booked"
        return target.tenant_id

    @property
    def uncached(self) -> int:
        """Tokens that are computed for it."""
        return self.prompt - self.cached

    @property
    def lasts_s(self) -> float:
        """For how long it counts without a report: ten times what all of it was to take, output
        included.
        """
        lasts = BOOKING_ESTIMATES * (self.end_at - self.time + self.decode_s)
        return min(lasts, BOOKING_EXPIRY_MAX_S) if lasts > BOOKING_EXPIRY_S else BOOKING_EXPIRY_S

    @property
    def size_bytes(self) -> int:
        """That it takes, about."""
        size = OBJECT_SIZE + text_bytes(self.request_id)
        lesson = self.lesson
        if lesson is not None:
            size += text_bytes(lesson.model_name, lesson.class_name, lesson.decode_class)
        return size + target_bytes(self.target) + target_bytes(self.decode)

    def is_at(self, engines: Container[UnregisteredEngine]) -> bool:
        """Whether one of these computes or decodes it."""
        return any(UnregisteredEngine(one, self.model_name) in engines for one in self.targets)

    @property
    def has_begun(self) -> bool:
        """Whether its first token was reported."""
        return bool(self.seen & _BEGUN)

    def has(self, event: OutcomeEvent) -> bool:
        """Whether it was reported."""
        return bool(self.seen & BITS[event])


BITS: Final = {event: 1 << place for place, event in enumerate(OutcomeEvent)}
"""Of the events in `seen`."""

_BEGUN: Final = BITS[FIRST_TOKEN]


def happened_at(outcome: FeedbackReport, booking: Booking, clock: float) -> float:
    """When that was: whatever its client's clock says, between its decision and now."""
    time, began = outcome.time, booking.time
    if time > clock:
        time = clock
    return began if began > time else time


def booking_of(run: int, decision: Decision, now: float) -> Booking:
    """What a decision books; of one that comes from the future, from now on."""
    target = decode = None
    cached, work, chosen = 0, 0.0, decision.chosen
    if chosen >= 0:
        target = decision.target(chosen)
        one = decision.candidates[chosen]
        cached = min(one.prefix, decision.prompt_tokens)
        work = one.work_s
    if decision.decode >= 0 and decision.decode != chosen:
        decode = decision.target(decision.decode)
    time = min(decision.time, now)
    booking = Booking(
        run,
        decision.number,
        decision.request_id,
        target,
        decode,
        time,
        now,
        work,
        time + decision.predicted_s,
        decision.prompt_tokens,
        cached,
        decision.expected_output_tokens,
        lesson=lesson_of(decision),
        model_name=decision.scope.model_name,
        decode_s=decision.decode_s,
    )
    booking.expires_at += booking.lasts_s
    return booking
