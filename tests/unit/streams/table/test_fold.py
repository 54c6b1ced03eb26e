from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from schemas.answer_states import AnswerState, Doubt
from schemas.events import BlockEvent, RemovedBlocks, StoredBlocks
from schemas.identities import (
    GROUPS_DIFFER,
    OBJECTS_WAIT,
    PARTIAL_BLOCK,
    POOL_REMOVED,
    Medium,
    Offset,
    PublisherKey,
)
from schemas.positions import POOL_CLEARED, SAYS_ALL_GONE, Confirmation, Proof, PublisherState
from schemas.registration import NO_EVENTS, Label, LiveRegistration, PublisherKind, Registration
from streams.bounds import TIERS_SHOWN_BATCHES
from streams.kernel.interface import Kernel, PublisherId
from streams.table.fold import (
    DUPLICATE,
    INTERNAL_ERROR,
    UNREGISTERED_REMEMBERED_MAX,
    Fold,
    UnprovenState,
)
from streams.table.scope_states import ConfirmationSource, ScopeStates
from tests.building import (
    SCOPE,
    STREAM,
    cleared,
    events_record,
    gap_record,
    heartbeat_record,
    objects,
    registered_record,
    registration,
    removed,
    report,
    reset_record,
    stored,
    u32s,
    u64s,
    unregistered_record,
)
from tests.fakes import PoisonedKernel

PUBLISHER = PublisherKey(STREAM, 0)


@pytest.fixture
def fold(any_fold: Callable[[], Fold]) -> Fold:
    return any_fold()


@pytest.fixture
def each_fold(make_fold: Callable[[], Fold]) -> Fold:
    """Of each kernel: what it does with the record is what is looked at."""
    return make_fold()


def feed(fold: Fold, *records: bytes) -> None:
    for record in records:
        fold.apply(Offset(fold.offset + 1), record)


def matched(fold: Fold, tokens: list[int]) -> int:
    matches = fold.kernel.query(SCOPE, u32s(tokens), (), None)
    return matches[0].longest if matches else 0


def test_a_record_is_folded_once_however_often_it_is_delivered(each_fold: Fold) -> None:
    record = events_record(0, 0, [stored(0, [1], range(4)), stored(0, [1], range(4))])
    feed(each_fold, record, record)
    assert each_fold.counters["duplicate_records"] == 1
    feed(each_fold, events_record(1, 1, [removed(1, [1])]))
    assert matched(each_fold, list(range(4))) == 4, "announced twice, removed once"


def silent(instance: str = "a") -> Registration:
    """An engine that publishes no events."""
    return msgspec.structs.replace(registration(instance), endpoint="", kind=NO_EVENTS)


def test_an_engine_without_events_is_registered_and_has_no_part(each_fold: Fold) -> None:
    feed(each_fold, registered_record(registration("b", port=2)))
    feed(each_fold, registered_record(silent()))
    assert each_fold.registrations[silent().publisher] == LiveRegistration(silent(), Offset(1))
    matches = each_fold.kernel.query(SCOPE, u32s(range(8)), (), None)
    assert [match.instance_id for match in matches] == ["b"]
    assert each_fold.states.publishers(SCOPE) == (registration("b").publisher,)
    feed(each_fold, heartbeat_record("bridge", 1.0, [report(silent())]))
    assert silent().publisher not in each_fold.publishers
    changes = each_fold.take_changes()
    assert set(changes.registrations) == {silent().publisher, registration("b").publisher}
    feed(each_fold, unregistered_record(silent()))
    assert set(each_fold.registrations) == {registration("b").publisher}
    assert each_fold.take_changes().registrations == {silent().publisher: None}
    assert each_fold.counters["duplicate_records"] == 0


def test_a_publisher_that_is_registered_without_events_loses_its_part(each_fold: Fold) -> None:
    feed(
        each_fold,
        registered_record(registration()),
        events_record(0, 0, [stored(0, [1], range(4))]),
    )
    assert matched(each_fold, list(range(4))) == 4
    feed(each_fold, registered_record(silent()))
    assert each_fold.kernel.query(SCOPE, u32s(range(4)), (), None) == []
    assert each_fold.kernel.contexts() == []
    assert each_fold.states.publishers(SCOPE) == ()
    assert each_fold.publishers == {}
    feed(each_fold, registered_record(registration()))
    assert matched(each_fold, list(range(4))) == 0


def test_an_engine_without_events_is_restored_without_a_part(
    fold: Fold, any_fold: Callable[[], Fold]
) -> None:
    feed(fold, registered_record(registration()), registered_record(silent("c")))
    again = any_fold()
    again.restore(fold.offset, fold.publishers, fold.registrations)
    assert again.registrations == fold.registrations
    assert again.states.publishers(SCOPE) == (PUBLISHER,)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_group_whose_blocks_are_all_gone_is_missed_after_a_restart_as_well(
    fold: Fold, any_fold: Callable[[], Fold], restarts: bool
) -> None:
    feed(fold, events_record(0, 0, [stored(0, [1], range(4)), removed(0, [1])]))
    assert fold.kernel.contexts() == [], "of which no row says that it had any"
    if restarts:
        first, fold = fold, any_fold()
        fold.restore(first.offset, first.publishers, {})
    feed(fold, events_record(1, 1, [stored(1, [1], range(4), group=1)]))
    assert fold.publishers[PUBLISHER].left_out == {GROUPS_DIFFER: 1}
    feed(fold, events_record(0, 0, [stored(0, [1], range(4), group=1)], incarnation=2))
    assert fold.publishers[PUBLISHER].left_out == {}, "another engine may have one group"


def test_the_end_of_a_prompt_makes_no_answer_worse_and_its_removal_is_expected(fold: Fold) -> None:
    part = StoredBlocks(sequence=1, hashes=u64s([2]), left_out=PARTIAL_BLOCK)
    whole = events_record(0, 0, [stored(0, [1], range(4))])
    feed(fold, registered_record(registration()), whole, events_record(1, 1, [part]))
    assert fold.publishers[PUBLISHER].left_out == {}
    gone = [removed(2, [2], medium=medium) for medium in Medium]
    feed(fold, events_record(2, 2, gone))
    state = fold.publishers[PUBLISHER]
    assert (state.left_out, state.unheld_removed) == ({}, 0)
    feed(fold, events_record(3, 3, [removed(3, [2])]))
    assert fold.publishers[PUBLISHER].unheld_removed == 1, "it was there once"


def test_what_an_engine_has_removed_from_a_pool_of_others_is_not_known_after_its_end(
    fold: Fold,
) -> None:
    foreign = msgspec.structs.replace(removed(0, [1], medium=Medium.CPU), shared=True)
    feed(fold, registered_record(registration()), events_record(0, 0, [foreign]))
    state = fold.publishers[PUBLISHER]
    assert (state.left_out, state.concerns_all) == ({POOL_REMOVED: 1}, True)
    for incarnation in (2, 3):
        feed(fold, events_record(0, 0, [], incarnation=incarnation))
        state = fold.publishers[PUBLISHER]
        assert (state.left_out, state.media) == ({}, POOL_CLEARED)
        assert state.concerns_all
    feed(fold, unregistered_record(registration()), registered_record(registration()))
    assert PUBLISHER not in fold.publishers


POOL = registration("pool", kind="Mooncake", port=7000)


def serve_pool(fold: Fold, of: Registration = POOL, **of_engine: str) -> Registration:
    """An engine and a pool that has an object of its block."""
    engine = msgspec.structs.replace(registration(), **of_engine)
    feed(fold, registered_record(engine), registered_record(of))
    feed(fold, events_record(0, 0, [stored(0, [1], range(4))]))
    feed(fold, events_record(0, 0, [objects(0, [7], [1])], stream=POOL.stream))
    return engine


def test_a_pool_counts_for_those_that_are_registered_to_read_it_from_then_on(
    each_fold: Fold,
) -> None:
    engine, loss = serve_pool(each_fold), gap_record(1, 1, stream=POOL.stream)
    feed(each_fold, loss)
    for reads, cpu in ((None, 4), ((), 0), (("pool",), 4), (("other",), 0)):
        feed(each_fold, registered_record(msgspec.structs.replace(engine, reads=reads)))
        [match] = each_fold.kernel.query(SCOPE, u32s(range(4)), (), None)
        assert (match.gpu, match.cpu) == (4, cpu)
        assert each_fold.states.is_degraded(SCOPE) is bool(cpu)


END: dict[str, Callable[[Registration], bytes]] = {
    "restarts": lambda engine: reset_record(2),
    "restarts unsaid": lambda engine: events_record(0, 0, [], incarnation=2),
    "is unregistered": unregistered_record,
}


@pytest.mark.parametrize("ended", END)
def test_a_pool_may_have_lost_the_memory_of_an_instance_that_ends(fold: Fold, ended: str) -> None:
    engine = serve_pool(fold)
    assert doubt_of(fold, POOL.publisher) is None
    feed(fold, END[ended](engine))
    assert doubt_of(fold, POOL.publisher) == Doubt.LENDER_GONE
    feed(fold, events_record(1, 1, [objects(1, [8], [1])], stream=POOL.stream))
    assert doubt_of(fold, POOL.publisher) == Doubt.LENDER_GONE
    assert fold.publishers[POOL.publisher].lender_gone is not None


@pytest.mark.parametrize("healed", ["restarts", "clears", "is registered anew"])
def test_until_it_has_nothing_left(fold: Fold, healed: str) -> None:
    serve_pool(fold)
    feed(fold, reset_record(2))
    if healed == "is registered anew":
        feed(fold, unregistered_record(POOL), registered_record(POOL))
        feed(fold, events_record(0, 0, [], stream=POOL.stream))
    elif healed == "clears":
        feed(fold, events_record(1, 1, [cleared(1)], stream=POOL.stream))
    else:
        feed(fold, events_record(0, 0, [], incarnation=2, stream=POOL.stream))
    assert doubt_of(fold, POOL.publisher) is None
    feed(fold, reset_record(3))
    assert doubt_of(fold, POOL.publisher) == Doubt.LENDER_GONE, "another one has ended since"


def test_nor_once_its_registration_says_that_nobody_lends_it_memory(fold: Fold) -> None:
    serve_pool(fold)
    feed(fold, reset_record(2))
    native = msgspec.structs.replace(POOL, kv_offloading="native")
    feed(fold, registered_record(native))
    assert doubt_of(fold, POOL.publisher) is None
    feed(fold, reset_record(3))
    assert doubt_of(fold, POOL.publisher) is None
    feed(fold, registered_record(POOL), reset_record(4))
    assert doubt_of(fold, POOL.publisher) == Doubt.LENDER_GONE


def test_what_says_other_things_of_a_publisher_leaves_its_blocks_and_its_place(
    each_fold: Fold,
) -> None:
    first = registration(kind="TensorRT-LLM")
    said = msgspec.structs.replace(first, kv_partial_reuse="none", labels=(Label("rack", "r"),))
    feed(each_fold, registered_record(first), events_record(0, 0, [stored(0, [1], range(4))]))
    for one, due in ((first, Doubt.PARTIAL_REUSE), (said, ""), (first, Doubt.PARTIAL_REUSE)):
        feed(each_fold, registered_record(one))
        state = msgspec.structs.replace(
            each_fold.publishers[PUBLISHER], confirmation=Confirmation("bridge")
        )
        each_fold.states.put(PUBLISHER, state)
        heard = {ConfirmationSource(0, "bridge"): 9.0}
        assert each_fold.states.standing(PUBLISHER, heard, 1.0).reason == due
        assert (state.incarnation, state.sequence) == (1, 0)
        assert matched(each_fold, list(range(4))) == 4
    feed(each_fold, events_record(1, 1, [stored(1, [2], range(4, 8), parent=1)]))
    assert matched(each_fold, list(range(8))) == 8
    assert each_fold.publishers[PUBLISHER].degraded_since is None


def test_a_pool_is_not_doubted_by_who_lends_it_nothing_or_where_its_master_says_all(
    fold: Fold,
) -> None:
    other = msgspec.structs.replace(registration("b"), additional_salt="other", endpoint="tcp://b")
    serve_pool(fold, kv_offloading="none")
    feed(fold, registered_record(other), unregistered_record(other), reset_record(2))
    feed(fold, unregistered_record(registration("gone")))  # never registered
    assert doubt_of(fold, POOL.publisher) is None
    told = msgspec.structs.replace(POOL, instance_id="told", kv_offloading="native")
    conductor = msgspec.structs.replace(POOL, instance_id="conductor")
    for pool in (told, conductor):
        media = SAYS_ALL_GONE if pool is conductor else 0
        feed(fold, registered_record(pool))
        feed(fold, events_record(0, 0, [objects(0, [7], [1])], stream=pool.stream, media=media))
    lender = registration("lender")
    feed(fold, registered_record(lender), unregistered_record(lender))
    assert doubt_of(fold, POOL.publisher) == Doubt.LENDER_GONE
    assert [doubt_of(fold, one.publisher) for one in (told, conductor)] == [None, None]
    assert not fold.publishers[told.publisher].lender_gone


def test_a_pool_that_was_restored_is_doubted_as_well(make_fold: Callable[[], Fold]) -> None:
    before, fold = make_fold(), make_fold()
    serve_pool(before)
    fold.restore(before.offset, before.publishers, before.registrations)
    feed(fold, reset_record(2))
    assert doubt_of(fold, POOL.publisher) == Doubt.LENDER_GONE


def lose_and_clear(fold: Fold, at: int, **fields: Any) -> None:
    """An engine is heard up to a batch, which is lost, and then clears its GPU."""
    one = msgspec.structs.replace(registration(), **fields)
    before = [events_record(0, at - 1, [stored(0, [1], range(4))])] * (at > 0)
    feed(fold, registered_record(one), *before)
    feed(fold, events_record(at + 1, at + 1, [stored(at + 1, [2], range(4))]))
    assert fold.publishers[PUBLISHER].degraded_since == at
    feed(fold, events_record(at + 2, at + 2, [cleared(at + 2)]))
    assert fold.publishers[PUBLISHER].degraded_since is None


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("at", [0, 1])
def test_a_clear_of_vllm_behind_a_loss_is_of_its_gpu_and_the_rest_is_shown_in_time(
    fold: Fold, any_fold: Callable[[], Fold], at: int, restarts: bool
) -> None:
    """What was lost may have been stored on its CPU, and is there yet."""
    lose_and_clear(fold, at)
    if restarts:
        first, fold = fold, any_fold()
        encoded = msgspec.msgpack.encode(first.publishers[PUBLISHER])
        state = msgspec.msgpack.decode(encoded, type=PublisherState)
        fold.restore(first.offset, {PUBLISHER: state}, first.registrations)
    last = at + 2 + TIERS_SHOWN_BATCHES
    feed(fold, events_record(at + 3, last - 1, [stored(last - 1, [3], range(4))]))
    assert doubt_of(fold) == Doubt.TIERS_CLEARED
    feed(fold, events_record(last, last, [stored(last, [4], range(4))]))
    assert doubt_of(fold) is None


def test_it_is_not_shown_by_an_engine_that_has_stored_elsewhere(fold: Fold) -> None:
    lose_and_clear(fold, 1)
    last = 3 + TIERS_SHOWN_BATCHES
    feed(fold, events_record(4, last, [stored(last, [3], range(4))], media=1))
    assert doubt_of(fold) == Doubt.TIERS_CLEARED
    feed(fold, events_record(0, 0, [], incarnation=2))
    assert doubt_of(fold) is None, "its CPU is another one"


@pytest.mark.parametrize("lost", [4, TIERS_SHOWN_BATCHES + 1])
def test_nor_behind_a_further_loss(fold: Fold, lost: int) -> None:
    lose_and_clear(fold, 1)
    last = 4 + TIERS_SHOWN_BATCHES
    before = [events_record(4, lost - 1, [])] * (lost > 4)
    feed(fold, *before, events_record(lost + 1, last, [stored(last, [3], range(4))]))
    feed(fold, events_record(last + 1, last + 1, [cleared(last + 1)]))
    assert doubt_of(fold) == Doubt.TIERS_CLEARED


@pytest.mark.parametrize(
    ("at", "fields"),
    [
        (1, {"kv_offloading": "none"}),
        (1, {"kind": PublisherKind("SGLang")}),
        (TIERS_SHOWN_BATCHES, {}),
    ],
    ids=["as registered", "another kind", "heard for long"],
)
def test_an_engine_that_is_known_to_use_its_gpu_alone_has_cleared_all(
    fold: Fold, at: int, fields: dict[str, Any]
) -> None:
    lose_and_clear(fold, at, **fields)
    assert doubt_of(fold) is None


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kind", ["mamba", "sliding_window", "cross_attention"])
def test_an_engine_with_a_sparse_group_is_not_confirmed_until_it_ends(
    fold: Fold, any_fold: Callable[[], Fold], kind: str, restarts: bool
) -> None:
    due = None if kind == "cross_attention" else Doubt.ATTENTION_ONLY
    events = [stored(0, [1], range(4)), stored(0, [1], range(4), group=1, spec_kind=kind)]
    feed(fold, registered_record(registration()), events_record(0, 0, events))
    feed(fold, events_record(1, 1, [removed(1, [1]), cleared(1)]))
    if restarts:
        first, fold = fold, any_fold()
        encoded = msgspec.msgpack.encode(first.publishers[PUBLISHER])
        state = msgspec.msgpack.decode(encoded, type=PublisherState)
        fold.restore(first.offset, {PUBLISHER: state}, first.registrations)
    state = fold.publishers[PUBLISHER]
    assert state.uncounted == ({} if due is None else {due: 1})
    assert doubt_of(fold) == due
    assert matched(fold, list(range(4))) == 0, "a clear drops what answers count"
    feed(fold, events_record(2, 2, [stored(2, [1], range(4), group=1, spec_kind=kind)]))
    feed(fold, events_record(2, 2, [stored(2, [1], range(4), group=1, spec_kind=kind)]))
    assert fold.publishers[PUBLISHER].uncounted == ({} if due is None else {due: 2})
    feed(fold, events_record(0, 0, [stored(0, [1], range(4))], incarnation=2))
    assert (fold.publishers[PUBLISHER].uncounted, doubt_of(fold)) == ({}, None)


@pytest.mark.parametrize("restarts", [False, True])
def test_an_engine_that_removes_what_it_never_stored_is_not_confirmed_until_it_holds_nothing(
    fold: Fold, any_fold: Callable[[], Fold], restarts: bool
) -> None:
    """As vLLM's SimpleCPUOffloadConnector did, whose CPU's removals said GPU."""
    feed(fold, registered_record(registration()), events_record(0, 0, [stored(0, [1], range(4))]))
    feed(fold, events_record(1, 1, [removed(1, [1])]))
    assert (doubt_of(fold), matched(fold, list(range(4)))) == (None, 0), "nothing tells yet"
    feed(fold, events_record(2, 2, [removed(2, [1])]))
    if restarts:
        first, fold = fold, any_fold()
        encoded = msgspec.msgpack.encode(first.publishers[PUBLISHER])
        state = msgspec.msgpack.decode(encoded, type=PublisherState)
        fold.restore(first.offset, {PUBLISHER: state}, first.registrations)
    assert fold.publishers[PUBLISHER].uncounted == {"unheld_removed": 1}
    assert doubt_of(fold) == Doubt.UNHELD_REMOVED
    feed(fold, events_record(3, 3, [removed(3, [2])]))
    assert fold.publishers[PUBLISHER].uncounted == {"unheld_removed": 2}
    feed(fold, events_record(4, 4, [cleared(4)]))
    assert (fold.publishers[PUBLISHER].uncounted, doubt_of(fold)) == ({}, None)
    feed(fold, events_record(5, 5, [removed(5, [1])]))
    assert doubt_of(fold) == Doubt.UNHELD_REMOVED, "a clear that was announced and not done"
    feed(fold, events_record(0, 0, [stored(0, [1], range(4))], incarnation=2))
    assert doubt_of(fold) is None


def test_what_is_removed_behind_a_loss_contradicts_nothing(fold: Fold) -> None:
    feed(fold, registered_record(registration()), events_record(0, 0, [stored(0, [1], range(4))]))
    feed(fold, gap_record(1, 1), events_record(2, 2, [removed(2, [7])]))
    state = fold.publishers[PUBLISHER]
    assert (state.uncounted, state.unheld_removed, state.degraded_since) == ({}, 1, 1)


def doubt_of(fold: Fold, publisher: PublisherKey = PUBLISHER) -> str | None:
    """Why the publisher is unconfirmed, where its bridge confirms it; None where it is exact."""
    states, source = ScopeStates(), ConfirmationSource(0, "bridge")
    states.register(publisher, True)
    state = fold.publishers[publisher]
    states.put(publisher, msgspec.structs.replace(state, confirmation=Confirmation("bridge")))
    standing = states.standing(publisher, {source: 9.0}, 1.0)
    is_exact = standing.state is AnswerState.EXACT
    assert is_exact or standing.state is AnswerState.UNCONFIRMED
    return None if is_exact else standing.reason


def test_an_offset_that_was_folded_is_ignored(fold: Fold) -> None:
    fold.apply(Offset(3), events_record(0, 0, [stored(0, [1], range(4))]))
    fold.apply(Offset(3), events_record(1, 1, [removed(1, [1])]))
    assert fold.counters["offset_replayed"] == 1
    assert matched(fold, list(range(4))) == 4


def test_only_the_new_part_of_an_overlapping_record_is_folded(each_fold: Fold) -> None:
    first = stored(0, [1], range(4))
    feed(each_fold, events_record(0, 0, [first]))
    feed(each_fold, events_record(0, 1, [first, stored(1, [2], range(4, 8), parent=1)]))
    feed(each_fold, events_record(2, 2, [removed(2, [1])]))
    assert matched(each_fold, list(range(8))) == 0
    assert each_fold.kernel.counters()["repeated"] == 0


def test_a_gap_degrades_until_a_reset(fold: Fold) -> None:
    feed(fold, events_record(0, 0, [stored(0, [1], range(4))]), gap_record(1, 4))
    assert fold.publishers[PUBLISHER].degraded_since == 1
    assert fold.states.is_degraded(SCOPE)
    assert fold.counters["lost_batches"] == 4
    feed(fold, reset_record(2))
    assert not fold.states.is_degraded(SCOPE)
    assert matched(fold, list(range(4))) == 0


def test_no_time_is_known_of_the_last_batch_of_a_gap_nor_of_a_new_incarnation(fold: Fold) -> None:
    feed(fold, events_record(0, 1, []), gap_record(2, 3))
    assert fold.publishers[PUBLISHER].engine_time == 0.0
    feed(fold, events_record(4, 4, []))
    assert fold.publishers[PUBLISHER].engine_time == 4.0
    feed(fold, reset_record(2))
    assert fold.publishers[PUBLISHER].engine_time == 0.0


def test_a_gap_degrades_until_a_clear_that_comes_after_it(each_fold: Fold) -> None:
    feed(each_fold, gap_record(0, 4), events_record(5, 6, [stored(5, [1], range(4)), cleared(6)]))
    assert not each_fold.states.is_degraded(SCOPE)
    feed(each_fold, gap_record(7, 7), events_record(8, 8, [stored(8, [2], range(4))]))
    assert each_fold.states.is_degraded(SCOPE)


@pytest.mark.parametrize(("clear", "is_degraded"), [(None, True), (4, True), (5, True), (6, False)])
def test_an_event_that_could_not_be_used_degrades_until_a_later_clear(
    fold: Fold, clear: int | None, is_degraded: bool
) -> None:
    events = [] if clear is None else [cleared(clear)]
    feed(fold, events_record(0, 3, []), events_record(4, 6, events, incomplete=5))
    assert fold.states.is_degraded(SCOPE) is is_degraded
    feed(fold, events_record(7, 7, [cleared(7)]))
    assert not fold.states.is_degraded(SCOPE)


def test_an_incomplete_batch_that_was_folded_before_says_nothing_anew(fold: Fold) -> None:
    feed(
        fold, events_record(0, 1, [cleared(1)], incomplete=0), events_record(0, 2, [], incomplete=0)
    )
    assert not fold.states.is_degraded(SCOPE)
    feed(fold, events_record(3, 3, [], incomplete=2**62))
    assert fold.publishers[PUBLISHER].degraded_since == 3, "a record speaks of its own batches"


def test_a_clear_where_nothing_was_lost_is_no_fault(each_fold: Fold) -> None:
    feed(each_fold, events_record(0, 0, [stored(0, [1], range(4)), cleared(0)]))
    assert each_fold.counters == {"records": 1}
    assert matched(each_fold, list(range(4))) == 0


def test_nothing_is_left_of_a_loss_that_has_ended(fold: Fold) -> None:
    feed(fold, gap_record(0, 4), events_record(5, 5, [cleared(5)]))
    assert fold.publishers[PUBLISHER] == PublisherState(
        incarnation=1, sequence=5, engine_time=5.0, heard=Proof(5, 5.0)
    )


def test_the_last_batch_that_came_live_is_known_until_a_new_incarnation(fold: Fold) -> None:
    feed(fold, events_record(0, 3, []))
    feed(fold, events_record(4, 9, [], repaired="missed"), gap_record(10, 12))
    assert fold.publishers[PUBLISHER].heard == Proof(3, 3.0)
    feed(fold, events_record(0, 9, [], incarnation=2, repaired="restarted"))
    assert fold.publishers[PUBLISHER].heard is None


def test_a_gap_that_leaves_out_batches_before_it_is_a_hole_as_well(fold: Fold) -> None:
    feed(fold, events_record(0, 0, []), gap_record(3, 4))
    assert fold.counters["log_holes"] == 1
    assert fold.publishers[PUBLISHER].degraded_since == 1


def test_what_happened_is_counted_once_each(fold: Fold) -> None:
    feed(
        fold,
        events_record(0, 0, []),
        gap_record(1, 4),
        reset_record(2),
        gap_record(0, 0, incarnation=2),
    )
    assert fold.counters == {"records": 4, "gaps": 2, "lost_batches": 5, "resets": 1}


def test_the_last_batch_that_is_proven_is_the_one_before_the_first_doubted(fold: Fold) -> None:
    feed(fold, events_record(0, 2, []))
    assert fold.publishers[PUBLISHER].proof is None
    feed(fold, events_record(3, 4, [], doubted=True), events_record(5, 6, [], doubted=True))
    assert fold.publishers[PUBLISHER].proof == Proof(2, 2.0)
    feed(fold, events_record(7, 7, []))
    assert fold.publishers[PUBLISHER].proof is None


@pytest.mark.parametrize("end", [gap_record(5, 5), reset_record(2)])
def test_nothing_is_doubted_after_a_gap_or_a_reset(fold: Fold, end: bytes) -> None:
    feed(fold, events_record(0, 2, []), events_record(3, 4, [], doubted=True), end)
    assert fold.publishers[PUBLISHER].proof is None


def test_the_word_cleared_in_a_name_is_not_a_clear(each_fold: Fold) -> None:
    feed(each_fold, gap_record(0, 0))
    feed(each_fold, events_record(1, 1, [stored(1, [1], range(4), lora_name="cleared")]))
    assert each_fold.states.is_degraded(SCOPE)


def test_a_hole_in_the_log_degrades_even_without_a_gap_record(fold: Fold) -> None:
    feed(fold, events_record(7, 7, [stored(7, [1], range(4))]))
    assert fold.counters["log_holes"] == 1
    assert fold.publishers[PUBLISHER].degraded_since == 0


def test_a_new_incarnation_drops_the_old_ones_blocks_without_a_reset_record(
    each_fold: Fold,
) -> None:
    feed(each_fold, events_record(0, 9, [stored(0, [1], range(4))]))
    feed(each_fold, events_record(0, 0, [stored(0, [2], range(8, 12))], incarnation=2))
    assert matched(each_fold, list(range(4))) == 0
    assert matched(each_fold, list(range(8, 12))) == 4
    assert each_fold.publishers[PUBLISHER] == PublisherState(
        incarnation=2,
        sequence=0,
        engine_time=0.0,
        heard=Proof(0, 0.0),
        base_group=True,
        forms_prefixes=True,
    )


def test_a_record_that_came_again_or_late_is_skipped_counted_and_named(fold: Fold) -> None:
    late = events_record(0, 0, [stored(0, [1], range(4))])
    last = events_record(1, 2, [stored(1, [2], range(4, 8))])
    feed(fold, late, last)
    before = fold.kernel.contexts()
    for offset, record, batches in ((7, last, "1:1 to 2"), (9, late, "1:0 to 0")):
        skipped = fold.apply(Offset(offset), record)
        assert skipped is not None
        assert (skipped.offset, skipped.reason) == (offset, DUPLICATE)
        assert f"Expected batches after 1:2, got {batches} of publisher" in skipped.detail
    assert fold.counters["duplicate_records"] == 2
    assert fold.kernel.contexts() == before


def test_records_of_a_past_incarnation_are_skipped(fold: Fold) -> None:
    feed(fold, reset_record(2), events_record(5, 5, [stored(5, [1], range(4))]))
    assert matched(fold, list(range(4))) == 0
    assert fold.counters["duplicate_records"] == 1


def test_a_registered_publisher_is_answered_with_zeros(each_fold: Fold) -> None:
    feed(each_fold, registered_record(registration("b")))
    (match,) = each_fold.kernel.query(SCOPE, u32s(range(4)), (), None)
    assert (match.instance_id, match.longest) == ("b", 0)


def test_a_registration_is_replaced_by_another_one_and_not_by_itself(fold: Fold) -> None:
    first, second = registration("a"), registration("a", port=6000)
    feed(fold, registered_record(first), registered_record(first))
    assert fold.counters["duplicate_records"] == 1
    assert fold.registrations[PUBLISHER] == LiveRegistration(first, Offset(0))
    feed(fold, registered_record(second))
    assert fold.counters["duplicate_records"] == 1
    assert fold.registrations[PUBLISHER] == LiveRegistration(second, Offset(2))


def test_unregistering_one_that_never_published(fold: Fold) -> None:
    feed(fold, registered_record(registration("a")))
    fold.take_changes()
    feed(fold, unregistered_record(registration("a")))
    assert fold.kernel.query(SCOPE, u32s(range(4)), (), None) == []
    changes = fold.take_changes()
    assert (changes.publishers, changes.registrations) == ({PUBLISHER: None}, {PUBLISHER: None})
    assert fold.counters["duplicate_records"] == 0


def test_unregistering_one_that_is_not_known_changes_nothing(fold: Fold) -> None:
    feed(fold, unregistered_record(registration("a")))
    assert fold.counters["duplicate_records"] == 1
    changes = fold.take_changes()
    assert (changes.publishers, changes.registrations) == ({}, {})


def test_unregistering_after_a_restart_forgets_what_the_rows_had(fold: Fold) -> None:
    fold.restore(Offset(7), {}, {PUBLISHER: LiveRegistration(registration("a"), Offset(3))})
    feed(fold, unregistered_record(registration("a")))
    assert not fold.registrations
    assert fold.counters["duplicate_records"] == 0


def test_unregistering_forgets_blocks_cursor_and_registration(each_fold: Fold) -> None:
    one = registration("a")
    feed(each_fold, registered_record(one), events_record(0, 3, [stored(0, [1], range(4))]))
    feed(each_fold, unregistered_record(one))
    assert each_fold.kernel.query(SCOPE, u32s(range(4)), (), None) == []
    assert not each_fold.publishers
    assert not each_fold.registrations
    assert each_fold.kernel.contexts() == []


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", "malformed_record"),
        (b"\xc1", "malformed_record"),
        (b"\x81\xa4kind\xa6events", "malformed_record"),
        (b"\x82\xa4kind\xa6events\xa7version\x7f", "newer_version"),
        (b"\x82\xa4kind\xa5other\xa7version\x7f", "newer_version"),
    ],
)
def test_a_record_of_another_form_is_skipped_counted_and_named(
    fold: Fold, record: bytes, reason: str
) -> None:
    skipped = fold.apply(Offset(0), record)
    assert skipped is not None
    assert (skipped.offset, skipped.reason) == (0, reason)
    assert fold.counters[reason] == 1
    feed(fold, events_record(0, 0, [stored(0, [1], range(4))]))
    assert matched(fold, list(range(4))) == 4


def test_malformed_events_change_nothing_and_show_as_a_hole(each_fold: Fold) -> None:
    good = events_record(0, 0, [stored(0, [1], range(4))])
    bad = good.replace(b"\xa6hashes\xc4\x08", b"\xa6hashes\xc3\x08")
    assert bad != good
    skipped = each_fold.apply(Offset(0), bad)
    assert skipped is not None
    assert each_fold.kernel.contexts() == []
    feed(each_fold, events_record(1, 1, [stored(1, [2], range(4))]))
    assert each_fold.states.is_degraded(SCOPE)


def test_malformed_events_of_a_new_incarnation_change_nothing(each_fold: Fold) -> None:
    feed(each_fold, events_record(0, 0, [stored(0, [1], range(4))]))
    before = each_fold.kernel.contexts()
    bad: list[BlockEvent] = [stored(7, [2], range(4)), RemovedBlocks(sequence=7, hashes=b"no hash")]
    skipped = each_fold.apply(Offset(1), events_record(7, 7, bad, incarnation=2))
    assert skipped is not None
    assert skipped.reason == "malformed_events"
    assert each_fold.kernel.contexts() == before
    assert each_fold.counters["log_holes"] == 0
    assert not each_fold.states.is_degraded(SCOPE)


def test_changes_are_taken_once(each_fold: Fold) -> None:
    feed(each_fold, registered_record(registration("a")))
    feed(each_fold, events_record(0, 0, [stored(0, [1], range(4))]))
    changes = each_fold.take_changes()
    assert changes.offset == 1
    assert len(changes.contexts) == 1
    assert list(changes.publishers) == [PUBLISHER]
    assert list(changes.registrations) == [PUBLISHER]
    again = each_fold.take_changes()
    assert (again.contexts, again.publishers, again.registrations) == ([], {}, {})


# A log whose beginning was retired


EVERYTHING = Offset(2**63 - 1)


def test_a_registration_below_the_mark_proves_nothing(fold: Fold) -> None:
    fold.distrust(Offset(5))
    assert fold.apply(Offset(4), registered_record(registration("a"))) is None
    assert fold.publishers[PUBLISHER].degraded_since == 0
    assert fold.states.is_degraded(SCOPE)


def test_a_registration_above_the_mark_is_a_new_one(fold: Fold) -> None:
    fold.distrust(Offset(5))
    fold.apply(Offset(5), registered_record(registration("a")))
    assert not fold.publishers
    assert not fold.states.is_degraded(SCOPE)


def test_a_registration_that_is_written_again_proves_nothing_either(fold: Fold) -> None:
    fold.distrust(EVERYTHING)
    feed(fold, *3 * [registered_record(registration("a"))])
    assert fold.states.is_degraded(SCOPE)


@pytest.mark.parametrize(
    "proof",
    [
        [reset_record(3)],
        [events_record(0, 0, [stored(0, [1], range(4))], incarnation=3)],
        [events_record(7, 8, [stored(7, [1], range(4)), cleared(8)], incarnation=3)],
        [unregistered_record(registration("a")), registered_record(registration("a"))],
    ],
)
def test_what_shows_a_whole_incarnation_proves_the_publisher(
    fold: Fold, proof: list[bytes]
) -> None:
    fold.distrust(EVERYTHING)
    feed(fold, registered_record(registration("a")), *proof)
    assert not fold.states.is_degraded(SCOPE)
    feed(fold, registered_record(registration("a")))
    assert not fold.states.is_degraded(SCOPE)


def test_a_publisher_whose_incarnation_was_seen_whole_is_not_degraded_by_a_registration(
    fold: Fold,
) -> None:
    fold.distrust(EVERYTHING)
    feed(fold, events_record(0, 0, [stored(0, [1], range(4))]))
    feed(fold, registered_record(registration("a")))
    assert not fold.states.is_degraded(SCOPE)


def test_a_publisher_that_goes_on_in_the_middle_stays_degraded(fold: Fold) -> None:
    fold.distrust(EVERYTHING)
    feed(fold, registered_record(registration("a")))
    feed(fold, events_record(7, 7, [stored(7, [1], range(4))]))
    assert fold.states.is_degraded(SCOPE)


def test_an_unregistration_of_a_publisher_never_seen_proves_its_next_registration(
    fold: Fold,
) -> None:
    fold.distrust(EVERYTHING)
    feed(fold, unregistered_record(registration("a")), registered_record(registration("a")))
    assert not fold.states.is_degraded(SCOPE)
    assert fold.unproven == UnprovenState(EVERYTHING)


def test_of_the_publishers_seen_unregistered_only_so_many_are_remembered(fold: Fold) -> None:
    fold.distrust(EVERYTHING)
    for number in range(UNREGISTERED_REMEMBERED_MAX + 1):
        feed(fold, unregistered_record(registration(f"i{number}")))
    assert len(fold.unproven.unregistered) == UNREGISTERED_REMEMBERED_MAX
    assert fold.counters["unregistered_forgotten"] == 1
    feed(fold, registered_record(registration("i0")), registered_record(registration("i1")))
    assert [key.stream.instance_id for key in fold.publishers] == ["i0"]


def test_an_unregistration_above_the_mark_need_not_be_remembered(fold: Fold) -> None:
    fold.distrust(Offset(5))
    fold.apply(Offset(4), unregistered_record(registration("a")))
    fold.apply(Offset(5), unregistered_record(registration("b")))
    assert [key.stream.instance_id for key in fold.unproven.unregistered] == ["a"]


def test_what_was_proven_by_an_unregistration_stays_so_as_the_registration_changes(
    fold: Fold,
) -> None:
    fold.distrust(EVERYTHING)
    feed(fold, unregistered_record(registration("a")), registered_record(registration("a")))
    feed(fold, registered_record(registration("a", port=6000)))
    assert not fold.states.is_degraded(SCOPE)


def test_a_fold_of_a_whole_log_has_nothing_unproven_to_store(fold: Fold) -> None:
    assert fold.take_changes().unproven is None


def test_an_unregistration_below_the_mark_is_stored_with_the_next_rows(fold: Fold) -> None:
    fold.distrust(EVERYTHING)
    fold.take_changes()
    feed(fold, unregistered_record(registration("a")))
    assert fold.take_changes().unproven == UnprovenState(EVERYTHING, (PUBLISHER,))


def test_what_is_not_proven_is_among_the_changes_once(fold: Fold) -> None:
    fold.distrust(Offset(5))
    assert fold.take_changes().unproven == UnprovenState(5)
    assert fold.take_changes().unproven is None


# Errors that nobody foresaw


def test_an_error_nobody_foresaw_passes_over_one_record_and_degrades_its_publisher(
    fold: Fold,
) -> None:
    fold.kernel = PoisonedKernel.around(fold.kernel)
    feed(fold, events_record(0, 0, [stored(0, [1], range(4))]))
    bad = events_record(1, 1, [stored(1, [2], range(4), lora_name="poison")])
    skipped = fold.apply(Offset(1), bad)
    assert skipped is not None
    assert (skipped.offset, skipped.reason) == (1, INTERNAL_ERROR)
    assert skipped.detail == "RuntimeError: for a test"
    assert isinstance(skipped.error, RuntimeError)
    assert fold.counters[INTERNAL_ERROR] == 1
    assert fold.publishers[PUBLISHER].degraded_since == 1
    assert fold.take_changes().publishers[PUBLISHER] == fold.publishers[PUBLISHER]
    feed(fold, events_record(2, 2, [stored(2, [2], range(4, 8), parent=1)]))
    assert matched(fold, list(range(8))) == 8
    assert fold.states.is_degraded(SCOPE)
    feed(fold, reset_record(2))
    assert not fold.states.is_degraded(SCOPE)


def test_a_clear_in_the_first_batch_that_may_be_lost_does_not_end_the_loss(fold: Fold) -> None:
    """What is lost from batch 1 on may have come after a clear in batch 1."""
    fold.kernel = PoisonedKernel.around(fold.kernel)
    bad = events_record(1, 1, [stored(1, [2], range(4), lora_name="poison")])
    feed(fold, events_record(0, 0, [stored(0, [1], range(4))]), bad)
    assert fold.publishers[PUBLISHER].degraded_since == 1
    feed(fold, events_record(1, 1, [cleared(1)]))
    assert fold.states.is_degraded(SCOPE)
    feed(fold, events_record(2, 2, [cleared(2)]))
    assert not fold.states.is_degraded(SCOPE)


def test_an_error_in_the_first_record_of_an_incarnation_stays_a_hole_in_it(fold: Fold) -> None:
    fold.kernel = PoisonedKernel.around(fold.kernel)
    bad = stored(0, [2], range(4), lora_name="poison")
    feed(fold, events_record(0, 0, [stored(0, [1], range(4))]))
    feed(fold, events_record(0, 1, [bad], incarnation=2))
    assert fold.states.is_degraded(SCOPE)
    feed(fold, events_record(2, 2, [stored(2, [2], range(4, 8))], incarnation=2))
    assert fold.states.is_degraded(SCOPE)
    assert matched(fold, list(range(4))) == 0
    feed(fold, unregistered_record(registration("a")))
    assert not fold.states.is_degraded(SCOPE)


class _Unopened:
    """A kernel that opens no publisher."""

    def open_publisher(self, *_: object) -> PublisherId:
        raise RuntimeError("for a test")


def test_a_publisher_that_could_not_be_opened_is_degraded_until_it_is_unregistered(
    fold: Fold,
) -> None:
    kernel, fold.kernel = fold.kernel, cast(Kernel, _Unopened())
    feed(fold, events_record(0, 0, []))
    assert fold.states.is_degraded(SCOPE)
    fold.kernel = kernel
    feed(fold, unregistered_record(registration("a")))
    assert not fold.states.is_degraded(SCOPE)
    assert not fold.publishers


def test_objects_of_a_pool_wait_until_an_engine_names_them(each_fold: Fold) -> None:
    """The pool's state changes with the engine's record, whichever pool it is."""
    fold, pools = each_fold, [STREAM._replace(instance_id=name) for name in ("pool", "q")]
    other = STREAM._replace(instance_id="pool", model_name="n")
    found: list[list[int]] = []

    def see() -> None:
        states = [fold.publishers[PublisherKey(one, 0)] for one in (*pools, other)]
        found.append([one.left_out.get(OBJECTS_WAIT, 0) for one in states])

    feed(fold, events_record(0, 0, [stored(0, [1], range(4)), removed(0, [1])]))
    for pool in (*pools, other):
        feed(fold, events_record(0, 0, [objects(0, [101, 102], [1, 2])], stream=pool))
    see()
    fold.take_changes()
    feed(fold, events_record(1, 1, [stored(1, [1], range(4)), removed(1, [1])]))
    see()
    changed = fold.take_changes().publishers
    assert {one.stream for one in changed} == {STREAM, *pools}
    feed(fold, events_record(2, 2, [stored(2, [2], range(4, 8))]))
    see()
    assert found == [[2, 2, 2], [1, 1, 2], [0, 0, 2]]
    assert fold.publishers[PublisherKey(pools[0], 0)].left_out_at == 0.0
    fold.take_changes()
    feed(fold, events_record(3, 3, [stored(3, [3], range(8, 12))]))
    assert {one.stream for one in fold.take_changes().publishers} == {STREAM}
