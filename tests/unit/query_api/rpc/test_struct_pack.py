"""struct_pack against bytes of the real library, values of each type, and bytes that are wrong."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query_api.rpc import messages
from query_api.rpc.frames import ANSWER_HEAD_BYTES, REQUEST_HEAD_BYTES
from query_api.rpc.messages import (
    CacheHit,
    ContextKey,
    ContextView,
    ErrorCode,
    GlobalView,
    HashProfile,
    QueryRequest,
    QueryResult,
    RankHit,
    RegisterResult,
    ServiceConfig,
    UnregisterRequest,
    UnregisterResult,
)
from query_api.rpc.struct_pack import Packing, StructPackError
from tests.conductor_rpc import Recorded, recorded

REQUESTS: dict[str, Packing[Any]] = {
    "Query": messages.QUERY,
    "Register": messages.REGISTER,
    "Unregister": messages.UNREGISTER,
}
ANSWERS: dict[str, Packing[Any]] = {
    "Query": messages.QUERY_ANSWER,
    "Register": messages.REGISTER_ANSWER,
    "Unregister": messages.UNREGISTER_ANSWER,
    "GetGlobalView": messages.VIEW,
    "ListServices": messages.SERVICES,
}
CALLS = recorded()
NAMED = [f"{one.build}: {one.case}" for one in CALLS]


@pytest.mark.parametrize("call", CALLS, ids=NAMED)
def test_what_the_real_client_sends_is_read(call: Recorded) -> None:
    body = call.request[REQUEST_HEAD_BYTES:]
    if call.method not in REQUESTS:
        assert not body
        return
    packing = REQUESTS[call.method]
    value = packing.unpack(body)
    if call.build == "release":
        assert packing.pack(value) == body
    else:
        assert packing.unpack(packing.pack(value)) == value, "without the literal it says the same"


@pytest.mark.parametrize("call", CALLS, ids=NAMED)
def test_answers_are_those_of_the_real_library(call: Recorded) -> None:
    body = call.answer[ANSWER_HEAD_BYTES:]
    packing = ANSWERS[call.method]
    assert packing.pack(packing.unpack(body)) == body


def test_a_recorded_request_says_what_its_client_was_given() -> None:
    [body] = [
        one.request[REQUEST_HEAD_BYTES:]
        for one in CALLS
        if one.build == "debug" and one.case == "query with a salt and an instance"
    ]
    expected = QueryRequest(
        ContextKey("t", "m", "l", 16), b"\x01\0\0\0\x02\0\0\0", "salt", "engine-0"
    )
    assert messages.QUERY.unpack(body) == expected


texts = st.text(max_size=40)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
contexts = st.builds(ContextKey, texts, texts, texts, int64s)
profiles = st.builds(HashProfile, texts, texts, texts, texts, texts)
rank_hits = st.builds(RankHit, int64s, int64s, int64s, int64s)
hits = st.builds(
    CacheHit,
    int64s,
    st.dictionaries(int64s, int64s, max_size=4),
    st.dictionaries(int64s, rank_hits, max_size=4),
    int64s,
    int64s,
    int64s,
    int64s,
)
services = st.builds(
    ServiceConfig,
    texts,
    texts,
    int32s,
    texts,
    texts,
    texts,
    texts,
    int64s,
    int32s,
    st.none() | int64s,
    profiles,
)
tokens = st.integers(0, 400).map(lambda count: bytes(4 * count))
ranks = st.dictionaries(texts, st.lists(int64s, max_size=3), max_size=3)
views = st.builds(ContextView, contexts, profiles, ranks, st.integers(0, 2**64 - 1))
codes = st.sampled_from(list(ErrorCode))
results = st.builds(QueryResult, st.dictionaries(texts, hits, max_size=300))
VALUES: list[tuple[Packing[Any], st.SearchStrategy[Any]]] = [
    (
        messages.QUERY,
        st.builds(QueryRequest, contexts, tokens, st.none() | texts, st.none() | texts),
    ),
    (messages.QUERY_ANSWER, results | codes),
    (messages.REGISTER, services),
    (messages.REGISTER_ANSWER, st.builds(RegisterResult, texts, st.booleans()) | codes),
    (messages.UNREGISTER, st.builds(UnregisterRequest, texts, texts, int32s)),
    (messages.UNREGISTER_ANSWER, st.builds(UnregisterResult, texts) | codes),
    (messages.SERVICES, st.lists(services, max_size=4)),
    (messages.VIEW, st.builds(GlobalView, int32s, st.lists(views, max_size=4))),
    (messages.ERROR_TEXT, st.text(max_size=300)),
]


@given(st.data())
@pytest.mark.parametrize(("packing", "values"), VALUES)
def test_a_value_of_each_type_is_read_as_it_was_written(
    packing: Packing[Any], values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)
    assert packing.unpack(packing.pack(value)) == value


@pytest.mark.parametrize(
    ("count", "width"), [(255, 1), (256, 2), (65_535, 2), (65_536, 4), (70_000, 4)]
)
def test_counts_are_as_wide_as_the_largest_of_a_message(count: int, width: int) -> None:
    request = QueryRequest(ContextKey("t", "m", "", 16), bytes(4 * count), None, None)
    packed = messages.QUERY.pack(request)
    head = 4 if width == 1 else 5
    assert len(packed) == head + 4 * width + 2 + 8 + 4 * count + 2
    assert messages.QUERY.unpack(packed) == request
    eight = packed[:4] if width == 1 else packed[:5]
    assert (eight[0] & 1) == (width > 1)


@given(st.data())
@pytest.mark.parametrize("method", sorted(ANSWERS))
def test_bytes_that_are_wrong_are_refused_or_read(method: str, data: st.DataObject) -> None:
    call = data.draw(st.sampled_from([one for one in CALLS if one.method == method]))
    for packing, body in (
        (ANSWERS[method], call.answer[ANSWER_HEAD_BYTES:]),
        (REQUESTS.get(method, ANSWERS[method]), call.request[REQUEST_HEAD_BYTES:]),
    ):
        changed = bytearray(body)
        for _ in range(data.draw(st.integers(1, 4))):
            if changed:
                at = data.draw(st.integers(0, len(changed) - 1))
                changed[at] = data.draw(st.integers(0, 255))
        cut = bytes(changed[: data.draw(st.integers(0, len(changed)))])
        for wrong in (bytes(changed), cut):
            with suppress(StructPackError):  # and nothing else
                packing.unpack(wrong)


QUERY_BODY = messages.QUERY.pack(QueryRequest(ContextKey("t", "m", "", 16), b"", None, None))
CODE = QUERY_BODY[:4]
ODD = bytes([CODE[0] | 1, *CODE[1:]])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Expected 4 bytes at byte 0, got 0"),
        (bytes(4), "Expected a type 0xf9001a1c, got 0x00000000"),
        (QUERY_BODY[:-1], "Expected 1 bytes at byte 19, got 0"),
        (CODE + b"\xff", "Expected 255 entries at byte 5, got 0 bytes"),
        (CODE + b"\x02\xff\xfe" + QUERY_BODY[6:], "Expected UTF-8, got a byte 0xff in a text"),
        (QUERY_BODY[:-1] + b"\x02", "Expected 0 or 1 at byte 19, got 2"),
        (ODD + b"\x04" + bytes(40), "Expected the type's own literal, got another one"),
        (ODD + b"\x18" + b"\xff" * 8, f"Expected {2**64 - 1} entries at byte 13, got 0 bytes"),
        (ODD + b"\x10" + b"\xff" * 4, f"Expected {2**32 - 1} entries at byte 9, got 0 bytes"),
    ],
)
def test_a_refusal_says_what_was_expected_and_where(body: bytes, text: str) -> None:
    with pytest.raises(StructPackError) as caught:
        messages.QUERY.unpack(body)
    assert str(caught.value) == text


def test_a_length_for_newer_members_and_bytes_behind_a_value_are_passed_over() -> None:
    assert messages.QUERY.unpack(ODD + b"\x01\x00\x00" + QUERY_BODY[4:] + b"more") == (
        messages.QUERY.unpack(QUERY_BODY)
    )
