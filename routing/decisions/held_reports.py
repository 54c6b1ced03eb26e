"""Reports whose decision the log has yet to bring: another replica has just made it.

A report that names its decision may go to the log ahead of it, where each fold matches both. These
may not: one names its request by an id that nobody here knows yet, or its client may speak of some
tenants alone, and whose decision it is, is not known. So they are held until the decision comes.

Its owner locks: see `routing.decisions.live_load`.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from routing.bounds import EARLY_OUTCOME_S
from routing.fold.booking import DecisionKey
from schemas.routing_records import Decision, FeedbackReport

HELD_NAMES_MAX: Final = 4096  # the oldest goes: reason="unknown_decision"
HELD_OF_NAME_MAX: Final = 8  # some KiB each; one request has fewer events: a further one is dropped
HELD_SILENCE_S: Final = 5.0  # the log may have been away, and its records come all at once

HeldName = DecisionKey | str
"""Of what a report is: its decision, or the id of its request."""


class HeldReport(NamedTuple):
    """A report that waits.

    Attributes:
        outcome: without its decision's number.
        tenant_id: of its request; None: whosever it is.
        tenants: whose decisions its client may speak of; None: everybody's.
    """

    outcome: FeedbackReport
    tenant_id: str | None = None
    tenants: frozenset[str] | None = None

    def may_be_of(self, tenant_id: str) -> bool:
        """Whether the decision of a request of that tenant may be meant."""
        is_named = self.tenant_id is None or self.tenant_id == tenant_id
        return is_named and (self.tenants is None or tenant_id in self.tenants)


class _Wait(NamedTuple):
    until_s: float  # of following
    reports: list[HeldReport]


class HeldReports:
    """See the module. At most `most` names, of each HELD_OF_NAME_MAX reports. Each waits for
    EARLY_OUTCOME_S in which the log is followed; a time in which nothing comes counts as
    HELD_SILENCE_S. Cost O(1) each, amortized.

    Attributes:
        dropped: reports whose decision never came, or that had no room.
    """

    def __init__(self, most: int = HELD_NAMES_MAX) -> None:
        self.dropped = 0
        self._most = most
        self._followed_s = 0.0
        self._followed_at = 0.0  # when the log brought something last
        self._waiting: OrderedDict[HeldName, _Wait] = OrderedDict()

    def __len__(self) -> int:
        """How many names are waited for."""
        return len(self._waiting)

    def hold(self, name: HeldName, report: HeldReport) -> bool:
        """Keeps a report; False where the same is kept already."""
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = _Wait(self._followed_s + EARLY_OUTCOME_S, [])
        event, whose = report.outcome.event, report[1:]
        if any(one.outcome.event is event and one[1:] == whose for one in waiting.reports):
            return False
        if len(waiting.reports) == HELD_OF_NAME_MAX:
            self.dropped += 1
            return True
        waiting.reports.append(report)
        if len(self._waiting) > self._most:
            self._drop_first()
        return True

    def take(self, run: int, decision: Decision) -> list[FeedbackReport]:
        """What waited for a decision, in the order in which it came, and waits no more."""
        names: tuple[HeldName, ...] = ((run, decision.number), decision.request_id)
        tenant_id, found = decision.scope.tenant_id, list[FeedbackReport]()
        for name in names:
            waiting = self._waiting.get(name)
            if waiting is None:
                continue
            found += [one.outcome for one in waiting.reports if one.may_be_of(tenant_id)]
            waiting.reports[:] = [one for one in waiting.reports if not one.may_be_of(tenant_id)]
            if not waiting.reports:
                del self._waiting[name]
        return found

    def expire(self, now: float) -> None:
        """The log has brought something at that time, Unix seconds; gives up what has waited too
        long.
        """
        self._followed_s += min(max(now - self._followed_at, 0.0), HELD_SILENCE_S)
        self._followed_at = now
        while self._waiting and next(iter(self._waiting.values())).until_s <= self._followed_s:
            self._drop_first()

    def _drop_first(self) -> None:
        self.dropped += len(self._waiting.popitem(last=False)[1].reports)
