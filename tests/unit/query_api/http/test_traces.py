"""Spans of requests, as clients ask for them by `traceparent`."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from query_api.http.traces import context_of
from reprise.application import create_app
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router
from schemas.limits import TRACESTATE_CHARS_MAX
from schemas.routing_records import (
    Decision,
    DecisionsRecord,
    FeedbackReport,
    OutcomeEvent,
    OutcomesRecord,
    RoutingRecord,
)
from schemas.tracing import NO_TRACER, Tracer
from tests.fakes import AsgiClient, FakeTable, Reply, registration
from tests.spans import ROUTER_SPAN, TRACE, TRACEPARENT, UNSAMPLED, KeptSpans

TOKENS = list(range(1_000_000, 1_000_016))
PARENT = (b"traceparent", TRACEPARENT.encode())
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"


class Service:
    """An app with two instances, of which one holds half of the prompt."""

    def __init__(self, tracer: Tracer) -> None:
        table = FakeTable()
        self.queue = RoutingQueue()
        live = LiveLoad()
        router = Router(table, self.queue, live, clock=lambda: 1000.0)
        for name, blocks in (("a", 2), ("b", 0)):
            publisher = table.add(registration(name))
            if blocks:
                table.store(publisher, TOKENS[: 4 * blocks], hashes=range(1, blocks + 1))
        self.client = AsgiClient(create_app(table, table, router=router, tracer=tracer))

    def post(self, path: str, body: object, traceparent: str = "", **headers: str) -> Reply:
        if traceparent:
            headers["traceparent"] = traceparent
        return self.client.post_json(path, body, **headers)

    def route(self, traceparent: str = "", **fields: Any) -> Any:
        body = {"model": "m", "block_size": 4, "token_ids": TOKENS, **fields}
        return msgspec.json.decode(self.post("/route", body, traceparent).body)

    def written(self) -> list[RoutingRecord]:
        return self.queue.take(1000.0)

    def decisions(self) -> list[Decision]:
        return [
            decision
            for record in self.written()
            if isinstance(record, DecisionsRecord)
            for decision in record.decisions
        ]

    def outcomes(self) -> list[FeedbackReport]:
        return [
            outcome
            for record in self.written()
            if isinstance(record, OutcomesRecord)
            for outcome in record.outcomes
        ]


@pytest.fixture
def spans() -> KeptSpans:
    return KeptSpans()


@pytest.fixture
def service(spans: KeptSpans) -> Service:
    return Service(spans.tracer)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([], ""),
        ([(b"traceparent", TRACEPARENT.encode())], TRACEPARENT),
        ([(b"traceparent", b"")], ""),
        ([(b"traceparent", b"\xff")], ""),
        ([(b"traceparent", TRACEPARENT.encode()), (b"traceparent", OTHER.encode())], ""),
        ([(b"traceparent", b""), (b"traceparent", OTHER.encode())], ""),
        ([(b"traceparent", b"01" + TRACEPARENT[2:].encode() + b"-more")], TRACEPARENT),
        ([PARENT, (b"tracestate", b"a=1, b=2")], f"{TRACEPARENT} a=1,b=2"),
        ([(b"tracestate", b"a=1"), PARENT, (b"tracestate", b"b=2")], f"{TRACEPARENT} a=1,b=2"),
        ([PARENT, (b"tracestate", b"\xff")], TRACEPARENT),
        ([(b"tracestate", b"a=1")], ""),
    ],
)
def test_a_request_has_one_context_or_none(headers: list[tuple[bytes, bytes]], found: str) -> None:
    assert context_of(headers) == found


def test_a_decision_has_a_span_that_says_why_and_its_record_has_the_context(
    service: Service, spans: KeptSpans
) -> None:
    answer = service.route(TRACEPARENT, request_id="r")
    (kept,) = spans.take()
    assert (kept.name, kept.trace, kept.parent) == ("reprise.route", TRACE, ROUTER_SPAN)
    assert kept.attributes == {
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 16,
        "gen_ai.usage.cache_read.input_tokens": 8,
        "reprise.tenant": "default",
        "reprise.matched_tokens": 8,
        "reprise.index.position": answer["index"]["position"],
        "reprise.index.state": answer["index"]["state"],
        "reprise.decision_id": answer["decision_id"],
        "reprise.policy": "least-delay",
        "reprise.candidates": 2,
        "reprise.instance": "a",
        "reprise.dp_rank": 0,
    }
    assert [one.traceparent for one in service.decisions()] == [kept.traceparent]


def test_a_request_that_comes_again_is_linked_to_its_decision(
    service: Service, spans: KeptSpans
) -> None:
    service.route(TRACEPARENT, request_id="r")
    service.route(OTHER, request_id="r")
    first, again = spans.take()
    assert again.links == [(TRACE, first.span)]
    assert [one.traceparent for one in service.decisions()] == [first.traceparent]


def test_a_refusal_has_a_name_of_its_own(service: Service, spans: KeptSpans) -> None:
    service.route(TRACEPARENT, model="unknown")
    (kept,) = spans.take()
    assert kept.name == "reprise.route.refused"
    assert kept.attributes["reprise.refused"] == "no_candidate"
    assert "reprise.instance" not in kept.attributes
    assert not kept.is_error


def test_a_request_that_is_wrong_is_an_error_that_quotes_nothing(
    service: Service, spans: KeptSpans
) -> None:
    service.route(TRACEPARENT, policy="secret")
    (kept,) = spans.take()
    assert (kept.is_error, kept.attributes) == (True, {"error.type": "RequestError"})


def test_feedback_is_linked_to_what_was_decided_and_written_with_its_context(
    service: Service, spans: KeptSpans
) -> None:
    names = [service.route(parent)["decision_id"] for parent in (TRACEPARENT, OTHER)]
    decided = spans.take()
    assert len(service.decisions()) == 2
    reports = [{"decision_id": name, "event": "completed"} for name in (*names, "1-1")]
    service.post("/feedback", reports)
    (kept,) = spans.take()
    assert kept.name == "reprise.feedback"
    assert (kept.trace, kept.parent) == (TRACE, decided[0].span)
    assert kept.links == [(one.trace, one.span) for one in decided]
    assert kept.attributes == {
        "reprise.reports.accepted": 2,
        "reprise.reports.repeated": 0,
        "reprise.reports.unknown": 1,
    }
    assert [one.traceparent for one in service.outcomes()] == [one.traceparent for one in decided]


def test_feedback_of_a_trace_of_its_own_stays_there(service: Service, spans: KeptSpans) -> None:
    name = service.route(TRACEPARENT, request_id="r")["decision_id"]
    (decided,) = spans.take()
    service.post("/feedback", {"request_id": "r", "event": "completed"}, OTHER)
    (kept,) = spans.take()
    assert (kept.parent, kept.links) == ("2" * 16, [(TRACE, decided.span)])
    assert name


def test_what_is_taken_back_has_the_context_of_its_decision(
    service: Service, spans: KeptSpans
) -> None:
    service.route(TRACEPARENT, request_id="r")
    (decided,) = spans.take()
    service.route(OTHER, request_id="r", token_ids=TOKENS[:4])
    (cancelled,) = service.outcomes()
    assert cancelled.event is OutcomeEvent.CANCELLED
    assert cancelled.traceparent == decided.traceparent


def test_without_tracing_the_routers_context_is_kept(spans: KeptSpans) -> None:
    service = Service(NO_TRACER)
    for parent in (TRACEPARENT, UNSAMPLED, "", "no context"):
        service.route(parent)
    kept = [one.traceparent for one in service.decisions()]
    assert kept == [TRACEPARENT, UNSAMPLED, "", ""]
    assert spans.take() == []


@pytest.mark.parametrize("path", ["/query", "/query_by_hash"])
def test_a_query_has_a_span_where_its_client_has_a_trace(
    service: Service, spans: KeptSpans, path: str
) -> None:
    body: dict[str, Any] = {"model": "m", "block_size": 4}
    body |= {"token_ids": TOKENS} if path == "/query" else {"seq_hashes": [1] * 4}
    plain = service.post(path, body)
    assert spans.take() == []
    reply = service.post(path, body, TRACEPARENT)
    assert (reply.status, reply.body) == (200, plain.body)
    (kept,) = spans.take()
    assert (kept.name, kept.trace, kept.parent) == ("reprise.query", TRACE, ROUTER_SPAN)
    assert kept.attributes == {
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 16,
        "reprise.tenant": "default",
        "reprise.matched_tokens": 8 if path == "/query" else 0,
        "reprise.index.position": reply.headers["reprise-position"],
        "reprise.index.state": reply.headers["reprise-state"],
    }


def test_no_token_and_no_hash_of_a_prompt_is_in_a_span(service: Service, spans: KeptSpans) -> None:
    service.route(TRACEPARENT, request_id="r", session_id="session")
    service.post("/query", {"model": "m", "block_size": 4, "token_ids": TOKENS}, TRACEPARENT)
    (decision,) = service.decisions()
    hashes = [str(mark.prefix) for mark in decision.marks]
    said = str([kept.attributes for kept in spans.take()])
    assert hashes
    assert not any(str(one) in said for one in (*TOKENS, *hashes))


@pytest.mark.parametrize("is_on", [True, False])
def test_a_tracestate_goes_with_the_trace_into_the_log(spans: KeptSpans, is_on: bool) -> None:
    service = Service(spans.tracer if is_on else NO_TRACER)
    body = {"model": "m", "block_size": 4, "token_ids": TOKENS}
    headers = {"tracestate": "ot=th:8,vendor=x y"}
    answer = msgspec.json.decode(service.post("/route", body, TRACEPARENT, **headers).body)
    told = {"decision_id": answer["decision_id"], "event": "completed"}
    service.post("/feedback", told)
    decided, ended = service.written()
    assert isinstance(decided, DecisionsRecord)
    assert isinstance(ended, OutcomesRecord)
    assert [one.tracestate for one in decided.decisions] == [headers["tracestate"]]
    assert [one.tracestate for one in ended.outcomes] == [headers["tracestate"]]
    (shown,) = msgspec.json.decode(service.client.get("/decisions").body)["decisions"]
    assert shown["tracestate"] == headers["tracestate"]
    assert [one.state for one in spans.take()] == [headers["tracestate"]] * 2 * is_on


def test_a_tracestate_that_is_wrong_is_left_out_alone(service: Service, spans: KeptSpans) -> None:
    body = {"model": "m", "block_size": 4, "token_ids": TOKENS}
    service.post("/route", body, TRACEPARENT, tracestate="a=1,a=2")
    (kept,) = spans.take()
    assert (kept.trace, kept.state) == (TRACE, "")
    (decided,) = service.decisions()
    assert (decided.traceparent, decided.tracestate) == (kept.traceparent, "")


LONG = (b"a=b," * 40, b"k@" * 5_000, b", ," * 10_000, b"a" * 20_000 + b"=1", b"a=" + b"\xff" * 99)
PARENTS = st.sampled_from([TRACEPARENT.encode(), b"ff" + TRACEPARENT.encode()[2:]])
VALUES = st.one_of(st.binary(max_size=80), st.sampled_from(LONG), PARENTS)
HEADERS = st.lists(st.tuples(st.sampled_from([b"traceparent", b"tracestate"]), VALUES), max_size=5)


@given(headers=HEADERS)
def test_whatever_the_headers_are_a_context_is_short_and_of_plain_text(
    headers: list[tuple[bytes, bytes]],
) -> None:
    """It goes into records, spans and headers of others."""
    context = context_of(headers)
    assert context.isascii()
    assert context.isprintable()
    assert len(context) <= len(TRACEPARENT) + 1 + TRACESTATE_CHARS_MAX
    if sum(name == b"traceparent" for name, _ in headers) != 1:
        assert context == ""
