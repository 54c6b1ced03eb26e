"""`GET /ui/heatmap`: which instance had how much of the last prompts, by depth. Pure."""

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from routing.decisions.recent_decisions import RecentDecision

HEATMAP_ROWS_MAX: Final = 1_024  # instances of the heat map; further ones are counted: `left_out`

_FIRST_BITS = 8  # the first bin ends at 256 tokens
_BINS = 14  # and the last one, which has no end, begins at 1 Mi


class HeatmapRow(msgspec.Struct, kw_only=True):
    """One instance."""

    tenant_id: str
    instance_id: str
    shares: Annotated[
        list[float | None],
        Meta(description="Of the tokens in each bin, those it held; null: there were none."),
    ]


class HeatmapDocument(msgspec.Struct, kw_only=True):
    """Of the last decisions for which an instance was a candidate."""

    decisions: Annotated[int, Meta(description="How many were counted.")]
    bins: Annotated[list[int], Meta(description="Where each begins, in tokens of the prompt.")]
    rows: list[HeatmapRow]
    left_out: Annotated[int, Meta(description="Instances beyond those that are listed.")]


def bin_bounds() -> list[int]:
    """Where each bin begins: powers of two."""
    return [0, *(1 << (_FIRST_BITS + place) for place in range(_BINS - 1))]


def heatmap_document(recent: Iterable[RecentDecision]) -> HeatmapDocument:
    """Cost O(candidates x bins)."""
    bounds = bin_bounds()
    edges = [*bounds, 1 << 62]
    counts: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    decisions = 0
    for one in recent:
        decisions += 1
        decision = one.decision
        tenant_id, prompt = decision.scope.tenant_id, decision.prompt_tokens
        best: dict[str, int] = {}
        for candidate in decision.candidates:  # of its ranks the one that holds most
            name = candidate.instance_id
            best[name] = max(best.get(name, 0), candidate.cached)
        for name, cached in best.items():
            asked, held = counts.setdefault((tenant_id, name), ([0] * _BINS, [0] * _BINS))
            for place in range(_BINS):
                low, high = edges[place], edges[place + 1]
                if prompt <= low:
                    break
                asked[place] += min(prompt, high) - low
                held[place] += max(min(cached, prompt, high) - low, 0)
    keys = sorted(counts)
    return HeatmapDocument(
        decisions=decisions,
        bins=bounds,
        rows=[
            HeatmapRow(tenant_id=key[0], instance_id=key[1], shares=_shares(*counts[key]))
            for key in keys[:HEATMAP_ROWS_MAX]
        ],
        left_out=max(len(keys) - HEATMAP_ROWS_MAX, 0),
    )


def _shares(asked: list[int], held: list[int]) -> list[float | None]:
    return [part / whole if whole else None for part, whole in zip(held, asked, strict=True)]
