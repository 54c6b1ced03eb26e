"""The trace that a request is part of, and what the span of a query says, by HTTP or gRPC."""

from collections.abc import Iterable
from typing import Final, TypeVar

from schemas.identities import PrefixScope
from schemas.tracing import Attribute, join_context, read_traceparent, read_tracestate

NameT = TypeVar("NameT", str, bytes)

# Where OpenTelemetry's conventions of generative AI have a name, that is taken.
MODEL: Final = "gen_ai.request.model"
PROMPT_TOKENS: Final = "gen_ai.usage.input_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
TENANT: Final = "reprise.tenant"
POSITION: Final = "reprise.index.position"
STATE: Final = "reprise.index.state"
MATCHED: Final = "reprise.matched_tokens"


def read_context(
    pairs: Iterable[tuple[NameT, bytes]], parent_name: NameT, state_name: NameT
) -> str:
    """The context that a request names (`schemas.tracing`); "" where it has no `traceparent`, or
    one that is wrong, or several: the request is answered as if it had none. Cost O(pairs).

    Args:
        pairs: names and values, as HTTP or gRPC has them, in their order.
        parent_name: what `traceparent` is called there.
        state_name: what `tracestate` is called there.
    """
    parents, states = [], []
    for name, value in pairs:
        if name == parent_name:
            parents.append(value)
        elif name == state_name:
            states.append(value.decode("latin-1"))
    if len(parents) != 1:
        return ""
    tracestate = read_tracestate(states) if states else ""
    return join_context(read_traceparent(parents[0].decode("latin-1")), tracestate)


def query_attributes(
    scope: PrefixScope, tokens: int, hit_tokens: int, position: str, state: str
) -> dict[str, Attribute]:
    """What the span of a query says."""
    return {
        MODEL: scope.model_name,
        TENANT: scope.tenant_id,
        PROMPT_TOKENS: tokens,
        MATCHED: hit_tokens,
        POSITION: position,
        STATE: state,
    }
