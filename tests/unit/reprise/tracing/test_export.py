"""The queue before the collector."""

import threading
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from reprise.tracing import export
from reprise.tracing.export import SPAN_EXPORT_MAX, SpanQueue
from tests.processes import until


class Exporter(SpanExporter):
    """Takes spans while it may."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.results: list[SpanExportResult | Exception] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_closed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.may_answer.wait(30)
        result = self.results.pop(0) if self.results else SpanExportResult.SUCCESS
        if isinstance(result, Exception):
            raise result
        if result is SpanExportResult.SUCCESS:
            self.taken.append(len(spans))
        return result

    def shutdown(self) -> None:
        self.is_closed = True


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter()
    yield exporter
    exporter.may_answer.set()


def end(queue: SpanQueue, count: int) -> None:
    for number in range(count):
        queue.on_end(ReadableSpan(str(number)))


def test_spans_are_sent_together_and_counted(exporter: Exporter) -> None:
    queue = SpanQueue(exporter, export_s=0.01)
    queue.start()
    end(queue, 3)
    assert queue.force_flush()
    assert (queue.exported, queue.waiting, dict(queue.dropped)) == (3, 0, {})
    end(queue, SPAN_EXPORT_MAX + 1)
    queue.shutdown()
    assert sum(exporter.taken) == queue.exported == SPAN_EXPORT_MAX + 4
    assert max(exporter.taken) <= SPAN_EXPORT_MAX
    assert exporter.is_closed


def test_what_finds_no_room_is_dropped_at_once(exporter: Exporter) -> None:
    exporter.may_answer.clear()
    queue = SpanQueue(exporter, spans_max=5, export_s=0.0)
    queue.start()
    end(queue, 1)
    until(lambda: queue.waiting == 1 and not queue._spans, what="the first is under way")
    end(queue, 8)
    assert (queue.waiting, queue.dropped["queue_full"]) == (6, 3)
    exporter.may_answer.set()
    queue.shutdown()
    assert queue.exported == 6


def test_what_cannot_be_sent_is_dropped_and_said_once(
    exporter: Exporter, caplog: pytest.LogCaptureFixture
) -> None:
    exporter.results = [SpanExportResult.FAILURE, OSError("for a test")]
    queue = SpanQueue(exporter, export_s=0.0)
    queue.start()
    with caplog.at_level("INFO"):
        for _ in range(3):
            end(queue, 1)
            assert queue.force_flush()
        until(lambda: "takes spans again" in caplog.text, what="the end of it")
    assert (queue.exported, queue.dropped) == (1, {"export_failed": 2})
    assert caplog.text.count("Cannot send spans") == 1
    queue.shutdown()


def test_at_the_end_a_collector_that_does_not_answer_is_left(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SPAN_LEAVE_S", 0.05)
    exporter.may_answer.clear()
    queue = SpanQueue(exporter, export_s=0.0)
    queue.start()
    end(queue, 1)
    until(lambda: not queue._spans, what="the first is under way")
    end(queue, 2)
    queue.shutdown()
    end(queue, 1)
    assert queue.dropped == {"stopping": 4}, "the one under way, too"
    assert queue.waiting == 0
    exporter.may_answer.set()
    queue._thread.join(10)
    assert queue.exported == 0, "each is counted once"


def test_one_that_was_never_started_can_be_ended(exporter: Exporter) -> None:
    SpanQueue(exporter).shutdown()
    assert exporter.is_closed
