"""What of a client's request is read."""

import json
from typing import Any

import pytest

from gateway.errors import GatewayError
from gateway.requests import (
    CHAT,
    ClientRequest,
    passed_back,
    read_request,
    with_fields,
)

JSON = (b"content-type", b"application/json; charset=utf-8")


def read(
    body: Any = b"{}",
    *headers: tuple[bytes, bytes],
    path: str = CHAT,
    keeps_authorization: bool = True,
    cookie: str = "",
) -> ClientRequest:
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_request(
        path,
        b"",
        [JSON, *headers],
        body,
        keeps_authorization=keeps_authorization,
        session_cookie=cookie,
    )


def test_headers_of_one_connection_stay_behind() -> None:
    found = read(
        b"{}",
        (b"host", b"x"),
        (b"connection", b"keep-alive, X-Private"),
        (b"x-private", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"2"),
        (b"accept-encoding", b"gzip"),
        (b"x-data-parallel-rank", b"7"),
        (b"authorization", b"Bearer e"),
        (b"x-own", b"\xe4"),
        (b"reprise-decision", b"forged"),
    )
    assert found.headers == [
        ("content-type", "application/json; charset=utf-8"),
        ("authorization", "Bearer e"),
        ("x-own", "\xe4"),
    ]
    keys = (b"authorization", b"Bearer rk"), (b"x-api-key", b"rk")
    kept = read(b"{}", *keys, keeps_authorization=False)
    assert kept.headers == [("content-type", "application/json; charset=utf-8")]


def test_headers_of_an_engines_connection_stay_behind() -> None:
    given = [
        (b"Content-Type", b"x"),
        (b"Content-Length", b"2"),
        (b"Connection", b"close, Own"),
        (b"Own", b"1"),
        (b"Keep-Alive", b"9"),
        (b"Set-Cookie", b"a"),
        (b"Set-Cookie", b"b"),
        (b"Reprise-State", b"forged"),
    ]
    assert passed_back(given) == [
        (b"content-type", b"x"),
        (b"content-length", b"2"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
    ]


@pytest.mark.parametrize("body", [b"{}", b" { }", b'{"a":1}', b'\n{\n"a" : 1.0 }', b'{"a":{}}'])
def test_fields_are_put_before_those_that_came(body: bytes) -> None:
    found = with_fields(body, b'"b":2')
    assert json.loads(found) == {"b": 2, **json.loads(body)}
    assert found.endswith(body.lstrip().removeprefix(b"{").lstrip())


def test_body_that_is_packed_is_passed_on_unread() -> None:
    found = read(b"\x1f\x8b", (b"content-encoding", b"gzip"))
    assert (found.body, found.fields, found.model) == (b"\x1f\x8b", None, "")


def test_usage_is_asked_for_in_streams_that_do_not_say() -> None:
    assert read({"stream": True}).leaves_out
    assert not read({"stream": False}).leaves_out
    assert not read({"stream": True, "stream_options": None}).leaves_out
    assert not read({"stream": True}, path="/v1/responses").leaves_out


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32-be"])
def test_bodies_of_other_codings_stay_as_they_came(coding: str) -> None:
    body = json.dumps({"model": "m", "stream": True}).encode(coding)
    found = read(body)
    assert (found.body, found.model, found.leaves_out) == (body, "m", False)


@pytest.mark.parametrize(
    ("headers", "session"),
    [
        ([(b"x-session-id", b"a")], "a"),
        ([(b"x-dynamo-session-id", b"b")], "b"),
        ([(b"x-session-id", b"a"), (b"x-dynamo-session-id", b"b")], "a"),
        ([(b"cookie", b"x=1; sid=c")], "c"),
        ([(b"cookie", b"asid=c")], "u"),
        ([(b"x-session-id", b"x" * 5000)], ""),
        ([(b"x-session-id", b"a\x01")], ""),
        ([], "u"),
    ],
)
def test_session_is_named_by_the_first_that_does(
    headers: list[tuple[bytes, bytes]], session: str
) -> None:
    body = {"user": "u"} if session == "u" else {}
    assert read(body, *headers, cookie="sid").session_id == session


@pytest.mark.parametrize(
    ("value", "seconds"), [(b"250", 0.25), (b"0", 0.0), (b"", 0.0), (b"0.5", 0.0005)]
)
def test_objective_is_a_time(value: bytes, seconds: float) -> None:
    assert read(b"{}", (b"x-llm-d-slo-ttft-ms", value)).ttft_slo_s == seconds


@pytest.mark.parametrize("value", [b"-1", b"nan", b"inf", b"x", b"1e10", b"\xff", b"250ms"])
def test_objective_that_is_no_time_is_refused(value: bytes) -> None:
    with pytest.raises(GatewayError, match="x-llm-d-slo-ttft-ms") as caught:
        read(b"{}", (b"x-llm-d-slo-ttft-ms", value))
    assert (caught.value.status, caught.value.code) == (400, "invalid_objective")


@pytest.mark.parametrize(
    ("given", "priority"), [(0, 0), (5, -5), (-3, 3), ("x", 0), (2**40, 0), (True, -1)]
)
def test_priority_of_vllm_is_turned_round(given: object, priority: int) -> None:
    assert read({"priority": given}).priority == priority


def test_pair_needs_a_prompt_of_one_answer() -> None:
    assert read({"messages": []}).can_be_a_pair
    assert not read({"n": 2}).can_be_a_pair
    assert not read({"kv_transfer_params": {}}).can_be_a_pair
    assert not read({}, path="/v1/embeddings").can_be_a_pair


@pytest.mark.parametrize(
    ("fields", "tests"),
    [
        ({}, True),
        ({"n": 1, "best_of": None, "use_beam_search": False, "prompt_logprobs": None}, True),
        ({"echo": False, "logprobs": 1, "return_logprob": False}, True),
        ({"n": 2}, False),
        ({"n": 2, "stream": True}, False),  # SGLang has computed the prompt before
        ({"best_of": 4}, False),
        ({"use_beam_search": True}, False),
        ({"prompt_logprobs": 0}, False),
        ({"echo": True, "logprobs": 1}, False),
        ({"return_logprob": True}, False),
        ({"logprob_start_len": 0}, False),
    ],
)
def test_several_answers_and_scores_of_the_prompt_do_not_test_a_cache(
    fields: dict[str, Any], tests: bool
) -> None:
    assert read({"model": "m", "prompt": [1], **fields}).tests_cache is tests


@pytest.mark.parametrize(("given", "due"), [("sql", "sql"), (None, ""), (["sql"], "")])
def test_adapter_that_is_named_apart_is_read(given: object, due: str) -> None:
    assert read({"model": "m", "prompt": "x", "lora_path": given}).lora_path == due
