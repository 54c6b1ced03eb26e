"""What is booked at a target, should be computed by now, and is not: see `LiveLoad`, which locks.

A booking drains by the time that its prompt was expected to take. An engine that is slower than
that, or stands still, would seem to be free while all it was sent waits there. So what is late goes
on counting, by as much as it is late, up to what it takes: the estimate stands still until the
engine is seen to go on.

Nothing says of a single request whether its engine is late or its client silent. What was sent
later to the same target and has begun tells that: engines begin in order, so of what was sent
before it nothing waits there any more.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from routing.bounds import LOAD_MODELS_MAX
from routing.by_target import ByTarget
from routing.fold.booking import Booking
from routing.fold.bookings import LATE
from schemas.routing_records import COMPLETED, FIRST_TOKEN, OutcomeEvent, Target

FIRST_TOKENS_TOLD: Final = 8
"""First tokens of a model in a row, none left out, before one that is not told is missed."""

LATE_LOOKED_AT: Final = 256
"""Of what is queued at one target, the first ones, when a decision looks for what is late."""

_BEGUN: Final = frozenset({FIRST_TOKEN, COMPLETED})

Late = tuple[float, float]
"""When a request is late, Unix seconds, and the seconds that it takes: more it is never late."""

_Model = tuple[str, str]
"""Tenant and name."""


class LateWork:
    """See the module. O(1) each, but for `late`."""

    def __init__(self) -> None:
        self._begun: ByTarget[float] = ByTarget()
        # How many first tokens were told since an end came without its own. The model of which
        # nothing was told for the longest goes.
        self._first_tokens: OrderedDict[_Model, int] = OrderedDict()

    def begun(self, booking: Booking, event: OutcomeEvent) -> None:
        """A report of a request. One that failed, or was cancelled, may have waited until then."""
        target = booking.target
        if target is None or event not in _BEGUN:
            return
        if booking.time > (self._begun.get(target) or 0.0):
            self._begun.put(target, booking.time)
        model = booking.tenant_id, booking.model_name
        told = self._first_tokens.pop(model, 0)
        if event is FIRST_TOKEN:
            told = min(told + 1, FIRST_TOKENS_TOLD)
        elif not booking.first_at:
            told = 0
        self._first_tokens[model] = told
        if len(self._first_tokens) > LOAD_MODELS_MAX:
            self._first_tokens.popitem(last=False)

    def forget(self, target: Target) -> None:
        """Whoever has its name next is another one."""
        self._begun.pop(target)

    def late(
        self, target: Target, queued: Iterable[Booking], now: float, since: float = 0.0
    ) -> Iterator[Late]:
        """What is late there by then. Of models whose clients tell ends alone a request is late
        once its output should have ended, too; of those whose clients tell nothing, never.

        Cost O(late), of LATE_LOOKED_AT at most.

        Args:
            queued: what is booked there and not reported to be computed, in the order in which it
                begins.
            now: Unix seconds.
            since: what was very late by then counts elsewhere (`UnbookedLoad`).
        """
        begun = self._begun.get(target) or 0.0
        for one in islice(queued, LATE_LOOKED_AT):
            if one.time < begun or one.time + LATE * (one.end_at - one.time) <= since:
                continue
            told = self._first_tokens.get((one.tenant_id, one.model_name))
            due = one.end_at + (one.decode_s if told != FIRST_TOKENS_TOLD else 0.0)
            if told is None or due >= now:
                break
            yield due, one.work_s


def late_seconds(late: Iterable[Late], now: float) -> float:
    """What that comes to."""
    seconds = 0.0
    for due, work_s in late:
        seconds += min(now - due, work_s)
    return seconds
