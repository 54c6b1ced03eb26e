"""Engines that are named by their addresses are asked what they are."""

import asyncio
import json
import logging
from typing import Any

import msgspec
import pytest

from bridge.engine_http.client import NoAnswerError
from bridge.engine_http.engine import EngineHttp, NoEngineError
from gateway.enrollment import EngineState, Enrollment
from query_api.ports import ServiceView
from schemas.positions import PublisherState
from schemas.registration import NO_EVENTS, Label, Registration
from tests.engine_http import EngineServer, engine_server
from tests.fakes import FakeTable

CACHE = 'vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="100"%s} 1.0\n'


def vllm(server: EngineServer, *, caching: str = "", events: bool = True) -> None:
    """It is a vLLM of two ranks."""
    sources: dict[str, Any] = {}
    for rank in (0, 1) if events else ():
        sources[str(rank)] = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{5557 + rank}",
            "replay_endpoint": None if rank else "tcp://*:6557",
            "topic": "",
        }
    server.replies = {
        "/version": (200, b'{"version":"0.33.0"}'),
        "/v1/models": (200, b'{"data":[{"id":"deepseek"},{"id":"lora"}]}'),
        "/metrics": (200, (CACHE % caching).encode()),
        "/kv_event_sources": (200, json.dumps(sources).encode()),
    }


def shared_table() -> FakeTable:
    """One in which ranks may have one address."""
    table = FakeTable()
    table.add = lambda one: table.registrations.update({one.publisher: one})  # type: ignore[method-assign, assignment, return-value]
    return table


def ask(server: EngineServer) -> tuple[Enrollment, list[Registration]]:
    table = shared_table()
    enrollment = Enrollment([server.url], table, table, EngineHttp())
    asyncio.run(enrollment.ask(server.url))
    return enrollment, sorted(table.registered(), key=lambda one: one.dp_rank)


def test_vllm_is_registered_as_what_it_says() -> None:
    with engine_server() as server:
        vllm(server)
        enrollment, found = ask(server)
        assert [one.dp_rank for one in found] == [0, 1]
        for one in found:
            assert (one.kind, one.model_name, one.block_size) == ("vLLM", "deepseek", 32)
            assert one.instance_id == server.url.removeprefix("http://")
            assert (one.http_url, one.has_url) == (server.url, True)
            assert one.kv_capacity_tokens == 3200
        [engine] = enrollment.engines
        assert (engine.state, engine.lacks) == (EngineState.FOLLOWED, "")


def test_vllm_whose_server_has_not_the_first_rank_is_followed() -> None:
    with engine_server() as server:
        vllm(server)
        source = {"publisher": "zmq", "endpoint": "tcp://*:5559"}
        server.replies["/kv_event_sources"] = (200, json.dumps({"2": source}).encode())
        metrics = CACHE.replace('engine="0"', 'engine="2"') % ""
        server.replies["/metrics"] = (200, metrics.encode())
        enrollment, [one] = ask(server)
        assert (one.kind, one.dp_rank, one.block_size) == ("vLLM", 2, 32)
        assert enrollment.engines[0].state is EngineState.FOLLOWED


def test_sglang_is_registered_as_what_it_says() -> None:
    with engine_server() as server:
        events = {
            "publisher": "zmq",
            "endpoint_host": "*",
            "endpoint_port_base": 5557,
            "replay_endpoint_port_base": None,
            "dp_size": 1,
        }
        said = {"version": "0.5.23", "served_model_name": "qwen", "page_size": 64}
        said |= {"max_total_num_tokens": 6400, "disable_radix_cache": True, "kv_events": events}
        server.replies = {"/server_info": (200, json.dumps(said).encode())}
        enrollment, [one] = ask(server)
        assert (one.kind, one.model_name, one.block_size) == ("SGLang", "qwen", 64)
        [engine] = enrollment.engines
        assert "replay_endpoint" in engine.lacks
        assert "--disable-radix-cache" in engine.lacks


def test_engine_without_events_is_registered_as_one_and_told_the_flag(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with engine_server() as server, caplog.at_level(logging.WARNING):
        vllm(server, events=False, caching=',enable_prefix_caching="False"')
        enrollment, [one] = ask(server)
        assert (one.kind, one.http_url) == (NO_EVENTS, server.url)
        [engine] = enrollment.engines
        assert engine.state is EngineState.BY_LOAD
        assert "--kv-events-config" in engine.lacks
        assert "--enable-prefix-caching" in engine.lacks
        assert "--kv-events-config" in caplog.text


def test_engine_that_does_not_say_where_it_publishes_is_no_part_of_the_index() -> None:
    with engine_server() as server:
        vllm(server)
        del server.replies["/kv_event_sources"]
        enrollment, [one] = ask(server)
        assert one.kind == NO_EVENTS
        assert "0.31.0" in enrollment.engines[0].lacks


def test_engine_without_its_block_size_is_no_part_of_the_index() -> None:
    with engine_server() as server:
        vllm(server)
        server.replies["/metrics"] = (200, b"x 1\n")
        enrollment, [one] = ask(server)
        assert one.kind == NO_EVENTS
        assert "--disable-log-stats" in enrollment.engines[0].lacks


def test_another_process_at_the_address_takes_the_place_of_the_first() -> None:
    with engine_server() as server:
        vllm(server, events=False)
        table = FakeTable()
        enrollment = Enrollment([server.url], table, table, EngineHttp())
        asyncio.run(enrollment.ask(server.url))
        server.replies["/v1/models"] = (200, b'{"data":[{"id":"other"}]}')
        asyncio.run(enrollment.ask(server.url))
        assert [one.model_name for one in table.registered()] == ["other"]


def test_what_somebody_registers_beside_it_stays() -> None:
    words = {"kv_offloading": "native", "labels": (Label("rack", "r7"),), "role": "decode"}
    with engine_server() as server:
        vllm(server)
        table = shared_table()
        enrollment = Enrollment([server.url], table, table, EngineHttp())
        asyncio.run(enrollment.ask(server.url))
        for one in table.registered():
            table.registrations[one.publisher] = msgspec.structs.replace(one, **words)
        server.replies["/metrics"] = (200, CACHE.replace("100", "200").encode() % b"")
        asyncio.run(enrollment.ask(server.url))
        for one in table.registered():
            assert {name: getattr(one, name) for name in words} == words
            assert one.kv_capacity_tokens == 6400
        vllm(server, events=False)
        asyncio.run(enrollment.ask(server.url))
        [one] = table.registered()
        assert (one.kind, one.kv_offloading) == (NO_EVENTS, "")


def test_what_is_no_engine_is_refused_by_name() -> None:
    table = FakeTable()
    with engine_server() as server:
        enrollment = Enrollment([server.url], table, table, EngineHttp())
        with pytest.raises(NoEngineError):
            asyncio.run(enrollment.ask(server.url))
        url = server.url
    with pytest.raises(NoAnswerError):
        asyncio.run(Enrollment([url], table, table, EngineHttp()).ask(url))


def test_engine_that_is_not_there_yet_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: EngineServer) -> None:
        table = FakeTable()
        enrollment = Enrollment([server.url], table, table, EngineHttp(), retry_s=0.01)
        asking = asyncio.create_task(enrollment.run())
        await _until(lambda: enrollment.engines[0].state is EngineState.UNKNOWN)
        vllm(server, events=False)
        await _until(lambda: enrollment.engines[0].state is EngineState.BY_LOAD)
        asking.cancel()
        assert [one.model_name for one in table.registered()] == ["deepseek"]

    with engine_server() as server:
        asyncio.run(scenario(server))
    assert caplog.text.count("is not registered") == 1, "it is said once"


@pytest.mark.parametrize("is_relinked", [False, True])
def test_engine_whose_process_is_another_is_asked_at_once(
    monkeypatch: pytest.MonkeyPatch, *, is_relinked: bool
) -> None:
    async def scenario(server: EngineServer) -> None:
        table = shared_table()
        enrollment = Enrollment([server.url], table, table, EngineHttp())
        asking = asyncio.create_task(enrollment.run())
        await _until(lambda: enrollment.engines[0].state is EngineState.FOLLOWED)
        for _ in range(3):  # what it registered itself is nothing new
            await asyncio.sleep(0.05)
        server.replies["/v1/models"] = (200, b'{"data":[{"id":"other"}]}')
        await asyncio.sleep(0.1)
        assert {one.model_name for one in table.registered()} == {"deepseek"}
        if is_relinked:
            table.connected = False
        else:
            [one, _] = table.registered()
            table.states[one.publisher] = PublisherState(incarnation=2, sequence=0)
        await _until(lambda: {one.model_name for one in table.registered()} == {"other"})
        asking.cancel()

    monkeypatch.setattr("gateway.enrollment.ENROLL_LOOK_S", 0.01)
    with engine_server() as server:
        vllm(server)
        asyncio.run(scenario(server))


def test_an_error_of_a_look_ends_no_later_look(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> list[ServiceView]:
        raise ValueError("not now")

    async def scenario() -> None:
        table = shared_table()
        services, table.services = table.services, fail  # type: ignore[method-assign]
        enrollment = Enrollment([], table, table, EngineHttp())
        looking = asyncio.create_task(enrollment.run())
        await _until(lambda: enrollment.faults)
        table.services = services  # type: ignore[method-assign]
        faults = enrollment.faults
        looked = asyncio.Event()
        monkeypatch.setattr(enrollment, "look", looked.set)
        await looked.wait()
        looking.cancel()
        assert enrollment.faults == faults

    monkeypatch.setattr("gateway.enrollment.ENROLL_LOOK_S", 0.01)
    asyncio.run(scenario())
    assert "Unexpected error while links were looked at; looking again" in caplog.text


def test_engine_that_is_registered_and_down_is_said_to_be_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        with engine_server() as server:
            vllm(server, events=False)
            table = FakeTable()
            enrollment = Enrollment([server.url], table, table, EngineHttp(), again_s=0.01)
            asking = asyncio.create_task(enrollment.run())
            await _until(lambda: enrollment.engines[0].state is EngineState.BY_LOAD)
        await _until(lambda: enrollment.engines[0].state is EngineState.SILENT)
        asking.cancel()

    asyncio.run(scenario())
    assert "is registered, and cannot be asked what it is now (silent): " in caplog.text
    assert "is not registered" not in caplog.text


def test_address_of_an_openai_client_is_told_from_an_engines() -> None:
    table = FakeTable()
    with engine_server() as server:
        enrollment = Enrollment([f"{server.url}/v1"], table, table, EngineHttp())
        with pytest.raises(NoEngineError, match=rf"\. Leave out /v1: {server.url}$"):
            asyncio.run(enrollment.ask(f"{server.url}/v1"))
        enrollment = Enrollment([server.url], table, table, EngineHttp())
        with pytest.raises(NoEngineError) as refused:
            asyncio.run(enrollment.ask(server.url))
        assert "Leave out" not in str(refused.value)


async def _until(holds: Any) -> None:
    for _ in range(1000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never was")
