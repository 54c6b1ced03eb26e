"""What one run is, but for its workload."""

import math
import re
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from routing.costs import Coefficient, Costs
from schemas.errors import ConfigurationError
from schemas.limits import APPROXIMATE_S, WHATIF_NODES_MAX

UNBOUNDED: Final = None
"""Capacity of a cache that never evicts."""

Capacity = Annotated[int, msgspec.Meta(ge=0)] | None
"""In blocks."""

_CAPACITY: Final = re.compile(
    r"(?P<number>(\d{1,3}(,\d{3})+|[\d_]+)(\.\d+)?)(?P<scale>[kKmMgG]?)(?P<blocks>blocks?)?"
)
_BYTES: Final = re.compile(r"[\d.,]+ ?[kKmMgGtT]i?[bB]")
_CAPACITY_MAX: Final = 10**12
"""Tokens or blocks of one cache: more than any machine has, and far from what an integer holds."""

_SCALES: Final = {"": 1, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000}


class Announcement(StrEnum):
    """When a node tells what a request has changed in its caches."""

    ARRIVAL = "arrival"
    """At once, as if it could be computed in no time: the next request may use it."""
    FINISH = "finish"
    """When the request has been computed, as engines do."""


class Leases(msgspec.Struct, frozen=True, kw_only=True):
    """How Mooncake's store evicts.

    Reading a block gives it a lease, within which it is not evicted; the lease never removes it.
    Beyond the watermark a share of the blocks goes, those whose leases ended first. Soft pins are
    evicted only where nothing else can be.

    Attributes:
        lease_s: how long a read protects a block; writing one gives no lease.
        soft_pin_blocks: so many blocks at the head of each prompt are softly pinned; 0 for none.
        soft_pin_s: how long, from the last time the block was written or read.
        watermark: of the capacity; eviction starts above it.
        share: of the blocks, which one eviction removes.
    """

    lease_s: Annotated[float, msgspec.Meta(ge=0)] = 10.0
    soft_pin_blocks: Annotated[int, msgspec.Meta(ge=0)] = 0
    soft_pin_s: Annotated[float, msgspec.Meta(ge=0)] = 1800.0
    watermark: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.05


class RouterKnowledge(StrEnum):
    """What the router knows of the nodes' caches."""

    EVENTS = "events"
    """What they publish."""
    DECISIONS = "decisions"
    """What it has sent there, for a time: they publish no events."""
    CAPACITY = "capacity"
    """The same, as long as a node's capacity, which it knows, has room for it."""
    NOTHING = "nothing"


class RefusalBasis(StrEnum):
    """What a request is refused by, where there is an objective."""

    NONE = "none"
    """Nothing: it is only told how many met it."""
    NOW = "now"
    """By its first token at arrival; by its next ones when its prompt has been computed."""
    EARLY = "early"
    """By both at arrival, decoding as it is then."""
    PREDICT = "predict"
    """By both at arrival, decoding as it will be when the prompt has been computed."""


class DecodeCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What decoding takes: `fixed_s + request_s * requests + token_s * tokens` between two tokens.

    Attributes:
        fixed_s: of each step.
        request_s: for each request of the batch.
        token_s: for each token that they hold.
        layers: of the model; caches are sent layer by layer. 0: when the prompt is computed.
    """

    fixed_s: Coefficient = 0.0
    request_s: Coefficient = 0.0002
    token_s: Coefficient = 15e-9
    layers: Annotated[int, msgspec.Meta(ge=0)] = 80


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        policy: one of `lab.whatif.policies.table`, with its parameters.
        nodes: how many there are; each computes one prompt after the other.
        gpu_blocks: capacity of each node's GPU; 0 for nodes that keep nothing.
        cpu_blocks: of each node's CPU tier, which takes what the GPU evicts; 0 for none.
        pool_blocks: of one pool that all nodes read and write; 0 for none.
        leases: how the slowest tier that there is evicts (the pool, else the CPU, else the GPU);
            None: the least recently used block goes, as in all other tiers.
        costs: what takes how long.
        index_delay_s: from a node's announcement until the router's index has it.
        index_loss: share of the batches of events that never come; the index is told of the gap.
        announce: when nodes publish.
        index: what the router knows of the nodes' caches.
        decisions_s: for so long a node is taken to hold what it was given, with `decisions`.
        sessions: whether it prefers the node of a session's last request, as the service does.
        rate: how many times as fast as in the trace requests arrive.
        slo_ttft_s: a request that nobody can begin to answer within this is refused; None: never.
        refusal: what of that is done.
        load_age_s: the router is told the loads at multiples of this; 0: it knows them.
        bookings: whether it adds what it has given since.
        estimate_error: sigma of the logarithm of its estimates of waits and of computing over what
            they are.
        decoders: instances that decode, apart from the nodes; 0: nothing is decoded.
        decode_costs: what takes how long there.
        slo_tbt_s: objective for the time between two tokens; None: none.
        act_s: how often advice is looked at and carried out; 0: never.
        decode_load: share of that objective, above which requests are refused for it.
        seed: of the prefix hash, of what is lost, of errors, and of ties.
    """

    policy: str = "weighted"
    nodes: Annotated[int, msgspec.Meta(ge=1, le=WHATIF_NODES_MAX)] = 10
    gpu_blocks: Capacity = 5859
    cpu_blocks: Capacity = 0
    pool_blocks: Capacity = 0
    leases: Leases | None = None
    costs: Costs = Costs()
    index_delay_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    index_loss: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    announce: Announcement = Announcement.ARRIVAL
    index: RouterKnowledge = RouterKnowledge.EVENTS
    decisions_s: Annotated[float, msgspec.Meta(gt=0)] = APPROXIMATE_S
    sessions: bool = False
    rate: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    slo_ttft_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    refusal: RefusalBasis = RefusalBasis.NOW
    load_age_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    bookings: bool = True
    estimate_error: Annotated[float, msgspec.Meta(ge=0, le=5)] = 0.0
    decoders: Annotated[int, msgspec.Meta(ge=0, le=WHATIF_NODES_MAX)] = 0
    decode_costs: DecodeCosts = DecodeCosts()
    slo_tbt_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    decode_load: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0)] = 1337
    act_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


def parse_capacity(text: str, block_size: int) -> int | None:
    """Blocks of a capacity: tokens as `3M` or `3000000`, or blocks as `5859blocks`; `unbounded`.

    Raises:
        ConfigurationError: it is none of these.
    """
    if text == "unbounded":
        return UNBOUNDED
    match = _CAPACITY.fullmatch(text.strip())
    digits = match["number"].replace("_", "").replace(",", "") if match is not None else ""
    if match is None or not digits:
        raise ConfigurationError(
            "Expected a capacity in tokens as `3M` (suffixes k, M, G), in blocks as `5859blocks`,"
            f" or `unbounded`, got: {text}{_remedy(text)}"
        )
    number = float(digits) * _SCALES[match["scale"].upper()]
    if number > _CAPACITY_MAX:
        raise ConfigurationError(
            f"Expected a capacity of at most {_CAPACITY_MAX // 10**9:,}G tokens or blocks, or"
            f" `unbounded`, got: {text}"
        )
    return math.floor(number if match["blocks"] else number / block_size)


def _remedy(text: str) -> str:
    if _BYTES.fullmatch(text.strip()):
        return (
            "; a token takes 2 x layers x kv_heads x head_dim x bytes of an element: 320 KiB of"
            " Llama 3 70B at 16 bit, so that 1 GiB has 3,276 tokens (docs/offline.md)"
        )
    return "; give the option once for each capacity" if "," in text else ""
