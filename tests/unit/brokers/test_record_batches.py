"""Batches of records with one damaged byte: whatever is believed of them is true, and what comes
behind them is found. The batches are made by the client's own builder.
"""

import random
import struct

import pytest
from aiokafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatch,
    DefaultRecordBatchBuilder,
)
from aiokafka.record.memory_records import MemoryRecords  # type: ignore[import-untyped]

from brokers.record_batches import check_batches

UNCHECKED_BYTES = 21
HARMLESS_BYTES = range(12, 16)  # the leader's epoch, which consumers do not use


def make_batch(first: int, count: int) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=DefaultRecordBatch.CODEC_NONE,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=100_000,
    )
    for index in range(count):
        builder.append(index, timestamp=1, key=None, value=b"%d" % (first + index), headers=[])
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, first)
    return bytes(batch)


class Log:
    """Batches one after the other, as a segment has them."""

    def __init__(self, counts: list[int], gaps: list[int] | None = None) -> None:
        self.firsts: list[int] = []
        self.afters: list[int] = []
        self.places: list[int] = []
        self.bytes = b""
        self.end = 0
        for count, gap in zip(counts, gaps or [0] * len(counts), strict=True):
            self.end += gap
            self.firsts.append(self.end)
            self.places.append(len(self.bytes))
            self.bytes += make_batch(self.end, count)
            self.end += count
            self.afters.append(self.end)

    def batch_of(self, offset: int) -> int:
        """The one that a broker's answer begins with: the first that does not end before it."""
        return next(i for i, after in enumerate(self.afters) if offset < after)


def records(batches: bytes, wanted: int) -> list[tuple[int, int]]:
    """The offset and the value of each, as the client gives them out from an offset on."""
    found = []
    reader = MemoryRecords(batches)
    while reader.has_next():
        batch = reader.next_batch()
        assert batch.validate_crc()
        found += [(record.offset, int(record.value)) for record in batch]
    return [(offset, value) for offset, value in found if offset >= wanted]


@pytest.mark.parametrize("contiguous", [True, False])
def test_what_is_whole_is_given_as_it_came(contiguous: bool) -> None:
    log = Log([3, 1, 4], None if contiguous else [2, 0, 7])
    for wanted in range(log.end):
        fetched = log.bytes[log.places[log.batch_of(wanted)] :]
        found = check_batches(fetched, wanted, log.end, contiguous=contiguous)
        assert found == (fetched, False, None)
        assert found[0] is fetched, "nothing is copied"


@pytest.mark.parametrize("kept_bytes", [0, 5, 12, 60, 70])
def test_one_that_is_cut_short_is_left_out(kept_bytes: int) -> None:
    log = Log([2, 50])
    cut = log.bytes[: log.places[1] + kept_bytes]
    assert check_batches(cut, 0, log.end) == (log.bytes[: log.places[1]], False, None)
    assert check_batches(cut[log.places[1] :], 2, log.end) == (b"", False, None)


@pytest.mark.parametrize("contiguous", [True, False])
def test_no_damaged_byte_gives_a_record_anothers_offset(contiguous: bool, seed: int) -> None:
    """Each unchecked byte of a batch that others follow, changed in several ways; from each offset
    that a broker may be asked for, which finds the damaged batch, or the one that has the offset.
    """
    rng = random.Random(seed)
    for _ in range(200):
        counts = [rng.randrange(1, 6) for _ in range(6)]
        gaps = None if contiguous else [rng.choice((0, 0, 3)) for _ in counts]
        log = Log(counts, gaps)
        at = rng.randrange(1, 4)
        place, flip = rng.randrange(UNCHECKED_BYTES), rng.choice((1, 2, 3, 4, 7, 128, 255))
        content = bytearray(log.bytes)
        content[log.places[at] + place] ^= flip
        (claimed,) = struct.unpack_from(">q", content, log.places[at])
        for wanted in range(log.firsts[at + 1]):
            begin = log.batch_of(wanted)
            # A broker goes by what the batch says of itself.
            if begin >= at and claimed + log.afters[at] - log.firsts[at] > wanted:
                begin = at
            fetched = bytes(content[log.places[begin] :])
            found = check_batches(fetched, wanted, log.end, contiguous=contiguous)
            given = records(found.batches, wanted)
            where = f"seed {seed}: {counts} {gaps} {at}:{place} ^ {flip} from {wanted}"
            if contiguous:
                assert all(offset == value for offset, value in given), where
                assert found.damaged or begin > at or not given or given[0][0] == wanted, where
            else:  # an offset that is free may be taken, which harms nobody
                assert given == sorted(given, key=lambda each: each[1]), where
            if place in HARMLESS_BYTES:
                assert given[-1][0] == log.end - 1, where
            if found.damaged:
                assert begin == at, where
                assert found.readable_from in (None, *log.firsts[at + 1 :]), where


@pytest.mark.parametrize("changed", [0x40, 0x01])
def test_an_offset_that_no_partition_has_is_not_believed(changed: int) -> None:
    """The broker gives such a batch for every offset behind it, and the others after it."""
    log = Log([4, 4, 4])
    content = bytearray(log.bytes)
    content[log.places[1]] ^= changed
    fetched = bytes(content[log.places[1] :])
    assert check_batches(fetched, 4, log.end) == (b"", True, 8)
    assert records(check_batches(fetched, 9, log.end).batches, 9) == [(9, 9), (10, 10), (11, 11)]
    assert check_batches(bytes(content), 0, log.end) == (log.bytes[: log.places[1]], False, None)


def test_a_batch_that_claims_to_reach_beyond_the_end_is_held_against_those_behind_it() -> None:
    """It says that it begins where was asked for, as one would that came since the end was told."""
    log = Log([10, 5, 1, 2])
    content = bytearray(log.bytes)
    content[log.places[1] + 7] ^= 4  # 10 becomes 14
    fetched = bytes(content[log.places[1] :])
    assert check_batches(fetched, 14, log.end, contiguous=True) == (b"", True, 15)
    assert check_batches(fetched, 14, log.end) == (b"", True, 15)


@pytest.mark.parametrize("contiguous", [True, False])
def test_what_was_written_since_the_end_was_told_is_no_damage(contiguous: bool) -> None:
    """A broker takes note of the end first, and then reads up to where it is by then."""
    log = Log([4, 4, 4])
    for batch, end in ((0, 0), (1, 4), (1, 5), (2, 8), (0, 4), (0, 8)):
        fetched = log.bytes[log.places[batch] :]
        found = check_batches(fetched, log.firsts[batch], end, contiguous=contiguous)
        assert found == (fetched, False, None)
    # What follows after a hole may be of another's offset.
    assert check_batches(log.bytes[log.places[2] :], 4, 4, contiguous=contiguous) == (
        b"",
        False,
        None,
    )


def test_a_last_batch_of_an_impossible_offset_is_nothing() -> None:
    """Whoever asks is told after a while, like where a broker gives nothing at all."""
    log = Log([4, 4])
    content = bytearray(log.bytes[log.places[1] :])
    content[0] ^= 0x40
    assert check_batches(bytes(content), 4, log.end, contiguous=True) == (b"", False, None)


def test_where_the_next_one_begins_is_known_unless_the_length_is_damaged() -> None:
    log = Log([4, 4, 4])
    content = bytearray(log.bytes)
    content[log.places[1] + 80] ^= 1  # within what the checksum covers
    assert check_batches(bytes(content[log.places[1] :]), 4, log.end) == (b"", True, 8)
    content[log.places[1] + 11] ^= 4
    assert check_batches(bytes(content[log.places[1] :]), 4, log.end) == (b"", True, None)


def test_a_missing_offset_is_damage_only_where_nothing_is_compacted() -> None:
    log = Log([4, 4], [0, 3])
    behind = log.bytes[log.places[1] :]
    assert check_batches(behind, 4, log.end) == (behind, False, None)
    assert check_batches(behind, 4, log.end, contiguous=True) == (b"", True, 7)


def test_bytes_that_are_no_batches_are_damage(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3000):
        fetched = bytearray(Log([3, 3]).bytes if rng.random() < 0.5 else rng.randbytes(300))
        for _ in range(rng.randrange(1, 6)):
            fetched[rng.randrange(len(fetched))] = rng.choice((0, 1, 127, 128, 255))
        found = check_batches(bytes(fetched), rng.randrange(8), 6, contiguous=rng.random() < 0.5)
        assert all(0 <= offset < 6 for offset, _ in records(found.batches, 0)), f"seed {seed}"
