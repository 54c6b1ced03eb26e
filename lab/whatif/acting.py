"""Advice that is carried out on simulated nodes: what `reprise up --act` does, by its functions.

Each `act_s` the hot prefixes of the prompts so far, the holders that the index knows and the nodes'
waits give advice (`routing.advice.advice`); what `routing.advice.acting` has nothing against is
copied. A target receives one copy after the other at the speed of a fetch, beside what it computes,
and has the blocks when they are all there, as far as the source has them then. Pins are not made.
"""

from array import array
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from lab.whatif.queue import Load
from lab.whatif.workload import Workload
from routing.advice.acting import (
    Act,
    ActRules,
    PastActs,
    SuppressionReason,
    source_of,
    with_prefixes,
)
from routing.advice.advice import (
    AdviceRules,
    AdvisedAction,
    HeldPrefix,
    Instance,
    advise,
    prompts_per_second,
)
from routing.costs import Costs
from routing.observed.hot_prefixes import HotPrefix, HotPrefixes, view
from schemas.command_records import CommandState
from schemas.identities import DEFAULT_TENANT
from schemas.limits import ACT_RATE_S
from schemas.routing_records import DecidedScope, PrefixMark, Target, marks_at
from streams.kernel.interface import InstanceMatch

_MODEL: Final = "trace"


class FinishedCopy(NamedTuple):
    """A copy that has come: its blocks, from where and to where, by name.

    Attributes:
        at: when.
        number: of the copy, so that each is one.
    """

    at: float
    number: int
    chain: "array[int]"
    source: str
    target: str


class SimulatedActor:
    """See the module. A prefix is named by its last block's number, plus one.

    Attributes:
        made: copies that were begun.
    """

    def __init__(
        self,
        workload: Workload,
        nodes: Sequence[str],
        costs: Costs,
        *,
        period_s: float,
        capacity: int | None,
        rules: AdviceRules = AdviceRules(),  # noqa: B008 -- immutable
        limits: ActRules = ActRules(),  # noqa: B008 -- immutable
    ) -> None:
        """Args:
        workload: whose prompts are copied.
        nodes: their names.
        costs: what things take, for the advice and for the copies.
        period_s: between two looks.
        capacity: tokens of each node; None for no bound.
        rules, limits: see there.
        """
        self.made = 0
        self._workload = workload
        self._nodes = [Target(DEFAULT_TENANT, name, 0) for name in nodes]
        self._costs = costs
        self._period_s = period_s
        self._capacity = capacity
        self._rules = rules
        self._limits = limits
        self._scope = DecidedScope(DEFAULT_TENANT, _MODEL, "", workload.block_size, "")
        self._hot = HotPrefixes()
        self._seen: dict[int, tuple[int, int]] = {}
        self._next_look = period_s
        self._link_free_at = dict.fromkeys(nodes, 0.0)
        self._coming: list[FinishedCopy] = []
        self._acts: list[Act] = []

    def asked(self, number: int, chain: "array[int]", held: int, now: float) -> None:
        """A prompt came, of which somebody holds so many blocks."""
        marks = [PrefixMark(depth, chain[depth - 1] + 1) for depth in marks_at(len(chain), held)]
        for mark in marks:
            self._seen[mark.prefix] = (number, mark.blocks)
        self._hot.asked(now, self._scope, marks)

    def landed(self, now: float) -> list[FinishedCopy]:
        """The copies that have come by now, in their order."""
        found = []
        while self._coming and self._coming[0].at <= now:
            found.append(heappop(self._coming))
        return found

    def is_due(self, now: float) -> bool:
        """Whether it is time to look."""
        return now >= self._next_look

    def look(
        self,
        now: float,
        loads: Sequence[Load],
        ask: Callable[["array[int]"], list[InstanceMatch]],
    ) -> None:
        """Looks at what is advised, and begins what is to be done.

        Args:
            now: seconds.
            loads: of the nodes, in their order.
            ask: what each node holds of a chain, as the index says.
        """
        self._next_look = now - now % self._period_s + self._period_s
        hot = view(self._hot, now)[self._scope] if self._hot.scopes else None
        if hot is None:
            return
        past = PastActs(self._acts, now, self._limits)
        parents = {one.prefix: one.parent for one in hot.prefixes}
        copied = with_prefixes(past.copied(), parents)
        held = [
            HeldPrefix(one, self._holders(one, copied.get(one.prefix, frozenset()), ask))
            for one in hot.prefixes
            if one.rate >= self._rules.hot_rate
        ]
        instances = [
            Instance(target, load.wait_s, self._capacity, costs=self._costs)
            for target, load in zip(self._nodes, loads, strict=True)
        ]
        names = [one.instance_id for one in self._nodes]
        for advice in advise(held, instances, prompts_per_second(hot), self._rules):
            if advice.action is not AdvisedAction.COPY:
                continue
            target = advice.targets[0].instance_id
            holders = [one.instance_id for one in advice.sources]
            source = source_of(holders, target, past, names)
            if isinstance(source, SuppressionReason) or past.why_not(advice.prefix.prefix, target):
                continue
            act = self._begin(advice.prefix, source, target, now)
            past.begin(act)

    def _begin(self, prefix: HotPrefix, source: str, target: str, now: float) -> Act:
        chain = self._chain(prefix)
        begins = max(now, self._link_free_at[target])
        at = begins + self._costs.fetch_s(prefix.tokens)
        self._link_free_at[target] = at
        heappush(self._coming, FinishedCopy(at, self.made, chain, source, target))
        name = str(self.made)
        self.made += 1
        act = Act(name, AdvisedAction.COPY, prefix.prefix, source, target, now)
        # What the target is sent is under way for as long as it takes, and then done.
        kept_s = max(self._limits.horizon_s, ACT_RATE_S)
        self._acts = [one for one in self._acts if now - one.at <= kept_s]
        self._acts.append(act._replace(state=CommandState.DONE, ended_at=at, tokens=prefix.tokens))
        return act

    def _chain(self, prefix: HotPrefix) -> "array[int]":
        number, blocks = self._seen[prefix.prefix]
        return self._workload.chain(number)[:blocks]

    def _holders(
        self,
        prefix: HotPrefix,
        copied: frozenset[str],
        ask: Callable[["array[int]"], list[InstanceMatch]],
    ) -> tuple[Target, ...]:
        matches = ask(self._chain(prefix))
        return tuple(
            target
            for target, match in zip(self._nodes, matches, strict=True)
            if match.longest >= prefix.blocks or target.instance_id in copied
        )
