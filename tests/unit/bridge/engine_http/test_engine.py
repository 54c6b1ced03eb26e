"""How each kind of engine is asked, of servers on loopback."""

import asyncio
import json
import math
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from bridge.engine_http.client import NoAnswerError
from bridge.engine_http.engine import EngineHttp, NoEngineError, can_ask, check_http
from schemas.errors import EndpointError, RegistrationError
from schemas.registration import PublisherKind, Registration
from tests.unit.bridge.engine_http.test_answers import KV_EVENTS, VLLM_0_33
from tests.unit.bridge.engine_http.test_client import serving
from tests.unit.bridge.messages import registration

Replies = dict[str, tuple[int, object]]


async def _with(replies: Replies, kind: str, ask: Any) -> Any:
    """What `ask` makes of an engine that answers so; 404 elsewhere."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status, body = replies.get(head.split()[1].decode(), (404, {"detail": "Not Found"}))
        encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
        writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: {len(encoded)}\r\n\r\n".encode())
        writer.write(encoded)
        await writer.drain()

    async with serving(serve) as url:
        one = msgspec.structs.replace(registration(), kind=PublisherKind(kind), endpoint=url)
        return await ask(EngineHttp(wait_s=5.0), one)


def asked(replies: Replies, kind: str, ask: Any) -> Any:
    return asyncio.run(_with(replies, kind, ask))


def is_there(http: EngineHttp, one: Registration) -> Coroutine[Any, Any, bool]:
    return http.is_there(one)


def process(http: EngineHttp, one: Registration) -> Coroutine[Any, Any, object]:
    return http.process(one)


def sources(http: EngineHttp, one: Registration) -> Coroutine[Any, Any, Any]:
    return http.sources(one)


@pytest.mark.parametrize(
    ("kind", "path", "status", "expected"),
    [
        ("vLLM", "/health", 200, True),
        ("vLLM", "/health", 503, False),
        ("SGLang", "/model_info", 200, True),
        ("SGLang", "/model_info", 401, True),
        ("SGLang", "/get_model_info", 200, True),
        ("SGLang", "/model_info", 500, False),
    ],
)
def test_an_engine_is_there_where_its_server_answers_and_works(
    kind: str, path: str, status: int, expected: bool
) -> None:
    assert asked({path: (status, {})}, kind, is_there) is expected


@pytest.mark.parametrize(("kind", "first"), [("vLLM", "/metrics"), ("SGLang", "/server_info")])
def test_a_server_that_knows_no_path_of_an_engine_is_none(kind: str, first: str) -> None:
    def bodies(http: EngineHttp, one: Registration) -> Coroutine[Any, Any, dict[str, bytes]]:
        return http.bodies(one)

    with pytest.raises(NoEngineError, match=f"HTTP 404 for each of {first}"):
        asked({}, kind, bodies)
    locked: Replies = {"/metrics": (401, {}), "/server_info": (401, {})}
    assert asked(locked, kind, bodies) == {}, "an engine that asks for a key"
    if kind == "vLLM":
        assert list(asked({"/version": (200, {"version": "0.9"})}, kind, bodies)) == ["/version"]


def test_sglang_is_never_asked_for_what_generates_a_token() -> None:
    paths: list[str] = []

    async def scene() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            paths.append((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
            writer.write(b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n")

        async with serving(serve) as url:
            one = msgspec.structs.replace(
                registration(), kind=PublisherKind("SGLang"), endpoint=url
            )
            http = EngineHttp()
            await http.is_there(one)
            await http.process(one)
            with pytest.raises(RegistrationError):
                await http.sources(one)

    asyncio.run(scene())
    assert paths
    assert not {"/health", "/health_generate"} & set(paths)


def test_nobody_there_is_counted() -> None:
    async def scene() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

        http = EngineHttp(wait_s=5.0)
        async with serving(serve) as url:
            one = msgspec.structs.replace(registration(), endpoint=url)
            assert not await http.is_there(one)
            assert await http.process(one) is None
            with pytest.raises(NoAnswerError):
                await http.sources(one)
        assert http.requests == {"silent": 3}

    asyncio.run(scene())


def test_the_process_is_found_where_each_kind_says_it() -> None:
    metrics = b"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.7e+09\n"
    found = asked({"/metrics": (200, metrics)}, "vLLM", process)
    assert found is not None
    assert found.started_at == 1.7e9
    info: Replies = {"/server_info": (200, {"random_seed": 7})}
    assert asked(info, "SGLang", process).mark == "seed 7"
    older: Replies = {"/get_server_info": (200, {"random_seed": 8})}
    assert asked(older, "SGLang", process).mark == "seed 8"
    assert asked({}, "vLLM", process) is None
    assert asked({"/metrics": (500, metrics)}, "vLLM", process) is None


def test_sources_are_found_where_each_kind_says_them() -> None:
    found = asked({"/kv_event_sources": (200, VLLM_0_33)}, "vLLM", sources)
    assert [one.endpoint for one in found] == ["tcp://127.0.0.1:25557", "tcp://127.0.0.1:25558"]
    both = asked({"/server_info": (200, {"kv_events": KV_EVENTS})}, "SGLang", sources)
    assert [one.endpoint for one in both] == ["tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"]


@pytest.mark.parametrize(
    ("kind", "replies", "why"),
    [
        ("vLLM", {}, r"HTTP 404 for /kv_event_sources; vLLM says it from 0\.31\.0 on"),
        ("SGLang", {}, r"register its `endpoint`"),
        ("vLLM", {"/kv_event_sources": (401, {})}, r"HTTP 401"),
        ("vLLM", {"/kv_event_sources": (200, [])}, r"publishes no KV-cache events"),
        ("SGLang", {"/server_info": (200, {"kv_events": None})}, r"publishes no KV-cache events"),
        ("SGLang", {"/get_server_info": (200, {"tp_size": 1})}, r"does not say where"),
    ],
)
def test_an_engine_that_does_not_say_where_it_publishes_is_told_with_what_to_do(
    kind: str, replies: Replies, why: str
) -> None:
    with pytest.raises(RegistrationError, match=why):
        asked(replies, kind, sources)


def test_an_engine_that_is_not_ready_may_be_asked_again() -> None:
    with pytest.raises(NoAnswerError, match="it is not ready"):
        asked({"/kv_event_sources": (503, {})}, "vLLM", sources)


def test_engines_that_do_not_answer_leave_places_to_those_that_do() -> None:
    async def scene() -> None:
        hung = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            await hung.wait()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 x\r\nContent-Length: 0\r\n\r\n")

        async with serving(hang) as bad_url, serving(serve) as good_url:
            bad = msgspec.structs.replace(registration(), http_endpoint=bad_url)
            good = msgspec.structs.replace(registration(), http_endpoint=good_url)
            await_first = EngineHttp(wait_s=0.05)
            assert not await await_first.is_there(bad)
            http = EngineHttp(wait_s=60.0)
            http._silent.update(await_first._silent)  # it is known by now
            asking = [asyncio.create_task(http.is_there(bad)) for _ in range(200)]
            await asyncio.sleep(0)
            assert await http.is_there(good)
            assert not any(task.done() for task in asking)
            hung.set()
            await asyncio.gather(*asking)

    asyncio.run(asyncio.wait_for(scene(), 30))


@pytest.mark.parametrize(
    ("url", "kind", "why"),
    [
        ("http://a?x", "SGLang", "Expected a URL"),
        ("http://a", "Mooncake", "only vLLM, SGLang, TensorRT-LLM are asked over HTTP"),
    ],
)
def test_an_address_that_cannot_be_asked_is_refused(url: str, kind: str, why: str) -> None:
    one = msgspec.structs.replace(registration(), kind=PublisherKind(kind), http_endpoint=url)
    with pytest.raises(EndpointError, match=why):
        check_http(one)


def test_a_base_url_is_the_address_unless_another_one_is_given() -> None:
    one = msgspec.structs.replace(registration(), endpoint="http://a:1")
    assert (one.has_url, one.http_url) == (True, "http://a:1")
    other = msgspec.structs.replace(one, http_endpoint="http://b:1")
    assert other.http_url == "http://b:1"
    check_http(other)
    with pytest.raises(EndpointError):
        check_http(msgspec.structs.replace(other, endpoint="http://a:x"))
    assert not registration().has_url


def test_an_engine_may_be_asked_for_its_load_and_not_where_it_publishes() -> None:
    one = msgspec.structs.replace(registration(), kind=PublisherKind("TensorRT-LLM"))
    check_http(msgspec.structs.replace(one, http_endpoint="http://a:1"))
    with pytest.raises(EndpointError, match="only vLLM, SGLang are asked over HTTP"):
        check_http(msgspec.structs.replace(one, endpoint="http://a:1"))


def test_a_registration_without_an_address_is_none_of_its_business() -> None:
    check_http(msgspec.structs.replace(registration(), kind=PublisherKind("Mooncake")))


def test_only_some_kinds_are_asked() -> None:
    assert can_ask(PublisherKind("vLLM"))
    assert can_ask(PublisherKind("SGLang"))
    assert not can_ask(PublisherKind("Mooncake"))


@pytest.mark.parametrize(
    ("date", "apart_most"),
    [
        ("Mon, 30 Nov 2026 22:00:00 GMT", 100.0 - 1796076000.0),
        ("tomorrow", math.inf),
        ("", math.inf),
    ],
)
def test_an_engine_tells_its_clock_with_each_answer(date: str, apart_most: float) -> None:
    async def scene() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            head = f"HTTP/1.1 200 x\r\n{date and f'Date: {date}'}\r\nContent-Length: 2\r\n\r\n{{}}"
            writer.write(head.replace("\r\n\r\nContent", "\r\nContent").encode())

        async with serving(serve) as url:
            one = msgspec.structs.replace(registration(), endpoint=url)
            found = await EngineHttp(clock=lambda: 100.0).bodies(one)
        assert found.apart_most == apart_most

    asyncio.run(scene())
