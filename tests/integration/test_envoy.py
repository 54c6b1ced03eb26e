"""A real Envoy asks the endpoint picker, and carries requests to the engines that it is told."""

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.settings import GatewaySettings
from query_api.grpc.grpc_settings import ListenAddress
from tests.ext_proc import DESTINATION, ENVOY
from tests.gateway import EVENTS, Client, Deed, World, until, world

PROMPT: Final = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "user": "u-1"}
STREAM: Final = PROMPT | {"stream": True}


def envoy() -> str:
    """Its path; skips the test where it is not installed."""
    installed = ENVOY.glob("lib/python3*/site-packages/envoy/_bin/envoy")
    found = next(map(str, installed), None) or shutil.which("envoy")
    if found is None:
        pytest.skip("no Envoy is installed (make envoy): no real proxy asks the endpoint picker")
    return found


def typed(kind: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"type.googleapis.com/envoy.{kind}"} | fields


def address(host: str, port: int) -> dict[str, Any]:
    return {"address": {"socket_address": {"address": host, "port_value": port}}}


def cluster(name: str, ports: list[int], **fields: Any) -> dict[str, Any]:
    endpoints = [{"endpoint": address("127.0.0.1", port)} for port in ports]
    assigned = {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}
    return {"name": name, "type": "STATIC", "load_assignment": assigned} | fields


def configuration(port: int, picker: int, engines: list[int], subset: list[str]) -> dict[str, Any]:
    """As a gateway of the Inference Extension configures it."""
    namespaces = {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]}
    ext_proc = typed(
        "extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}, "timeout": "10s"},
        processing_mode={
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
        message_timeout="10s",
        metadata_options={
            "forwarding_namespaces": namespaces,
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    )
    filters = [{"name": "envoy.filters.http.ext_proc", "typed_config": ext_proc}]
    if subset:
        hint = {"x-gateway-destination-endpoint-subset": subset}
        told = typed(
            "extensions.filters.http.set_metadata.v3.Config",
            metadata=[{"metadata_namespace": "envoy.lb.subset_hint", "value": hint}],
        )
        filters.insert(0, {"name": "envoy.filters.http.set_metadata", "typed_config": told})
    router = typed("extensions.filters.http.router.v3.Router")
    filters.append({"name": "envoy.filters.http.router", "typed_config": router})
    retries = {"retry_on": "5xx,connect-failure", "num_retries": 3}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "engines", "retry_policy": retries}}
    manager = typed(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="in",
        http_filters=filters,
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    )
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    metadata = {"key": "envoy.lb", "path": [{"key": DESTINATION}]}
    turns = typed("extensions.load_balancing_policies.round_robin.v3.RoundRobin")
    chosen = typed(
        "extensions.load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[{"metadata": metadata}],
        fallback_policy={"policies": [_extension("round_robin", turns)]},
    )
    http2 = typed(
        "extensions.upstreams.http.v3.HttpProtocolOptions",
        explicit_http_config={"http2_protocol_options": {}},
    )
    options = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2}
    policies = {"policies": [_extension("override_host", chosen)]}
    return {
        "static_resources": {
            "listeners": [
                {"name": "in", "filter_chains": [chain]} | address("127.0.0.1", port),
            ],
            "clusters": [
                cluster("picker", [picker], typed_extension_protocol_options=options),
                cluster("engines", engines, load_balancing_policy=policies),
            ],
        }
    }


def _extension(name: str, kind: dict[str, Any]) -> dict[str, Any]:
    named = f"envoy.load_balancing_policies.{name}"
    return {"typed_extension_config": {"name": named, "typed_config": kind}}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@asynccontextmanager
async def proxied(
    directory: Path, engines: int, subset: Callable[[World], list[str]] = lambda _: []
) -> AsyncIterator[tuple[World, Client]]:
    """Engines, the picker, and an Envoy before them."""
    program = envoy()
    async with world(GatewaySettings(picker=ListenAddress())) as found:
        for number in range(engines):
            await found.add("abc"[number])
        assert found.gateway.picker is not None
        picker = int(found.gateway.picker.address.rpartition(":")[2])
        ports = [one.port for one in found.engines.values()]
        port = free_port()
        path = directory / "envoy.json"
        path.write_text(json.dumps(configuration(port, picker, ports, subset(found))))
        log = (directory / "envoy.log").open("wb")
        process = await asyncio.create_subprocess_exec(
            program, "-c", str(path), "--concurrency", "1", "--disable-hot-restart", "-l", "warn",
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            await until(lambda: process.returncode is not None or _listens(port), 30.0)
            assert process.returncode is None, (directory / "envoy.log").read_text()[-2000:]
            yield found, Client(port)
            await found.until_quiet()
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
            log.close()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_request_goes_where_the_picker_says_and_its_answer_comes_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with proxied(tmp_path, 3) as (found, client):
            spoofed = {DESTINATION: "10.9.9.9:1", "x-data-parallel-rank": "7"}
            for _ in range(6):
                got = await client.post(PROMPT, headers=spoofed)
                assert (got.status, got.is_whole) == (200, True)
                assert got.document["echo"] == "u-1"
                assert got.header("reprise-decision")
                [seen] = found.engines[got.document["engine"]].seen[-1:]
                assert seen.document == PROMPT
                told = seen.headers[DESTINATION].split(",")
                assert told[0] == found.engines[got.document["engine"]].url.removeprefix("http://")
                assert len(told) == 3
                assert "x-data-parallel-rank" not in seen.headers
            assert sum(found.seen().values()) == 6
            assert found.gateway.placer.placed.total() == 6

    asyncio.run(scenario())


def test_stream_passes_with_its_usage_read_and_left_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with proxied(tmp_path, 1) as (found, client):
            got = await client.post(STREAM)
            assert (got.status, got.is_whole) == (200, True)
            assert len(got.events) == EVENTS + 1
            assert b"usage" not in got.body
            [seen] = found.engines["a"].seen
            assert seen.document["stream_options"] == {"include_usage": True}

    asyncio.run(scenario())


def test_large_body_passes_as_it_came(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with proxied(tmp_path, 1) as (found, client):
            body = json.dumps(PROMPT | {"pad": "x" * 700_000}).encode()
            assert (await client.post(body)).status == 200
            assert found.engines["a"].seen[0].body == body

    asyncio.run(scenario())


def test_subset_of_the_proxy_is_obeyed(tmp_path: Path) -> None:
    def subset(found: World) -> list[str]:
        return [found.engines["b"].url.removeprefix("http://")]

    async def scenario() -> None:
        async with proxied(tmp_path, 3, subset) as (found, client):
            for _ in range(4):
                assert (await client.post(PROMPT)).document["engine"] == "b"
            await found.engines["b"].kill()

    asyncio.run(scenario())


def test_next_engine_is_tried_by_the_proxy_where_the_first_fails(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with proxied(tmp_path, 3) as (found, client):
            for name in "ab":
                found.engines[name].deeds.append(Deed.ERROR_503)
            for number in range(30):
                got = await client.post(PROMPT | {"user": f"u-{number}"})
                assert got.status == 200
            assert not found.engines["a"].deeds
            assert not found.engines["b"].deeds
            assert found.seen().total() == 32
            assert found.gateway.placer.placed.total() == 30

    asyncio.run(scenario())


def test_refusals_come_from_the_picker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with proxied(tmp_path, 1) as (found, client):
            got = await client.post(PROMPT | {"model": "z"})
            assert (got.status, got.document["error"]["code"]) == (404, "model_not_found")
            got = await client.post(PROMPT, headers={"x-llm-d-slo-ttft-ms": "0.001"})
            assert (got.status, got.document["error"]["code"]) == (429, "slo_unreachable")
            assert got.header("retry-after")
            got = await client.post(b"{no")
            assert (got.status, got.document["error"]["code"]) == (400, "invalid_json")
            assert found.seen() == {"a": 0}

    asyncio.run(scenario())


@pytest.mark.parametrize("document", [PROMPT, STREAM], ids=["whole", "stream"])
def test_client_that_goes_ends_its_request(document: dict[str, Any], tmp_path: Path) -> None:
    async def scenario() -> None:
        async with proxied(tmp_path, 1) as (found, client):
            found.engines["a"].deeds.append(Deed.HANG)
            await client.post(document, leaves_after_s=0.5)
            await until(lambda: found.engines["a"].gone == 1)
            await found.until_quiet()
            assert (await client.post(document)).status == 200

    asyncio.run(scenario())
