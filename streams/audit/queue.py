"""The queue of answers that are kept, in Python; the Rust kernel has one of its own
(`streams/kernel/native/index/src/audit.rs`), which equals it.
"""

import threading
from typing import Final

from schemas.answer_records import end_answer
from schemas.limits import AUDIT_QUEUE_BYTES, KAFKA_BATCH_BYTES, KIB
from streams.kernel import native_audit_queue
from streams.kernel.interface import AuditQueue

AUDIT_RECORD_BYTES: Final = 256 * KIB  # of answers in one record, and the last of them

assert AUDIT_RECORD_BYTES < KAFKA_BATCH_BYTES, "a batch has some records of answers"

_U64: Final = 2**64 - 1


class PythonAuditQueue:
    """See `AuditQueue`.

    Args:
        rate: the share that is kept, from 0 to 1.
        bytes_max: of all that waits.
        chunk_bytes: a chunk that has as much takes no more answers.
    """

    def __init__(self, rate: float, bytes_max: int, chunk_bytes: int, /) -> None:
        self._below = rate * 2**53
        self._bytes_max = bytes_max
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._draws = 0
        self._sequence = 0
        self._bytes = 0
        self._chunks: list[tuple[int, bytearray]] = []
        self._kept = self._dropped = self._unsettled = 0

    def draw(self) -> bool:
        """See `AuditQueue`."""
        with self._lock:
            number = self._draws
            self._draws += 1
        return _mixed(number) >> 11 < self._below

    def push(self, answer: bytes, time: float, state: str, /) -> None:
        """See `AuditQueue`."""
        with self._lock:
            ended = answer + end_answer(time, state, self._number())
            if self._bytes + len(ended) > self._bytes_max:
                self._dropped += 1
                return
            count, chunk = self._chunks.pop() if self._chunks else (0, bytearray())
            if len(chunk) >= self._chunk_bytes:
                self._chunks.append((count, chunk))
                count, chunk = 0, bytearray()
            chunk += ended
            self._chunks.append((count + 1, chunk))
            self._bytes += len(ended)
            self._kept += 1

    def note_unsettled(self) -> None:
        """See `AuditQueue`."""
        with self._lock:
            self._number()
            self._unsettled += 1

    def _number(self) -> int:
        sequence = self._sequence
        self._sequence += 1
        return sequence

    def take(self) -> list[tuple[int, bytes]]:
        """See `AuditQueue`."""
        with self._lock:
            taken, self._chunks, self._bytes = self._chunks, [], 0
        return [(count, bytes(chunk)) for count, chunk in taken]

    def counts(self) -> tuple[int, int, int]:
        """See `AuditQueue`."""
        return self._kept, self._dropped, self._unsettled


def _mixed(number: int) -> int:
    """SplitMix64."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & _U64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _U64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _U64
    return mixed ^ mixed >> 31


def open_audit_queue(rate: float) -> AuditQueue:
    """The fastest queue that this installation has, empty; see `PythonAuditQueue`."""
    make = native_audit_queue or PythonAuditQueue
    queue: AuditQueue = make(rate, AUDIT_QUEUE_BYTES, AUDIT_RECORD_BYTES)
    return queue
