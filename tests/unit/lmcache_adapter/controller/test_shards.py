"""Workers of one instance, each with a part of each chunk: what all of them have is of use."""

from struct import pack

import pytest

from lmcache_adapter.controller.controller import LMCACHE_WORKER_S
from lmcache_adapter.settings import Model, Models
from schemas.answer_states import Doubt
from schemas.identities import Offset, PrefixScope
from schemas.records import encode_record
from streams.kernel import open_kernel
from streams.table.fold import Fold
from tests.unit.lmcache_adapter.scene import PULL, Cache, Scene

KEYS = (10, 20, 30, 40)
CHUNK = 256


@pytest.fixture
def scene() -> Scene:
    return Scene()


def workers(scene: Scene) -> tuple[Cache, Cache]:
    """The two of instance `a`, which hold all chunks."""
    first, second = Cache(scene), Cache(scene, worker_id=1)
    second.links = 1000
    for cache in (first, second):
        cache.register()
        cache.admit(*KEYS)
    return first, second


def leave(cache: Cache) -> None:
    cache.scene.push(cache.message("DeRegister", ip="", port=0), link=PULL + cache.links)


def matched(scene: Scene, model: str = "lmcache") -> int:
    """Tokens that the instance holds of a prompt with these chunks; -1: it is not known."""
    fold = Fold(open_kernel(1337))
    records = [record for told in scene.told for record in told.records]
    for offset, record in enumerate(records):
        assert fold.apply(Offset(offset), encode_record(record)) is None
    scope = PrefixScope("default", model, "", CHUNK, "")
    found = fold.kernel.query_by_hash(scope, pack(f"<{len(KEYS)}Q", *KEYS), None)
    return found[0].longest if found else -1


def test_the_worker_that_has_least_counts(scene: Scene) -> None:
    first, second = workers(scene)
    assert matched(scene) == 4 * CHUNK
    second.evict(*KEYS[1:])
    assert matched(scene) == CHUNK
    first.evict(KEYS[0])
    assert matched(scene) == 0
    first.admit(KEYS[0])
    second.admit(*KEYS[1:])
    assert matched(scene) == 4 * CHUNK


def test_without_one_of_its_workers_an_instance_has_nothing(scene: Scene) -> None:
    first, second = workers(scene)
    leave(second)
    assert (matched(scene), second.doubt, second.degraded) == (0, None, None)
    assert [one.registration.dp_rank for one in scene.controller.workers()] == [0]
    assert list(scene.controller.reachable("a")) == [0]
    second.admit(50)
    assert scene.controller.counters.dropped["not_registered"] == 1
    second.register()
    second.admit(*KEYS[:2])
    assert matched(scene) == 2 * CHUNK
    leave(first)
    leave(second)
    assert matched(scene) == -1
    assert not scene.controller.known()


def test_an_instance_that_is_started_again_may_have_fewer_workers(scene: Scene) -> None:
    first, second = workers(scene)
    leave(second)
    scene.wait(1)
    first.register()
    first.admit(*KEYS)
    assert matched(scene) == 4 * CHUNK


def test_a_worker_that_does_not_come_back_stays_a_part_of_those_that_go_on(scene: Scene) -> None:
    first, second = workers(scene)
    for link in range(1000, 1200):
        scene.controller.link_down(link, scene.now)
    scene.settle()
    assert second.doubt is Doubt.LINK_DOWN
    for _ in range(int(LMCACHE_WORKER_S / 10) + 2):
        scene.wait(10)
        first.beat()
    assert matched(scene) == 0
    assert scene.doubts[second.publisher] is None
    second.held["LocalCPUBackend"] = set(KEYS)
    assert second.beat() == ["controller_restart"]
    second.sync()
    assert matched(scene) == 4 * CHUNK


def test_the_next_run_knows_who_has_left(scene: Scene) -> None:
    _, second = workers(scene)
    leave(second)
    later = Scene(known=[*scene.controller.known()])
    later.settle()
    again = Cache(later)
    again.held["LocalCPUBackend"] = set(KEYS)
    again.beat()
    again.sync()
    assert matched(later) == 0
    assert [one.registration.dp_rank for one in later.controller.workers()] == [0]


def test_where_each_worker_has_all_of_it_any_of_them_counts() -> None:
    scene = Scene(models=Models(default=Model(sharded=False)))
    _, second = workers(scene)
    second.evict(*KEYS)
    assert matched(scene) == 4 * CHUNK
    leave(second)
    assert [one.registration.dp_rank for one in scene.controller.known()] == [0]
