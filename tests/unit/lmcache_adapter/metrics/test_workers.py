"""What LMCache's dashboards ask of a controller, by the names of its own metrics."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lmcache_adapter.metrics.workers import LMCACHE, Lmcache
from schemas.metric_family import RoleCollector
from tests.unit.lmcache_adapter.scene import PULL, Cache, Scene

PREFIX = "lmcache:cache_controller_"


def shown(scene: Scene) -> dict[str, float]:
    """As Prometheus's own parser reads them."""
    counters = scene.controller.counters
    registry = CollectorRegistry()
    collector = RoleCollector()
    collector.add(LMCACHE, lambda: Lmcache(counters, {}))
    registry.register(collector)
    text = generate_latest(registry).decode()
    return {
        sample.name.removeprefix(PREFIX): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(PREFIX)
    }


def test_a_full_sync_shows_as_at_lmcaches_own_controller() -> None:
    scene = Scene()
    first, second = Cache(scene, "a"), Cache(scene, "b")
    second.links = 1000
    first.register()
    second.register()
    first.operations(("admit", 1))  # is lost
    first.admit(2)
    second.admit(7)
    first.held["LocalCPUBackend"] = {1, 2, 3, 4, 5}
    assert first.beat(), "it is asked for all that it holds"
    batches = first.start_sync(batch_keys=2)
    scene.push(batches[0], link=PULL)
    scene.wait(1)
    assert shown(scene) == {
        "registered_workers_count": 2,
        "kv_pool_keys_count": 2,
        "pull_socket_message_count": 3,
        "reply_socket_message_count": 4,
        "kv_op_seq_discontinuity_count": 1,
        "full_sync_workers_syncing": 1,
        "full_sync_workers_completed": 1,
        "full_sync_global_progress": 0.5,
        "full_sync_missing_batches_total": 2,
    }
    for batch in batches[1:]:
        scene.push(batch, link=PULL)
    first.end_sync()
    scene.wait(1)
    after = shown(scene)
    assert after["kv_pool_keys_count"] == 6
    assert after["full_sync_workers_syncing"] == after["full_sync_missing_batches_total"] == 0
    assert after["full_sync_global_progress"] == 1.0


def test_without_workers_nothing_is_divided_by_none() -> None:
    found = shown(Scene())
    assert set(found.values()) == {0.0}
