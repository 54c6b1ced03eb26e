"""The position of a time in the embedded log: the last record that was there by then."""

from itertools import islice

from logs.interface import ReadableLog
from schemas.codec import decode_log_record
from schemas.errors import PastError, RecordError
from schemas.identities import Offset


def offset_at(log: ReadableLog, seconds: float, *, now: float) -> Offset:
    """The last offset whose record was written at or before a time; the log's end for now.

    A record's time is its bridge's; where a clock was set back, records stand in order of the log
    and not of their times, and one of those around the time is taken. Cost O(log records) reads.

    Args:
        log: to look in.
        seconds: Unix seconds.
        now: the same.

    Raises:
        PastError: it is in the future, or before everything that the log has.
        StorageError: the log cannot be read.
    """
    if seconds > now:
        raise PastError(
            "as_of_in_future", f"Expected a time that has been, got one {seconds - now:.3f} s ahead"
        )
    low, high = int(log.complete_from), int(log.end_offset)  # all below low are at or before it
    begin = low
    while low < high:
        middle = (low + high) // 2
        found, written_at = first_written(log, middle, high)
        if written_at is None or written_at > seconds:
            high = middle
        else:
            low = found + 1
    if low == begin:
        raise PastError(
            "as_of_too_old",
            f"Expected a time from the log's oldest record on, which is at offset {begin}",
        )
    return Offset(low - 1)


def first_written(log: ReadableLog, start: int, end: int) -> tuple[int, float | None]:
    """The first record from `start` on that can be read, and when it was written; the end and None
    where there is none before it.
    """
    for entry in islice(log.read(Offset(start)), end - start):
        try:
            return entry.offset, decode_log_record(entry.value).bridge_time
        except RecordError:
            continue
    return end, None
