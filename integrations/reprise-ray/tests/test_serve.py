"""A Ray Serve application with the router, on this machine: a controller and three replicas."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from fake_services import FakeReprise
from ray import serve
from ray.serve.config import RequestRouterConfig

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}},
    )
    serve.start(proxy_location="Disabled")  # the handle below is in this process
    yield
    serve.shutdown()
    ray.shutdown()


def application(url: str) -> Any:
    """Three replicas that say who they are."""

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

        def stream(self, request: dict[str, Any]) -> Iterator[str]:
            yield from [serve.get_replica_context().replica_id.unique_id] * 3

        def fails(self, request: dict[str, Any]) -> str:
            raise ValueError("as it was asked to")

    return Engine.bind()


def test_requests_reach_the_replica_that_reprise_names(cluster: None, reprise: FakeReprise) -> None:
    handle = serve.run(application(reprise.url), name="app", route_prefix=None)

    def ask() -> str:
        name: str = handle.chat.remote({"token_ids": [1, 2, 3]}).result(timeout_s=DEADLINE_S)
        return name

    assert ask()
    # A handle may know its first replica before it knows all.
    replicas: list[str] = []
    for _ in range(1000):
        if len(replicas) == 3:
            break
        ask()
        question = reprise.bodies("/route")[-1]
        replicas = [one["instance_id"] for one in question["candidates"]]
    before = len(reprise.bodies("/route"))
    for name in (*replicas, *reversed(replicas)):
        reprise.chosen = name
        assert ask() == name
    stream = handle.options(stream=True).stream.remote({"prompt": [1, 2, 3]})
    assert list(stream) == [replicas[0]] * 3
    reprise.wait(lambda: len(reprise.outcomes("completed")) == before + 7)
    told = [one["instance_id"] for one in reprise.outcomes("completed")][before:]
    assert told == [*replicas, *reversed(replicas), replicas[0]]

    for hostile in (lambda: reprise.replies(500, b"oops"), reprise.hangs_up):
        hostile()
        assert ask() in replicas
    reprise.recovers()
    reprise.chosen = replicas[1]
    assert ask() == replicas[1]
    with pytest.raises(ValueError, match="as it was asked to"):
        handle.fails.remote({"token_ids": [1]}).result(timeout_s=DEADLINE_S)
    reprise.wait(lambda: len(reprise.outcomes("completed")) == before + 9)
