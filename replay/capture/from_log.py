"""A capture of a data directory's log; the service that writes it may be running."""

from pathlib import Path

from logs.embedded import ReadOnlyLog
from replay.bounds import CAPTURE_TOLD_RECORDS
from replay.capture.format import CaptureKind, CaptureSelection, Header, Summary
from replay.capture.record_filter import RecordFilter, check_bounds, partition_source
from replay.capture.writer import INTERRUPTED, CaptureWriter
from schemas.clock import REAL_CLOCK, Clock
from schemas.identities import Offset
from schemas.progress import Progress, StopCheck, Tell, never, silent

_PARTITION = 0


def capture_log(
    data: Path,
    path: Path,
    asked: CaptureSelection,
    *,
    created_by: str,
    replace: bool = False,
    tell: Tell = silent,
    stopped: StopCheck = never,
    clock: Clock = REAL_CLOCK,
) -> Summary:
    """Writes what was asked for to a file. Cost O(log up to the end of the range).

    Registrations that are live where the range begins are kept, as the log's retention keeps them.

    Args:
        data: the data directory.
        asked: the range and the streams.
        created_by: the version of Reprise.
        replace: whether a file that is there may be written over.
        stopped: whether it is to end; the file is whole then, too.

    Raises:
        CaptureError: the file is there, or a position is not one of this log.
        StorageError: the log cannot be read, or the file cannot be written; what was written before
            can be read.
    """
    log = ReadOnlyLog(data / "log")
    try:
        bounds = log.bounds
        check_bounds(asked, {_PARTITION: bounds})
        source = partition_source(asked, _PARTITION, bounds, keeps_registrations=True)
        header = Header(
            kind=CaptureKind.RECORDS,
            created_at=clock.unix(),
            created_by=created_by,
            source="the log of a data directory",
            asked=asked,
            partitions=(source,),
        )
        with CaptureWriter(path, header, replace=replace, clock=clock.unix) as writer:
            _fill(writer, log, asked, tell, stopped)
        return writer.summary
    finally:
        log.close()


def _fill(
    writer: CaptureWriter, log: ReadOnlyLog, asked: CaptureSelection, tell: Tell, stopped: StopCheck
) -> None:
    begin = log.bounds.start
    sieve = RecordFilter(asked, _PARTITION, log.bounds, writer.left_out)
    total = sieve.end - begin
    for number, (offset, value) in enumerate(log.read(Offset(0))):
        if offset >= sieve.end:
            break
        for entry, is_spared in sieve.take(offset, value):
            writer.add(entry, spared=is_spared)
        if not number % CAPTURE_TOLD_RECORDS:
            tell(Progress(max(0, offset - begin), total, writer.entries, writer.size_bytes))
            if stopped():
                writer.ended = INTERRUPTED
                return
    for entry, is_spared in sieve.rest():
        writer.add(entry, spared=is_spared)
    tell(Progress(total, total, writer.entries, writer.size_bytes))
