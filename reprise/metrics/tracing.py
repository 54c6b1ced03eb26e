"""Spans, where tracing is on."""

from typing import Final

from reprise.tracing.opening import SpanCounts
from schemas.metric_family import Family, by_label, counter, counters, gauge

TRACING: Final[tuple[Family[SpanCounts], ...]] = (
    counter(
        "reprise_spans_exported",
        "Spans that the collector of traces has taken.",
        lambda counts: counts.exported,
    ),
    counters(
        "reprise_spans_dropped",
        "Spans that the collector of traces never got, by reason: queue_full (it is too slow, or"
        " away), export_failed (it was away, or refused them), stopping (at the end of the"
        " process).",
        ("reason",),
        lambda counts: by_label(counts.dropped),
    ),
    gauge(
        "reprise_spans_waiting",
        "Spans that wait to be sent to the collector of traces.",
        lambda counts: counts.waiting,
    ),
)
