"""Which rows of a flush may be written before the rest."""

from schemas.identities import ModelContext
from streams.table import rows
from streams.table.row_writer import RowWrite
from streams.table.rows import RowKind, RowPlace
from streams.table.topic import chunk_places

CONTEXT = ModelContext("t", "m", "", 16, "", "i")
COVERED = RowWrite(rows.COVERED_KEY, rows.encode_row(RowKind.DELTA, 9, b"name"))
MARK = RowWrite(rows.mark_key(CONTEXT), rows.encode_row(RowKind.CHUNK, 9, b"\2\0\0\0"))


def row(kind: RowKind, generation: int, n: int) -> RowWrite:
    key = rows.row_key(RowPlace(CONTEXT, generation, n))
    return RowWrite(key, rows.encode_row(kind, 9, b""))


CHUNKS = [row(RowKind.CHUNK, 2, n) for n in range(3)]
REWRITING = [row(RowKind.DELTA, 1, 7), COVERED, *CHUNKS, MARK, RowWrite(b"C-old", None), COVERED]


def test_chunks_of_a_rewriting_go_first() -> None:
    assert chunk_places(REWRITING) == [2, 3, 4]


def test_nothing_of_a_flush_without_a_rewriting_goes_first() -> None:
    assert chunk_places([row(RowKind.DELTA, 1, 7), COVERED]) == []


def test_nothing_of_a_table_that_is_published_goes_first() -> None:
    assert chunk_places([*CHUNKS, MARK, COVERED]) == []


def test_a_chunk_that_the_flush_removes_before_does_not_go_first() -> None:
    assert chunk_places([RowWrite(CHUNKS[1].key, None), *REWRITING]) == [3, 5]


def test_nothing_goes_first_where_another_table_is_removed() -> None:
    assert chunk_places([RowWrite(rows.SEED_KEY, None), *REWRITING]) == []
