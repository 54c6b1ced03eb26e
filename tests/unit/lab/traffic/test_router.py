import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import msgspec
import pytest

from lab.engines.cache import CacheSizes, Offload
from lab.engines.engine import Engine, EngineOptions, EngineReady, GenerateAnswer
from lab.traffic.conversations import Conversations, Traffic, Turn
from lab.traffic.http_json import HttpAnswer, JsonConnection
from lab.traffic.index_client import IndexClient, ServiceError
from lab.traffic.router import Router
from lab.traffic.shadows import Alternatives
from routing.costs import Costs
from tests.unit.lab.demo.stub_service import StubService

SIZES = CacheSizes(block_size=4, gpu_blocks=200, cpu_blocks=200)
TRAFFIC = Traffic(
    system_tokens=(16, 24),
    user_tokens=(4, 12),
    answer_tokens=(8, 16),
    turns=(3, 8),
    open_max=8,
    prompt_tokens_max=200,
)


@contextmanager
def rig(
    *dp_ranks: int, costs: Costs | None = None
) -> Iterator[tuple[StubService, IndexClient, list[Engine]]]:
    service = StubService()
    index = IndexClient(service.url)
    engines: list[Engine] = []
    try:
        for number, ranks in enumerate(dp_ranks):
            options = EngineOptions(
                instance_id=f"e{number}", sizes=SIZES, dp_ranks=ranks, costs=costs
            )
            engines.append(Engine(options))
        yield service, index, engines
    finally:
        index.close()
        for engine in engines:
            engine.close()
        service.close()


def others(count: int) -> Alternatives:
    return Alternatives(count, SIZES, offload=Offload.WRITE_THROUGH, costs=None)


def served(router: Router, turn: Turn) -> GenerateAnswer | None:
    """Sent and awaited."""
    router.send(turn)
    (generated,) = router.settle(20)
    return generated


def ready(engines: list[Engine]) -> list[EngineReady]:
    return [engine.ready for engine in engines]


def subscribed(service: StubService, engines: list[Engine]) -> None:
    """Return when the stub hears every rank: a subscription takes a moment."""
    expected = {(e.instance_id, r.dp_rank) for e in ready(engines) for r in e.ranks}
    while service.sequences.keys() != expected:
        for engine in ready(engines):
            connection = JsonConnection(f"http://127.0.0.1:{engine.http_port}")
            connection.request("POST", "/clear")
            connection.close()


def test_routing_by_the_index_reuses_more_than_random_routing() -> None:
    with rig(1, 2) as (service, index, engines):
        index.register(ready(engines))
        subscribed(service, engines)
        router = Router(index, ready(engines), alternatives=others(3))
        for turn in islice(Conversations(1, TRAFFIC), 150):
            assert served(router, turn) is not None
        router.close()
        stats = router.stats
        assert stats.by_route.requests == stats.promised.requests == service.decided == 150
        assert stats.by_route.hit_rate > stats.by_chance.hit_rate > 0
        assert stats.by_query.hit_rate > stats.by_chance.hit_rate
        assert stats.promised.cached_tokens > stats.kept.cached_tokens / 2
        assert not stats.failures
        stats.blocks_indexed = index.blocks_indexed()
        assert stats.blocks_indexed
        assert stats.latency_s(0.5) > 0


def test_what_an_engine_did_is_reported_of_the_decision() -> None:
    costs = Costs(fixed_s=0.01)
    with rig(1, costs=costs) as (service, index, engines):
        router = Router(index, ready(engines), alternatives=others(1))
        generated = served(router, Turn(0, list(range(10)), [1, 2]))
        assert generated is not None
        assert generated.ttft_s == pytest.approx(costs.prefill_s(10, 0))
        again = served(router, Turn(0, list(range(10)), [1, 2]))
        router.close()
        assert again is not None
        assert again.cached_tokens == 8
        first, completed, second, _ = service.reports
        assert first == {
            "decision_id": f"{service.url}-1",
            "event": "first_token",
            "ttft_ms": 1000 * generated.ttft_s,
            "queue_ms": 0.0,
            "prompt_tokens": 10,
            "cached_tokens": 0,
        }
        assert completed == {"decision_id": f"{service.url}-1", "event": "completed"}
        assert second["cached_tokens"] == 8
        assert router.stats.promised.mean_ttft_s == pytest.approx(0.005)


def test_requests_are_under_way_together_and_no_more_than_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lab.traffic.router.IN_FLIGHT_MAX", 3)
    with rig(1) as (service, index, engines):
        router = Router(index, ready(engines), alternatives=others(1))
        stop, seen, rounds = threading.Event(), set(), iter(range(1000))

        def look(_: float) -> None:
            seen.add(router.in_flight)
            if next(rounds) == 20:
                stop.set()

        with engines[0]._ranks[0].lock:  # it stands still
            turns = Conversations(1, TRAFFIC)
            router.run(turns, requests_per_s=1e6, stop=stop, then=look)
        assert seen == {1, 2, 3}
        assert service.decided == 3
        while router.in_flight:
            assert all(router.settle(20))
        router.close()


def test_router_goes_on_without_the_service() -> None:
    with rig(1, 1) as (service, index, engines):
        service.failing = True
        router = Router(index, ready(engines), alternatives=others(2))
        used = set()
        for turn in islice(Conversations(1, TRAFFIC), 10):
            generated = served(router, turn)
            assert generated is not None
            used.add(generated.instance_id)
        router.close()
        assert used == {"e0", "e1"}
        stats = router.stats
        assert stats.failures == {"POST /route: 400 failing": 10}
        assert stats.promised.requests == 0
        assert stats.by_route.requests == 10


def test_a_report_that_is_refused_is_counted() -> None:
    with rig(1) as (service, index, engines):
        router = Router(index, ready(engines), alternatives=others(1))
        router.send(Turn(0, list(range(10)), []))
        service.failing = True
        assert router.settle(20) != [None]
        router.close()
        assert router.stats.failures == {"POST /feedback: 400 failing": 1}


def test_an_engine_that_is_gone_is_reported_and_costs_nothing_but_its_requests() -> None:
    with rig(1, 1) as (service, index, engines):
        router = Router(index, ready(engines), alternatives=others(2))
        engines.pop(0).close()
        turn = Turn(0, list(range(10)), [])
        assert served(router, turn) is None
        assert service.reports == [{"decision_id": f"{service.url}-1", "event": "failed"}]
        service.failing = True  # then the router chooses
        assert served(router, turn) is not None
        router.close()
        assert router.stats.failures["e0"] == 1
        assert router.stats.by_route.requests == 1


def test_registering_again_is_no_change() -> None:
    with rig(2) as (service, index, engines):
        index.register(ready(engines))
        index.register(ready(engines))
        assert service.unregistered == []
        assert set(service.registered) == {("e0", 0), ("e0", 1)}
        assert service.registered["e0", 1]["replay_endpoint"] == (
            ready(engines)[0].ranks[1].replay_endpoint
        )


def test_registrations_of_an_earlier_run_on_other_ports_are_replaced() -> None:
    with rig(1, 1) as (service, index, engines):
        earlier = ready(engines)
        swapped = [
            msgspec.structs.replace(mine, instance_id=other.instance_id)
            for mine, other in zip(earlier, reversed(earlier), strict=True)
        ]
        index.register(swapped)
        index.register(earlier)
        assert set(service.unregistered) == {("e0", 0), ("e1", 0)}
        for engine in earlier:
            endpoint = service.registered[engine.instance_id, 0]["endpoint"]
            assert endpoint == engine.ranks[0].endpoint


def test_unregistering_what_is_not_registered_is_no_error() -> None:
    with rig(1) as (service, index, engines):
        index.unregister(ready(engines))
        assert service.unregistered == [("e0", 0)]


def test_answer_of_another_shape_is_a_service_error() -> None:
    with rig() as (service, index, _):
        service.failing = True
        with pytest.raises(ServiceError, match="POST /query: 400"):
            index.query([1], model="m", block_size=4)
        with pytest.raises(ServiceError, match="POST /route: 400"):
            index.route([1], model="m", block_size=4, candidates=[])


def test_unreadable_view_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    index = IndexClient("http://127.0.0.1:1")
    for answer in (HttpAnswer(404, b""), HttpAnswer(200, b"[]")):
        monkeypatch.setattr(JsonConnection, "request", lambda *_, a=answer: a)
        assert index.blocks_indexed() is None


def test_engines_of_two_block_sizes_are_refused() -> None:
    engine = EngineReady(
        instance_id="a", model="m", block_size=4, pid=0, http_host="h", http_port=1, ranks=[]
    )
    other = msgspec.structs.replace(engine, block_size=8)
    with pytest.raises(ValueError, match="Expected engines of one model"):
        Router(IndexClient("http://127.0.0.1:1"), [engine, other], alternatives=others(1))


def test_client_tells_what_the_service_follows() -> None:
    with rig(2) as (service, index, engines):
        assert index.ready()
        service.recovered = False
        assert not index.ready()
        index.register(ready(engines))
        followed = index.followed()
        assert [(rank.instance_id, rank.dp_rank) for rank in followed] == [("e0", 0), ("e0", 1)]
        assert followed[1].endpoint == ready(engines)[0].ranks[1].endpoint
        assert followed[1].sequence == -1
        index.tenant_id = "another"
        assert index.followed() == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [(HttpAnswer(503, b"no"), "503 no"), (HttpAnswer(200, b"{}"), "services")],
)
def test_services_of_another_shape_are_an_error(
    monkeypatch: pytest.MonkeyPatch, answer: HttpAnswer, text: str
) -> None:
    monkeypatch.setattr(JsonConnection, "request", lambda *_: answer)
    with pytest.raises(ServiceError, match=f"GET /services: .*{text}"):
        IndexClient("http://127.0.0.1:1").followed()
