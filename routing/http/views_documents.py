"""The answers of `GET /promises`, `GET /prefixes` and `GET /advice`, of what is folded. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from routing.advice.acting import Act, SuppressionReason
from routing.advice.advice import Advice, AdvisedAction
from routing.decisions.wanted_tokens import PrefixKey
from routing.http.models import (
    ActDocument,
    AdviceDocument,
    AdvicesDocument,
    AdviceTarget,
    BucketDocument,
    FirstTokens,
    LostToIndex,
    LostTokens,
    LostToRouting,
    LostToWorkload,
    PrefixDocument,
    PrefixesDocument,
    PrefixHolder,
    PrefixScopeDocument,
    PromisedTokens,
    PromiseRow,
    PromisesDocument,
)
from routing.observed.hot_prefixes import HotPrefix, HotScope
from routing.observed.observations import Observations
from routing.observed.promise_totals import (
    RATIO_BOUNDS,
    SHARE_BOUNDS,
    GroupBy,
    Totals,
    grouped,
)
from schemas.routing_records import DecidedScope, Target

ACTS_SHOWN_MAX: Final = 256  # of the last ones, in an answer

HoldersOf = Callable[[DecidedScope, int], Sequence[PrefixHolder]]
"""Who holds all of a prefix, by its hash, as a table says; sorted."""


def promises_document(
    observations: Observations,
    by: GroupBy,
    since: float = 0.0,
    admits: Callable[[str], bool] = lambda tenant_id: True,
) -> PromisesDocument:
    """The answer of `GET /promises`. Cost O(rows).

    Args:
        observations: what the routing log shows.
        by: what a row is of.
        since: Unix seconds; the minute in which it lies is the first one.
        admits: whether rows of a tenant are shown.
    """
    totals = observations.totals
    rows = grouped(totals.rows(since), by)
    return PromisesDocument(
        by=by.value,
        since=since,
        open=len(observations.open),
        forgotten=totals.forgotten,
        crowded_out=totals.crowded_out,
        rows=[_promise_row(tenant, name, row) for (tenant, name), row in rows if admits(tenant)],
    )


def _promise_row(tenant_id: str, name: str, row: Totals) -> PromiseRow:
    return PromiseRow(
        tenant_id=tenant_id,
        name=name,
        decisions=row.decisions,
        refused=row.refused,
        reported=row.reported,
        unreported=row.unreported,
        moved=row.moved,
        failed=row.failed,
        cancelled=row.cancelled,
        miscounted=row.miscounted,
        tokens=PromisedTokens(
            prompt=row.prompt,
            promised=row.promised,
            predicted=row.predicted,
            actual=row.actual,
            fetched=row.fetched,
            unpromised=row.unpromised,
        ),
        lost=_lost(row),
        over_promises=_buckets(SHARE_BOUNDS, row.over_promises),
        ttft=_first_tokens(row),
    )


def _lost(row: Totals) -> LostTokens:
    def share(tokens: int) -> float:
        return round(tokens / row.prompt, 6) if row.prompt else 0.0

    return LostTokens(
        workload=LostToWorkload(tokens=row.workload, share=share(row.workload)),
        routing=LostToRouting(
            tokens=row.routing, share=share(row.routing), not_fetched=row.not_fetched
        ),
        index=LostToIndex(
            tokens=row.index,
            share=share(row.index),
            stale=row.stale,
            degraded=row.degraded,
            unconfirmed=row.unconfirmed,
            evicted=row.evicted,
            predicted=row.not_predicted,
        ),
    )


def _first_tokens(row: Totals) -> FirstTokens:
    count = row.timed

    def mean_ms(microseconds: int) -> float:
        return round(microseconds / count / 1000, 3) if count else 0.0

    return FirstTokens(
        count=count,
        promised_ms=mean_ms(row.ttft_promised_us),
        actual_ms=mean_ms(row.ttft_actual_us),
        error=round(row.ttft_error_us / row.ttft_actual_us, 6) if row.ttft_actual_us else 0.0,
        within_p90=round(row.in_p90 / count, 6) if count else 0.0,
        ratios=_buckets(RATIO_BOUNDS, row.ttft_ratios),
    )


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[BucketDocument]:
    return [
        BucketDocument(le=bound, count=count)
        for bound, count in zip((*bounds, None), counts, strict=True)
    ]


def prefixes_document(
    scopes: Mapping[DecidedScope, HotScope],
    holders_of: HoldersOf,
    *,
    hot: int,
    depth_tokens: int = 0,
    instance_id: str = "",
    admits: Callable[[str], bool] = lambda tenant_id: True,
) -> PrefixesDocument:
    """The answer of `GET /prefixes`. Cost O(counters), and of `holders_of` for each that is shown,
    or is asked whether the instance has it.

    Args:
        scopes: of `routing.observed.hot_prefixes.view`.
        holders_of: who holds a prefix.
        hot: at most so many of each scope.
        depth_tokens: only prefixes of at least so many tokens.
        instance_id: only prefixes that this instance holds; "" for all.
        admits: whether prefixes of a tenant are shown.
    """
    found = []
    for scope, of_scope in scopes.items():
        if not admits(scope.tenant_id):
            continue
        shown: list[PrefixDocument] = []
        for one in of_scope.prefixes:
            if len(shown) >= hot:
                break
            if one.tokens < depth_tokens:
                continue
            holders = holders_of(scope, one.prefix)
            if not instance_id or any(holder.instance_id == instance_id for holder in holders):
                shown.append(_prefix(one, holders))
        found.append(
            PrefixScopeDocument(
                **scope._asdict(),
                total=round(of_scope.total, 3),
                error_max=round(of_scope.error_max, 3),
                last_asked=of_scope.last_asked,
                prefixes=shown,
            )
        )
    return PrefixesDocument(scopes=found)


def _prefix(one: HotPrefix, holders: Sequence[PrefixHolder]) -> PrefixDocument:
    return PrefixDocument(
        prefix_hash=str(one.prefix),
        parent_hash=str(one.parent) if one.parent else "",
        blocks=one.blocks,
        tokens=one.tokens,
        count=round(one.count, 3),
        error=round(one.error, 3),
        rate=round(one.rate, 6),
        since=one.since,
        last_asked=one.last_asked,
        asked=one.asked,
        hits_promised=one.promised,
        hits_checked=one.checked,
        hits_confirmed=one.confirmed,
        saved_tokens=one.saved,
        missed_tokens=one.missed,
        replicas=len({holder.instance_id for holder in holders}),
        holders=list(holders),
    )


def advice_document(
    advice: Iterable[Advice],
    acts: Sequence[Act] | None = None,
    held_back: Mapping[PrefixKey, SuppressionReason] = MappingProxyType({}),
) -> AdvicesDocument:
    """The answer of `GET /advice`, in the given order.

    Args:
        advice: of all scopes.
        acts: what was done; None where nobody acts.
        held_back: why not, of each prefix that was advised and of which nothing was done.
    """
    return AdvicesDocument(
        advice=[
            _advice(one, held_back.get((one.prefix.scope, one.prefix.prefix))) for one in advice
        ],
        acting=acts is not None,
        acted=[_act(one) for one in (acts or ())[:ACTS_SHOWN_MAX]],
    )


def _act(one: Act) -> ActDocument:
    return ActDocument(
        command_id=one.command_id,
        action=one.action.value,
        prefix_hash=str(one.prefix),
        source=one.source,
        target=one.target,
        at=one.at,
        result=one.result,
        reason=one.reason,
        tokens=one.tokens,
    )


def _advice(one: Advice, held_back: SuppressionReason | None) -> AdviceDocument:
    return AdviceDocument(
        **one.prefix.scope._asdict(),
        prefix_hash=str(one.prefix.prefix),
        depth_tokens=one.prefix.tokens,
        rate=round(one.prefix.rate, 6),
        holders=[_target(target) for target in one.holders],
        targets=[_target(target) for target in one.targets],
        gain_s=round(one.gain_s, 6),
        cost_s=round(one.cost_s, 6),
        action=one.action.value,
        why=one.why.value,
        command=one.command,
        held_back="" if held_back is None or one.action is AdvisedAction.NONE else held_back.value,
    )


def _target(target: Target) -> AdviceTarget:
    return AdviceTarget(instance_id=target.instance_id, dp_rank=target.dp_rank)
