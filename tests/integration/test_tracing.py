"""One trace, from a router through its decision, the log and the fold to its feedback: of a real
service, by OTLP, at a collector.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from logs.embedded import ReadOnlyLog
from schemas.codec import decode_routing
from schemas.identities import Offset
from schemas.routing_records import DecisionsRecord, OutcomesRecord
from streams.kernel import native_available
from tests.processes import Service, until
from tests.spans import ROUTER_SPAN, TRACE, TRACEPARENT, Collector, KeptSpan

TOKENS = list(range(1_000_000, 1_000_064))


def post(
    service: Service, path: str, body: object, traceparent: str = ""
) -> tuple[int, Any, Mapping[str, str]]:
    headers = {"Content-Type": "application/json"}
    if traceparent:
        headers["traceparent"] = traceparent
    status, answer, found = service.request("POST", path, json.dumps(body).encode(), headers)
    return status, json.loads(answer), found


def decide(service: Service, traceparent: str = TRACEPARENT, **fields: Any) -> Any:
    body = {"model": "m", "block_size": 16, "token_ids": TOKENS, **fields}
    return post(service, "/route", body, traceparent)


def ready(service: Service) -> None:
    """With an instance that requests can be sent to."""
    body = {"type": "none", "modelname": "m", "instance_id": "a", "block_size": 16, "dp_rank": 0}
    status, answer = service.post("/register", body)
    assert status == 200, answer
    until(lambda: decide(service, "", reserve=False)[0] == 200, what="a candidate")


def traced(service: Service, collector: Collector) -> Service:
    return Service(
        service.data,
        environment={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint},
    )


def of_trace(collector: Collector, name: str, trace: str = TRACE) -> list[KeptSpan]:
    return [span for span in collector.named(name) if span.trace == trace]


def test_a_routers_trace_goes_through_decision_log_and_fold_to_the_feedback(
    tmp_path: Path,
) -> None:
    with Collector() as collector, traced(Service(tmp_path / "data"), collector) as service:
        ready(service)
        status, answer, _ = decide(service)
        assert status == 200
        until(lambda: of_trace(collector, "worker.fold"), what="the fold of the decision")
        report = {"decision_id": answer["decision_id"], "event": "completed"}
        status, taken, _ = post(service, "/feedback", report)
        assert (status, taken["accepted"]) == (202, 1)
        until(lambda: len(of_trace(collector, "worker.fold")) > 1, what="the fold of the outcome")
        until(lambda: of_trace(collector, "reprise.feedback"), what="the feedback")
        assert service.metric("reprise_spans_exported_total") >= 4
        assert service.metric("reprise_spans_dropped_total") == 0
        assert service.stop() == 0
        spans = collector.spans()
    (routed,) = [one for one in spans if one.name == "reprise.route" and one.trace == TRACE]
    assert routed.parent == ROUTER_SPAN
    assert routed.service == "reprise"
    assert routed.attributes["reprise.decision_id"] == answer["decision_id"]
    assert routed.attributes["reprise.instance"] == "a"
    assert routed.attributes["gen_ai.usage.input_tokens"] == len(TOKENS)
    folds = [one for one in spans if one.name == "worker.fold" and one.trace == TRACE]
    (told,) = [one for one in spans if one.name == "reprise.feedback" and one.trace == TRACE]
    for one in (*folds, told):
        assert (one.parent, one.links) == (routed.span, [(TRACE, routed.span)])
    assert {one.attributes["reprise.log"] for one in folds} == {"routing"}
    appended = [one for one in spans if one.name == "bridge.append"]
    assert appended, "the registration"
    folded = {one.parent for one in spans if one.name == "worker.fold"}
    assert {one.span for one in appended} & folded, "what was appended was folded"
    assert not any(str(number).encode() in body for body in collector.bodies for number in TOKENS)
    # What whoever reads the log finds of it.
    log = ReadOnlyLog(tmp_path / "data" / "routing" / "log")
    records = [decode_routing(entry.value) for entry in log.read(Offset(0))]
    log.close()
    kept = [
        one for record in records if isinstance(record, DecisionsRecord) for one in record.decisions
    ]
    outcomes = [
        one for record in records if isinstance(record, OutcomesRecord) for one in record.outcomes
    ]
    assert [one.traceparent for one in kept] == [routed.traceparent]
    assert [one.traceparent for one in outcomes] == [routed.traceparent]


def test_a_refusal_and_a_query_have_spans_where_they_are_asked_for(tmp_path: Path) -> None:
    query = {"model": "m", "block_size": 16, "token_ids": TOKENS}
    with Collector() as collector, traced(Service(tmp_path / "data"), collector) as service:
        ready(service)
        status, _, _ = decide(service, TRACEPARENT, model="unknown")
        assert status == 503
        plain = [post(service, "/query", query) for _ in range(3)]
        found = post(service, "/query", query, TRACEPARENT)
        assert {(status, json.dumps(answer)) for status, answer, _ in plain} == {
            (found[0], json.dumps(found[1]))
        }
        until(lambda: of_trace(collector, "reprise.query"), what="the query")
        until(lambda: of_trace(collector, "reprise.route.refused"), what="the refusal")
        (refused,) = of_trace(collector, "reprise.route.refused")
        assert refused.attributes["reprise.refused"] == "no_candidate"
        assert len(collector.named("reprise.query")) == 1, "others are answered without Python"
        (queried,) = collector.named("reprise.query")
        assert queried.attributes["reprise.index.state"] == found[2]["reprise-state"]
        assert queried.attributes["reprise.index.position"] == found[2]["reprise-position"]


def test_a_collector_that_is_away_costs_spans_which_are_counted(tmp_path: Path) -> None:
    with Collector(status=400) as collector:
        service = traced(Service(tmp_path / "data"), collector)
        with service:
            ready(service)
            assert decide(service)[0] == 200
            until(
                lambda: service.metric("reprise_spans_dropped_total", reason="export_failed") > 0,
                what="spans that are dropped",
            )
            assert decide(service)[0] == 200
        assert "Cannot send spans to the collector" in service.whole_log()
        assert service.whole_log().count("WARNING") == 1, service.whole_log()


@pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")
def test_without_tracing_a_query_with_a_trace_is_answered_as_any_other(tmp_path: Path) -> None:
    query = {"model": "m", "block_size": 16, "token_ids": TOKENS}
    with Service(tmp_path / "data") as service:
        ready(service)
        for traceparent in ("", TRACEPARENT):
            assert post(service, "/query", query, traceparent)[0] == 200
        assert decide(service)[0] == 200
        assert service.metric("reprise_spans_exported_total") == 0
        # It is kept all the same: whoever folds it may have tracing on.
        (kept,) = service.get("/decisions")[1]["decisions"]
        assert kept["traceparent"] == TRACEPARENT
