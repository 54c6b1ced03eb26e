"""All workers: who is known, who is refused, and who is named to others."""

import pytest

from lmcache_adapter.controller.controller import LMCACHE_WORKER_S
from lmcache_adapter.settings import Model, Models
from schemas.answer_states import Doubt
from schemas.identities import PublisherKey
from tests.lmcache import DISK
from tests.unit.lmcache_adapter.scene import BEAT, PULL, REPLY, Cache, Scene

MISS = [["", "", 0, ""]]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def worker(scene: Scene, instance_id: str, worker_id: int = 0) -> Cache:
    """A registered worker; its links are its own."""
    found = Cache(scene, instance_id, worker_id)
    found.links = 1000 * (1 + len(scene.controller.known()))
    found.register()
    return found


def look_up(cache: Cache, *hashes: int) -> object:
    message = cache.message("BatchedP2PLookup", hashes=list(hashes))
    return cache.scene.ask(message, REPLY + cache.links)["layout_info"]


# Who is there


def test_registration_is_answered_with_where_heartbeats_go(scene: Scene) -> None:
    answer = Cache(scene).register()
    assert answer == {"type": "RegisterRetMsg", "extra_config": {"heartbeat_url": "h:8401"}}


def test_an_instance_is_of_its_configured_model() -> None:
    models = Models(
        default=Model(modelname="m"),
        instances={"b": Model(modelname="n", tenant_id="t", block_size=64, additionalsalt="s")},
    )
    scene = Scene(models=models)
    for name in ("a", "b"):
        worker(scene, name)
    assert [tuple(one.stream) for one in scene.index.registered] == [
        ("default", "m", 256, "", "a"),
        ("t", "n", 64, "s", "b"),
    ]


def test_a_heartbeat_of_somebody_unknown_registers_it_and_asks_for_all(scene: Scene) -> None:
    cache = Cache(scene)
    cache.held["LocalCPUBackend"] = {1, 2}
    assert cache.beat() == ["controller_restart"]
    cache.sync()
    assert cache.indexed == {("CPU", 1), ("CPU", 2)}
    assert cache.doubt is None


def test_a_heartbeat_from_another_address_is_of_another_registration(scene: Scene) -> None:
    cache = worker(scene, "a")
    cache.peer = "elsewhere:1"
    cache.beat()
    [known] = scene.controller.known()
    assert known.registration.peer_url == "elsewhere:1"


def test_workers_beyond_the_bound_are_refused_in_words(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_adapter.controller.controller.LMCACHE_WORKERS_MAX", 2)
    for name in ("a", "b"):
        worker(scene, name)
    answer = Cache(scene, "c").register()
    assert answer["type"] == "ErrorMsg"
    assert scene.controller.counters.dropped == {"too_many_workers": 1}
    assert worker(scene, "a").register()["type"] == "RegisterRetMsg", "who is there may come again"


def test_what_somebody_unknown_pushes_is_counted(scene: Scene) -> None:
    Cache(scene).admit(1)
    assert scene.controller.counters.dropped == {"not_registered": 1}


def test_a_request_that_is_pushed_is_counted(scene: Scene) -> None:
    cache = worker(scene, "a")
    scene.push(cache.message("FullSyncStatus", sync_id="s"))
    assert scene.controller.counters.dropped == {"unexpected_message": 1}


def test_a_client_may_forget_a_worker_which_comes_back_with_its_next_heartbeat(
    scene: Scene,
) -> None:
    cache = worker(scene, "a")
    cache.admit(1)
    scene.controller.forget_publisher(cache.publisher)
    scene.settle()
    assert scene.told[-1].is_gone
    assert scene.told[-1].records == [] or scene.told[-1].records == ()
    assert cache.beat() == ["controller_restart"]


def test_a_publisher_that_nobody_knows_is_told_as_gone(scene: Scene) -> None:
    unknown = PublisherKey(Model().stream("nobody"), 0)
    scene.controller.forget_publisher(unknown)
    scene.settle()
    assert [(one.publisher, one.is_gone) for one in scene.told] == [(unknown, True)]


def test_a_full_sync_of_somebody_unknown_is_refused_and_its_cache_released(scene: Scene) -> None:
    cache = Cache(scene)
    start = cache.message(
        "FullSyncStart", location="LocalCPUBackend", sync_id="s", total_keys=0, batch_count=1
    )
    assert not scene.ask(start)["accepted"]
    assert cache.status("s") == {
        "type": "FullSyncStatusRetMsg",
        "sync_id": "s",
        "is_complete": False,
        "global_progress": 0.0,
        "can_exit_freeze": True,
        "missing_batches": [],
    }


def test_only_so_many_caches_are_frozen_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_adapter.controller.controller.LMCACHE_SYNCS_AT_ONCE_MAX", 1)
    first, second = worker(scene, "a"), worker(scene, "b")
    for cache in (first, second):
        cache.operations(("admit", 1))  # lost
        cache.admit(2)
    assert first.beat()
    assert second.beat() == []
    first.sync()
    assert second.beat()


# Time and links


def test_a_link_that_ends_concerns_those_that_use_it(scene: Scene) -> None:
    first, second = worker(scene, "a"), worker(scene, "b")
    for cache in (first, second):
        cache.admit(1)
    scene.controller.link_down(REPLY + first.links, scene.now)
    scene.settle()
    assert (first.doubt, second.doubt) == (Doubt.LINK_DOWN, None)


def test_two_workers_of_one_instance_are_two(scene: Scene) -> None:
    first, second = worker(scene, "a", 0), worker(scene, "a", 1)
    first.admit(1)
    second.admit(2)
    assert (first.indexed, second.indexed) == ({("CPU", 1)}, {("CPU", 2)})
    views = scene.controller.workers()
    assert [(one.registration.dp_rank, one.keys) for one in views] == [(0, 1), (1, 1)]


def test_sizes_and_sums_survive_those_who_leave(scene: Scene) -> None:
    cache = worker(scene, "a")
    cache.operations(("admit", 1))
    cache.admit(2)
    cache.beat()
    cache.sync()
    scene.wait(1)
    counters = scene.controller.counters
    assert counters.sizes == {
        "workers": 1,
        "whole": 1,
        "syncing": 0,
        "keys": 2,
        "missing_batches": 0,
    }
    assert (counters.jumps, counters.syncs_asked, counters.syncs_whole) == (1, 1, 1)
    cache.scene.push(cache.message("DeRegister", ip="", port=0), link=PULL + cache.links)
    scene.wait(1)
    assert counters.sizes["workers"] == 0
    assert (counters.jumps, counters.syncs_asked, counters.syncs_whole) == (1, 1, 1)


def test_the_next_run_is_told_of_workers_and_locations_as_soon_as_they_are_there() -> None:
    scene = Scene()
    told: list[tuple[str, ...]] = []

    def note() -> None:
        told.append(tuple(name for one in scene.controller.known() for name in one.locations))

    scene.controller.on_known = note
    cache = worker(scene, "a")
    cache.admit(1)
    assert set(told[-1]) == {"LocalCPUBackend"}
    cache.admit(2, location=DISK)
    assert set(told[-1]) == {"LocalCPUBackend", DISK}
    count = len(told)
    cache.admit(3, location=DISK)
    scene.wait(1)
    assert len(told) == count, "nothing is new"


# Peers


def test_the_peer_with_most_of_the_chunks_is_named(scene: Scene) -> None:
    asker = worker(scene, "asker")
    few, many = worker(scene, "few"), worker(scene, "many")
    few.admit(1)
    many.admit(1, 2, 4)
    assert look_up(asker, 1, 2, 3, 4) == [["many", "LocalCPUBackend", 2, "many:8200"]]
    assert look_up(asker, 9) == MISS
    assert look_up(asker) == MISS
    assert look_up(many, 4) == MISS, "itself does not count"
    counters = scene.controller.counters
    assert (counters.lookups, counters.lookup_hits) == (4, 1)


def test_a_peer_of_the_same_rank_comes_first(scene: Scene) -> None:
    asker = worker(scene, "asker", 1)
    worker(scene, "b", 0).admit(1, 2)
    worker(scene, "b", 1).admit(1)
    assert look_up(asker, 1, 2) == [["b", "LocalCPUBackend", 1, "b:8200"]]


def test_a_peer_is_named_only_where_it_can_be_reached(scene: Scene) -> None:
    asker, other = worker(scene, "asker"), worker(scene, "b")
    other.admit(1)
    scene.controller.link_down(REPLY + other.links, scene.now)
    assert look_up(asker, 1) == MISS
    silent = Cache(scene, "c")
    silent.peer, silent.links = None, 9000
    silent.register()
    silent.admit(1)
    assert look_up(asker, 1) == MISS


def test_a_peer_of_another_model_is_none() -> None:
    scene = Scene(models=Models(instances={"b": Model(modelname="other")}))
    asker = worker(scene, "asker")
    worker(scene, "b").admit(1)
    assert look_up(asker, 1) == MISS


def test_more_hashes_than_the_bound_count_as_a_miss(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmcache_adapter.controller.peers.LMCACHE_HASHES_MAX", 2)
    asker = worker(scene, "asker")
    worker(scene, "b").admit(1, 2, 3)
    assert look_up(asker, 1, 2, 3) == [["b", "LocalCPUBackend", 2, "b:8200"]]


def test_a_heartbeat_link_is_a_sign_of_life(scene: Scene) -> None:
    cache = worker(scene, "a")
    cache.admit(1)
    cache.beat()
    for link in (PULL, REPLY):
        scene.controller.link_down(link + cache.links, scene.now)
    scene.wait(LMCACHE_WORKER_S + 1)
    assert cache.publisher in scene.index.registered
    scene.controller.link_down(BEAT + cache.links, scene.now)
    scene.wait(LMCACHE_WORKER_S + 1)
    assert cache.publisher not in scene.index.registered
