"""Tracing: what a span costs where it is off, which every service pays, and where it is on.

What is measured is what stands in the path of a request, a report or a batch for tracing alone,
with the objects of a service, in CPU time of its thread; each run is the mean of many calls.
"""

import time
from collections.abc import Callable, Sequence
from time import thread_time
from timeit import timeit
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import Sizes
from query_api.http.traces import context_of
from reprise.tracing.export import SpanQueue
from reprise.tracing.tracer import OtelTracer
from routing.decisions.live_load import LiveLoad
from schemas.tracing import NO_TRACER, SpanName, Tracer, batch_attributes

TRACEPARENT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS: Final = [
    (b"host", b"127.0.0.1:13333"),
    (b"user-agent", b"router"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"),
    (b"content-type", b"application/json"),
    (b"content-length", b"12345"),
]
TRACED: Final = [*HEADERS, (b"traceparent", TRACEPARENT.encode())]
RUNS: Final = 9
OFF_CALLS: Final = 20_000
ON_CALLS: Final = 2_000
_US: Final = 1e6


class _Nowhere(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


def measure(sizes: Sizes) -> list[Figure]:
    figures = _of(NO_TRACER, "off", OFF_CALLS)
    queue = SpanQueue(_Nowhere())
    queue.start()
    figures += _of(OtelTracer(queue, {}, "benchmark"), "on", ON_CALLS)
    queue.shutdown()
    return figures


def _of(tracer: Tracer, state: str, calls: int) -> list[Figure]:
    live = LiveLoad()

    def decide(headers: Sequence[tuple[bytes, bytes]]) -> Callable[[], None]:
        def decided() -> None:
            with tracer.begin(SpanName.ROUTE, context_of(headers)) as span:
                if span.is_recorded:
                    span.note({"gen_ai.request.model": "m", "reprise.candidates": 8})

        return decided

    def report() -> None:
        live.trace_of(1, 1)
        if tracer.is_on:
            with tracer.begin(SpanName.FEEDBACK, TRACEPARENT, [TRACEPARENT]) as span:
                span.note({"reprise.reports.accepted": 1})

    def fold() -> None:
        began_ns = time.time_ns()
        if tracer.is_on:
            tracer.batch(
                SpanName.FOLD, began_ns, [TRACEPARENT], batch_attributes("events", 1, 0, 1)
            )

    measured = {
        "a decision": decide(HEADERS),
        "a decision of a trace": decide(TRACED),
        "a report": report,
        "a batch": fold,
    }
    return [
        Figure(
            name=f"tracing {state}, {name}",
            unit="us",
            runs=[timeit(call, timer=thread_time, number=calls) / calls * _US for _ in range(RUNS)],
        )
        for name, call in measured.items()
    ]
