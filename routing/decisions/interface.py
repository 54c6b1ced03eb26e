"""What is asked of a router, and what it answers."""

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from routing.decisions.fetch_hint import KvHints
from routing.policies.chunk_plan import ChunkPlan
from schemas.identities import PrefixScope, Rank, Text
from schemas.positions import Seconds
from schemas.routing_records import Count, Decision, Fraction, Phase, TokenCount
from streams.kernel.interface import InstanceMatch


class PostedLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an instance carries, as a client says; see `schemas.routing_records.LoadSample`.

    Attributes:
        observed_at: Unix seconds; None for now.
    """

    running: Count | None = None
    waiting: Count | None = None
    prefill_tokens: TokenCount | None = None
    kv_usage: Fraction | None = None
    kv_capacity_tokens: TokenCount | None = None
    observed_at: Seconds | None = None


class OfferedCandidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate that a request names.

    Attributes:
        dp_rank: None for all ranks of the instance.
        role, endpoint, labels: in place of those that were registered.
        load: what it carries, by the client's word.
    """

    instance_id: Annotated[str, Meta(min_length=1)]
    dp_rank: Rank | None = None
    role: Text | None = None
    endpoint: Text | None = None
    labels: dict[Text, Text] | None = None
    load: PostedLoad | None = None


class RouteRequest(NamedTuple):
    """A request to be routed.

    Attributes:
        request_id: of the client, "" for none.
        matches: what each instance holds of it.
        prefixes: prefix hashes of its blocks, u64 LE, as many as the decision is to have.
        expected_output_tokens: None for what the model's requests usually have.
        candidates: None for all instances of the model.
        ttft_slo_s, tbt_slo_s: objectives, 0 for none.
        policy: by name and parameters, "" for the usual one.
        reserve: whether it is to be kept to.
        explain: whether all candidates are to be in the answer.
        is_placed: whether it was sent there already: however much there is to do, it is booked.
        tokens: of the prompt, u32 LE; none where it came by hashes, or where those are salted.
        context: of the span that it is part of, "" for none: `schemas.tracing`.
        asked_by: what the id of a request begins with that its client has given none.
    """

    request_id: str
    scope: PrefixScope
    prompt_tokens: int
    matches: list[InstanceMatch]
    prefixes: bytes = b""
    expected_output_tokens: int | None = None
    phase: Phase = Phase.COMBINED
    candidates: tuple[OfferedCandidate, ...] | None = None
    ttft_slo_s: float = 0.0
    tbt_slo_s: float = 0.0
    priority: int = 0
    session_id: str = ""
    policy: str = ""
    reserve: bool = True
    explain: bool = False
    is_placed: bool = False
    tokens: bytes = b""
    context: str = ""
    asked_by: str = ""


class RoutedDecision(NamedTuple):
    """A decision, and what an answer says beside it.

    Attributes:
        run: of the service that decided.
        load_age_s: since the load of the chosen one was observed; None where nobody said it.
        endpoints: of the candidates, in their order.
        plan: how several instances would compute a very long prompt; None for nearly all.
        hint: what the chosen one is to be told, where it is to fetch.
    """

    run: int
    decision: Decision
    retry_after_s: float
    load_age_s: float | None
    endpoints: tuple[str, ...]
    plan: ChunkPlan | None = None
    hint: KvHints | None = None
