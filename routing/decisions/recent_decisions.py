"""The last decisions, with what came of them: for people who look at them.

Its owner locks: see `routing.decisions.live_load`.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from routing.fold.booking import DecisionKey
from routing.request_names import RequestNames
from schemas.limits import RECENT_DECISIONS_MAX
from schemas.routing_records import Decision, FeedbackReport, Refusal, decode_decision

RECENT_CANDIDATES_MAX: Final = 65_536  # of all recent decisions, some 300 bytes each
ENCODED_CANDIDATE_BYTES: Final = 300  # of decisions that are kept encoded, this counts as one


class RecentDecision(NamedTuple):
    """One decision.

    Attributes:
        place: rises with each decision that this service comes to know, from 1.
        run: see `schemas.routing_records`.
        brief: the decision, with all candidates or with those that were chosen alone.
        outcomes: reports of it, the latest of each event, in the order in which they came.
        by_load: why the index had no say where its request went, in one word; "" where the index
            had. The routing log does not have it: only the service that decided knows.
        encoded: all of the decision, where that is brief.
    """

    place: int
    run: int
    brief: Decision
    outcomes: tuple[FeedbackReport, ...]
    by_load: str = ""
    encoded: bytes = b""

    @property
    def decision(self) -> Decision:
        """With all candidates. Cost O(candidates) where that is decoded."""
        return decode_decision(self.encoded) if self.encoded else self.brief

    @property
    def candidates(self) -> int:
        """How many it has; where they are encoded, how many take as many bytes."""
        encoded = len(self.encoded) // ENCODED_CANDIDATE_BYTES
        return encoded + 1 if encoded else len(self.brief.candidates)


class RecentDecisions:
    """At most RECENT_DECISIONS_MAX, which together have at most RECENT_CANDIDATES_MAX candidates
    unless the last one alone has more; the oldest go first. Cost O(1) a note, amortized.

    Attributes:
        noted: decisions so far, of this process.
    """

    def __init__(self) -> None:
        self.noted = 0
        self._known: OrderedDict[DecisionKey, RecentDecision] = OrderedDict()
        self._candidates = 0
        self._requests: RequestNames[DecisionKey] = RequestNames()

    def note(self, run: int, decision: Decision, encoded: bytes = b"") -> None:
        """A decision; nothing where it is kept already. `encoded`: see `RecentDecision`."""
        key = (run, decision.number)
        if key in self._known:
            return
        self.noted += 1
        noted = self._known[key] = RecentDecision(self.noted, run, decision, (), "", encoded)
        self._candidates += noted.candidates
        if decision.refused is Refusal.NO:
            self._requests.put(decision.request_id, decision.scope.tenant_id, key)
        while len(self._known) > RECENT_DECISIONS_MAX or (
            self._candidates > RECENT_CANDIDATES_MAX and len(self._known) > 1
        ):
            gone, oldest = self._known.popitem(last=False)
            self._candidates -= oldest.candidates
            request_id, tenant_id = oldest.brief.request_id, oldest.brief.scope.tenant_id
            self._requests.discard(request_id, tenant_id, gone)

    def report(self, run: int, outcome: FeedbackReport) -> None:
        """What came of one; nothing where it is not kept."""
        key = (run, outcome.number)
        known = self._known.get(key)
        if known is None:
            return
        others = [one for one in known.outcomes if one.event is not outcome.event]
        self._known[key] = known._replace(outcomes=(*others, outcome))

    def note_by_load(self, run: int, number: int, why: str) -> None:
        """The index had no say where its request went; nothing where it is not kept."""
        known = self._known.get((run, number))
        if known is not None:
            self._known[run, number] = known._replace(by_load=why)

    def latest(
        self, limit: int, admits: Callable[[str], bool], *, after: int = 0
    ) -> list[RecentDecision]:
        """Those of tenants that are admitted, the latest first.

        Args:
            admits: whether decisions of a tenant are wanted.
            after: only those whose place is behind it.
        """
        found: list[RecentDecision] = []
        for one in reversed(self._known.values()):
            if one.place <= after or len(found) >= limit:
                break
            if admits(one.brief.scope.tenant_id):
                found.append(one)
        return found

    def named(self, request_id: str) -> Mapping[str, DecisionKey]:
        """The last decision of each tenant about a request of that id, where it is kept."""
        return self._requests.by_tenant(request_id)

    def since(self, started: float) -> float:
        """Since when all decisions are kept, Unix seconds; `started`: this process."""
        oldest = next(iter(self._known.values()), None)
        if oldest is None:
            return started
        time = oldest.brief.time
        return time if self.noted > len(self._known) else min(started, time)

    def find(self, run: int, number: int) -> RecentDecision | None:
        """That one; None where it is not kept."""
        return self._known.get((run, number))
