"""The trace that a call is part of, by its metadata, and what the span of a query says."""

from collections.abc import Iterable

from query_api.traces import MODEL, POSITION, TENANT, read_context
from schemas.tracing import NO_SPAN, Attribute, Span, SpanName, Tracer

Metadata = Iterable[tuple[str, str | bytes]]
"""Of a call: names in small letters."""


def parent_of(metadata: Metadata) -> str:
    """See `query_api.traces.read_context`."""
    pairs = ((name, one if isinstance(one, bytes) else one.encode()) for name, one in metadata)
    return read_context(pairs, "traceparent", "tracestate")


def begin_query(tracer: Tracer, service: str, method: str, parent: str) -> Span:
    """The span of one query; unrecorded without a parent, as of those by HTTP.

    Args:
        service: as its protocol names it.
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
