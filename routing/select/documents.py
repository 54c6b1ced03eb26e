"""What Dynamo's select service answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from routing.decisions.interface import RoutedDecision
from routing.decisions.live_load import NOTHING, TargetLoad
from routing.select.workers import Partition
from schemas.routing_records import Decision, Target
from streams.kernel.interface import InstanceMatch


class OverlapDocument(msgspec.Struct, frozen=True):
    """What the worker holds of the prompt, in tokens: `gpu`, `cpu`, `disk` rising, each of its best
    rank; `dp` on the GPU of each rank.
    """

    longest_matched: int
    gpu: int
    dp: dict[str, int]
    cpu: int
    disk: int


class SelectionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Who gets the request. `effective_prefill_tokens` are those that it has to compute."""

    selection_id: str | msgspec.UnsetType = msgspec.UNSET
    model_name: str
    routing_group: str
    worker_id: int
    dp_rank: int
    endpoint: str
    block_size: int
    overlap: OverlapDocument
    effective_prefill_tokens: int
    potential_decode_blocks: int


class ReservationDocument(msgspec.Struct, frozen=True):
    """What was booked where."""

    selection_id: str
    model_name: str
    routing_group: str
    worker_id: int
    dp_rank: int
    endpoint: str


class LoadRow(msgspec.Struct, frozen=True):
    """A rank of a worker: tokens to compute, and blocks of its GPU that requests hold or will."""

    worker_id: int
    dp_rank: int
    potential_prefill_tokens: int
    potential_decode_blocks: int
    active_requests: int


class ModelLoads(msgspec.Struct, frozen=True):
    """All ranks of a model and routing group. Nothing waits here: there is no queue."""

    model_name: str
    routing_group: str
    loads: list[LoadRow]
    pending_count: int = 0
    pending_isl_tokens: int = 0


class OverlapRow(msgspec.Struct, frozen=True):
    """What a rank holds of a prompt, in blocks."""

    worker_id: int
    dp_rank: int
    device_blocks: int
    host_pinned_blocks: int
    disk_blocks: int
    host_pinned_extension_blocks: int
    disk_extension_blocks: int
    shared_beyond_device_blocks: int | None
    router_credit_blocks: float


class OverlapsDocument(msgspec.Struct, frozen=True):
    """What each rank holds of a prompt; pools that all share are part of it."""

    block_size: int
    num_blocks: int
    workers: list[OverlapRow]
    shared_cache: dict[str, Any]


Walks = Mapping[tuple[str, int], tuple[int, int, int]]
"""Of instance and rank: tokens on the GPU, then also the CPU, then also on disk."""


def walks_of(matches: Sequence[InstanceMatch]) -> Walks:
    """What each rank holds."""
    return {
        (match.instance_id, one.dp_rank): (one.gpu_walk, one.cpu_walk, one.disk_walk)
        for match in matches
        for one in match.ranks
    }


def selection_document(
    routed: RoutedDecision,
    partition: Partition,
    matches: Sequence[InstanceMatch],
    carried: Mapping[Target, TargetLoad],
    *,
    selection_id: str,
) -> SelectionDocument:
    """Of a decision that somebody was chosen by."""
    decision = routed.decision
    one = decision.candidates[decision.chosen]
    walks = walks_of(matches)
    ranks = {
        rank: walks.get((name, rank), (0, 0, 0))
        for name, rank in partition.names
        if name == one.instance_id
    }
    # As the decision took it: with what only decisions say that it holds.
    gpu, cpu, disk = ranks[one.dp_rank]
    ranks[one.dp_rank] = (max(gpu, one.gpu), max(cpu, one.cpu), max(disk, one.disk))
    gpu, cpu, disk = (max(walk[place] for walk in ranks.values()) for place in range(3))
    overlap = OverlapDocument(
        disk, gpu, {str(rank): walk[0] for rank, walk in ranks.items()}, cpu, disk
    )
    booked = carried.get(decision.target(decision.chosen), NOTHING).kv_tokens
    return SelectionDocument(
        selection_id=selection_id or msgspec.UNSET,
        model_name=partition.model_name,
        routing_group=partition.routing_group,
        worker_id=int(one.instance_id),
        dp_rank=one.dp_rank,
        endpoint=routed.endpoints[decision.chosen],
        block_size=partition.block_size,
        overlap=overlap,
        effective_prefill_tokens=decision.prompt_tokens - one.prefix,
        potential_decode_blocks=-(-(booked + decision.prompt_tokens) // partition.block_size),
    )


def reservation_document(routed: RoutedDecision, partition: Partition) -> ReservationDocument:
    """Of a decision that somebody was chosen by."""
    decision = routed.decision
    one = decision.candidates[decision.chosen]
    return ReservationDocument(
        decision.request_id,
        partition.model_name,
        partition.routing_group,
        int(one.instance_id),
        one.dp_rank,
        routed.endpoints[decision.chosen],
    )


def load_rows(
    partition: Partition, carried: Mapping[Target, TargetLoad], decision: Decision | None = None
) -> list[LoadRow]:
    """What each rank carries, and would with the prompt of the decision, if there is one."""
    prompt, uncached = 0, {}
    if decision is not None:
        prompt = decision.prompt_tokens
        uncached = {
            (one.instance_id, one.dp_rank): prompt - min(one.cached, prompt)
            for one in decision.candidates
        }
    rows = []
    for name, rank in partition.names:
        load = carried.get(Target(partition.routing_group, name, rank), NOTHING)
        rows.append(
            LoadRow(
                int(name),
                rank,
                load.pending + uncached.get((name, rank), 0),
                -(-(load.kv_tokens + prompt) // partition.block_size),
                load.requests,
            )
        )
    return rows


def overlaps_document(
    partition: Partition, matches: Sequence[InstanceMatch], blocks: int
) -> OverlapsDocument:
    """What each rank holds of a prompt of so many blocks."""
    walks, rows = walks_of(matches), []
    for name, rank in partition.names:
        gpu, cpu, disk = (
            tokens // partition.block_size for tokens in walks.get((name, rank), (0, 0, 0))
        )
        rows.append(
            OverlapRow(int(name), rank, gpu, cpu, disk, cpu - gpu, disk - cpu, None, float(disk))
        )
    shared = {"enabled": False, "total_hit_blocks": 0, "ranges": [], "error": None}
    return OverlapsDocument(partition.block_size, blocks, rows, shared)
