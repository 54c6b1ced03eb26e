"""The trace that a call is part of, by its metadata, and what the span of a query says."""

from collections.abc import Iterable
from typing import Final

from query_api.http.traces import MODEL, POSITION, TENANT, only_parent
from schemas.tracing import NO_SPAN, Attribute, Span, SpanName, Tracer

_HEADER: Final = "traceparent"

Metadata = Iterable[tuple[str, str | bytes]]
"""Of a call: names in small letters."""


def parent_of(metadata: Metadata) -> str:
    """As `query_api.http.traces.traceparent_of`, of a call. Cost O(metadata)."""
    found = [value for name, value in metadata if name == _HEADER]
    return only_parent([one if isinstance(one, bytes) else one.encode() for one in found])


def begin_query(tracer: Tracer, service: str, method: str, parent: str) -> Span:
    """The span of one query; unrecorded without a parent, as of those by HTTP.

    Args:
        tracer: of the service.
        service: as its protocol names it.
        method: of that.
        parent: of the call.
    """
    if not parent:
        return NO_SPAN
    span = tracer.begin(SpanName.QUERY, parent)
    if span.is_recorded:
        span.note({"rpc.system": "grpc", "rpc.service": service, "rpc.method": method})
    return span


def hashes_attributes(
    model_name: str | None, tenant_id: str, blocks: int, hit_blocks: int, position: str
) -> dict[str, Attribute]:
    """What the span of a query by engines' own hashes says: of those no block has a size, and no
    scope a state.
    """
    attributes: dict[str, Attribute] = {
        TENANT: tenant_id,
        "reprise.blocks": blocks,
        "reprise.matched_blocks": hit_blocks,
        POSITION: position,
    }
    if model_name:
        attributes[MODEL] = model_name
    return attributes
