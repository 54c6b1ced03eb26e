"""The router with Ray's own base class, requests and replica ids; a replica is a stand-in."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from fake_services import FakeReprise
from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    ReplicaID,
    RequestMetadata,
)
from ray.serve.request_router import PendingRequest
from reprise_ray import RepriseRouter

DEPLOYMENT = DeploymentID(name="llm", app_name="app")


class Replica:
    """What the router sees of one."""

    def __init__(self, name: str, **stats: Any) -> None:
        self.replica_id = ReplicaID(unique_id=name, deployment_id=DEPLOYMENT)
        self.routing_stats = stats
        self.node_id = "node"
        self.availability_zone = None
        self.multiplexed_model_ids: set[str] = set()
        self.max_ongoing_requests = 5


def router_of(replicas: list[Any], url: str, **kwargs: Any) -> RepriseRouter:
    router = RepriseRouter(
        deployment_id=DEPLOYMENT,
        handle_source=DeploymentHandleSource.REPLICA,
        use_replica_queue_len_cache=True,
    )
    given = {"model": "llama", "timeout_ms": 5000, **kwargs}
    router.initialize_state(url=url, **given)
    router.update_replicas(replicas)
    return router


def request(name: str, *args: Any, method: str = "chat", **kwargs: Any) -> PendingRequest:
    metadata = RequestMetadata(request_id=name, internal_request_id=name, call_method=method)
    return PendingRequest(args=list(args), kwargs=kwargs, metadata=metadata)


def replicas() -> list[Any]:
    return [Replica(name) for name in ("a", "b", "c")]


def names(ranks: list[list[Any]]) -> list[list[str]]:
    return [[one.replica_id.unique_id for one in rank] for rank in ranks]


def run(story: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(story())


def test_the_replica_that_reprise_names_is_the_first_rank(reprise: FakeReprise) -> None:
    async def story() -> None:
        known = replicas()
        router = router_of(known, reprise.url, block_size=32, tenant_id="blue")
        reprise.chosen = "b"
        ranks = await router.choose_replicas(known, request("r1", request_token_ids=[1, 2, 3]))
        assert names(ranks)[0] == ["b"]
        assert len(ranks[1]) == 2, "where Ray goes on if the first one's queue is full"

    run(story)
    [question] = reprise.bodies("/route")
    del question["request_id"]
    candidates = sorted(one["instance_id"] for one in question.pop("candidates"))
    assert candidates == ["a", "b", "c"]
    assert question == {
        "model": "llama",
        "block_size": 32,
        "tenant_id": "blue",
        "token_ids": [1, 2, 3],
    }


def test_a_replica_may_name_its_instance(reprise: FakeReprise) -> None:
    async def story() -> None:
        known: list[Any] = [Replica("a"), Replica("b", reprise_instance_id="node-7")]
        router = router_of(known, reprise.url)
        reprise.chosen = "node-7"
        ranks = await router.choose_replicas(known, request("r1", token_ids=[1]))
        assert names(ranks)[0] == ["b"]

    run(story)


@pytest.mark.parametrize(
    "given",
    [
        {"messages": [{"role": "user", "content": "hi"}]},
        {"prompt": "hi"},
        {"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}]},
    ],
)
@pytest.mark.parametrize("form", [dict, lambda **fields: SimpleNamespace(**fields)])
def test_the_text_of_a_prompt_is_what_reprise_is_asked(
    reprise: FakeReprise, given: dict[str, Any], form: Any
) -> None:
    async def story() -> None:
        known = replicas()
        await router_of(known, reprise.url).choose_replicas(known, request("r1", form(**given)))

    run(story)
    [question] = reprise.bodies("/route")
    for name in ("request_id", "candidates", "model", "block_size", "tenant_id"):
        del question[name]
    assert question == given


def test_ray_asks_again_while_all_are_full_and_reprise_is_asked_once(reprise: FakeReprise) -> None:
    async def story() -> None:
        known = replicas()
        router = router_of(known, reprise.url)
        pending = request("r1", token_ids=[1])
        reprise.chosen = "c"
        for _ in range(3):
            assert names(await router.choose_replicas(known, pending))[0] == ["c"]
        without = [one for one in known if one.replica_id.unique_id != "c"]
        router.update_replicas(without)
        [others] = await router.choose_replicas(without, pending)
        assert len(others) == 2

    run(story)
    assert len(reprise.bodies("/route")) == 1


def test_the_end_is_told_once_and_where_it_was(reprise: FakeReprise) -> None:
    async def story() -> None:
        known = replicas()
        router = router_of(known, reprise.url)
        reprise.chosen = "b"
        pending = request("r1", token_ids=[1])
        await router.choose_replicas(known, pending)
        router.on_request_routed(pending, known[1].replica_id, None)
        router.on_request_completed(known[1].replica_id, "r1")
        router.on_request_completed(known[1].replica_id, "r1")
        await asyncio.to_thread(reprise.outcome, "completed")

    run(story)
    [told] = reprise.outcomes("completed")
    assert told.pop("at") > 0
    assert told == {"decision_id": "d1", "event": "completed", "instance_id": "b", "dp_rank": 0}
    assert reprise.outcomes("dispatched") == []


def test_a_full_replica_that_rejects_it_has_not_ended_it(reprise: FakeReprise) -> None:
    async def story() -> None:
        known = replicas()
        router = router_of(known, reprise.url)
        reprise.chosen = "b"
        pending = request("r1", token_ids=[1])
        await router.choose_replicas(known, pending)
        router.on_request_completed(known[1].replica_id, "r1")  # a rejection
        router.on_request_routed(pending, known[0].replica_id, None)
        await asyncio.to_thread(reprise.outcome, "dispatched")
        assert reprise.outcomes("completed") == []
        router.on_request_completed(known[0].replica_id, "r1")
        await asyncio.to_thread(reprise.outcome, "completed")

    run(story)
    assert [one["instance_id"] for one in reprise.outcomes("dispatched")] == ["a"]
    assert [one["instance_id"] for one in reprise.outcomes("completed")] == ["a"]


def test_a_replica_may_be_faster_than_the_news_that_it_accepted(reprise: FakeReprise) -> None:
    async def story() -> None:
        known = replicas()
        router = router_of(known, reprise.url)
        reprise.chosen = "b"
        pending = request("r1", token_ids=[1])
        await router.choose_replicas(known, pending)
        router.on_request_completed(known[1].replica_id, "r1")
        router.on_request_routed(pending, known[1].replica_id, None)
        await asyncio.to_thread(reprise.outcome, "completed")

    run(story)
    assert len(reprise.outcomes("completed")) == 1


HOSTILE: dict[str, Callable[[FakeReprise], Any]] = {
    "garbage": lambda one: one.replies(200, b"\xff"),
    "another document": lambda one: one.replies(200, b'{"prefill": 1}'),
    "500": lambda one: one.replies(500, b"oops"),
    "503": lambda one: one.replies(503, b'{"error": "none", "reason": "no_candidate"}'),
    "429": lambda one: one.replies(429, b'{"reason": "overloaded"}', Retry_After="7"),
    "another instance": lambda one: one.replies(200, one.decision("somebody")),
    "hangs up": FakeReprise.hangs_up,
    "hangs": FakeReprise.hangs,
    "trickles": FakeReprise.trickles,
    "floods": FakeReprise.floods,
    "is down": FakeReprise.close,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_whatever_reprise_answers_ray_goes_on(reprise: FakeReprise, kind: str) -> None:
    HOSTILE[kind](reprise)

    async def story() -> dict[str, int]:
        known = replicas()
        router = router_of(known, reprise.url, timeout_ms=100)
        [others] = await router.choose_replicas(known, request("r1", token_ids=[1]))
        assert len(others) == 2
        return router.report.counts

    counts = run(story)
    assert "routed" not in counts
    assert sum(counts.values()) >= 1
    assert "fault" not in counts


def test_without_a_prompt_nothing_is_asked(reprise: FakeReprise) -> None:
    async def story() -> None:
        known = replicas()
        router = router_of(known, reprise.url)
        for pending in (
            request("r1"),
            request("r2", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            request("r3", b"bytes"),
            request("r4", {"token_ids": ["x"]}),
            request("r5", {"token_ids": [-1]}),
            request("r6", {"token_ids": [True]}),
            request("r7", {"prompt": "hi"}, method="tokenize"),
        ):
            [others] = await router.choose_replicas(known, pending)
            assert len(others) == 2
        assert router.report.counts == {"left_no_text": 6}
        assert names([await choose_one(router)]) == [["a"]]

    async def choose_one(router: RepriseRouter) -> list[Any]:
        one: Any = Replica("a")
        router.update_replicas([one])
        [rank] = await router.choose_replicas([one], None)
        return rank

    run(story)
    assert reprise.bodies("/route") == []
