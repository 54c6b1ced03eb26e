"""The trace that a request is part of, by its headers, and what its span says of it."""

from typing import Final

from query_api.http.wire import Headers
from query_api.routing.interface import Routed
from schemas.identities import PrefixScope
from schemas.routing_records import decision_id
from schemas.tracing import Attribute, read_traceparent

_HEADER: Final = b"traceparent"

# Where OpenTelemetry's conventions of generative AI have a name, that is taken.
_MODEL: Final = "gen_ai.request.model"
_PROMPT_TOKENS: Final = "gen_ai.usage.input_tokens"
_CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
_TENANT: Final = "reprise.tenant"
_POSITION: Final = "reprise.index.position"
_STATE: Final = "reprise.index.state"
_MATCHED: Final = "reprise.matched_tokens"


def traceparent_of(headers: Headers) -> str:
    """The `traceparent` of a request, as version 00 has it; "" where it has none, or one that is
    wrong, or several: the request is answered as if it had none. Cost O(headers).
    """
    found = b""
    for name, value in headers:
        if name == _HEADER:
            if found:
                return ""
            found = value or b"-"
    return read_traceparent(found.decode("latin-1"))


def query_attributes(
    scope: PrefixScope, tokens: int, hit_tokens: int, position: str, state: str
) -> dict[str, Attribute]:
    """What the span of a query says."""
    return {
        _MODEL: scope.model_name,
        _TENANT: scope.tenant_id,
        _PROMPT_TOKENS: tokens,
        _MATCHED: hit_tokens,
        _POSITION: position,
        _STATE: state,
    }


def route_attributes(routed: Routed) -> dict[str, Attribute]:
    """What the span of a decision says. Cost O(partitions)."""
    decision = routed.decision
    attributes: dict[str, Attribute] = {
        _MODEL: decision.scope.model_name,
        _TENANT: decision.scope.tenant_id,
        _PROMPT_TOKENS: decision.prompt_tokens,
        _MATCHED: decision.held,
        _POSITION: decision.position,
        _STATE: decision.state,
        "reprise.decision_id": decision_id(routed.run, decision.number),
        "reprise.policy": decision.policy,
        "reprise.candidates": len(decision.candidates),
    }
    if decision.chosen >= 0:
        one = decision.candidates[decision.chosen]
        attributes[_CACHED_TOKENS] = one.prefix
        attributes["reprise.instance"] = one.instance_id
        attributes["reprise.dp_rank"] = one.dp_rank
    if decision.decode >= 0:
        attributes["reprise.decode.instance"] = decision.candidates[decision.decode].instance_id
    if routed.load_age_s is not None:
        attributes["reprise.load.age_s"] = routed.load_age_s
    if decision.refused:
        attributes["reprise.refused"] = decision.refused.value
    return attributes
