from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import msgspec
import pytest

from simulation.engines.cache import CacheSizes, Offload
from simulation.engines.engine import Engine, EngineOptions, EngineReady
from simulation.traffic.conversations import Conversations, Traffic, Turn
from simulation.traffic.http_json import HttpAnswer, JsonConnection
from simulation.traffic.router import (
    IndexClient,
    InstanceMatch,
    RandomRouting,
    Router,
    ServiceError,
)
from tests.unit.simulation.demo.stub_service import StubService

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
def rig(*dp_ranks: int) -> Iterator[tuple[StubService, IndexClient, list[Engine]]]:
    service = StubService()
    index = IndexClient(service.url)
    engines: list[Engine] = []
    try:
        for number, ranks in enumerate(dp_ranks):
            options = EngineOptions(instance_id=f"e{number}", sizes=SIZES, dp_ranks=ranks)
            engines.append(Engine(options))
        yield service, index, engines
    finally:
        index.close()
        for engine in engines:
            engine.close()
        service.close()


def shadow(count: int) -> RandomRouting:
    return RandomRouting(count, SIZES, offload=Offload.WRITE_THROUGH)


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
        router = Router(index, ready(engines), shadow=shadow(3))
        for turn in islice(Conversations(1, TRAFFIC), 150):
            assert router.route(turn) is not None
        router.close()
        stats = router.stats
        assert (stats.requests, stats.queries) == (150, 150)
        assert stats.hit_rate > stats.shadow_hit_rate > 0
        assert stats.agreements > 75
        assert stats.query_errors == stats.engine_errors == 0
        stats.blocks_indexed = index.blocks_indexed()
        assert stats.blocks_indexed
        assert stats.latency_s(0.5) > 0


def test_router_goes_on_without_the_service() -> None:
    with rig(1, 1) as (service, index, engines):
        service.failing = True
        router = Router(index, ready(engines), shadow=shadow(2))
        used = set()
        for turn in islice(Conversations(1, TRAFFIC), 10):
            generated = router.route(turn)
            assert generated is not None
            used.add(generated.instance_id)
        router.close()
        assert used == {"e0", "e1"}
        assert (router.stats.query_errors, router.stats.queries) == (10, 0)


def test_router_asks_the_others_where_an_engine_is_gone() -> None:
    with rig(1, 1) as (_, index, engines):
        router = Router(index, ready(engines), shadow=shadow(2))
        engines.pop().close()
        answers = [router.route(turn) for turn in islice(Conversations(1, TRAFFIC), 10)]
        router.close()
        served = [answer.instance_id for answer in answers if answer is not None]
        assert set(served) == {"e0"}
        assert router.stats.engine_errors == 10 - len(served) > 0


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


def test_instance_without_ranks_is_judged_by_its_longest_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with rig(1, 1) as (_, index, engines):
        matches = {"e1": InstanceMatch(longest_matched=8)}
        monkeypatch.setattr(index, "query", lambda *_, **__: matches)
        router = Router(index, ready(engines), shadow=shadow(2))
        generated = router.route(Turn(0, list(range(12)), []))
        router.close()
        assert generated is not None
        assert generated.instance_id == "e1"
        assert (router.stats.agreements, router.stats.overestimates) == (0, 1)


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
        Router(IndexClient("http://127.0.0.1:1"), [engine, other], shadow=shadow(1))


def test_shadow_is_the_same_for_the_same_turns() -> None:
    turns = list(islice(Conversations(5, TRAFFIC), 60))
    first, second = shadow(3), shadow(3)
    assert [first.run(turn) for turn in turns] == [second.run(turn) for turn in turns]


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
