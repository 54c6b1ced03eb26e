"""What is advised now: hot prefixes of the routing log, holders of the table, loads of the router.

`GET /advice` shows it, and whoever acts on advice goes by it.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from query_api.ports import View
from routing.advice.acting import Act, SuppressionReason, with_prefixes
from routing.advice.advice import (
    Advice,
    AdviceRules,
    HeldPrefix,
    Instance,
    advise,
    prompts_per_second,
)
from routing.decisions.router import InstanceLoad, Router
from routing.decisions.wanted_tokens import PrefixKey
from routing.fold.fold import RoutingFold
from routing.observed.hot_prefixes import HotScope
from routing.observed.hot_prefixes import view as hot_view
from schemas.identities import PrefixScope
from schemas.routing_records import DecidedScope, Target
from streams.kernel.interface import ReadOnlyKernel


class AdviceContext(NamedTuple):
    """What advice takes into account beside what the table says.

    Attributes:
        copied: by prefix, the instances that have it by what was done of late.
        is_target: whether anything may be copied to an instance of a scope.
    """

    copied: Mapping[int, frozenset[str]]
    is_target: Callable[[DecidedScope, str], bool]


NOTHING_DONE: Final = AdviceContext({}, lambda scope, instance_id: True)


class AdviceActor(Protocol):
    """Whoever acts on advice. From any thread."""

    def acts(self) -> list[Act]:
        """What was done by advice within ACT_REMEMBERED_S, by anybody, the latest first."""
        ...

    def held_back(self) -> Mapping[PrefixKey, SuppressionReason]:
        """Why what was advised at the last look was not done, where it was not."""
        ...

    def done(self) -> AdviceContext:
        """What the next advice takes into account of it."""
        ...


def advised(view: View, router: Router, done: AdviceContext = NOTHING_DONE) -> list[Advice]:
    """The advice of all scopes. From any thread. Cost O(counters), and of each scope
    O(ADVICE_PREFIXES_MAX * instances).
    """
    kernel, rules, now = view.kernel, AdviceRules(), router.now()
    advice: list[Advice] = []
    for scope, hot in router.folded.read_all(lambda fold: hot_scopes(fold, now)).items():
        loads = router.instances(scope.tenant_id, scope.model_name)
        parents = {one.prefix: one.parent for one in hot.prefixes}
        copied = with_prefixes(done.copied, parents) if done.copied else {}
        held = [
            HeldPrefix(
                one,
                _holders(kernel, scope, one.prefix, copied.get(one.prefix, frozenset()), loads),
            )
            for one in hot.prefixes
            if one.rate >= rules.hot_rate
        ]
        instances = [
            Instance(
                one.target,
                one.wait_s,
                one.capacity_tokens or None,
                costs=one.costs,
                is_target=done.is_target(scope, one.target.instance_id),
            )
            for one in loads
        ]
        advice += advise(held, instances, prompts_per_second(hot), rules)
    return advice


def hot_scopes(fold: RoutingFold, now: float) -> dict[DecidedScope, HotScope]:
    """The hot prefixes of a fold, as of that time."""
    return hot_view(fold.observations.hot, now)


def _holders(
    kernel: ReadOnlyKernel,
    scope: DecidedScope,
    prefix: int,
    copied: frozenset[str],
    loads: list[InstanceLoad],
) -> tuple[Target, ...]:
    """Who holds all of it: engines drop tails before heads, so who has the last block has that."""
    found = kernel.query_by_hash(PrefixScope(*scope), prefix.to_bytes(8, "little"), None)
    holders = {
        Target(scope.tenant_id, one.instance_id, rank.dp_rank)
        for one in found
        for rank in one.ranks
        if rank.matched
    }
    holders.update(one.target for one in loads if one.target.instance_id in copied)
    return tuple(sorted(holders))
