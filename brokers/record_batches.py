"""What a broker answers a fetch with: batches of records, and which of them can be believed. Pure.

A batch begins with 21 bytes that its checksum does not cover: its first offset, its length, and
what only brokers use. A byte of them that a disk has changed gives a batch the offsets of others,
or lets nobody find where the next one begins. Both show here, since offsets only grow, end with
the partition's last, and a batch says itself how many it has, which is covered.

    0   i64  first offset
    8   i32  bytes that follow these 12
    12  i32  leader's epoch
    16  i8   format, 2
    17  u32  CRC-32C of all below
    21  i16  attributes
    23  i32  last offset, less the first
    27  ...  timestamps, producer, count, records
"""

import struct
from typing import Final, NamedTuple

from aiokafka.record.util import calc_crc32c  # type: ignore[import-untyped]

_HEAD: Final = struct.Struct(">qiibIhi")
_LENGTH_COVERS_FROM: Final = 12
_CHECKSUM_COVERS_FROM: Final = 21
_HEADER_BYTES: Final = 61
_FORMAT: Final = 2


class CheckedBatches(NamedTuple):
    """What was fetched, up to the first batch that cannot be believed.

    Attributes:
        batches: the bytes of those before it; empty where it comes first, or where none is whole.
        damaged: whether it comes first.
        readable_from: the offset of the first one behind it that can be believed; None where that
            is not known, and where nothing is damaged.
    """

    batches: bytes
    damaged: bool = False
    readable_from: int | None = None


class _Batch(NamedTuple):
    first: int
    after: int  # the offset after its last
    at: int  # of its bytes
    end: int


def check_batches(
    fetched: bytes, wanted: int, end: int, *, contiguous: bool = False
) -> CheckedBatches:
    """What of these can be believed. Cost O(bytes): a checksum of them.

    Args:
        fetched: whole batches, of which the last may be cut short.
        wanted: the offset that was asked for; the first batch may begin before it.
        end: the partition's end, as the answer has it; what came since may be among them.
        contiguous: whether the topic has every offset, as one has that is not compacted.
    """
    return _FetchedRecords(memoryview(fetched), wanted, end, contiguous).check(fetched)


class _FetchedRecords:
    def __init__(self, content: memoryview, wanted: int, end: int, contiguous: bool) -> None:
        self._content = content
        self._wanted = wanted
        self._end = end
        self._contiguous = contiguous

    def check(self, fetched: bytes) -> CheckedBatches:
        place, at = self._wanted, 0
        begin: int | None = None  # of the believed ones
        while True:
            batch = self._batch_at(at)
            if batch is not None and self._is_in_place(batch, place):
                begin = at if begin is None else begin
                place, at = batch.after, batch.end
            elif begin is not None or self._is_cut(at):
                break  # what comes before it first
            else:
                following = self._next_batch(at, place)
                if following is not None and following.first <= place:
                    at = following.at  # what is damaged lies before what was asked for
                    continue
                if following is None and batch is not None and batch.after > self._end:
                    break  # written since the end was told, or of another's offset: time will tell
                return CheckedBatches(b"", True, following.first if following else None)
        if begin is None:
            return CheckedBatches(b"")
        return CheckedBatches(fetched if at - begin == len(fetched) else fetched[begin:at])

    def _is_cut(self, at: int) -> bool:
        """Whether no whole batch is there: brokers cut the last one where they have to."""
        if len(self._content) - at < _HEADER_BYTES:
            return True
        return at + self._size_at(at) > len(self._content)

    def _size_at(self, at: int) -> int:
        """What the one that begins there says of itself, in bytes."""
        _, length, *_ = _HEAD.unpack_from(self._content, at)
        return int(length) + _LENGTH_COVERS_FROM

    def _batch_at(self, at: int) -> _Batch | None:
        """The whole one that begins there; None where there is none that its checksum proves."""
        content = self._content
        if len(content) - at < _HEADER_BYTES:
            return None
        first, length, _, format_, checksum, _, last = _HEAD.unpack_from(content, at)
        end = at + _LENGTH_COVERS_FROM + length
        if not at + _HEADER_BYTES <= end <= len(content):
            return None
        if format_ != _FORMAT or first < 0 or last < 0:
            return None
        if calc_crc32c(content[at + _CHECKSUM_COVERS_FROM : end]) != checksum:
            return None
        return _Batch(first, first + last + 1, at, end)

    def _is_in_place(self, batch: _Batch, place: int) -> bool:
        """Whether a batch has the offsets that come next."""
        if batch.after <= place:
            return False
        is_first = place == self._wanted
        if batch.after > self._end:  # a broker reads further than it says, where more has come
            return batch.first == place and (not is_first or self._agrees(batch))
        if batch.first == place and not is_first:
            return True
        may_be = not self._contiguous if batch.first > place else is_first
        return may_be and self._agrees(batch)

    def _agrees(self, batch: _Batch) -> bool:
        """Whether the two behind a batch, where there are any, say nothing against its offset."""
        second = self._batch_at(batch.end)
        if second is None or self._follows(second.first, batch.after):
            return True
        third = self._batch_at(second.end)
        after_second = batch.after + second.after - second.first
        return third is not None and self._follows(third.first, after_second)

    def _follows(self, first: int, after: int) -> bool:
        return first == after or (first > after and not self._contiguous)

    def _next_batch(self, at: int, place: int) -> _Batch | None:
        """The first that has what comes at `place` or later: behind a damaged one, or what is there
        where others are missing before it.
        """
        batch = self._batch_at(at)
        is_ahead = batch is not None and place < batch.first and batch.after <= self._end
        if batch is not None and is_ahead and self._agrees(batch):
            return batch
        while not self._is_cut(at) and (size := self._size_at(at)) >= _HEADER_BYTES:
            at += size
            batch = self._batch_at(at)
            if batch is not None and place < batch.after <= self._end:
                return batch
        return None
