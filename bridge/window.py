"""Packs what one publisher sent in one window into as few records as its order allows. Pure.

A log message costs its readers the same whatever its size, so batches that follow each other
without a gap share a record, up to RECORD_BYTES_MAX and RECORD_EVENTS_MAX. A batch is never split
over two records: a fold skips records by their last sequence, so the second half would be lost when
the first was folded.
"""

import struct
from typing import Final

import msgspec

from schemas.events import BlockEvent, encode_events
from schemas.identities import PublisherKey
from schemas.limits import RECORD_BYTES_MAX, RECORD_EVENTS_MAX
from schemas.records import EventsRecord, GapRecord, ResetRecord, SequencedRecord

_FIXARRAY_MAX: Final = 15
_ARRAY16_MAX: Final = 65_535


class Window:
    """The records of one publisher, in the order of arrival; one use, one owner.

    Args:
        publisher: whose records.
        bridge_time: Unix seconds, of every record of the window.
    """

    __slots__ = (
        "_bridge_time",
        "_chunks",
        "_engine_time",
        "_events",
        "_first",
        "_incarnation",
        "_last",
        "_publisher",
        "_records",
        "_size_bytes",
    )

    def __init__(self, publisher: PublisherKey, bridge_time: float) -> None:
        self._publisher = publisher
        self._bridge_time = bridge_time
        self._records: list[SequencedRecord] = []
        self._incarnation = self._first = self._last = -1
        self._engine_time = 0.0
        self._start_run()

    def _start_run(self) -> None:
        self._chunks: list[memoryview] = []
        self._events = 0
        self._size_bytes = 0

    def add_batch(
        self, *, incarnation: int, sequence: int, engine_time: float, events: list[BlockEvent]
    ) -> None:
        """Appends one batch; one without events still moves the cursor.

        The caller has put a gap or a reset between batches whose sequences do not follow each
        other.
        """
        encoded = encode_events(events)
        header_bytes = _header_bytes(len(events))
        size_bytes = len(encoded) - header_bytes
        if self._chunks and (
            self._size_bytes + size_bytes > RECORD_BYTES_MAX
            or self._events + len(events) > RECORD_EVENTS_MAX
        ):
            self._flush()
        if not self._chunks:
            self._incarnation = incarnation
            self._first = sequence
        else:
            assert (incarnation, sequence) == (self._incarnation, self._last + 1)
        self._chunks.append(memoryview(encoded)[header_bytes:])
        self._events += len(events)
        self._size_bytes += size_bytes
        self._last = sequence
        self._engine_time = engine_time

    def add_reset(self, *, incarnation: int, reason: str) -> None:
        """Appends the start of a new incarnation."""
        self._flush()
        self._records.append(
            ResetRecord(
                stream=self._publisher.stream,
                dp_rank=self._publisher.dp_rank,
                bridge_time=self._bridge_time,
                incarnation=incarnation,
                first_sequence=-1,
                last_sequence=-1,
                reason=reason,
            )
        )

    def add_gap(self, *, incarnation: int, first: int, last: int, reason: str) -> None:
        """Appends the loss of the batches `first..last`."""
        self._flush()
        self._records.append(
            GapRecord(
                stream=self._publisher.stream,
                dp_rank=self._publisher.dp_rank,
                bridge_time=self._bridge_time,
                incarnation=incarnation,
                first_sequence=first,
                last_sequence=last,
                reason=reason,
            )
        )

    def close(self) -> list[SequencedRecord]:
        """All records of the window."""
        self._flush()
        return self._records

    def _flush(self) -> None:
        if not self._chunks:
            return
        self._records.append(
            EventsRecord(
                stream=self._publisher.stream,
                dp_rank=self._publisher.dp_rank,
                bridge_time=self._bridge_time,
                incarnation=self._incarnation,
                first_sequence=self._first,
                last_sequence=self._last,
                engine_time=self._engine_time,
                events=msgspec.Raw(b"".join((_array_header(self._events), *self._chunks))),
            )
        )
        self._start_run()


def _header_bytes(count: int) -> int:
    if count <= _FIXARRAY_MAX:
        return 1
    return 3 if count <= _ARRAY16_MAX else 5


def _array_header(count: int) -> bytes:
    """The msgpack header of an array of `count` elements."""
    if count <= _FIXARRAY_MAX:
        return bytes((0x90 | count,))
    return (
        struct.pack(">BH", 0xDC, count)
        if count <= _ARRAY16_MAX
        else struct.pack(">BI", 0xDD, count)
    )
