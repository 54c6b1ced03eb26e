"""A large batch in parts: what they say, one after the other, is what the batch says; and a fold
takes each event once, whoever writes which parts how often.
"""

import random
import struct
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.wire.batch_parts import EventRun, split_run
from schemas.events import (
    BlockEvent,
    ClearedBlocks,
    StoredBlocks,
    decode_run,
    encode_events,
    encode_run,
    named_again,
)
from schemas.identities import Medium, ModelContext, Offset, PublisherKey
from schemas.positions import PartialBatch, PublisherState
from schemas.records import Part
from streams.kernel import Kernel, array_packer, native_available, open_kernel
from streams.kernel.changes import CHANGE_BYTES
from streams.table.fold import Fold
from tests.building import STREAM, events_record, gap_record, removed, reset_record, stored
from tests.strategies import BLOCK_SIZE, PUBLISHERS, block_events

KERNELS = ["reference", *(["rust"] if native_available() else [])]
SEQUENCE = 3
BOUNDED = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
PUBLISHER = PublisherKey(STREAM, 0)


def of_one_batch(events: Sequence[BlockEvent], sequence: int = SEQUENCE) -> list[BlockEvent]:
    return [msgspec.structs.replace(event, sequence=sequence) for event in events]


def of_stream(event: StoredBlocks) -> StoredBlocks:
    return msgspec.structs.replace(event, block_size=BLOCK_SIZE)


def long_ones(events: Sequence[BlockEvent]) -> list[BlockEvent]:
    """With one event that is cut into many, what comes after a part of it, and blocks that move:
    more than a part has, and of some more removals than the one that took them.
    """
    hashes = list(range(1000, 1040))
    whole = of_stream(stored(SEQUENCE, hashes, list(range(40 * BLOCK_SIZE))))
    behind = of_stream(stored(SEQUENCE, [2000], list(range(BLOCK_SIZE)), parent=1020))
    moves: list[BlockEvent] = [
        removed(SEQUENCE, hashes[5:30]),
        removed(SEQUENCE, [*hashes[:3], *hashes[7:9], *hashes[:3]]),
        removed(SEQUENCE, hashes[:20], medium=Medium.CPU),
        removed(SEQUENCE, hashes[15:30]),
        stored(SEQUENCE, hashes[::-1], [], medium=Medium.CPU),
        removed(SEQUENCE, hashes[10:12], medium=Medium.CPU),
        stored(SEQUENCE, hashes[20:24], [], medium=Medium.CPU),
    ]
    tokens = [*range(7 * BLOCK_SIZE)]
    chains = [
        stored(SEQUENCE, range(3000, 3007), tokens, parent=hashes[39], medium=Medium.CPU),
        stored(SEQUENCE, range(3100, 3107), tokens, parent=hashes[38], medium=Medium.CPU),
        stored(SEQUENCE, [3200], tokens[:BLOCK_SIZE], parent=3006, medium=Medium.DISK),
        stored(SEQUENCE, [3300], tokens[:BLOCK_SIZE], parent=hashes[35]),
    ]
    first, *others = map(of_stream, chains)
    kept: list[BlockEvent] = [  # of which some hang on what is gone
        *(removed(SEQUENCE, [hashes[at]]) for at in (35, 39, 38)),
        first,
        removed(SEQUENCE, range(3000, 3007), medium=Medium.CPU),
        *others,
    ]
    return [*events, whole, behind, *moves, *kept]


batches = st.lists(block_events, min_size=1, max_size=25).map(of_one_batch)
befores = st.lists(block_events, max_size=10).map(lambda events: of_one_batch(events, 1))


def contents(kernel: Kernel) -> object:
    dumped = {
        view.context: sorted(
            change for (change,) in struct.iter_unpack(f"{CHANGE_BYTES}s", b"".join(chunks))
        )
        for view in kernel.contexts()
        if (chunks := kernel.dump(view.context, 1_000_000))
    }
    counters = {name: count for name, count in kernel.counters().items() if count}
    return dumped, counters


@pytest.mark.parametrize("name", KERNELS)
@BOUNDED
@given(before=befores, batch=batches, bytes_max=st.integers(1, 600), long=st.booleans())
def test_the_parts_say_what_the_batch_says(
    name: str, before: list[BlockEvent], batch: list[BlockEvent], bytes_max: int, long: bool
) -> None:
    batch = long_ones(batch) if long else batch
    parts = split_run(encode_run(batch), len(batch), bytes_max)
    whole, cut = open_kernel(7, name=name), open_kernel(7, name=name)
    for kernel in (whole, cut):
        publisher = kernel.open_publisher(*PUBLISHERS[0])
        kernel.register(publisher, "", True)
        kernel.apply(publisher, encode_events(before), -1)
    whole.apply(publisher, encode_events(batch), 1)
    for count, run in parts:
        cut.apply(publisher, encode_events(decode_run(run, count)), 1)
    if whole.counters().get("hash_conflict", 0):
        return  # one hash is two blocks: which of them a block follows on, only one event can say
    assert contents(cut) == contents(whole)
    assert not long or whole.contexts(), "blocks that the kernel took"


@pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")
@BOUNDED
@given(batch=batches, bytes_max=st.integers(1, 600), long=st.booleans())
def test_the_packer_cuts_where_the_specification_does(
    batch: list[BlockEvent], bytes_max: int, long: bool
) -> None:
    batch = long_ones(batch) if long else batch
    given_run = (encode_run(batch), len(batch), bytes_max)
    cut = array_packer().split_run(*given_run)
    assert cut is not None
    assert [EventRun(*part) for part in cut] == split_run(*given_run)


@BOUNDED
@given(batch=batches, bytes_max=st.integers(1, 600))
def test_a_part_is_no_larger_than_it_must_be(batch: list[BlockEvent], bytes_max: int) -> None:
    parts = split_run(encode_run(batch), len(batch), bytes_max)
    assert all(count for count, _ in parts)
    events = [decode_run(run, count) for count, run in parts]
    for run, (_, encoded) in zip(events, parts, strict=True):
        blocks = [len(event.hashes) // 8 for event in run if not isinstance(event, ClearedBlocks)]
        names_removed = any(
            isinstance(event, StoredBlocks) and (not event.tokens or named_again(event))
            for event in run
        )
        if len(encoded) > bytes_max and len(run) > 1:
            assert names_removed
        elif len(encoded) > bytes_max and blocks and bytes_max > 500:
            assert blocks[0] <= 1


# The fold


def part_record(
    part: Part, events: Sequence[BlockEvent], sequence: int, *, doubted: bool = False
) -> bytes:
    return events_record(sequence, sequence, events, doubted=doubted, part=part)


def chain(count: int, sequence: int = 0) -> list[BlockEvent]:
    """One block after the other, of which some are removed again."""
    events: list[BlockEvent] = []
    for number in range(count):
        if number % 5 == 4:
            events.append(removed(sequence, [number - 2]))
        else:
            parent = number - 1 if number and (number - 1) % 5 != 4 else None
            tokens = range(4 * number, 4 * number + 4)
            events.append(stored(sequence, [number], tokens, parent=parent))
    return events


def records_of(events: list[BlockEvent], cuts: Sequence[int], sequence: int = 0) -> list[bytes]:
    ends = [*sorted(set(cuts)), len(events)]
    starts = [0, *ends[:-1]]
    return [
        part_record(Part(first, end, len(events)), events[first:end], sequence)
        for first, end in zip(starts, ends, strict=True)
        if first < end
    ]


def folded(*records: bytes) -> Fold:
    fold = Fold(open_kernel(7))
    for record in records:
        skipped = fold.apply(Offset(fold.offset + 1), record)
        assert skipped is None or skipped.reason == "duplicate_record", skipped
    return fold


def seen(fold: Fold) -> tuple[dict[ModelContext, list[bytes]], PublisherState]:
    kernel = fold.kernel
    dumped = {view.context: sorted(kernel.dump(view.context, 10**6)) for view in kernel.contexts()}
    return dumped, fold.publishers[PUBLISHER]


@pytest.mark.parametrize("seed", range(200))
def test_each_event_is_folded_once_whoever_writes_which_parts(seed: int) -> None:
    rng = random.Random(seed)
    events = chain(rng.randint(2, 40))
    whole = events_record(0, 0, events)
    behind = events_record(1, 1, [stored(1, [900], range(4))])
    records: list[bytes] = []
    for _ in range(rng.randint(0, 4)):  # bridges that end in the middle of it
        written = records_of(events, rng.choices(range(1, len(events)), k=rng.randint(1, 6)))
        records += written[: rng.randint(0, len(written))]
        records += rng.sample(records, min(len(records), 2))  # and what came twice
    records += records_of(events, rng.choices(range(1, len(events)), k=rng.randint(1, 6)))
    records += rng.sample(records, 2)
    # What comes again must not skip ahead of what is folded: that is a hole, tested below.
    fold = Fold(open_kernel(7))
    for record in records:
        decoded = msgspec.msgpack.decode(record)
        begun = fold.publishers.get(PUBLISHER, PublisherState()).begun
        if decoded["part"][0] <= (begun.events if begun else 0):
            fold.apply(Offset(fold.offset + 1), record)
    fold.apply(Offset(fold.offset + 1), behind)
    assert seen(fold) == seen(folded(whole, behind)), f"seed {seed}"


def test_the_cursor_moves_with_the_last_part() -> None:
    events = chain(9)
    fold = Fold(open_kernel(7))
    wanted = [(-1, PartialBatch(3, 9, 0.0)), (-1, PartialBatch(6, 9, 0.0)), (0, None)]
    for record, (sequence, begun) in zip(records_of(events, [3, 6]), wanted, strict=True):
        fold.apply(Offset(fold.offset + 1), record)
        state = fold.publishers[PUBLISHER]
        assert (state.sequence, state.begun, state.degraded_since) == (sequence, begun, None)
    assert state.engine_time == 0.0, "of batch 0"


def test_a_part_that_comes_again_is_a_duplicate() -> None:
    first, second = records_of(chain(9), [3])
    fold = folded(first)
    again = fold.apply(Offset(1), first)
    assert again is not None
    assert again.reason == "duplicate_record"
    assert fold.publishers[PUBLISHER].begun == PartialBatch(3, 9, 0.0)
    fold.apply(Offset(2), second)
    assert seen(fold) == seen(folded(events_record(0, 0, chain(9))))


@pytest.mark.parametrize(
    "between",
    [
        records_of(chain(9), [3, 6])[2:],
        [events_record(0, 0, chain(9))],
        [events_record(1, 1, [])],
        [part_record(Part(3, 9, 10), chain(9)[3:], 0)],
        [part_record(Part(0, 2, 4), chain(4)[:2], 1)],
        [gap_record(0, 0)],
    ],
    ids=["a part is missing", "whole again", "the rest is missing", "another total", "next", "gap"],
)
def test_a_batch_that_was_begun_and_does_not_go_on_degrades(between: list[bytes]) -> None:
    begun = records_of(chain(9), [3, 6])[:1]
    assert folded(*begun).publishers[PUBLISHER].degraded_since is None
    fold = folded(*begun, *between)
    assert fold.publishers[PUBLISHER].degraded_since == 0
    fold = folded(*begun, *between, reset_record(2))
    assert fold.publishers[PUBLISHER].degraded_since is None
    assert fold.publishers[PUBLISHER].begun is None


def test_a_batch_that_begins_in_its_middle_degrades() -> None:
    fold = folded(*records_of(chain(9), [3])[1:])
    assert fold.publishers[PUBLISHER].degraded_since == 0


def test_a_part_proves_nothing_of_the_batch_before() -> None:
    """Only a whole batch tells a doubted publisher from another that has come as far."""
    events = chain(8, 2)
    doubted = events_record(1, 1, [], doubted=True)
    fold = folded(events_record(0, 0, []), doubted, *records_of(events, [3], 2)[:1])
    proof = fold.publishers[PUBLISHER].proof
    assert proof is not None
    assert proof.sequence == 0
    fold = folded(events_record(0, 0, []), doubted, *records_of(events, [3], 2))
    assert fold.publishers[PUBLISHER].proof is None
    parts = [part_record(Part(0, 3, 8), events[:3], 2, doubted=True)]
    fold = folded(events_record(0, 1, []), *parts)
    proof = fold.publishers[PUBLISHER].proof
    assert proof is not None
    assert (proof.sequence, proof.engine_time) == (1, 1.0)
