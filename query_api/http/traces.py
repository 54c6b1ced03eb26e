"""The trace that a request is part of, by its headers."""

from typing import Final

from query_api.http.wire import Headers
from query_api.traces import read_context

_TRACEPARENT: Final = b"traceparent"
_TRACESTATE: Final = b"tracestate"


def context_of(headers: Headers) -> str:
    """The context that a request names (`schemas.tracing`); "" where it has no `traceparent`, or
    one that is wrong, or several: the request is answered as if it had none. Cost O(headers).
    """
    return read_context(headers, _TRACEPARENT, _TRACESTATE)
