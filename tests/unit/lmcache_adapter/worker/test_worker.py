"""One worker: operations in order, losses, full syncs, and what is written of them."""

import pytest

from lmcache_adapter.controller.controller import LMCACHE_WORKER_S
from lmcache_adapter.controller.member import ENDED, RememberedWorker
from lmcache_adapter.worker.full_sync import LMCACHE_SYNC_IDLE_S, LMCACHE_WORKER_KEYS_MAX
from lmcache_adapter.worker.keys import LMCACHE_LOCATIONS_MAX
from lmcache_adapter.worker.reasons import Reason
from lmcache_adapter.worker.waiting import LMCACHE_HELD_S
from lmcache_adapter.worker.worker import LMCACHE_SYNC_START_S, LMCACHE_UNHEARD_S
from schemas.answer_states import Doubt
from tests.lmcache import CPU, DISK
from tests.unit.lmcache_adapter.scene import PULL, REPLY, Cache, Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def cache(scene: Scene) -> Cache:
    found = Cache(scene)
    found.register()
    return found


def known(scene: Scene, *locations: str) -> RememberedWorker:
    """What a run tells the next of its only worker."""
    (one,) = scene.controller.known()
    return RememberedWorker(one.registration, locations)


def restarted(cache: Cache, *locations: str) -> Scene:
    """Another run of the bridge; what was written stays."""
    before = cache.scene
    scene = Scene([known(before, *locations)])
    scene.index, scene.now = before.index, before.now + 1
    incarnation = max((one[0] for one in scene.index.cursors.values()), default=0)
    scene.controller._next_incarnation = lambda publisher: incarnation + 1
    for member in scene.controller._members.values():
        member.journal._next_incarnation = lambda publisher: incarnation + 1
    cache.scene = scene
    scene.settle()
    return scene


# Operations


def test_what_a_worker_stores_and_evicts_is_written(cache: Cache) -> None:
    cache.admit(1, -2, 3)
    cache.evict(-2)
    cache.admit(7, location=DISK)
    assert cache.indexed == cache.truth == {("CPU", 1), ("CPU", 3), ("DISK", 7)}
    assert cache.degraded is None


def test_a_worker_is_confirmed_once_it_has_pushed_something(cache: Cache) -> None:
    assert cache.doubt is Doubt.NOT_SYNCED
    cache.admit(1)
    assert cache.doubt is None


def test_a_key_is_the_same_signed_and_unsigned(cache: Cache) -> None:
    cache.admit(-1)
    cache.scene.push(cache.operations(("evict", 2**64 - 1)))
    assert cache.indexed == set()


@pytest.fixture
def tagged(cache: Cache) -> Cache:
    cache.has_tags = True
    return cache


def told(cache: Cache) -> tuple[Doubt | None, int]:
    """Why it is doubted, and how many chunks count."""
    return cache.doubt, len(cache.indexed)


@pytest.mark.parametrize("location", [CPU, DISK])
def test_of_chunks_of_one_name_it_is_known_how_many_are_left_once_all_are_gone(
    tagged: Cache, location: str
) -> None:
    """As of requests with other `lmcache.tag.*`: the hash of the tokens is the same."""
    tagged.admit(1, 2, location=location)
    assert told(tagged) == (None, 2)
    tagged.admit(1, 2, location=location)
    assert told(tagged) == (Doubt.COPIES_UNKNOWN, 2)
    tagged.evict(1, location=location)
    assert told(tagged) == (Doubt.COPIES_UNKNOWN, 2)
    tagged.evict(1, location=location)
    assert told(tagged) == (Doubt.COPIES_UNKNOWN, 1)
    tagged.evict(2, location=location)
    tagged.admit(2, location=location)
    assert told(tagged) == (Doubt.COPIES_UNKNOWN, 1), "both are there again"
    tagged.evict(2, 2, location=location)
    assert told(tagged) == (None, 0)
    tagged.admit(3, 3, location=location)
    tagged.evict(3, location=location)
    tagged.register()
    tagged.admit(3, location=location)
    assert told(tagged) == (None, 1)
    tagged.evict(3, location=location)
    assert told(tagged) == (None, 0)


@pytest.mark.parametrize("gone", [0, 1])
def test_chunks_by_layer_may_go_without_a_message(tagged: Cache, gone: int) -> None:
    """Each layer is a key of its own (`use_layerwise`), and all have one name."""
    tagged.admit(*[1, 2] * 4)
    tagged.evict(*[1] * gone)
    assert tagged.doubt == Doubt.COPIES_UNKNOWN
    restarted(tagged)
    tagged.beat()
    tagged.sync()
    assert (tagged.doubt, tagged.degraded) == (Doubt.COPIES_UNKNOWN, None)
    assert tagged.indexed == {("CPU", 1), ("CPU", 2)}
    tagged.evict(*[1] * (4 - gone))
    assert (tagged.doubt, tagged.indexed) == (Doubt.COPIES_UNKNOWN, {("CPU", 2)})
    tagged.evict(*[2] * 4)
    assert told(tagged) == (None, 0)


def test_what_an_orderly_end_leaves_of_such_chunks_on_disk_is_not_kept(tagged: Cache) -> None:
    tagged.admit(1, 2, location=DISK)
    (kept,) = tagged.scene.controller._members.values()
    assert list(kept.worker.keep()) == [DISK]
    tagged.admit(1, location=DISK)
    assert list(kept.worker.keep()) == []


@pytest.mark.parametrize("begins_first", [True, False])
@pytest.mark.parametrize("times", [2, 3])
def test_what_is_evicted_while_it_syncs_may_be_in_its_keys_or_not(
    tagged: Cache, times: int, begins_first: bool
) -> None:
    tagged.admit(*[1, 2] * times)
    restarted(tagged)
    tagged.beat()
    batches = tagged.start_sync() if begins_first else []
    tagged.evict(1)
    total = len(tagged.on_cpu) + begins_first
    for batch in batches or tagged.start_sync():
        tagged.scene.push(batch)
    tagged.end_sync(total=total)
    for left in reversed(range(times - 1)):
        assert tagged.doubt is Doubt.COPIES_UNKNOWN
        assert len(tagged.indexed) == 2
        tagged.evict(1)
        assert tagged.more[CPU][1] == max(left - 1, 0)
    if tagged.doubt is None:
        assert tagged.indexed == tagged.truth == {("CPU", 2)}


def test_an_older_workers_single_operations_are_taken(cache: Cache) -> None:
    fields = {"location": "LocalCPUBackend"}
    cache.scene.push(
        cache.message("KVAdmit", key=5, seq_num=0, **fields),
        cache.message("KVAdmit", key=6, seq_num=1, **fields),
        cache.message("KVEvict", key=5, seq_num=2, **fields),
    )
    assert cache.indexed == {("CPU", 6)}
    assert cache.degraded is None
    assert cache.scene.controller.counters.operations == 3


# Losses


def test_a_jump_is_a_gap_and_the_next_heartbeat_asks_for_a_full_sync(cache: Cache) -> None:
    cache.admit(1)
    cache.operations(("admit", 2))  # lost
    cache.admit(3)
    assert cache.degraded == Reason.OPERATIONS
    assert cache.doubt is Doubt.NOT_SYNCED
    assert cache.beat() == [Reason.OPERATIONS]
    assert cache.scene.controller._members["a", 0].worker.jumps == 1


def test_one_gap_stands_for_all_losses_until_the_full_sync(cache: Cache) -> None:
    for key in range(6):
        cache.operations(("admit", 100 + key))
        cache.admit(key)
    assert cache.scene.index.reasons == ["registered", f"gap {Reason.OPERATIONS}"]


def test_a_loss_on_disk_is_not_repaired_by_a_full_sync(cache: Cache) -> None:
    cache.admit(1)
    cache.admit(2, location=DISK)
    cache.operations(("admit", 3), location=DISK)
    cache.admit(4, location=DISK)
    assert cache.degraded == Reason.OPERATIONS
    assert cache.beat() == [], "it would bring nothing"
    cache.operations(("admit", 5))
    cache.admit(6)
    assert cache.beat() == [Reason.OPERATIONS]
    cache.sync()
    assert cache.degraded == Reason.LOCATION
    assert cache.doubt is Doubt.NOT_SYNCED
    assert cache.scene.controller._members["a", 0].worker.syncs_whole == 0
    assert cache.indexed == {("CPU", 1), ("CPU", 5), ("CPU", 6), ("DISK", 2), ("DISK", 4)}


# A new process


def test_what_the_process_before_had_sent_does_not_count(cache: Cache) -> None:
    cache.admit(1, 2)
    late = cache.operations(("admit", 3), ("admit", 4))
    later = cache.operations(("admit", 5))
    cache.register()
    cache.scene.push(late, later, cache.message("DeRegister", ip="", port=0), link=PULL)
    cache.admit(6)
    assert cache.indexed == {("CPU", 6)}
    assert cache.degraded is None
    assert cache.scene.controller.counters.dropped["late_message"] == 3


def test_a_link_that_has_ended_says_nothing_of_a_worker_but_what_it_had_brought(
    cache: Cache,
) -> None:
    cache.scene.push(cache.operations(("admit", 1)), link=ENDED)
    assert cache.indexed == {("CPU", 1)}
    assert cache.doubt is Doubt.NOT_SYNCED, "what follows may be lost"
    cache.admit(2)
    assert cache.doubt is None


def test_a_new_process_whose_first_operations_are_lost_is_not_taken_for_the_one_before(
    cache: Cache,
) -> None:
    cache.admit(1, 2)
    cache.register()
    cache.operations(("evict", 7), ("evict", 8))  # lost; the process before was as far
    cache.admit(3)
    assert cache.degraded == Reason.OPERATIONS
    assert cache.indexed == {("CPU", 3)}


def test_a_worker_that_leaves_is_forgotten(cache: Cache) -> None:
    cache.admit(1)
    cache.scene.push(cache.message("DeRegister", ip="", port=0))
    assert cache.indexed == set()
    assert cache.publisher not in cache.scene.index.registered
    cache.admit(2)
    assert cache.indexed == set()
    assert cache.scene.controller.counters.dropped["not_registered"] == 1


# Full syncs


def test_what_happens_during_a_full_sync_is_kept(cache: Cache) -> None:
    cache.admit(1, 2, 3)
    cache.operations(("admit", 4))  # lost
    cache.admit(5)
    cache.beat()
    batches = cache.start_sync()
    cache.evict(1)
    cache.scene.push(batches[0])
    cache.admit(6)
    for batch in batches[1:]:
        cache.scene.push(batch)
    assert cache.indexed == cache.truth == {("CPU", one) for one in (2, 3, 4, 5, 6)}
    assert cache.doubt is None


def test_what_came_between_the_request_and_its_start_is_kept(cache: Cache) -> None:
    cache.operations(("admit", 1))  # lost
    cache.admit(2, 3)
    cache.beat()
    snapshot = cache.start_sync("s")  # the keys are those of this moment
    cache.scene.controller._members["a", 0].worker._sync = None  # as if it came later
    cache.evict(2)
    cache.scene.ask(
        cache.message(
            "FullSyncStart", location="LocalCPUBackend", sync_id="s", total_keys=3, batch_count=2
        )
    )
    for batch in snapshot:
        cache.scene.push(batch)
    assert cache.indexed == {("CPU", 1), ("CPU", 3)}


def test_what_waited_and_is_in_the_keys_too_is_held_once(cache: Cache) -> None:
    cache.operations(("admit", 1))  # lost
    cache.admit(2)
    cache.beat()
    cache.admit(3)  # it waits, and the keys are gathered after it
    for batch in cache.start_sync():
        cache.scene.push(batch)
    assert cache.indexed == {("CPU", 1), ("CPU", 2), ("CPU", 3)}
    cache.evict(3)
    assert cache.indexed == cache.truth == {("CPU", 1), ("CPU", 2)}
    assert (cache.doubt, cache.degraded) == (None, None)


def test_the_cache_is_released_when_its_own_keys_are_here(scene: Scene, cache: Cache) -> None:
    other = Cache(scene, "b")
    other.links = 10
    other.register()
    cache.operations(("admit", 1))  # lost
    cache.admit(2, 3)
    cache.beat()
    batches = cache.start_sync()
    answer = cache.status()
    assert (answer["is_complete"], answer["can_exit_freeze"]) == (False, False)
    assert answer["missing_batches"] == [0, 1]
    scene.push(batches[1])
    assert cache.status()["missing_batches"] == [0]
    scene.push(batches[0])
    answer = cache.status()
    assert (answer["is_complete"], answer["can_exit_freeze"]) == (True, True)
    assert answer["missing_batches"] == []
    assert answer["global_progress"] == 0.5, "the other one has pushed nothing yet"


def test_an_empty_cache_syncs_too(cache: Cache) -> None:
    cache.scene.wait(LMCACHE_UNHEARD_S + 1)
    assert cache.beat() == [Reason.UNHEARD]
    cache.sync()
    assert cache.status()["can_exit_freeze"]
    assert cache.doubt is None


def test_a_batch_of_another_sync_is_dropped(cache: Cache) -> None:
    cache.admit(1, 2)
    cache.start_sync("s")
    cache.scene.push(
        cache.message(
            "FullSyncBatch", location="LocalCPUBackend", sync_id="t", batch_id=0, keys=[7]
        )
    )
    assert cache.scene.controller.counters.dropped["unexpected_batch"] == 1
    assert not cache.status("s")["is_complete"]


def test_batches_that_do_not_add_up_are_asked_for_again(cache: Cache) -> None:
    cache.operations(("admit", 1))  # lost
    cache.admit(2, 3)
    cache.beat()
    for batch in cache.start_sync():
        cache.scene.push(batch)
    assert cache.doubt is None
    cache.end_sync(total=4)
    assert cache.degraded == Reason.UNSOUND
    cache.scene.wait(LMCACHE_SYNC_START_S + 1)
    assert cache.beat() == [Reason.OPERATIONS]
    cache.sync("again")
    assert cache.degraded is None


def test_a_full_sync_that_was_not_asked_for_is_taken_and_asked_for_again(cache: Cache) -> None:
    cache.admit(1, 2)
    batches = cache.start_sync("s")  # its keys may be from before the last operation
    cache.scene.push(*batches)
    assert cache.status("s")["can_exit_freeze"]
    assert cache.indexed == cache.truth
    assert cache.degraded == Reason.UNSOUND
    assert cache.beat() == [Reason.OPERATIONS]
    cache.sync("t")
    assert cache.degraded is None


def test_what_came_before_the_request_is_in_the_keys_and_does_not_count_again(
    cache: Cache,
) -> None:
    cache.admit(1, 2)
    restarted(cache)
    cache.admit(3)
    cache.operations(("evict", 3))  # lost
    cache.admit(4)
    assert cache.beat() == [Reason.RESTARTED]
    cache.sync()
    assert cache.indexed == cache.truth == {("CPU", 1), ("CPU", 2), ("CPU", 4)}
    assert cache.doubt is None


def test_a_full_sync_that_begins_after_it_was_given_up_is_not_believed(cache: Cache) -> None:
    cache.operations(("admit", 1))  # lost
    cache.admit(2)
    cache.beat()
    batches = cache.start_sync()
    cache.scene.controller._members["a", 0].worker._sync = None  # as if it came later
    cache.scene.wait(LMCACHE_SYNC_START_S + 1)
    cache.evict(2)  # does not wait any more
    cache.scene.ask(
        cache.message(
            "FullSyncStart", location="LocalCPUBackend", sync_id="s", total_keys=2, batch_count=1
        )
    )
    cache.scene.push(*batches)
    assert cache.degraded == Reason.UNSOUND
    assert cache.beat() == [Reason.OPERATIONS]
    cache.sync("again")
    assert cache.indexed == cache.truth
    assert cache.degraded is None


def test_a_loss_during_a_full_sync_is_repaired_by_the_next_one(cache: Cache) -> None:
    cache.admit(1, 2, 3)
    cache.operations(("admit", 4))
    cache.admit(5)
    cache.beat()
    batches = cache.start_sync()
    cache.operations(("evict", 1))  # lost, and it may be in the batches
    cache.admit(6)
    cache.scene.push(*batches)
    assert cache.degraded == Reason.UNSOUND
    assert cache.status()["can_exit_freeze"], "it is of no use to wait"
    cache.scene.wait(2 * LMCACHE_SYNC_START_S + 1)
    assert cache.beat() == [Reason.OPERATIONS]
    cache.sync("again")
    assert cache.indexed == cache.truth
    assert cache.degraded is None


def test_a_cache_is_not_frozen_for_batches_that_do_not_come(cache: Cache) -> None:
    cache.admit(1, 2, 3)
    cache.start_sync()
    cache.scene.wait(LMCACHE_SYNC_IDLE_S - 1)
    assert not cache.status()["can_exit_freeze"]
    cache.scene.wait(2)
    answer = cache.status()
    assert (answer["is_complete"], answer["can_exit_freeze"]) == (False, True)


def test_a_worker_is_not_asked_again_while_it_syncs(cache: Cache) -> None:
    cache.operations(("admit", 1))
    cache.admit(2)
    assert cache.beat() == [Reason.OPERATIONS]
    assert cache.beat() == [], "it may take a while to begin"
    cache.start_sync()
    cache.scene.wait(LMCACHE_SYNC_START_S + 1)
    assert cache.beat() == []


def test_a_worker_that_does_not_begin_is_asked_again_less_and_less_often(cache: Cache) -> None:
    cache.operations(("admit", 1))
    cache.admit(2)
    pauses, last = [], 0.0
    for second in range(2000):
        cache.scene.wait(1.0)
        if cache.beat():
            pauses.append(second - last)
            last = second
    assert pauses[1:7] == [15, 30, 60, 120, 240, 300]


def test_a_full_sync_above_the_bounds_is_refused(cache: Cache) -> None:
    total = LMCACHE_WORKER_KEYS_MAX + 1
    answer = cache.scene.ask(
        cache.message(
            "FullSyncStart",
            location="LocalCPUBackend",
            sync_id="s",
            total_keys=total,
            batch_count=1,
        )
    )
    assert not answer["accepted"]
    assert answer["error_msg"].endswith(f"got: {total}")


def test_the_second_attempt_to_start_goes_on(cache: Cache) -> None:
    cache.admit(1, 2, 3)
    batches = cache.start_sync()
    cache.scene.push(batches[0])
    cache.start_sync()
    assert cache.status()["missing_batches"] == [1]


def test_another_full_sync_takes_the_place_of_one_under_way(cache: Cache) -> None:
    cache.admit(1, 2, 3)
    cache.scene.push(cache.start_sync("s")[0])
    cache.sync("t")
    assert cache.indexed == cache.truth
    assert cache.status("s")["can_exit_freeze"]


# A restart of ours


def test_after_a_restart_the_worker_is_asked_and_nothing_is_written_until_it_answers(
    cache: Cache,
) -> None:
    cache.admit(1, 2)
    scene = restarted(cache)
    cache.admit(3)
    cache.evict(1)
    assert cache.indexed == {("CPU", 1), ("CPU", 2)}, "the old state stays"
    assert cache.doubt is not None
    assert cache.beat() == [Reason.RESTARTED]
    cache.sync()
    assert cache.indexed == cache.truth == {("CPU", 2), ("CPU", 3)}
    assert cache.doubt is None
    assert scene.controller.counters.dropped == {}


def test_a_restart_in_the_middle_of_a_full_sync_releases_the_cache_and_asks_again(
    cache: Cache,
) -> None:
    cache.admit(1, 2, 3)
    batches = cache.start_sync()
    cache.scene.push(batches[0])
    restarted(cache)
    cache.scene.push(batches[1])
    answer = cache.status()
    assert (answer["is_complete"], answer["can_exit_freeze"]) == (False, True)
    assert cache.beat() == [Reason.RESTARTED]
    cache.sync("t")
    assert cache.indexed == cache.truth


def test_a_worker_without_heartbeats_is_written_behind_a_gap(cache: Cache) -> None:
    cache.admit(1, 2)
    scene = restarted(cache)
    cache.admit(3)
    scene.wait(LMCACHE_HELD_S + 1)
    assert cache.indexed == {("CPU", 3)}
    assert cache.degraded == Reason.NOT_SYNCED
    cache.admit(4)
    assert cache.indexed == {("CPU", 3), ("CPU", 4)}


def test_what_was_on_disk_before_a_restart_is_known_to_be_missing(cache: Cache) -> None:
    cache.admit(1)
    cache.admit(9, location=DISK)
    assert known(cache.scene).registration.instance_id == "a"
    assert cache.scene.controller.known()[0].locations == ("LocalCPUBackend", DISK)
    restarted(cache, DISK)
    cache.beat()
    cache.sync()
    assert cache.indexed == {("CPU", 1)}
    assert cache.degraded == Reason.LOCATION


def test_numbering_that_goes_on_where_nobody_has_listened_is_a_loss(cache: Cache) -> None:
    cache.admit(1)
    scene = restarted(cache)
    cache.beat()
    cache.sync()
    assert cache.doubt is None
    cache.operations(("admit", 8), location=DISK)
    cache.admit(9, location=DISK)
    assert cache.degraded == Reason.OPERATIONS
    assert scene.controller.counters.operations == 1


# Links


def test_a_link_that_was_down_is_proven_by_the_next_number(cache: Cache) -> None:
    cache.admit(1)
    cache.scene.controller.link_down(PULL, cache.scene.now)
    cache.scene.settle()
    assert cache.doubt is Doubt.NOT_SYNCED
    cache.scene.push(cache.operations(("admit", 2)), link=99)
    assert cache.doubt is None
    assert cache.degraded is None


def test_a_link_that_was_down_and_has_lost_something_shows_a_jump(cache: Cache) -> None:
    cache.admit(1)
    cache.scene.controller.link_down(PULL, cache.scene.now)
    cache.operations(("admit", 2))
    cache.scene.push(cache.operations(("admit", 3)), link=99)
    assert cache.degraded == Reason.OPERATIONS


def test_a_worker_whose_requests_have_no_link_is_not_confirmed(cache: Cache) -> None:
    cache.admit(1)
    cache.scene.controller.link_down(REPLY, cache.scene.now)
    cache.scene.settle()
    assert cache.doubt is Doubt.LINK_DOWN


def test_a_link_that_may_have_been_its_own_leaves_a_full_sync_unproven(cache: Cache) -> None:
    cache.admit(1, 2)
    scene = restarted(cache)
    cache.beat()
    batches = cache.start_sync()
    cache.operations(("evict", 2))  # lost with the link that it went over
    scene.controller.link_down(77, scene.now)
    scene.push(*batches)
    assert cache.degraded == Reason.UNSOUND
    scene.wait(LMCACHE_SYNC_START_S + 1)
    assert cache.beat() == [Reason.OPERATIONS]
    cache.sync("again")
    assert cache.indexed == cache.truth == {("CPU", 1)}
    assert cache.doubt is None


def test_a_worker_that_has_pushed_nothing_for_long_is_asked(cache: Cache) -> None:
    cache.beat()
    assert cache.beat() == []
    cache.scene.wait(LMCACHE_UNHEARD_S + 1)
    assert cache.beat() == [Reason.UNHEARD]


def test_a_worker_whose_heartbeats_stay_away_is_not_confirmed(cache: Cache) -> None:
    cache.admit(1)
    for _ in range(3):
        cache.beat()
        cache.scene.wait(4.0)
    assert cache.doubt is None
    cache.scene.wait(10.0)
    assert cache.doubt is Doubt.WORKER_SILENT
    cache.beat()
    assert cache.doubt is None


def test_a_worker_without_a_sign_of_life_is_forgotten(cache: Cache) -> None:
    cache.admit(1)
    for link in (PULL, REPLY):
        cache.scene.controller.link_down(link, cache.scene.now)
    cache.scene.wait(LMCACHE_WORKER_S - 1)
    assert cache.indexed == {("CPU", 1)}
    cache.scene.wait(2)
    assert cache.indexed == set()
    assert cache.publisher not in cache.scene.index.registered


def test_a_worker_of_an_earlier_run_that_does_not_come_back_is_forgotten(cache: Cache) -> None:
    cache.admit(1)
    scene = restarted(cache)
    scene.wait(1)
    scene.wait(LMCACHE_WORKER_S + 1)
    assert cache.publisher not in scene.index.registered
    assert cache.indexed == set()


# Bounds


def test_keys_beyond_the_bound_are_dropped_and_counted(
    cache: Cache,
) -> None:
    cache.scene.controller._budget._most = 3
    cache.admit(1, 2, 3, 4, 5)
    assert cache.indexed == {("CPU", 1), ("CPU", 2), ("CPU", 3)}
    assert cache.degraded == Reason.NO_ROOM
    assert cache.scene.controller.counters.dropped == {"too_many_keys": 2}
    assert cache.beat() == [], "its full sync would not find room either"


def test_locations_beyond_the_bound_are_dropped_and_counted(cache: Cache) -> None:
    for number in range(LMCACHE_LOCATIONS_MAX + 2):
        cache.admit(number, location=f"Backend{number}")
    assert cache.scene.controller.counters.dropped == {"too_many_locations": 2}
    assert cache.degraded is not None


def test_a_full_sync_gives_back_what_it_took(cache: Cache) -> None:
    cache.admit(1, 2, 3)
    cache.sync("s")
    cache.start_sync("t")
    cache.sync("u")
    assert cache.scene.controller._budget.used == 3
    cache.scene.push(cache.message("DeRegister", ip="", port=0))
    assert cache.scene.controller._budget.used == 0


def test_a_worker_is_written_anew_where_the_log_has_lost_something(cache: Cache) -> None:
    cache.admit(1, 2)
    cache.scene.index.held[cache.publisher].clear()  # lost
    cache.scene.controller.rewrite([cache.publisher])
    cache.scene.settle()
    assert cache.indexed == cache.truth
    assert cache.scene.index.reasons[-1] == Reason.REWRITTEN


def test_what_is_missing_of_a_worker_is_missing_where_it_is_written_anew(cache: Cache) -> None:
    cache.operations(("admit", 1))  # lost
    cache.admit(2)
    cache.scene.controller.rewrite([cache.publisher])
    cache.scene.settle()
    assert cache.indexed == {("CPU", 2)}
    assert cache.degraded == Reason.OPERATIONS


def test_a_worker_of_which_nothing_is_known_is_not_written_anew(cache: Cache) -> None:
    cache.admit(1, 2)
    scene = restarted(cache)
    scene.controller.rewrite([cache.publisher])
    scene.settle()
    assert cache.indexed == {("CPU", 1), ("CPU", 2)}, "what the log has of it stays"
