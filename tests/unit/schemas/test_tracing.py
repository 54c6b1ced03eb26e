"""What is a `traceparent`, and tracing that is off."""

import msgspec
import pytest

from schemas.codec import decode_routing
from schemas.errors import RecordError
from schemas.limits import NAME_BYTES_MAX
from schemas.routing_records import DecisionsRecord, RoutingRecord, encode_routing, traces_of
from schemas.tracing import (
    NO_SPAN,
    NO_TRACER,
    TRACESTATE_MEMBERS_MAX,
    SpanName,
    batch_attributes,
    format_traceparent,
    join_context,
    parse_traceparent,
    read_tracestate,
    split_context,
)
from tests.routing import decision, decisions, load, outcome, outcomes
from tests.spans import TRACEPARENT

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01"),
        (f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-00"),
        (f"00-{TRACE}-{SPAN}-03", f"00-{TRACE}-{SPAN}-03"),
        # A newer version may say more, and flags that are not known.
        (f"cc-{TRACE}-{SPAN}-ff", f"00-{TRACE}-{SPAN}-01"),
        (f"cc-{TRACE}-{SPAN}-02-what-more", f"00-{TRACE}-{SPAN}-00"),
    ],
)
def test_a_context_is_read(text: str, kept: str) -> None:
    context = parse_traceparent(text)
    assert context is not None
    assert format_traceparent(context) == kept
    assert context[2] == int(kept[-2:], 16)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01-",
        f"cc-{TRACE}-{SPAN}-01more",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-\u0660\u0661",
    ],
)
def test_what_is_no_context_is_none(text: str) -> None:
    assert parse_traceparent(text) is None


def test_a_record_of_before_has_none_and_a_wrong_one_costs_nothing() -> None:
    fields = msgspec.msgpack.decode(encode_routing(decisions(1)))
    for nothing in (False, 0.0, "", ""):  # is_sure, decode_s, tracestate, traceparent
        assert fields["decisions"][0].pop() == nothing, "the last fields, for older readers"
    record = decode_routing(msgspec.msgpack.encode(fields))
    assert isinstance(record, DecisionsRecord)
    assert record.decisions[0].traceparent == ""
    fields["decisions"][0] += ["no context"]
    assert list(traces_of([decode_routing(msgspec.msgpack.encode(fields))])) == ["no context"]
    fields["decisions"][0][-1] = "x" * (NAME_BYTES_MAX + 1)
    with pytest.raises(RecordError):
        decode_routing(msgspec.msgpack.encode(fields))
    told = msgspec.msgpack.decode(encode_routing(outcomes(1)))
    for _ in ("tracestate", "traceparent"):
        assert told["outcomes"][0].pop() == ""
    assert decode_routing(msgspec.msgpack.encode(told)) == outcomes(1)


def test_the_contexts_of_records_are_those_of_decisions_and_reports() -> None:
    one = msgspec.structs.replace(decision(1), traceparent="a", tracestate="s=1")
    told = msgspec.structs.replace(outcome(1), traceparent="b")
    records: list[RoutingRecord] = [
        msgspec.structs.replace(decisions(0), decisions=(decision(0), one)),
        load(1),
        msgspec.structs.replace(outcomes(1), outcomes=(told, outcome(2))),
    ]
    assert list(traces_of(records)) == ["a s=1", "b"]


def test_tracing_that_is_off_hands_on_what_came() -> None:
    assert not NO_TRACER.is_on
    with NO_TRACER.begin(SpanName.ROUTE, TRACEPARENT, [TRACEPARENT]) as span:
        span.note({"a": 1})
        span.rename(SpanName.REFUSED)
        span.link(TRACEPARENT)
        assert (span.is_recorded, span.context) == (False, TRACEPARENT)
    assert NO_TRACER.begin(SpanName.ROUTE) is NO_SPAN
    assert NO_TRACER.begin_alone(SpanName.APPEND) is NO_SPAN
    assert NO_TRACER.batch(SpanName.FOLD, 0, [TRACEPARENT], {}) == ""
    with pytest.raises(ZeroDivisionError), NO_TRACER.begin(SpanName.ROUTE):
        raise ZeroDivisionError


def test_a_batch_names_its_topic_where_there_is_one() -> None:
    assert batch_attributes("events", 3, 0, 9) == {
        "messaging.batch.message_count": 3,
        "reprise.log": "events",
        "reprise.position": "0:9",
    }
    in_kafka = batch_attributes("events", 3, 2, 9, topic="t")
    assert in_kafka["messaging.destination.name"] == "t"
    assert in_kafka["messaging.destination.partition.id"] == "2"


MANY = [f"k{number}=1" for number in range(TRACESTATE_MEMBERS_MAX + 1)]
LONG = "k=" + "v" * 254
TENANT = "0a*/-_@b=!~"


@pytest.mark.parametrize(
    ("texts", "kept"),
    [
        (["a=1"], "a=1"),
        ([" a=1 ,\tb=2\t"], "a=1,b=2"),
        (["a=1", "b=2"], "a=1,b=2"),
        (["a=1,,b=2,"], "a=1,b=2"),
        ([TENANT], TENANT),
        (["a= x y"], "a= x y"),
        ([",".join(MANY[:-1])], ",".join(MANY[:-1])),
        ([LONG, "b" + LONG[1:-1]], f"{LONG},b{LONG[1:-1]}"),
        ([",".join(MANY)], ""),
        ([LONG, "b" + LONG[1:]], ""),  # 513
        (["a=1" + " " * 2000], ""),
        (["a=1,a=2"], ""),
        (["a"], ""),
        (["=1"], ""),
        (["a="], ""),
        (["A=1"], ""),
        (["0a=1"], ""),
        (["a=1=2"], ""),
        (["a=\u00e9"], ""),
        (["a=" + "v" * 257], ""),
        (["k" * 257 + "=1"], ""),
        ([""], ""),
        ([], ""),
    ],
)
def test_a_tracestate_is_handed_on_whole_or_not_at_all(texts: list[str], kept: str) -> None:
    assert read_tracestate(texts) == kept


@pytest.mark.parametrize("parts", [("", ""), (TRACEPARENT, ""), (TRACEPARENT, "a= x y")])
def test_a_context_has_both_and_gives_them_back(parts: tuple[str, str]) -> None:
    assert split_context(join_context(*parts)) == parts
    assert join_context("", "a=1") == ""
