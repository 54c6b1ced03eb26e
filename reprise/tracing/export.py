"""Spans that have ended wait here for a collector; who ends one waits for nothing.

One thread sends them. While the collector is slow or away the queue fills, and what it has no room
for is dropped and counted; so is what could not be sent, for nothing is sent twice.
"""

import logging
import threading
import time
from collections import Counter, deque
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from schemas.causes import cause_of
from schemas.errors import ConfigurationError
from schemas.limits import SHUTDOWN_S

# A collector that is slow or away costs spans, and nothing else: reprise_spans_dropped_total by
# reason.
SPAN_QUEUE_MAX: Final = 8192  # that wait for the collector, some KiB each; reason="queue_full"
SPAN_EXPORT_MAX: Final = 512  # in one request to it
SPAN_EXPORT_S: Final = 1.0  # that the first one waits for others
SPAN_LEAVE_S: Final = 2.0  # for the last ones, at the end; reason="stopping"

assert SPAN_LEAVE_S < SHUTDOWN_S, "a collector that is away keeps no process from ending"

logger = logging.getLogger(__name__)


def otlp_exporter() -> SpanExporter:
    """Sends spans by OTLP over HTTP, as OpenTelemetry's variables say.

    Raises:
        ConfigurationError: they cannot be used.
    """
    # It logs each request that fails, and each attempt: here the first of a row is.
    for name in ("opentelemetry.exporter.otlp", "opentelemetry.exporter.http"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        return OTLPSpanExporter()
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"Cannot send spans as the environment says: {error}") from error


class SpanQueue(SpanProcessor):
    """See the module. Any thread may end spans.

    Attributes:
        exported: how many the collector has taken.
        dropped: how many it never got: `queue_full`, `export_failed`, `stopping`.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        *,
        spans_max: int = SPAN_QUEUE_MAX,
        export_s: float = SPAN_EXPORT_S,
    ) -> None:
        """Args:
        exporter: sends them; it may wait.
        export_s: how long the first one waits for others.
        """
        self.exported = 0
        self.dropped: Counter[str] = Counter()
        self._exporter = exporter
        self._spans_max = spans_max
        self._export_s = export_s
        self._spans: deque[ReadableSpan] = deque()
        self._under_way = 0
        self._failing = False
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)

    @property
    def waiting(self) -> int:
        """How many wait for the collector, those under way included."""
        return len(self._spans) + self._under_way

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    # SpanProcessor

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """See `SpanProcessor`."""

    def on_end(self, span: ReadableSpan) -> None:
        """See `SpanProcessor`."""
        with self._changed:
            if self._stopping or len(self._spans) >= self._spans_max:
                self.dropped["stopping" if self._stopping else "queue_full"] += 1
                return
            self._spans.append(span)
            if len(self._spans) in (1, SPAN_EXPORT_MAX):
                self._changed.notify_all()

    def shutdown(self) -> None:
        """Sends what waits, within SPAN_LEAVE_S; what is left is dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(SPAN_LEAVE_S)
        self._exporter.shutdown()  # which ends a request that is to be tried again
        with self._changed:
            if self.waiting:
                # Whether the collector has those that are under way is not known.
                self.dropped["stopping"] += self.waiting
                self._spans.clear()
                self._under_way = 0
        if self.dropped:
            logger.warning(
                "Spans were dropped, as the collector did not take them: %s",
                ", ".join(f"{reason} {count}" for reason, count in sorted(self.dropped.items())),
            )

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanProcessor`."""
        end = time.monotonic() + timeout_millis / 1000
        with self._changed:
            return self._changed.wait_for(
                lambda: not self.waiting, max(end - time.monotonic(), 0.0)
            )

    # The thread

    def _run(self) -> None:
        while True:
            spans = self._take()
            if not spans:
                return
            failure = self._export(spans)
            with self._changed:
                if failure and self._under_way:
                    self.dropped["export_failed"] += self._under_way
                else:
                    self.exported += self._under_way
                self._under_way = 0
                self._changed.notify_all()
            self._note(failure)

    def _take(self) -> list[ReadableSpan]:
        """What is to be sent next; none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._spans or self._stopping)
            self._changed.wait_for(
                lambda: self._stopping or len(self._spans) >= SPAN_EXPORT_MAX, self._export_s
            )
            count = min(len(self._spans), SPAN_EXPORT_MAX)
            spans = [self._spans.popleft() for _ in range(count)]
            self._under_way = count
            return spans

    def _export(self, spans: list[ReadableSpan]) -> str:
        """Why they could not be sent, or ""."""
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 -- logged by the caller
            return cause_of(error)
        return "" if result is SpanExportResult.SUCCESS else "it did not take them"

    def _note(self, failure: str) -> None:
        if failure and not self._failing:
            logger.warning(
                "Cannot send spans to the collector: %s; they are dropped until it takes them",
                failure,
            )
        elif self._failing and not failure:
            logger.info("The collector takes spans again")
        self._failing = bool(failure)
