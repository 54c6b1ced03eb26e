"""Which rows of a context count, in which order: made one by one, of blocks known by number."""

from collections.abc import Sequence

import msgspec
import pytest

from schemas.identities import ModelContext, PublisherKey
from schemas.positions import PublisherState
from streams.kernel import open_kernel
from streams.kernel.changes import Change, Op, decode_changes
from streams.table.rows import contexts
from streams.table.rows import format as rows
from streams.table.rows.contexts import ReadContext
from streams.table.rows.format import RowKind, RowPlace
from streams.table.rows.reader import RowReader
from streams.table.rows.source import GatheredRows, SkippedRow

BASE = ModelContext("default", "m", "", 4, "", "a")
ADAPTER = BASE._replace(lora_name="x")
OTHER_MODEL = BASE._replace(model_name="n")
ROW_BYTES = rows.weight(bytes(24))

Row = tuple[bytes, bytes | None]


def row(
    n: int,
    blocks: Sequence[int],
    *,
    covers: int,
    context: ModelContext = BASE,
    generation: int = 0,
    kind: RowKind = RowKind.DELTA,
) -> Row:
    """Says that the publisher holds the blocks; that it removed those with a minus."""
    body = b"".join(
        Change(abs(block), abs(block), 0, 0, Op.SET, int(block > 0)).encode() for block in blocks
    )
    key = rows.row_key(RowPlace(context, generation, n))
    return key, rows.encode_row(kind, covers, body)


def chunk(
    blocks: Sequence[int],
    *,
    covers: int,
    generation: int,
    n: int = 0,
    context: ModelContext = BASE,
) -> Row:
    return row(n, blocks, covers=covers, context=context, generation=generation, kind=RowKind.CHUNK)


def mark(generation: int, *, covers: int, context: ModelContext = BASE) -> Row:
    body = generation.to_bytes(4, "little")
    return rows.mark_key(context), rows.encode_row(RowKind.CHUNK, covers, body)


def publisher(context: ModelContext, *, covers: int = 0) -> Row:
    key = rows.publisher_key(rows.PUBLISHER, PublisherKey(context.stream, 0))
    body = msgspec.msgpack.encode(PublisherState(incarnation=1, sequence=covers))
    return key, rows.encode_row(RowKind.DELTA, covers, body)


def corrupt(one: Row) -> Row:
    key, value = one
    assert value is not None
    return key, value[:-1] + bytes([value[-1] ^ 1])


class Follower:
    """A reader that has caught up with a first flush, of blocks 1 and 2 in one row, at offset 0."""

    def __init__(self, *first: Row) -> None:
        self.reader = RowReader(open_kernel(1337, name="reference"))
        self.commit(0, publisher(BASE), row(0, [1, 2], covers=0), *first)
        self.reader.caught_up(0)
        self.counters = self.reader.counters

    def commit(self, offset: int, *written: Row) -> None:
        """A flush up to the offset."""
        for key, value in written:
            self.reader.put(0, key, value)
        self.reader.put(0, rows.COVERED_KEY, rows.encode_row(RowKind.DELTA, offset, b"t"))

    def blocks(self, context: ModelContext = BASE) -> list[int]:
        dumped = b"".join(self.reader.kernel.dump(context, 1000))
        return sorted(change.engine_key for change in decode_changes(dumped))

    def state(self, context: ModelContext = BASE) -> ReadContext:
        return self.reader.contexts(0).states[context]

    def is_damaged(self, context: ModelContext = BASE) -> bool:
        return self.reader.is_damaged(context.scope)


@pytest.fixture
def follower() -> Follower:
    return Follower()


# Rows that follow on each other


def test_each_row_is_applied_once_and_weighed(follower: Follower) -> None:
    follower.commit(1, row(1, [3], covers=1))
    follower.commit(2, row(1, [4], covers=2), row(2, [5], covers=2))
    assert follower.blocks() == [1, 2, 3, 5]
    assert follower.counters == {"rows": 8, "repeated_rows": 1}
    weight = rows.weight(bytes(48)) + 2 * ROW_BYTES
    assert follower.state() == ReadContext(next_n=3, delta_bytes=weight)
    assert not follower.is_damaged()


def test_a_tombstone_of_a_row_that_was_applied_changes_nothing(follower: Follower) -> None:
    key, _ = row(0, [], covers=0)
    follower.commit(1, (key, None), (key[:-12] + b"?" * 12, None), (b"C??" + b"?" * 12, None))
    assert (follower.blocks(), follower.reader.take_skipped()) == ([1, 2], [])


def test_rows_wait_until_what_they_cover_counts(follower: Follower) -> None:
    follower.commit(1, row(1, [3], covers=2), row(0, [9], covers=2, generation=4))
    assert follower.blocks() == [1, 2]
    assert follower.state().last_generation == 4, "a writer may not begin it again"
    follower.commit(2)
    assert follower.blocks() == [1, 2, 3]


def test_a_missing_row_damages_its_context_and_what_comes_after_it_counts(
    follower: Follower,
) -> None:
    follower.commit(2, row(2, [3], covers=2))
    missing, _ = row(1, [], covers=0)
    assert follower.reader.take_skipped() == [SkippedRow(0, missing, "missing_rows")]
    assert follower.is_damaged()
    follower.commit(3, row(3, [4], covers=3))
    assert follower.blocks() == [1, 2, 3, 4]
    assert follower.counters["missing_rows"] == 1
    assert (follower.is_damaged(), follower.counters["healed"]) == (True, 0)


def test_a_row_that_the_kernel_refuses_damages_its_context_and_costs_itself_alone(
    follower: Follower,
) -> None:
    key, _ = row(2, [], covers=0)
    refused = key, rows.encode_row(RowKind.DELTA, 1, b"no change")
    follower.commit(1, row(1, [3], covers=1), refused, row(3, [4], covers=1))
    assert follower.reader.take_skipped() == [SkippedRow(0, key, "corrupt_rows")]
    assert follower.is_damaged()
    assert follower.blocks() == [1, 2, 3, 4]


def test_rows_of_no_context_that_can_be_read_are_skipped_one_by_one(follower: Follower) -> None:
    value = row(1, [3], covers=1)[1]
    strange = [b"C?" + bytes([n]) * 13 for n in range(2)]
    follower.commit(1, *((key, value) for key in strange), row(1, [3], covers=1))
    assert follower.reader.take_skipped() == [SkippedRow(0, key, "corrupt_rows") for key in strange]
    assert follower.blocks() == [1, 2, 3]


# Generations


def test_a_row_that_the_kernel_refuses_is_named_with_its_generation(follower: Follower) -> None:
    follower.commit(1, chunk([1, 2], covers=1, generation=3), mark(3, covers=1))
    key, _ = row(1, [], covers=2, generation=3)
    follower.commit(2, (key, rows.encode_row(RowKind.DELTA, 2, b"no change")))
    assert follower.reader.take_skipped() == [SkippedRow(0, key, "corrupt_rows")]


def test_a_chunk_is_not_applied_where_what_it_repeats_was(follower: Follower) -> None:
    """Its blocks are others than those applied, which shows whether it was."""
    follower.commit(0, chunk([8], covers=0, generation=1), mark(1, covers=0))
    assert follower.blocks() == [1, 2]
    assert follower.state() == ReadContext(generation=1, next_n=1, last_generation=1)
    follower.commit(1, row(1, [3], covers=1, generation=1))
    assert follower.blocks() == [1, 2, 3]
    assert follower.state().delta_bytes == ROW_BYTES
    assert follower.counters["healed"] == 0


def test_chunks_of_more_than_was_applied_replace_it(follower: Follower) -> None:
    """The rows between were compacted away."""
    follower.commit(
        7,
        chunk([2, 5], covers=5, generation=3),
        chunk([6], covers=5, generation=3, n=1),
        row(2, [7], covers=7, generation=3),
        mark(3, covers=7),
    )
    assert follower.blocks() == [2, 5, 6, 7]
    assert follower.state() == ReadContext(
        generation=3, next_n=3, delta_bytes=ROW_BYTES, last_generation=3
    )
    assert not follower.is_damaged()


def test_chunks_count_together_as_of_what_the_last_of_them_covers(follower: Follower) -> None:
    """The first covers no more than was applied, but alone it is not the context as of then."""
    follower.commit(
        2,
        chunk([1, 5], covers=0, generation=1),
        chunk([6, -1], covers=2, generation=1, n=1),
        mark(1, covers=2),
    )
    assert follower.blocks() == [5, 6]


def test_a_delta_behind_chunks_does_not_have_them_applied_again(follower: Follower) -> None:
    """The chunk has another block than those applied, which shows whether it was."""
    follower.commit(
        1,
        chunk([8], covers=0, generation=1),
        row(1, [3], covers=1, generation=1),
        mark(1, covers=1),
    )
    assert follower.blocks() == [1, 2, 3]


def test_a_generation_counts_from_its_mark_on(follower: Follower) -> None:
    follower.commit(4, row(2, [3], covers=4))  # one is missing before it
    follower.commit(5, chunk([5], covers=5, generation=2))
    assert follower.blocks() == [1, 2, 3]
    assert (follower.state().generation, follower.state().last_generation) == (0, 2)
    follower.commit(6, mark(2, covers=6))
    assert follower.blocks() == [5]


def test_a_generation_without_a_chunk_begins_empty_whatever_is_left_of_others(
    follower: Follower,
) -> None:
    others = [chunk([number], covers=3, generation=number) for number in (1, 3)]
    follower.commit(3, *others, mark(2, covers=3))
    assert follower.blocks() == []
    assert follower.state() == ReadContext(generation=2, last_generation=3)


def test_an_empty_generation_is_known_as_the_last_begun(follower: Follower) -> None:
    follower.commit(1, mark(1, covers=1))
    assert follower.state() == ReadContext(generation=1, last_generation=1)


def test_a_generation_of_deltas_alone_begins_empty(follower: Follower) -> None:
    follower.commit(1, mark(1, covers=1), row(0, [4], covers=1, generation=1))
    assert follower.blocks() == [4]


def test_rows_of_a_past_generation_are_dropped_from_where_they_come() -> None:
    dropped: list[bytes] = []

    class Source(GatheredRows):
        def drop(self, key: bytes) -> None:
            dropped.append(key)

    source = Source()
    past = row(0, [1], covers=0)
    covered = rows.COVERED_KEY, rows.encode_row(RowKind.DELTA, 1, b"t")
    for one in (past, chunk([2], covers=1, generation=1), mark(1, covers=1), covered):
        source.put(*one)
    reader = RowReader(open_kernel(1337, name="reference"))
    reader.load(source)
    assert dropped == [past[0]]
    assert reader.counters["repeated_rows"] == 0
    (view,) = reader.kernel.contexts()
    assert view.entries == 1


# Healing


def test_the_next_generation_heals_a_context_and_the_last_one_healed_its_stream() -> None:
    beside = [publisher(OTHER_MODEL)]
    beside += [row(0, [1, 2], covers=0, context=one) for one in (ADAPTER, OTHER_MODEL)]
    follower = Follower(*beside)
    damaged = (BASE, ADAPTER, OTHER_MODEL)
    follower.commit(2, *(row(2, [3], covers=2, context=one) for one in damaged))
    assert all(map(follower.is_damaged, damaged))
    for healed, context in enumerate((BASE, ADAPTER), 1):
        block = 10 * healed
        follower.commit(
            2,
            chunk([block], covers=1, generation=1, context=context),
            mark(1, covers=2, context=context),
        )
        assert follower.blocks(context) == [block]
        assert follower.counters["healed"] == healed
        assert follower.is_damaged(BASE) == (healed == 1)
    assert not follower.state(BASE).damaged
    assert follower.is_damaged(OTHER_MODEL)


@pytest.mark.parametrize("before", ["damaged", "whole"])
def test_a_generation_with_a_chunk_that_cannot_be_used_heals_nothing(
    follower: Follower, before: str
) -> None:
    follower.commit(2, row(2 if before == "damaged" else 1, [3], covers=2))
    follower.commit(3, corrupt(chunk([1, 2, 3, 4], covers=3, generation=1)), mark(1, covers=3))
    assert follower.is_damaged()
    assert follower.state().damaged
    assert follower.counters["healed"] == 0


# Steps


@pytest.mark.parametrize(
    ("count", "step_bytes", "steps"), [(2, 48, 1), (5, 48, 2), (5, 49, 1), (5, 144, 0)]
)
def test_many_streams_are_loaded_in_steps(
    monkeypatch: pytest.MonkeyPatch, count: int, step_bytes: int, steps: int
) -> None:
    monkeypatch.setattr(contexts, "ROW_LOAD_STEP_BYTES", step_bytes)
    reader = RowReader(open_kernel(1337, name="reference"))
    streams = [BASE._replace(instance_id=str(number)) for number in range(count)]
    for context in streams:
        reader.put(0, *row(0, [1], covers=0, context=context))
    reader.put(0, rows.COVERED_KEY, rows.encode_row(RowKind.DELTA, 0, b"t"))
    assert sum(1 for _ in reader.catching_up(0)) == steps
    assert len(reader.kernel.contexts()) == count


def test_the_rows_of_one_stream_are_loaded_in_steps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "ROW_LOAD_STEP_BYTES", 24)
    reader = RowReader(open_kernel(1337, name="reference"))
    for n in range(10):
        reader.put(0, *row(n, [n + 1], covers=n))
    reader.put(0, rows.COVERED_KEY, rows.encode_row(RowKind.DELTA, 9, b"t"))
    assert sum(1 for _ in reader.catching_up(0)) >= 9
