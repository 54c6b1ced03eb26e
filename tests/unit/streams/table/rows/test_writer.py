"""What a flush and a new generation are, row by row."""

from typing import NamedTuple

import msgspec
import pytest

from schemas.identities import ModelContext, Offset
from streams.kernel import Kernel, open_kernel
from streams.table.fold import Fold, UnprovenState
from streams.table.rows import format as rows
from streams.table.rows import rewriting as rewriting_module
from streams.table.rows import writer as writing
from streams.table.rows.format import Row, RowKind, RowPlace, RowWrite
from streams.table.rows.rewriting import Rewriting
from streams.table.rows.writer import ContextRows, Flush, RowWriter
from tests.building import (
    SCOPE,
    STREAM,
    cleared,
    events_record,
    heartbeat_record,
    registered_record,
    registration,
    report,
    stored,
    unregistered_record,
)

ONE = registration("a")
CONTEXT = ModelContext(*SCOPE, STREAM.instance_id)
STATE_KEY = rows.publisher_key(rows.PUBLISHER, ONE.publisher)
REGISTRATION_KEY = rows.publisher_key(rows.REGISTRATION, ONE.publisher)


@pytest.fixture
def fold() -> Fold:
    return Fold(open_kernel(1337, name="reference"))


def apply(fold: Fold, *records: bytes) -> None:
    for record in records:
        assert fold.apply(Offset(fold.offset + 1), record) is None


def blocks(sequence: int, count: int) -> bytes:
    """A record of so many new blocks."""
    first = 100 * sequence
    tokens = range(4 * first, 4 * (first + count))
    return events_record(
        sequence, sequence, [stored(sequence, range(first, first + count), tokens)]
    )


class Flushed(NamedTuple):
    """A flush that was noted, and its rows."""

    flush: Flush
    rows: list[RowWrite]


def flushed(writer: RowWriter, fold: Fold) -> Flushed:
    flush = writer.flush(fold, fold.take_changes())
    taken = flush.rest()
    writer.note(flush)
    return Flushed(flush, taken)


def keys(written: list[RowWrite]) -> list[bytes]:
    return [row.key for row in written]


def found(row: RowWrite) -> Row:
    assert row.value is not None
    return rows.decode_row(row.key, row.value)


def context_keys(count: int, *, generation: int = 0, first: int = 0) -> list[bytes]:
    return [rows.row_key(RowPlace(CONTEXT, generation, first + n)) for n in range(count)]


def test_a_flush_ends_in_the_row_that_commits_it_and_says_each_thing_once(
    fold: Fold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "DUMP_CHUNK_ENTRIES_MAX", 2)
    fold.distrust(Offset(9))
    beat = heartbeat_record("one", 7.0, [report(ONE)])
    apply(fold, registered_record(ONE), blocks(0, 5), beat)
    writer = RowWriter(generation_min_bytes=1 << 20, table=b"t", strays=[b"stray"])
    changes = fold.take_changes()
    flush = writer.flush(fold, changes)
    taken = flush.rest()
    assert writer.flush(fold, changes).rest() == taken, "until it is noted"
    rest = [STATE_KEY, REGISTRATION_KEY, rows.bridge_key("one"), rows.ledger_key(ONE.publisher)]
    rest += [rows.UNPROVEN_KEY, rows.SEED_KEY]
    assert keys(taken) == [b"stray", *context_keys(3), *rest, rows.COVERED_KEY]
    assert taken[0].value is None
    decoded = [found(row) for row in taken[1:]]
    assert {(row.kind, row.covers) for row in decoded} == {(RowKind.DELTA, 2)}
    assert [len(row.body) for row in decoded[:3]] == [48, 48, 24]
    assert [row.body for row in decoded[-3:]] == [
        msgspec.msgpack.encode(UnprovenState(before=9)),
        (1337).to_bytes(8, "little"),
        b"t",
    ]
    weight = 2 * rows.weight(bytes(48)) + rows.weight(bytes(24))
    assert flush.grown == {CONTEXT: ContextRows(0, 3, weight, 0)}
    writer.note(flush)
    apply(fold, blocks(1, 1), unregistered_record(ONE))
    second = flushed(writer, fold)
    assert keys(second.rows)[0] == context_keys(1, first=3)[0]
    assert dict(second.rows)[STATE_KEY] is None
    assert dict(second.rows)[REGISTRATION_KEY] is None
    assert not {b"stray", rows.SEED_KEY} & {*keys(second.rows)}
    assert found(second.rows[-1]).covers == 4


@pytest.mark.parametrize(
    ("counts", "min_bytes", "is_rewritten"),
    [
        ([5, 5, 5], 0, True),
        ([5, 5, 6], 0, False),  # its rows weigh twice what it holds
        ([5, 5, 5], 743, True),
        ([5, 5, 5], 744, False),
    ],
)
def test_a_context_is_rewritten_where_its_rows_outweigh_twice_what_it_holds_and_the_least(
    fold: Fold, counts: list[int], min_bytes: int, is_rewritten: bool
) -> None:
    writer = RowWriter(generation_min_bytes=min_bytes)
    for sequence, count in enumerate(counts):
        apply(fold, blocks(sequence, count))
        flush = flushed(writer, fold).flush
    assert writer.contexts[CONTEXT].delta_bytes == 24 * sum(counts) + 3 * 128
    writer.find_heavy(fold, flush)
    assert writer.has_heavy is is_rewritten
    assert (writer.begin_rewriting(fold) is not None) is is_rewritten


@pytest.mark.parametrize(("deltas", "is_rewritten"), [(2.0, True), (2.1, False)])
def test_how_many_times_what_it_holds_they_must_outweigh_is_a_setting(
    fold: Fold, deltas: float, is_rewritten: bool
) -> None:
    writer = RowWriter(generation_min_bytes=0, generation_deltas=deltas)
    for sequence, count in enumerate([5, 5, 5]):
        apply(fold, blocks(sequence, count))
        flush = flushed(writer, fold).flush
    writer.find_heavy(fold, flush)
    assert writer.has_heavy is is_rewritten


def begun(writer: RowWriter, fold: Fold, *records: bytes) -> Rewriting:
    """A flush of records, after which the context is rewritten."""
    apply(fold, *records)
    writer.find_heavy(fold, flushed(writer, fold).flush)
    rewriting = writer.begin_rewriting(fold)
    assert rewriting is not None
    return rewriting


def dumped(rewriting: Rewriting) -> list[RowWrite]:
    """Makes all chunks of the dump; those that went ahead."""
    ahead: list[RowWrite] = []
    while rewriting.has_chunk:
        rewriting.step(1)
        ahead += rewriting.take_ahead()
    return ahead


def loaded_from(chunks: list[RowWrite]) -> Kernel:
    """What a reader has of a generation."""
    loaded = open_kernel(1337, name="reference")
    for chunk in chunks:
        loaded.load(CONTEXT, found(chunk).body)
    return loaded


def test_a_context_that_holds_nothing_is_rewritten_as_an_empty_generation(fold: Fold) -> None:
    writer = RowWriter(generation_min_bytes=0)
    rewriting = begun(writer, fold, blocks(0, 1), events_record(1, 1, [cleared(1)]))
    assert (dumped(rewriting), rewriting.rest()) == ([], [])
    writer.note_rewritten(rewriting)
    assert writer.contexts == {CONTEXT: ContextRows(1, 0, 0, 1)}


def test_a_new_generation_replaces_the_rows_before_it_from_its_mark_on(
    fold: Fold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting_module, "DUMP_CHUNK_ENTRIES_MAX", 2)
    writer = RowWriter(generation_min_bytes=0, table=b"t", strays=[])
    for sequence in range(2):
        apply(fold, blocks(sequence, 1))
        flushed(writer, fold)
    rewriting = begun(writer, fold, blocks(2, 1))
    ahead = dumped(rewriting)
    assert keys(ahead) == context_keys(1, generation=1)
    rest = rewriting.rest()
    assert keys(rest) == context_keys(1, generation=1, first=1)
    assert [(row.kind, row.covers, len(row.body)) for row in map(found, [*ahead, *rest])] == [
        (RowKind.CHUNK, 2, 48),
        (RowKind.CHUNK, 2, 24),
    ]
    mark, *removed, covered = writer.switch(rewriting, 2)
    assert mark.key == rows.mark_key(CONTEXT)
    assert found(mark) == Row(RowKind.CHUNK, 2, (1).to_bytes(4, "little"))
    assert removed == [RowWrite(key, None) for key in context_keys(3)]
    assert (covered.key, found(covered)) == (rows.COVERED_KEY, Row(RowKind.DELTA, 2, b"t"))
    writer.strays.append(b"stray")
    writer.note_rewritten(rewriting)
    assert writer.contexts == {CONTEXT: ContextRows(1, 2, 0, 1)}
    assert (writer.strays, writer.rewriting) == ([b"stray"], None)


def test_what_changes_while_a_context_is_rewritten_comes_behind_its_dump(fold: Fold) -> None:
    writer = RowWriter(generation_min_bytes=0)
    rewriting = begun(writer, fold, blocks(0, 1))
    assert not dumped(rewriting)
    for sequence in (1, 2):
        apply(fold, blocks(sequence, sequence))
        flush = flushed(writer, fold).flush
        writer.find_heavy(fold, flush)
        assert not writer.has_heavy, "it is being rewritten"
    chunks = rewriting.rest()
    assert keys(chunks) == context_keys(2, generation=1)
    assert [(row.kind, row.covers) for row in map(found, chunks)] == [
        (RowKind.CHUNK, 0),
        (RowKind.CHUNK, 2),
    ]
    assert loaded_from(chunks).contexts() == fold.kernel.contexts()


def test_what_fills_chunks_while_a_context_is_rewritten_goes_ahead_of_the_rest(
    fold: Fold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting_module, "DUMP_CHUNK_ENTRIES_MAX", 3)
    writer = RowWriter(generation_min_bytes=0)
    rewriting = begun(writer, fold, blocks(0, 1))
    written = dumped(rewriting)
    for sequence, count in ((1, 4), (2, 4)):
        apply(fold, blocks(sequence, count))
        flushed(writer, fold)
    while rewriting.has_chunk:
        assert rewriting.step(1) == 3, "as many as it made a chunk of"
        written += rewriting.take_ahead()
    assert len(written) == 2
    written += rewriting.rest()
    assert keys(written) == context_keys(4, generation=1)
    assert [(row.kind, row.covers, len(row.body)) for row in map(found, written)] == [
        (RowKind.CHUNK, 0, 24),
        (RowKind.CHUNK, 2, 72),
        (RowKind.CHUNK, 2, 72),
        (RowKind.CHUNK, 2, 48),
    ]
    assert loaded_from(written).contexts() == fold.kernel.contexts()


@pytest.mark.parametrize(
    ("counts", "has_chunk", "may_end"),
    [([2], False, True), ([3], True, True), ([2, 4], True, True), ([3, 1], True, False)],
)
def test_a_generation_ends_once_flushes_before_the_last_have_left_less_than_a_chunk(
    fold: Fold,
    monkeypatch: pytest.MonkeyPatch,
    counts: list[int],
    has_chunk: bool,
    may_end: bool,
) -> None:
    monkeypatch.setattr(rewriting_module, "DUMP_CHUNK_ENTRIES_MAX", 3)
    writer = RowWriter(generation_min_bytes=0)
    rewriting = begun(writer, fold, blocks(0, 1))
    dumped(rewriting)
    for sequence, count in enumerate(counts, 1):
        apply(fold, blocks(sequence, count))
        flushed(writer, fold)
    assert (rewriting.has_chunk, rewriting.may_end) == (has_chunk, may_end)


def test_what_was_written_of_a_generation_that_is_given_up_is_removed_and_its_number_not_used_again(
    fold: Fold,
) -> None:
    writer = RowWriter(generation_min_bytes=0)
    first = begun(writer, fold, blocks(0, 1))
    dumped(first)
    writer.give_up_rewriting()
    writer.give_up_rewriting()
    assert writer.begin_rewriting(fold) is None
    apply(fold, blocks(1, 1))
    flush = flushed(writer, fold)
    assert flush.rows[0] == RowWrite(context_keys(1, generation=1)[0], None)
    assert keys(flush.rows)[1] == context_keys(1, first=1)[0]
    writer.find_heavy(fold, flush.flush)
    second = writer.begin_rewriting(fold)
    assert second is not None
    assert (first.generation, second.generation) == (1, 2)


def test_a_generation_gets_a_higher_number_than_any_that_was_read(fold: Fold) -> None:
    for known in (ContextRows(generation=6, last_generation=4), ContextRows(last_generation=6)):
        writer = RowWriter(generation_min_bytes=0, contexts={CONTEXT: known}, seed_written=True)
        assert begun(writer, fold, blocks(fold.offset + 1, 1)).generation == 7
