"""Spans for tests: kept in memory, or received by a collector on a port."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from reprise.tracing.tracer import OtelTracer

TRACE = "0af7651916cd43dd8448eb211c80319c"
ROUTER_SPAN = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{ROUTER_SPAN}-01"
UNSAMPLED = f"00-{TRACE}-{ROUTER_SPAN}-00"


class KeptSpan(NamedTuple):
    """A span that has ended; ids in hexadecimal, "" for no parent."""

    name: str
    trace: str
    span: str
    parent: str
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    service: str = ""
    role: str = ""
    is_error: bool = False
    flags: int = 1
    state: str = ""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace}-{self.span}-{self.flags:02x}"


class KeptSpans:
    """A tracer whose spans are kept; all that OpenTelemetry's own does with them is done."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        processor = SimpleSpanProcessor(self._exporter)
        self.tracer = OtelTracer(processor, environment or {}, "test")

    def take(self) -> list[KeptSpan]:
        """Those that have ended since the last call."""
        spans = self._exporter.get_finished_spans()
        self._exporter.clear()
        return [_kept(span) for span in spans]


def _kept(span: ReadableSpan) -> KeptSpan:
    context = span.get_span_context()
    assert context is not None
    return KeptSpan(
        span.name,
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
        "" if span.parent is None else f"{span.parent.span_id:016x}",
        dict(span.attributes or {}),
        [(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links],
        str(span.resource.attributes["service.name"]),
        str(span.resource.attributes["reprise.role"]),
        span.status.status_code.name == "ERROR",
        context.trace_flags,
        context.trace_state.to_header(),
    )


class Collector:
    """Takes spans by OTLP over HTTP.

    Attributes:
        bodies: of all requests, as they came.
        answers_after: to be set before requests are answered.
    """

    def __init__(self, status: int = 200) -> None:
        self.bodies: list[bytes] = []
        self.answers_after = threading.Event()
        self.answers_after.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.bodies.append(body)
                collector.answers_after.wait(30)
                with suppress(BrokenPipeError, ConnectionResetError):  # it was given up
                    self.answer()

            def answer(self) -> None:
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answers_after.set()
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    def spans(self) -> list[KeptSpan]:
        """All that have come."""
        return [span for body in list(self.bodies) for span in _received(body)]

    def named(self, name: str) -> list[KeptSpan]:
        return [span for span in self.spans() if span.name == name]


def _received(body: bytes) -> Iterator[KeptSpan]:
    request = ExportTraceServiceRequest.FromString(body)
    for resource in request.resource_spans:
        sender = _attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield KeptSpan(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    _attributes(span.attributes),
                    [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                    sender["service.name"],
                    sender["reprise.role"],
                    span.status.code == 2,
                    state=span.trace_state,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def stuck_collector() -> Iterator[Collector]:
    """One that takes a request and does not answer it."""
    with Collector() as collector:
        collector.answers_after.clear()
        yield collector
