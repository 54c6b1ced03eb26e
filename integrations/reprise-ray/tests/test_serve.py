"""A Ray Serve application with the router, on this machine: a controller and three replicas."""

import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from fake_services import FakeReprise
from ray import serve
from ray.serve.config import RequestRouterConfig


@pytest.fixture(scope="module")
def cluster() -> Iterator[int]:
    """The port of Ray Serve's proxy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}},
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield port
    serve.shutdown()
    ray.shutdown()


def application(url: str) -> Any:
    """Three replicas that say who they are, behind an ingress that passes tokens on."""

    @serve.deployment(
        num_replicas=3,
        ray_actor_options={"num_cpus": 0.1},
        request_router_config=RequestRouterConfig(
            request_router_class="reprise_ray:RepriseRouter",
            request_router_kwargs={"url": url, "model": "llama", "timeout_ms": 5000},
        ),
    )
    class Engine:
        def chat(self, request: dict[str, Any]) -> str:
            name: str = serve.get_replica_context().replica_id.unique_id
            return name

        def fails(self, request: dict[str, Any]) -> str:
            raise ValueError("as it was asked to")

    @serve.deployment(ray_actor_options={"num_cpus": 0.1})
    class Ingress:
        def __init__(self, engine: Any) -> None:
            self._engine = engine

        async def __call__(self, request: Any) -> str:
            body = await request.json()
            answer: str = await getattr(self._engine, body.pop("method", "chat")).remote(body)
            return answer

    return Ingress.bind(Engine.bind())


def ask(port: int, **fields: Any) -> str:
    body = json.dumps({"token_ids": [1, 2, 3], **fields}).encode()
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=30) as response:
        text: str = response.read().decode()
    return text


def test_requests_reach_the_replica_that_reprise_names(cluster: int, reprise: FakeReprise) -> None:
    serve.run(application(reprise.url), name="app", route_prefix="/")
    assert ask(cluster)
    [question] = reprise.bodies("/route")
    replicas = [one["instance_id"] for one in question["candidates"]]
    assert len(replicas) == 3
    for name in (*replicas, *reversed(replicas)):
        reprise.chosen = name
        assert ask(cluster) == name
    reprise.wait(lambda: len(reprise.outcomes("completed")) == 7)
    told = [one["instance_id"] for one in reprise.outcomes("completed")]
    assert told[1:] == [*replicas, *reversed(replicas)]

    reprise.replies(500, b"oops")
    assert ask(cluster) in replicas
    reprise.hangs_up()
    assert ask(cluster) in replicas
    reprise.recovers()
    reprise.chosen = replicas[1]
    assert ask(cluster) == replicas[1]
    with pytest.raises(urllib.error.HTTPError, match="500"):
        ask(cluster, method="fails")
    reprise.wait(lambda: len(reprise.outcomes("completed")) == 9)
