"""A log with all kinds of records, for the tests of what captures it."""

import random
from pathlib import Path

import msgspec

from logs.embedded import EmbeddedLog, ReadOnlyLog
from replay.as_records import CaptureRecords
from replay.capture.format import CaptureSelection
from replay.capture.from_log import capture_log
from replay.capture.reader import Capture
from replay.folding import ReplayedTable, fold_capture
from schemas.codec import decode_log_record
from schemas.errors import RecordError
from schemas.events import BlockEvent
from schemas.identities import Offset
from schemas.records import encode_record
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.verification import context_digests, fresh_fold
from tests.building import (
    BLOCK,
    cleared,
    events_record,
    gap_record,
    heartbeat_record,
    memory_record,
    registered_record,
    registration,
    removed,
    report,
    reset_record,
    stored,
    unregistered_record,
)

SEED = 1337
FIRST_TIME = 1_000.0
"""Of the first record; each is a second later than the one before."""

EVERYTHING = CaptureSelection()

INSTANCES = ("a", "b", "c")


def history(records: int = 120, seed: int = 1) -> list[bytes]:
    """Records of three publishers, one a second: events, gaps, restarts, registrations."""
    source = random.Random(seed)
    names = [registration(name, port=5000 + n) for n, name in enumerate(INSTANCES)]
    encoded = [registered_record(one) for one in names]
    places = {one.instance_id: (1, 0) for one in names}
    while len(encoded) < records:
        if len(encoded) == records // 3:
            encoded += [unregistered_record(names[2]), registered_record(names[2])]
        if len(encoded) == records // 2:
            encoded.append(encode_record(memory_record()))
        one = source.choice(names)
        incarnation, sequence = places[one.instance_id]
        choice = source.random()
        if choice < 0.02:
            incarnation, sequence = incarnation + 1, 0
            encoded.append(reset_record(incarnation, stream=one.stream))
        elif choice < 0.08:
            encoded.append(
                gap_record(sequence, sequence + 2, incarnation=incarnation, stream=one.stream)
            )
            sequence += 3
        elif choice < 0.16:
            encoded.append(heartbeat_record("bridge", len(encoded), [report(n) for n in names]))
        elif choice < 0.18:
            encoded.append(b"\xc1 no record")
        else:
            events = [_event(source, sequence) for _ in range(source.randrange(1, 4))]
            encoded.append(
                events_record(
                    sequence, sequence, events, incarnation=incarnation, stream=one.stream
                )
            )
            sequence += 1
        places[one.instance_id] = (incarnation, sequence)
    return [_at(value, FIRST_TIME + number) for number, value in enumerate(encoded)]


def _event(source: random.Random, sequence: int) -> BlockEvent:
    choice, first = source.random(), source.randrange(40)
    if choice < 0.7:
        tokens = [first * 10 + number for number in range(2 * BLOCK)]
        return stored(sequence, [first, first + 100], tokens)
    return removed(sequence, [first]) if choice < 0.99 else cleared(sequence)


def _at(value: bytes, time: float) -> bytes:
    try:
        record = decode_log_record(value)
    except RecordError:
        return value
    return encode_record(msgspec.structs.replace(record, bridge_time=time))


def write_log(data: Path, records: list[bytes]) -> Path:
    """A data directory with a log of these records."""
    data.mkdir(parents=True, exist_ok=True)
    log = EmbeddedLog(data / "log", segment_bytes=4096)
    for value in records:
        log.append([value], now=0.0)
    log.close()
    return data


def captured(
    data: Path, path: Path, asked: CaptureSelection = EVERYTHING, **options: object
) -> Path:
    """A capture of it."""
    capture_log(data, path, asked, created_by="test", **options)  # type: ignore[arg-type]
    return path


def replayed(path: Path) -> ReplayedTable:
    """The table that a capture gives."""
    with Capture(path) as capture:
        records = CaptureRecords(capture)
        table = ReplayedTable(open_kernel(SEED), records)
        assert fold_capture(records, table, total=None)
    return table


def fold_of(data: Path) -> Fold:
    """A fresh fold of a data directory's log."""
    log = ReadOnlyLog(data / "log")
    fold = Fold(open_kernel(SEED))
    fresh_fold(fold, log)
    log.close()
    return fold


def fold_of_records(records: list[bytes]) -> Fold:
    """A fold of these records from offset 0."""
    fold = Fold(open_kernel(SEED))
    for offset, value in enumerate(records):
        fold.apply(Offset(offset), value)
    return fold


def digests_of(data: Path) -> dict[str, str]:
    """As `reprise verify` finds them."""
    return context_digests(fold_of(data).kernel)
