"""A checkpoint is read whole, or not at all."""

import pytest

from routing.fold.chunks import CHUNK_VERSION, Chunk, ChunkReader, chunks_of

OLD, NEW = b"an old state of some bytes", b"a new state of some more bytes"


def read(*messages: tuple[bytes | None, bytes | None]) -> ChunkReader:
    reader = ChunkReader()
    for message in messages:
        reader.put(*message)
    return reader


@pytest.mark.parametrize("size", [0, 4, 5, 8])
def test_what_was_cut_is_put_together_again(size: int) -> None:
    state = bytes(range(size))
    assert read(*chunks_of(7, state, chunk_bytes=4)).state == state


def test_the_last_whole_one_counts() -> None:
    old, new = (chunks_of(n, state, chunk_bytes=8) for n, state in ((5, OLD), (9, NEW)))
    assert read(*old, *new).state == NEW
    assert read(*old, *new[:-1]).state == OLD


def test_one_that_lost_a_chunk_does_not_count_though_another_stands_in_its_place() -> None:
    old, new = (chunks_of(n, state, chunk_bytes=16) for n, state in ((5, OLD), (9, NEW)))
    assert len(old) == len(new)
    assert read(old[0], new[1]).state is None
    # As the cleaner leaves it where the next one was cut off.
    assert read(old[1], new[0]).state is None


def test_a_shorter_one_counts_beside_what_is_left_of_a_longer_one() -> None:
    old, new = chunks_of(5, OLD, chunk_bytes=4), chunks_of(9, b"short", chunk_bytes=4)
    left = old[len(new) :]
    assert read(*left, *new).state == b"short"


def test_what_is_no_chunk_is_skipped_and_counted() -> None:
    (good,) = chunks_of(5, OLD)
    reader = read((b"0", b"\xc1"), (b"x", good[1]), (None, good[1]), (b"1", good[1]), good)
    assert (reader.state, reader.skipped) == (OLD, 4)


def test_one_of_a_newer_version_is_told_of_and_the_last_one_is_there() -> None:
    (good,) = chunks_of(5, OLD)
    newer = (b"0", good[1].replace(b"\x95\x01", b"\x95\x02", 1))
    assert CHUNK_VERSION == 1
    reader = read(good, newer)
    assert (reader.state, reader.skipped) == (OLD, 0)
    assert reader.newer is not None
    assert (reader.newer.version, reader.newer.supported) == (2, 1)
    assert read(newer, good).newer is None, "an older Reprise has written one since"


def test_a_tombstone_changes_nothing() -> None:
    (good,) = chunks_of(5, OLD)
    assert read(good, (b"0", None)).state == OLD


def test_a_wrong_sum_is_counted() -> None:
    (good,) = chunks_of(5, OLD)
    changed = (b"0", good[1].replace(b"old", b"new"))
    reader = read(good, changed)
    assert (reader.state, reader.skipped) == (OLD, 1)
    assert Chunk.__struct_fields__[-1] == "content"
