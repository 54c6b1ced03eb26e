"""What became of a prompt's blocks where it was sent, as predictions say: the rules, pure.

decided                 they will be there, for `predicted_s`; of an engine without events they
are, for APPROXIMATE_S or as long as its cache has room
sent elsewhere, failed  they are not; nor where it was cancelled before its first token
completed               they are, from now on, where the engine publishes no events
"""

from routing.observed.predicted_blocks import MarkHolders, PredictedHolders, predicted_s
from routing.observed.promises import Promise
from schemas.limits import APPROXIMATE_S
from schemas.routing_records import (
    CANCELLED,
    COMPLETED,
    FAILED,
    FIRST_TOKEN,
    FeedbackReport,
)


def hold(holders: MarkHolders, now: float, promise: Promise) -> None:
    """The prompt of a promise is, or will be, where it was sent.

    Args:
        holders: whom it is noted in.
        now: Unix seconds, by the time of records.
    """
    approximate = promise.is_approximate
    holders.decided(
        now,
        promise.target,
        promise.scope,
        promise.marks,
        lasts_s=APPROXIMATE_S if approximate else predicted_s(promise.ttft_s),
        capacity_blocks=promise.capacity_blocks if approximate else 0,
    )


def overdue(holders: PredictedHolders, now: float, promise: Promise) -> int:
    """How many tokens of a new promise the events of its target have told, or should have."""
    size = promise.scope.block_size
    told = (promise.cached - promise.predicted) // size
    of = (promise.target, promise.scope, promise.marks)
    return size * max(told, holders.overdue(now, *of, told))


def follow(
    holders: MarkHolders,
    now: float,
    promise: Promise,
    outcome: FeedbackReport,
    *,
    is_moved: bool,
) -> None:
    """Something was reported of it; `is_moved`: and that it went elsewhere, for the first time."""
    event = outcome.event
    is_told = outcome.ttft_s is not None or outcome.cached_tokens is not None
    promise.has_begun |= is_told or event is FIRST_TOKEN
    is_cancelled = event is CANCELLED and not promise.has_begun
    if is_moved or is_cancelled or event is FAILED:
        holders.failed(promise.target, promise.scope, promise.marks)
    elif event is COMPLETED and promise.is_approximate and not promise.moved:
        hold(holders, now, promise)
