"""The endpoint picker, asked by a proxy over gRPC: where requests go, and what is told of them."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from gateway.picker import picked_request, server
from gateway.picker.messages import ext_proc_pb2
from gateway.settings import GatewaySettings
from query_api.access.guard import Guard
from query_api.access.key_editing import add_key
from query_api.access.key_ring import KeyRing
from query_api.access.keys import Key, digest_of, make_secret, spell
from query_api.access.rights import Access, Right
from query_api.grpc.grpc_settings import ListenAddress
from schemas.limits import MIB
from tests.ext_proc import (
    BUFFERED,
    DESTINATION,
    DUPLEX,
    PROCESS,
    STREAMED,
    Proxy,
    envoys_own,
    proxy,
)
from tests.gateway import USAGE, World, until, world

PROMPT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "user": "u-1"}
STREAM = PROMPT | {"stream": True}
WHOLE = json.dumps({"choices": [{}], "usage": USAGE}).encode()
EVENT = b'data: {"choices":[{"delta":{"content":"w"}}]}\n\n'
USAGE_EVENT = b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n"
DONE = b"data: [DONE]\n\n"
EVENTS = "text/event-stream"

Scenario = Callable[[World, Proxy], Awaitable[None]]


def run(scenario: Scenario, protos: Any = ext_proc_pb2, **options: Any) -> None:
    """Runs a scenario in a world of its own, in which nothing is under way at the end."""

    async def main() -> None:
        settings = GatewaySettings(picker=ListenAddress())
        async with world(settings, **options) as found:
            assert found.gateway.picker is not None
            async with proxy(found.gateway.picker.address, protos) as client:
                await scenario(found, client)
            await until(lambda: picker(found).streams == 0)
            await found.until_quiet()

    asyncio.run(main())


def picker(found: World) -> server.PickerServer:
    assert found.gateway.picker is not None
    return found.gateway.picker


def stall() -> None:
    """Nothing else has a turn meanwhile, as on a busy loop."""
    time.sleep(0.2)


def endpoint(found: World, name: str) -> str:
    return found.engines[name].url.removeprefix("http://")


@pytest.mark.parametrize("whose", ["ours", "envoy"])
def test_request_is_told_an_engine_in_header_and_metadata(whose: str) -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        body = json.dumps(PROMPT).encode()
        told = await stream.request(body)
        assert told.endpoints == [endpoint(found, "a")]
        assert told.metadata == {"envoy.lb": {DESTINATION: endpoint(found, "a")}}
        assert told.body == body
        assert told.order == ["request_headers", "request_body"]
        assert told.removed == ["x-reprise-tenant", "x-data-parallel-rank"]
        passed = await stream.answer([WHOLE])
        assert passed.body == WHOLE
        assert passed.headers["reprise-decision"]
        assert passed.headers["reprise-by-load"] == "no_tokenizer"
        await stream.call.done_writing()
        assert await stream.ended() is grpc.StatusCode.OK
        assert picker(found).results == {"picked": 1}
        assert picker(found).ended == {"complete": 1}

    run(scenario, ext_proc_pb2 if whose == "ours" else envoys_own())


def test_other_engines_follow_in_order_and_the_served_one_is_what_is_told_of() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        for name in ("a", "b", "c"):
            await found.add(name)
        stream = client.open()
        told = await stream.request(PROMPT)
        assert sorted(told.endpoints) == sorted(endpoint(found, name) for name in "abc")
        second = told.endpoints[1]
        await stream.answer([WHOLE], served=second)
        await stream.call.done_writing()
        await until(lambda: picker(found).elsewhere == 1)
        live = found.router.live
        assert live.counts()["under_way"] == 0

    run(scenario)


def test_request_counts_at_the_engine_where_it_is() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        for name in ("a", "b"):
            await found.add(name)
        stream = client.open()
        first, second = (await stream.request(STREAM)).endpoints
        under_way = found.gateway.fleet.under_way
        assert under_way == {(f"http://{first}", 0): 1}
        await stream.send(
            {"envoy.lb": {"x-gateway-destination-endpoint-served": second}},
            response_headers={"headers": {"headers": [{"key": ":status", "raw_value": b"200"}]}},
        )
        await stream.told("response_headers")
        assert under_way == {(f"http://{second}", 0): 1}
        stream.call.cancel()

    run(scenario)


@pytest.mark.parametrize("as_text", [False, True], ids=["list", "text"])
def test_subset_is_obeyed(as_text: bool) -> None:
    async def scenario(found: World, client: Proxy) -> None:
        for name in ("a", "b", "c"):
            await found.add(name)
        allowed = [endpoint(found, "b"), "10.9.9.9:8000"]
        for _ in range(4):
            stream = client.open()
            subset = ", ".join(allowed) if as_text else allowed
            told = await stream.request(PROMPT, subset=subset)
            assert told.endpoints == [endpoint(found, "b")]
            stream.call.cancel()

    run(scenario)


def test_subset_names_an_address_for_all_its_ports() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        for name in ("a", "b"):
            await found.add(name)
        stream = client.open()
        assert len((await stream.request(PROMPT, subset=["127.0.0.1"])).endpoints) == 2
        stream.call.cancel()

    run(scenario)


@pytest.mark.parametrize("subset", [[], ["10.9.9.9:8000"], ""])
def test_subset_without_an_engine_is_answered_503(subset: Any) -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        told = await stream.request(PROMPT, subset=subset)
        assert (told.refused, told.code) == (503, "no_endpoint")
        assert told.headers["retry-after"] == "1"
        assert await stream.ended() is grpc.StatusCode.OK
        assert picker(found).results == {"no_endpoint": 1}

    run(scenario)


def test_no_engine_is_answered_503_and_another_model_404() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        told = await client.open().request(PROMPT)
        assert (told.refused, told.code) == (503, "no_engine")
        await found.add("a")
        told = await client.open().request(PROMPT | {"model": "z"})
        assert (told.refused, told.code) == (404, "model_not_found")

    run(scenario)


def test_engine_that_is_known_by_a_name_alone_is_told_to_nobody() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        engine = await found.add("a")
        for key, one in list(found.table.registrations.items()):
            url = f"http://localhost:{engine.port}"
            found.table.registrations[key] = one.__class__(
                **{name: getattr(one, name) for name in one.__struct_fields__}
                | {"http_endpoint": url}
            )
        found.gateway.fleet.forget()
        told = await client.open().request(PROMPT)
        assert (told.refused, told.code) == (503, "no_endpoint")
        assert b"IP address" in told.body

    run(scenario)


def test_overload_is_answered_429() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        headers = [("x-llm-d-slo-ttft-ms", "0.001")]
        told = await client.open().request(PROMPT, headers=headers)
        assert (told.refused, told.code) == (429, "slo_unreachable")
        assert int(told.headers["retry-after"]) >= 1

    run(scenario)


def test_rank_is_told_in_a_header_and_fallbacks_have_it() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a", ranks=2)
        await found.add("b", ranks=2)
        await found.add("c")
        for _ in range(4):
            stream = client.open()
            told = await stream.request(PROMPT)
            has_rank = told.endpoints[0] != endpoint(found, "c")
            assert ("x-data-parallel-rank" in told.headers) == has_rank
            assert ("x-data-parallel-rank" in told.removed) != has_rank
            same = {endpoint(found, "a"), endpoint(found, "b")} if has_rank else {told.endpoints[0]}
            assert set(told.endpoints) == same

    run(scenario)


# Streams of events


def test_usage_is_asked_for_and_left_out_where_both_ways_are_in_full_duplex() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        told = await stream.request(STREAM)
        sent = json.loads(told.body)
        assert sent.pop("stream_options") == {"include_usage": True}
        assert sent == STREAM
        pieces = [EVENT, EVENT[:9], EVENT[9:] + USAGE_EVENT, DONE]
        passed = await stream.answer(pieces, content_type=EVENTS)
        assert passed.body == EVENT + EVENT + DONE
        assert passed.is_end

    run(scenario)


def test_usage_is_not_asked_for_where_the_answer_is_not_in_full_duplex() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        modes = {"request_body_mode": DUPLEX, "response_body_mode": STREAMED}
        told = await stream.request(STREAM, modes=modes)
        assert json.loads(told.body) == STREAM
        await stream.send(
            response_headers={"headers": {"headers": [{"key": ":status", "raw_value": b"200"}]}}
        )
        await stream.told("response_headers")
        await stream.send(response_body={"body": EVENT, "end_of_stream": True})
        told = await stream.told("response_body")
        assert (told.body, told.order) == (b"", ["response_body"])  # it passes as it came

    run(scenario)


def test_body_ends_with_trailers() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        body = json.dumps(PROMPT).encode()
        await stream.headers()
        await stream.body(body, is_end=False)
        await stream.send(request_trailers={})
        told = await stream.told()
        assert told.order == ["request_headers", "request_body", "request_trailers"]
        assert (told.body, told.endpoints) == (body, [endpoint(found, "a")])
        named = [{"key": ":status", "raw_value": b"200"}]
        named.append({"key": "content-type", "raw_value": EVENTS.encode()})
        await stream.send(response_headers={"headers": {"headers": named}})
        await stream.send(response_body={"body": EVENT + b"data: half"})
        await stream.send(response_trailers={})
        assert (await stream.told()).body in (EVENT + b"data: half", EVENT)
        await stream.call.done_writing()
        await until(lambda: picker(found).ended == {"complete": 1})

    run(scenario)


# Other modes


def test_body_that_the_proxy_keeps_is_placed_by_its_content() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        await found.add("b", model="n")
        stream = client.open()
        await stream.headers(modes={"request_body_mode": BUFFERED})
        told = await stream.told("request_headers")
        assert (told.headers, told.metadata) == ({}, {})
        await stream.body(json.dumps(PROMPT | {"model": "n"}).encode())
        told = await stream.told("request_body")
        assert told.endpoints == [endpoint(found, "b")]
        assert told.body == b""
        # No body of an answer is sent in that mode: it is over with its headers.
        await stream.send(
            response_headers={"headers": {"headers": [{"key": ":status", "raw_value": b"200"}]}}
        )
        await stream.told("response_headers")
        assert found.under_way()[2] == 0

    run(scenario)


@pytest.mark.parametrize("mode", [0, STREAMED])
def test_request_whose_body_does_not_come_first_is_placed_by_its_headers(mode: int) -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        await stream.headers(modes={"request_body_mode": mode, "response_body_mode": STREAMED})
        told = await stream.told("request_headers")
        assert told.endpoints == [endpoint(found, "a")]
        if mode:
            await stream.body(b"x" * 100)
            assert (await stream.told("request_body")).order == ["request_body"]

    run(scenario)


def test_request_without_a_body_goes_to_an_engine_whatever_the_models() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        await found.add("b", model="n")
        stream = client.open()
        await stream.headers("/v1/models", method="GET", is_end=True)
        told = await stream.told("request_headers")
        assert told.endpoints[0] in (endpoint(found, "a"), endpoint(found, "b"))

    run(scenario)


# What came of it


def test_answer_of_an_error_counts_against_the_engine_and_one_of_the_clients_does_not() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        seen = []
        placer = found.gateway.placer
        failed, cancelled = placer.failed, placer.cancelled
        placer.failed = lambda *told: (seen.append("failed"), failed(*told))[1]  # type: ignore[method-assign, func-returns-value]
        placer.cancelled = lambda *told: (seen.append("cancelled"), cancelled(*told))[1]  # type: ignore[method-assign, func-returns-value]
        for status in (503, 400, 429):
            stream = client.open()
            await stream.request(PROMPT)
            passed = await stream.answer([b"own words"], status=status)
            assert passed.body == b"own words"
            assert found.under_way()[2] == 0
        assert seen == ["failed", "cancelled", "cancelled"]

    run(scenario)


@pytest.mark.parametrize(("last", "event"), [(DONE, "completed"), (EVENT, "cancelled")])
def test_proxy_whose_client_closes_at_the_last_event_has_all_of_it(last: bytes, event: str) -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        await stream.request({"model": "m", "prompt": list(range(100)), "stream": True})
        named = [{"key": ":status", "raw_value": b"200"}]
        named.append({"key": "content-type", "raw_value": EVENTS.encode()})
        await stream.send(response_headers={"headers": {"headers": named}})
        await stream.told("response_headers")
        await stream.send(response_body={"body": EVENT + last})
        await stream.told("response_body")
        stream.call.cancel()
        await until(lambda: picker(found).streams == 0)
        [recent] = found.router.live.recent(1, lambda tenant: True)
        assert recent.outcomes[-1].event.value == event

    run(scenario)


@pytest.mark.parametrize("part", ["headers", "body", "placed", "answering"])
def test_half_a_stream_leaves_nothing_behind(part: str) -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        await stream.headers()
        if part != "headers":
            await stream.body(json.dumps(PROMPT).encode(), is_end=part != "body")
        if part in ("placed", "answering"):
            await stream.told()
            assert found.under_way()[2] == 1
        if part == "answering":
            named = [{"key": ":status", "raw_value": b"200"}]
            await stream.send(response_headers={"headers": {"headers": named}})
            await stream.send(response_body={"body": b"{"})
            await stream.told("response_body")
        await until(lambda: picker(found).streams == 1)
        stream.call.cancel()
        await until(lambda: picker(found).ended == {"gone": 1})

    run(scenario)


def test_proxy_that_goes_while_it_is_told_leaves_no_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        tokens = found.gateway.prompts.of

        async def slow(*asked: Any) -> Any:
            await asyncio.to_thread(stream.call.cancel)
            stall()
            return await tokens(*asked)

        monkeypatch.setattr(found.gateway.prompts, "of", slow)
        stream = client.open()
        await stream.headers()
        await stream.body(json.dumps(PROMPT).encode())
        await until(lambda: picker(found).ended == {"gone": 1})
        assert picker(found).faults == 0
        assert [one for one in caplog.records if one.levelname == "ERROR"] == []

    run(scenario)


# Bad orders, bounds


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"request_body": {"body": b"x"}},
        {"response_headers": {}},
        {"response_body": {}},
        {"request_trailers": {}},
        {"request_headers": {}, "observability_mode": True},
    ],
)
def test_first_message_that_is_no_request_ends_the_stream(fields: dict[str, Any]) -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        await stream.send(**fields)
        assert await stream.ended() is grpc.StatusCode.INVALID_ARGUMENT
        assert "Expected" in await stream.call.details()
        assert picker(found).ended == {"malformed": 1}

    run(scenario)


def test_second_request_in_a_stream_and_bytes_that_are_no_message_end_it() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        await stream.headers()
        await stream.headers()
        assert await stream.ended() is grpc.StatusCode.INVALID_ARGUMENT
        raw: Any = client.channel.stream_stream(PROCESS)()
        await raw.write(b"\xff\xff\xff")
        assert await raw.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert picker(found).ended == {"malformed": 2}

    run(scenario)


def test_answer_before_the_request_was_whole_passes() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        await stream.headers()
        await stream.body(b"{", is_end=False)
        passed = await stream.answer([b"the proxy's own"], status=413)
        assert passed.body == b"the proxy's own"
        await stream.body(b"rest")
        assert (await stream.told()).body == b"rest"

    run(scenario)


def test_body_that_is_no_json_is_answered_400() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        told = await client.open().request(b"{nothing")
        assert (told.refused, told.code) == (400, "invalid_json")
        assert told.headers["content-type"] == "application/json"

    run(scenario)


def test_body_without_a_content_type_is_read_as_json() -> None:
    """The extension's own tests send none."""

    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        told = await client.open().request(b"no healthy upstream", content_type="")
        assert (told.refused, told.code) == (400, "invalid_json")
        told = await client.open().request(PROMPT | {"model": "other"}, content_type="")
        assert (told.refused, told.code) == (404, "model_not_found")
        told = await client.open().request(b"some text", content_type="text/plain")
        assert (told.refused, told.body) == (0, b"some text")

    run(scenario)


def test_huge_body_is_answered_413_and_a_large_one_passes_in_small_pieces() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        await stream.headers()
        for _ in range(33):
            await stream.body(b"x" * MIB, is_end=False)
        told = await stream.told()
        assert (told.refused, told.code) == (413, "body_too_large")
        stream = client.open()
        body = json.dumps(PROMPT | {"pad": "x" * MIB}).encode()
        await stream.headers()
        for at in range(0, len(body), 50_000):
            await stream.body(body[at : at + 50_000], is_end=at + 50_000 >= len(body))
        told = await stream.told()
        assert told.body == body
        assert len(told.order) > len(body) // 65536

    run(scenario)


def test_bodies_beyond_their_room_are_answered_503() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        found.gateway.held._bytes_max = 1000
        told = await client.open().request(PROMPT | {"pad": "x" * 1000})
        assert (told.refused, told.code) == (503, "no_room")

    run(scenario)


def test_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PICKER_STREAMS_MAX", 1)

    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        first = client.open()
        await first.request(PROMPT)
        told = await client.open().told()
        assert (told.refused, told.code) == (503, "too_many_streams")
        await first.answer([WHOLE])

    run(scenario)


def test_body_that_never_ends_is_answered_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picked_request, "PICKER_BODY_S", 0.1)

    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        await stream.headers()
        await stream.body(b"{", is_end=False)
        told = await stream.told()
        assert (told.refused, told.code) == (408, "body_too_slow")
        assert picker(found).results == {"body_too_slow": 1}

    run(scenario)


@pytest.mark.parametrize("why", ["silent", "too_long"])
def test_stream_that_never_ends_is_ended(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, module = {
        "silent": ("PICKER_SILENCE_S", picked_request),
        "too_long": ("PICKER_STREAM_S", server),
    }[why]
    monkeypatch.setattr(module, name, 0.3)

    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        await stream.request(PROMPT)
        assert await stream.ended() is grpc.StatusCode.OK
        await until(lambda: picker(found).ended == {why: 1})

    run(scenario)


def test_fault_of_ours_is_told_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        monkeypatch.setattr(found.gateway.prompts, "of", None)
        stream = client.open()
        await stream.headers()
        await stream.body(json.dumps(PROMPT).encode())
        assert await stream.ended() is grpc.StatusCode.INTERNAL
        assert (picker(found).faults, picker(found).ended) == (1, {"internal_error": 1})

    run(scenario)


# Health, keys


def test_health_says_alive_always_and_ready_where_there_is_a_table_or_an_engine() -> None:
    async def scenario(found: World, client: Proxy) -> None:
        services = ("", "readiness", server.EXTERNAL_PROCESSOR)
        found.table.ready = False
        assert await client.health("liveness") == 1
        assert [await client.health(one) for one in services] == [2, 2, 2]
        await found.add("a")
        assert [await client.health(one) for one in services] == [1, 1, 1]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await client.health("other")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND

    run(scenario)


def test_health_is_told_as_it_changes_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PICKER_HEALTH_S", 0.02)

    async def scenario(found: World, client: Proxy) -> None:
        found.table.ready = False
        calls: dict[str, Any] = {
            name: client.watch(ext_proc_pb2.HealthCheckRequest(service=name))
            for name in ("liveness", "readiness", "other")
        }
        assert [(await call.read()).status for call in calls.values()] == [1, 2, 3]
        await found.add("a")
        assert (await calls["readiness"].read()).status == 1
        found.table.ready = True
        calls["other"].cancel()
        await until(lambda: picker(found).watches == 2)
        began = time.monotonic()
        await picker(found).close(is_forced=False)
        assert time.monotonic() - began < server.PICKER_GRACE_S, "nobody waits for a watch"
        for call in (calls["liveness"], calls["readiness"]):
            assert await call.read() is grpc.aio.EOF, "the status is told once"
            assert await call.code() is grpc.StatusCode.OK
        assert picker(found).watches == 0

    run(scenario)


def test_watches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PICKER_WATCHES_MAX", 1)

    async def scenario(found: World, client: Proxy) -> None:
        first = client.watch(ext_proc_pb2.HealthCheckRequest())
        await first.read()
        second = client.watch(ext_proc_pb2.HealthCheckRequest())
        assert await second.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await client.health("liveness") == 1
        first.cancel()
        await until(lambda: picker(found).watches == 0)

    run(scenario)


def test_proxy_needs_a_key_where_there_are_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    secret = make_secret()
    access = Access("proxy", frozenset({Right.ROUTE}))
    add_key(path, Key(digest=digest_of(secret), access=access))

    async def scenario(found: World, client: Proxy) -> None:
        await found.add("a")
        stream = client.open()
        assert await stream.ended() is grpc.StatusCode.UNAUTHENTICATED
        stream = client.open(spell("proxy", secret))
        assert (await stream.request(PROMPT)).endpoints == [endpoint(found, "a")]
        assert picker(found).ended["no_access"] == 1
        assert await client.health("liveness") == 1

    run(scenario, picker_guard=Guard(KeyRing(path)))
