"""Which hot prefixes should be copied to another instance, or pinned where they are. Pure.

A prefix of C tokens that comes `rate` times a second, and that M of N instances hold, is worth a
copy where all of this is true:

    hot       rate >= hot_rate
    overload  its holders' mean load is at least load_ratio times that of all, or its share x of the
              prompts is more than they can serve: x / (1 - x) > M / (N - M) (arXiv 2603.15202)
    target    an instance without it, whose load is below the mean, and whose cache is large enough
    gain      > gain_ratio * cost, both in seconds of prefill over window_s:

              gain = rate * window_s * 1 / (M + 1) * (C tokens computed)
              cost = (C tokens fetched) + (what the target evicts for it) * (how often that is used
                     again in window_s) * (a token computed)

It is worth a pin at its least loaded holder where that is not so, and engines are seen to drop it:
of the hits that were promised and checked a share `lost` was not there, and

              gain = rate * window_s * lost * (C tokens computed)
              cost = C * (how often a token of that cache is used again) * (a token computed)

Prefixes of one prompt are hot together. Of a chain only the one with the most gain is advised, and
to each target one copy at a time: the next advice sees what has become of it.

Nothing is done here: `acting.py` says what may be.
"""

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from routing.costs import Costs
from routing.observed.decay import per_second
from routing.observed.hot_prefixes import HotPrefix, HotScope
from schemas.routing_records import Target

ADVICE_PREFIXES_MAX: Final = 256  # hot ones of one scope that are looked at, the hottest first

LOCATION: Final = "LocalCPUBackend"
"""Of LMCache: the only one that its workers copy to, and the one that is pinned in."""

PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]


class AdviceRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When something is advised.

    Attributes:
        hot_rate: prompts a second from which on a prefix is hot.
        load_ratio: of the holders' mean load to that of all.
        gain_ratio: of the gain to the cost.
        window_s: over which both are taken.
        checked_min: promised hits that must have been checked before a prefix is pinned.
    """

    hot_rate: PositiveFloat = 0.1
    load_ratio: PositiveFloat = 1.2
    gain_ratio: PositiveFloat = 2.0
    window_s: PositiveFloat = 300.0
    checked_min: Annotated[int, msgspec.Meta(ge=1)] = 10


class AdvisedAction(StrEnum):
    """What is advised."""

    COPY = "copy"
    PIN = "pin"
    NONE = "none"


class AdviceReason(StrEnum):
    """Why it is."""

    OVERLOAD = "overload"
    """A copy: the holders are loaded."""
    DROPPED = "dropped"
    """A pin: engines drop it."""
    NOBODY_HOLDS_IT = "nobody_holds_it"
    NO_OVERLOAD = "no_overload"
    NO_TARGET = "no_target"
    NOT_WORTH_IT = "not_worth_it"
    COVERED = "covered"
    """A longer or a shorter prefix of the same prompts is copied."""


class Instance(NamedTuple):
    """Who may hold a prefix.

    Attributes:
        load: seconds until it would begin; or what else says how busy it is, of all alike.
        capacity: tokens that its cache has room for; None where that is not known.
        free: of these, those that hold nothing; 0 where that is not known.
        reuse: how often a token of its cache is used again in `AdviceRules.window_s`.
        costs: what things take there.
        is_target: whether anything may be copied to it.
    """

    target: Target
    load: float
    capacity: int | None = None
    free: int = 0
    reuse: float = 0.0
    costs: Costs = Costs()
    is_target: bool = True


class HeldPrefix(NamedTuple):
    """A prefix, and who holds all of it."""

    prefix: HotPrefix
    holders: tuple[Target, ...]


class Advice(msgspec.Struct, frozen=True):
    """What should be done about a hot prefix.

    Attributes:
        prefix: as of the moment of the advice.
        holders: who has it.
        targets: who should have it, too; or where it should be pinned.
        gain_s, cost_s: seconds of prefill over the window; of the best target, where there is one.
        action, why: what, and why.
        command: the HTTP request to a service that would do it; "" for none.
        sources: the holders that are known, the least loaded first.
    """

    prefix: HotPrefix
    holders: tuple[Target, ...]
    targets: tuple[Target, ...]
    gain_s: float
    cost_s: float
    action: AdvisedAction
    why: AdviceReason
    command: str = ""
    sources: tuple[Target, ...] = ()


class _Plan(NamedTuple):
    """What one prefix alone is worth."""

    held: HeldPrefix
    why: AdviceReason
    action: AdvisedAction = AdvisedAction.NONE
    target: Target | None = None
    gain_s: float = 0.0
    cost_s: float = 0.0


def prompts_per_second(scope: HotScope) -> float:
    """Of a scope: each prompt of a whole block is counted once with its first block."""
    first = [one for one in scope.prefixes if one.blocks == 1]
    # Each of many that came once would seem to come again.
    age_s = max((one.age_s for one in first), default=math.inf)
    return per_second(math.fsum(one.certain for one in first), age_s)


def advise(
    prefixes: Iterable[HeldPrefix],
    instances: Sequence[Instance],
    prompts: float,
    rules: AdviceRules,
) -> list[Advice]:
    """What should be done about the hot prefixes of one scope, the most gain first.

    Cost O(ADVICE_PREFIXES_MAX * instances).

    Args:
        prefixes: with their holders; those below `hot_rate` are passed over.
        instances: all that may hold prefixes of the scope.
        prompts: of the scope, a second; see `prompts_per_second`.
    """
    hot = sorted(
        (one for one in prefixes if one.prefix.rate >= rules.hot_rate),
        key=lambda one: (-one.prefix.rate, one.prefix.blocks, one.prefix.prefix),
    )[:ADVICE_PREFIXES_MAX]
    known = {one.target: one for one in instances}
    parents = {one.prefix.prefix: one.prefix.parent for one in hot}
    found: list[Advice] = []
    taken: set[Target] = set()
    copied: set[int] = set()
    plans = [(_planned(one, known, prompts, rules, frozenset()), one) for one in hot]
    for plan, held in sorted(plans, key=lambda one: (-one[0].gain_s, one[1].prefix.prefix)):
        name, final = held.prefix.prefix, plan
        if plan.action is AdvisedAction.COPY and _is_related(name, copied, parents):
            final = plan._replace(action=AdvisedAction.NONE, why=AdviceReason.COVERED, target=None)
        elif plan.target in taken:
            final = _planned(held, known, prompts, rules, taken)
        if final.action is AdvisedAction.COPY and final.target is not None:
            taken.add(final.target)
            copied.add(name)
        found.append(_advice(final, known))
    return found


def _planned(
    held: HeldPrefix,
    known: dict[Target, Instance],
    prompts: float,
    rules: AdviceRules,
    taken: Iterable[Target],
) -> _Plan:
    holders = [known[target] for target in held.holders if target in known]
    if not holders:
        return _Plan(held, AdviceReason.NOBODY_HOLDS_IT)
    copy = _copied(held, holders, known, prompts, rules, frozenset(taken))
    if copy.action is AdvisedAction.COPY:
        return copy
    pin = _pinned(held, min(holders, key=lambda one: (one.load, one.target)), rules)
    return pin or copy


def _copied(
    held: HeldPrefix,
    holders: Sequence[Instance],
    known: dict[Target, Instance],
    prompts: float,
    rules: AdviceRules,
    taken: frozenset[Target],
) -> _Plan:
    mean = math.fsum(one.load for one in known.values()) / len(known)
    if not _is_overloaded(held, holders, mean, len(known), prompts, rules):
        return _Plan(held, AdviceReason.NO_OVERLOAD)
    tokens = held.prefix.tokens
    targets = [
        one
        for one in known.values()
        if one.is_target
        and one.target not in held.holders
        and one.target not in taken
        and one.load < mean
        and (one.capacity is None or one.capacity >= tokens)
    ]
    if not targets:
        return _Plan(held, AdviceReason.NO_TARGET)
    moved = held.prefix.rate * rules.window_s / (len(holders) + 1)
    worth = []
    for one in targets:
        evicted = max(tokens - one.free, 0)
        cost = one.costs.fetch_s(tokens) + evicted * one.reuse / one.costs.prefill_tokens_per_s
        worth.append((moved * _computed_s(one.costs, tokens), cost, one))
    gain, cost, best = max(worth, key=lambda found: (found[0] - found[1], -found[2].load))
    if gain <= rules.gain_ratio * cost:
        return _Plan(held, AdviceReason.NOT_WORTH_IT, gain_s=gain, cost_s=cost)
    return _Plan(held, AdviceReason.OVERLOAD, AdvisedAction.COPY, best.target, gain, cost)


def _is_overloaded(
    held: HeldPrefix,
    holders: Sequence[Instance],
    mean: float,
    instances: int,
    prompts: float,
    rules: AdviceRules,
) -> bool:
    of_holders = math.fsum(one.load for one in holders) / len(holders)
    if of_holders > 0.0 and of_holders >= rules.load_ratio * mean:
        return True
    rest = prompts - held.prefix.rate
    return held.prefix.rate * (instances - len(holders)) > rest * len(holders)


def _pinned(held: HeldPrefix, holder: Instance, rules: AdviceRules) -> _Plan | None:
    prefix = held.prefix
    if prefix.checked < rules.checked_min:
        return None
    lost = 1.0 - prefix.confirmed / prefix.checked
    gain = prefix.rate * rules.window_s * lost * _computed_s(holder.costs, prefix.tokens)
    cost = prefix.tokens * holder.reuse / holder.costs.prefill_tokens_per_s
    if gain <= rules.gain_ratio * cost:
        return None
    return _Plan(held, AdviceReason.DROPPED, AdvisedAction.PIN, holder.target, gain, cost)


def _computed_s(costs: Costs, tokens: int) -> float:
    """Seconds that a hit of so many tokens saves."""
    return costs.prefill_s(tokens, 0) - costs.fixed_s


def _is_related(prefix: int, others: set[int], parents: dict[int, int]) -> bool:
    """Whether one of the others is a prefix of it, or the other way round."""
    if not others.isdisjoint(_chain(prefix, parents)):
        return True
    return any(prefix in _chain(one, parents) for one in others)


def _chain(prefix: int, parents: dict[int, int]) -> set[int]:
    """The prefix and all hot ones that it begins with."""
    found: set[int] = set()
    while prefix and prefix not in found:
        found.add(prefix)
        prefix = parents.get(prefix, 0)
    return found


def _advice(plan: _Plan, known: dict[Target, Instance]) -> Advice:
    holders = tuple(sorted(plan.held.holders))
    command = ""
    sources: tuple[Target, ...] = ()
    if plan.target is not None:
        found = [known[one] for one in holders if one in known]
        ranked = sorted(found, key=lambda one: (one.load, one.target))
        sources = tuple(one.target for one in ranked)
        command = _command(plan.action, plan.held.prefix, sources[0], plan.target)
    return Advice(
        plan.held.prefix,
        holders,
        () if plan.target is None else (plan.target,),
        plan.gain_s,
        plan.cost_s,
        plan.action,
        plan.why,
        command,
        sources,
    )


def _command(action: AdvisedAction, prefix: HotPrefix, source: Target, target: Target) -> str:
    """As it is sent to a service that gives commands to LMCache's workers."""
    body: dict[str, Any] = {"prefix_hash": str(prefix.prefix)}
    if action is AdvisedAction.COPY:
        body["old_position"] = [source.instance_id, LOCATION]
        body["new_position"] = [target.instance_id, LOCATION]
        body["should_copy"] = True
        path = "/move"
    else:
        body["instance_id"], body["location"] = target.instance_id, LOCATION
        path = "/pin"
    return f"POST {path} {msgspec.json.encode(body).decode()}"
