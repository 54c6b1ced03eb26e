"""What is on a worker's disk, which no full sync tells, outlasts a run that ends in order."""

from pathlib import Path

import pytest

from lmcache_adapter.controller.controller import LMCACHE_WORKER_S
from lmcache_adapter.state_file import State, StateFile, begin_run
from lmcache_adapter.worker.waiting import LMCACHE_HELD_S
from schemas.answer_states import Doubt
from tests.lmcache import CPU, DISK
from tests.unit.lmcache_adapter.scene import Cache, Scene


@pytest.fixture
def cache() -> Cache:
    """A worker with chunks in memory and on disk."""
    cache = Cache(Scene())
    cache.register()
    cache.admit(1, 2, 3)
    cache.admit(1, 2, 8, -9, location=DISK)
    return cache


def start_again(cache: Cache, *, in_order: bool = True) -> None:
    """The next run: of the worker's process nothing has changed but its links."""
    before = cache.scene
    known = before.controller.known(is_last=in_order)
    later = Scene(known=known, index=before.index)
    later.settle()
    cache.scene = later
    cache.links += 100


def test_known_chunks_stay_where_the_next_number_follows_on(cache: Cache) -> None:
    start_again(cache)
    assert cache.beat() == ["controller_restart"]
    cache.sync()
    assert (cache.indexed, cache.degraded) == (cache.truth, None)
    assert cache.doubt is Doubt.NOT_SYNCED, "the next number will tell"
    cache.evict(8, location=DISK)
    assert (cache.indexed, cache.degraded) == (cache.truth, None)
    assert cache.scene.doubts[cache.publisher] is None


@pytest.mark.parametrize("location", [CPU, DISK])
def test_a_message_without_operations_tells_nothing(cache: Cache, location: str) -> None:
    start_again(cache)
    cache.scene.push(cache.operations(location=location))
    cache.beat()
    cache.sync()
    assert cache.doubt is Doubt.NOT_SYNCED
    cache.evict(8, location=DISK)
    assert (cache.indexed, cache.degraded) == (cache.truth, None)


def test_what_was_lost_meanwhile_shows_in_the_next_number(cache: Cache) -> None:
    start_again(cache)
    cache.operations(("evict", 8), location=DISK)  # lost
    cache.beat()
    cache.sync()
    assert cache.doubt is Doubt.NOT_SYNCED
    cache.admit(10, location=DISK)
    assert cache.degraded == "operations_missed"


def test_what_comes_before_the_full_sync_is_applied_to_what_was_there(cache: Cache) -> None:
    start_again(cache)
    cache.evict(-9, location=DISK)
    cache.admit(11, location=DISK)
    assert cache.beat() == ["controller_restart"]
    cache.sync()
    assert (cache.indexed, cache.degraded) == (cache.truth, None)
    assert cache.doubt is None


def test_it_stays_over_runs_that_hear_of_the_worker_little_or_nothing(cache: Cache) -> None:
    start_again(cache)
    cache.admit(12, location=DISK)
    start_again(cache)
    start_again(cache)
    cache.beat()
    cache.sync()
    assert (cache.indexed, cache.degraded) == (cache.truth, None)


def test_without_a_full_sync_it_stays_behind_the_gap(cache: Cache) -> None:
    start_again(cache)
    cache.admit(12, location=DISK)
    cache.scene.wait(LMCACHE_HELD_S + 1)
    on_disk = {key for key in cache.truth if key[0] == "DISK"}
    assert (cache.indexed, cache.degraded) == (on_disk, "not_synced")


def test_a_worker_of_an_earlier_run_has_as_long_as_others_to_come(cache: Cache) -> None:
    start_again(cache)
    for seconds, is_there in ((1.0, True), (LMCACHE_WORKER_S, True), (1.0, False)):
        cache.scene.wait(seconds)
        assert (cache.publisher in cache.scene.index.registered) is is_there


def test_a_new_process_has_nothing_of_it(cache: Cache) -> None:
    start_again(cache)
    cache.register()
    cache.admit(4, location=DISK)
    assert (cache.indexed, cache.degraded) == ({("DISK", 4)}, None)


def test_a_run_that_is_killed_keeps_nothing(cache: Cache) -> None:
    start_again(cache, in_order=False)
    cache.beat()
    cache.sync()
    assert cache.indexed == {key for key in cache.truth if key[0] == "CPU"}
    assert cache.degraded == "location_not_synced"


def test_what_was_missing_is_not_kept(cache: Cache) -> None:
    cache.operations(("admit", 20), location=DISK)  # lost
    cache.admit(21, location=DISK)
    assert cache.degraded == "operations_missed"
    start_again(cache)
    cache.beat()
    cache.sync()
    assert cache.degraded == "location_not_synced"


def test_the_file_tells_one_run(cache: Cache, tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    known = cache.scene.controller.known(is_last=True)
    file.write(State(incarnations=7, workers=tuple(known)))
    first, second = begin_run(file, 1.0), begin_run(file, 1.0)
    [one] = first.workers
    assert (one.locations, list(one.kept)) == ((CPU, DISK), [DISK])
    assert sorted(one.kept[DISK].read_keys()) == [1, 2, 8, 2**64 - 9]
    assert [one.kept for one in second.workers] == [{}]
