"""Spans of OpenTelemetry behind `schemas.tracing`."""

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Final, Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    TraceFlags,
    TraceState,
)

from query_api.http.health import package_version
from reprise.tracing.tracing_settings import RESOURCE, SERVICE_NAME
from schemas.limits import SPAN_LINKS_MAX
from schemas.tracing import (
    NO_SPAN,
    Attributes,
    SpanName,
    format_traceparent,
    join_context,
    parse_traceparent,
    read_tracestate,
    split_context,
)
from schemas.tracing import Span as SpanInterface
from schemas.tracing import SpanContext as Parsed

# A collector that is slow or away costs spans, and nothing else: reprise_spans_dropped_total by
# reason.
SPAN_TEXT_CHARS_MAX: Final = 256  # of a text in a span; the rest is cut off
SPAN_ALONE_S: Final = 0.1  # between two spans of a name, of batches that belong to no trace

_NAME: Final = "reprise"
_KINDS: Final = {
    SpanName.QUERY: SpanKind.SERVER,
    SpanName.ROUTE: SpanKind.SERVER,
    SpanName.FEEDBACK: SpanKind.SERVER,
    SpanName.APPEND: SpanKind.PRODUCER,
    SpanName.FOLD: SpanKind.CONSUMER,
    SpanName.COMMAND: SpanKind.PRODUCER,
    SpanName.EXECUTE: SpanKind.CONSUMER,
}
_NEVER: Final = float("-inf")


class OtelTracer:
    """See `schemas.tracing.Tracer`.

    Whether a span is recorded its parent says; of a trace that begins here OTEL_TRACES_SAMPLER,
    which records all by default.
    """

    is_on = True

    def __init__(self, processor: SpanProcessor, environment: Mapping[str, str], role: str) -> None:
        """Args:
        processor: takes the spans that have ended.
        """
        provider = TracerProvider(
            resource=_resource(environment, role),
            span_limits=SpanLimits(
                max_links=SPAN_LINKS_MAX, max_span_attribute_length=SPAN_TEXT_CHARS_MAX
            ),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer(_NAME, package_version())
        self._alone_at: dict[SpanName, float] = {}

    def begin(self, name: SpanName, context: str = "", links: Iterable[str] = ()) -> SpanInterface:
        """See `Tracer`. Some 30 us where it is recorded."""
        parent = _parsed(context) if context else None
        span = self._tracer.start_span(
            name,
            _context_of(parent),
            kind=_KINDS[name],
            links=list(map(Link, _contexts(links))),
        )
        return _Span(span, "" if parent is None else context)

    def begin_alone(self, name: SpanName) -> SpanInterface:
        """See `Tracer`."""
        return self.begin(name) if self._may_be_alone(name) else NO_SPAN

    def batch(
        self, name: SpanName, began_ns: int, contexts: Iterable[str], attributes: Attributes
    ) -> str:
        """See `Tracer`. Cost O(contexts)."""
        sampled = [one for one in _contexts(contexts) if one.trace_flags.sampled]
        if not sampled and not self._may_be_alone(name):
            return ""
        span = self._tracer.start_span(
            name,
            _context_of(sampled[0] if sampled else None),
            kind=_KINDS[name],
            attributes=attributes,
            links=list(map(Link, sampled)),
            start_time=began_ns,
        )
        span.end(time.time_ns())
        return _text_of(span) if span.get_span_context().trace_flags.sampled else ""

    def _may_be_alone(self, name: SpanName) -> bool:
        """Whether a batch that belongs to no trace may begin one now: engines send so many."""
        now = time.monotonic()
        if now < self._alone_at.get(name, _NEVER) + SPAN_ALONE_S:
            return False
        self._alone_at[name] = now
        return True


class _Span:
    """See `schemas.tracing.Span`."""

    __slots__ = ("_span", "context", "is_recorded")

    def __init__(self, span: trace.Span, parent: str) -> None:
        self._span = span
        self.is_recorded = span.is_recording()
        self.context = _text_of(span) if self.is_recorded else parent

    def rename(self, name: SpanName) -> None:
        """See `Span`."""
        self._span.update_name(name)

    def note(self, attributes: Attributes) -> None:
        """See `Span`."""
        self._span.set_attributes(attributes)

    def link(self, context: str) -> None:
        """See `Span`."""
        for one in _contexts((context,)):
            self._span.add_link(one)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace_: TracebackType | None,
    ) -> None:
        if kind is not None:
            # Its text may quote what a client sent.
            self._span.set_attribute("error.type", kind.__name__)
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()


def _contexts(texts: Iterable[str]) -> list[SpanContext]:
    """Those that are contexts, each once, at most SPAN_LINKS_MAX."""
    found: dict[tuple[int, int, int], SpanContext] = {}
    for one in dict.fromkeys(texts):
        parsed = _parsed(one)
        if parsed is not None:
            found.setdefault((parsed.trace_id, parsed.span_id, parsed.trace_flags), parsed)
            if len(found) >= SPAN_LINKS_MAX:
                break
    return list(found.values())


def _parsed(text: str) -> SpanContext | None:
    traceparent, tracestate = split_context(text)
    parsed = parse_traceparent(traceparent)
    if parsed is None:
        return None
    trace_id, span_id, flags = parsed
    # Checked anew: a record may say anything.
    state = read_tracestate((tracestate,)) if tracestate else ""
    return SpanContext(
        trace_id,
        span_id,
        is_remote=True,
        trace_flags=TraceFlags(flags),
        trace_state=TraceState.from_header([state]) if state else None,
    )


def _context_of(parent: SpanContext | None) -> Context:
    """What a span begins in. Never the surrounding one: threads and tasks share no spans here."""
    context = Context()
    if parent is None:
        return context
    return trace.set_span_in_context(NonRecordingSpan(parent), context)


def _text_of(span: trace.Span) -> str:
    context = span.get_span_context()
    parsed = Parsed((context.trace_id, context.span_id, context.trace_flags))
    return join_context(format_traceparent(parsed), context.trace_state.to_header())


def _resource(environment: Mapping[str, str], role: str) -> Resource:
    """What sends them; what the environment says of it wins."""
    named = dict(
        entry.partition("=")[::2] for entry in environment.get(RESOURCE, "").split(",") if entry
    )
    own = {
        "service.name": "reprise",
        "service.version": package_version(),
        "reprise.role": role,
    }
    if environment.get(SERVICE_NAME, "").strip():
        del own["service.name"]
    return Resource.create({name: text for name, text in own.items() if name not in named})
