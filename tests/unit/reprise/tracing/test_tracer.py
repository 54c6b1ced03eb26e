"""Spans of OpenTelemetry as the rooms make them."""

import pytest

from reprise.tracing import tracer as tracer_module
from reprise.tracing.tracer import SPAN_ALONE_S, SPAN_TEXT_CHARS_MAX
from schemas.limits import SPAN_LINKS_MAX
from schemas.tracing import SpanName
from tests.spans import ROUTER_SPAN, TRACE, TRACEPARENT, UNSAMPLED, KeptSpans


class Clock:
    """Monotonic seconds, and Unix nanoseconds, as a test sets them."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tracer_module, "time", clock)
    return clock


@pytest.fixture
def spans() -> KeptSpans:
    return KeptSpans()


def other(number: int) -> str:
    return f"00-{number + 1:032x}-{number + 1:016x}-01"


def test_a_span_is_a_child_of_its_parent_and_can_be_a_parent(spans: KeptSpans) -> None:
    with spans.tracer.begin(SpanName.ROUTE, TRACEPARENT) as outer:
        assert outer.is_recorded
        with spans.tracer.begin(SpanName.FEEDBACK, outer.context):
            pass
    inner, kept = spans.take()
    assert (kept.trace, kept.parent) == (TRACE, ROUTER_SPAN)
    assert (inner.trace, inner.parent) == (TRACE, kept.span)
    assert kept.traceparent == outer.context


def test_without_a_parent_it_begins_a_trace_whatever_surrounds_it(spans: KeptSpans) -> None:
    with spans.tracer.begin(SpanName.ROUTE), spans.tracer.begin(SpanName.ROUTE, "no context"):
        pass
    one, two = spans.take()
    assert one.trace != two.trace
    assert one.parent == two.parent == ""


def test_a_parent_that_is_not_sampled_decides(spans: KeptSpans) -> None:
    with spans.tracer.begin(SpanName.ROUTE, UNSAMPLED) as span:
        span.note({"a": 1})
        assert (span.is_recorded, span.context) == (False, UNSAMPLED)
    assert spans.take() == []


def test_the_operators_sampler_decides_of_traces_that_begin_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    spans = KeptSpans()
    with spans.tracer.begin(SpanName.ROUTE) as span:
        assert (span.is_recorded, span.context) == (False, "")
    with spans.tracer.begin(SpanName.ROUTE, TRACEPARENT) as span:
        assert span.is_recorded
    assert spans.tracer.batch(SpanName.FOLD, 0, (), {}) == ""
    assert [one.parent for one in spans.take()] == [ROUTER_SPAN]


def test_what_is_noted_is_cut_and_a_name_may_change(spans: KeptSpans) -> None:
    with spans.tracer.begin(SpanName.ROUTE) as span:
        span.note({"long": "x" * 10_000, "count": 3, "share": 0.5})
        span.rename(SpanName.REFUSED)
        span.link(TRACEPARENT)
        span.link("no context")
    (kept,) = spans.take()
    assert kept.name == "reprise.route.refused"
    assert kept.attributes == {"long": "x" * SPAN_TEXT_CHARS_MAX, "count": 3, "share": 0.5}
    assert kept.links == [(TRACE, ROUTER_SPAN)]


def test_an_error_is_told_by_its_kind_alone(spans: KeptSpans) -> None:
    with pytest.raises(ValueError, match="secret"), spans.tracer.begin(SpanName.ROUTE):
        raise ValueError("secret")
    (kept,) = spans.take()
    assert (kept.is_error, kept.attributes) == (True, {"error.type": "ValueError"})


def test_a_batch_is_a_child_of_the_first_that_is_sampled_and_linked_to_all(
    spans: KeptSpans, clock: Clock
) -> None:
    contexts = [UNSAMPLED, "no context", "", TRACEPARENT, other(1), TRACEPARENT]
    context = spans.tracer.batch(SpanName.FOLD, 7, contexts, {"a": 1})
    (kept,) = spans.take()
    assert (kept.name, kept.attributes) == ("worker.fold", {"a": 1})
    assert (kept.trace, kept.parent) == (TRACE, ROUTER_SPAN)
    assert kept.links == [(TRACE, ROUTER_SPAN), (f"{2:032x}", f"{2:016x}")]
    assert context == kept.traceparent


def test_links_are_bounded(spans: KeptSpans, clock: Clock) -> None:
    spans.tracer.batch(SpanName.FOLD, 0, map(other, range(10 * SPAN_LINKS_MAX)), {})
    (kept,) = spans.take()
    assert len(kept.links) == SPAN_LINKS_MAX


def test_of_batches_that_belong_to_no_trace_few_are_recorded(
    spans: KeptSpans, clock: Clock
) -> None:
    recorded = 0
    for _ in range(100):
        recorded += bool(spans.tracer.batch(SpanName.APPEND, 0, (), {}))
        clock.now += SPAN_ALONE_S / 10
    assert recorded == len(spans.take()) == 10
    assert spans.tracer.batch(SpanName.FOLD, 0, (UNSAMPLED,), {}), "a name of its own"
    assert spans.tracer.batch(SpanName.FOLD, 0, (TRACEPARENT,), {}), "those of a trace all are"
    with spans.tracer.begin_alone(SpanName.FOLD) as span:
        assert not span.is_recorded
    clock.now += SPAN_ALONE_S
    with spans.tracer.begin_alone(SpanName.FOLD) as span:
        assert span.is_recorded


@pytest.mark.parametrize(
    ("environment", "service"),
    [
        ({}, "reprise"),
        ({"OTEL_SERVICE_NAME": "index"}, "index"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a=b,service.name=index"}, "index"),
    ],
)
def test_the_operator_may_name_the_service(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], service: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    spans = KeptSpans(environment)
    with spans.tracer.begin(SpanName.ROUTE):
        pass
    (kept,) = spans.take()
    assert kept.service == service


def test_a_tracestate_goes_on_with_its_trace(spans: KeptSpans) -> None:
    with spans.tracer.begin(SpanName.ROUTE, f"{TRACEPARENT} a=1,b=2", [f"{other(1)} c=3"]) as span:
        assert span.context.endswith(" a=1,b=2")
        spans.tracer.batch(SpanName.FOLD, 0, [span.context], {})
    folded, kept = spans.take()
    assert (kept.state, folded.state) == ("a=1,b=2", "a=1,b=2")
    assert folded.parent == kept.span
    with spans.tracer.begin(SpanName.ROUTE, f"{UNSAMPLED} a=1") as span:
        assert span.context == f"{UNSAMPLED} a=1"


def test_a_wrong_tracestate_of_a_record_is_left_out(
    spans: KeptSpans, caplog: pytest.LogCaptureFixture
) -> None:
    with spans.tracer.begin(SpanName.ROUTE, f"{TRACEPARENT} no state") as span:
        assert " " not in span.context
    assert [one.trace for one in spans.take()] == [TRACE]
    assert caplog.records == []
