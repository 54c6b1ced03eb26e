"""The steps of a capture are what a fold takes of it."""

from pathlib import Path

import msgspec

from replay.as_records import CaptureRecords
from replay.block_events import BlockEvents, Step
from replay.capture.format import CaptureEntry, CaptureKind, Header, PartitionSource
from replay.capture.reader import Capture
from replay.capture.writer import CaptureWriter
from schemas.codec import decode_log_record
from schemas.events import StoredBlocks, encode_events
from schemas.identities import Offset
from schemas.records import EventsRecord, UnregisteredRecord, encode_record
from streams.kernel import open_kernel
from streams.table.verification import context_digests
from tests.building import (
    events_record,
    in_parts,
    registered_record,
    registration,
    reset_record,
    stored,
    unregistered_record,
)
from tests.unit.replay.histories import SEED, fold_of_records, history


def capture_of(path: Path, records: list[bytes]) -> Path:
    """A capture of these records, from offset 0 on, one a second."""
    source = PartitionSource(
        partition=0, begin=0, end=len(records), complete=True, keeps_registrations=True
    )
    header = Header(
        kind=CaptureKind.RECORDS,
        created_at=1.0,
        created_by="test",
        source="test",
        partitions=(source,),
    )
    with CaptureWriter(path, header, replace=True) as writer:
        for offset, value in enumerate(records):
            writer.add(CaptureEntry(0, offset, 1000.0 + offset, value))
    return path


def steps_of(path: Path) -> tuple[list[Step], BlockEvents]:
    with Capture(path) as capture:
        steps = BlockEvents(CaptureRecords(capture))
        return list(steps), steps


def digests_by_steps(steps: list[Step]) -> dict[str, str]:
    """What a kernel has that is told of the steps alone."""
    kernel = open_kernel(SEED)
    for step in steps:
        publisher = kernel.open_publisher(*step.record.publisher)
        if step.forgets:
            kernel.clear(publisher)
        if isinstance(step.record, UnregisteredRecord):
            kernel.unregister(publisher)
            continue
        kernel.apply(publisher, encode_events([event for _, event in step.events]), -1)
    return context_digests(kernel)


def test_they_make_the_table_that_a_fold_makes(tmp_path: Path) -> None:
    for seed in range(20):
        records = history(160, seed)
        records += records[60:120]  # a log may deliver records twice
        steps, read = steps_of(capture_of(tmp_path / "a.capture", records))
        fold = fold_of_records(records)
        assert digests_by_steps(steps) == context_digests(fold.kernel)
        assert context_digests(fold.kernel)
        assert read.skipped["duplicate_record"] > 10
        assert read.records == len(records)
        assert read.ended


def test_parts_of_a_batch_come_once(tmp_path: Path) -> None:
    events = [stored(0, [number], list(range(4))) for number in range(6)]
    whole = decode_log_record(events_record(0, 0, events))
    assert isinstance(whole, EventsRecord)
    parts = [
        encode_record(
            msgspec.structs.replace(
                part,
                events=msgspec.Raw(encode_events(list(events[part.part.first : part.part.end]))),
            )
        )
        for part in in_parts(whole, 2, 4, 6)
        if part.part is not msgspec.UNSET
    ]
    records = [parts[0], parts[0], parts[1], parts[0], parts[1], parts[2], parts[2]]
    steps, read = steps_of(capture_of(tmp_path / "a.capture", records))
    seen = [
        event.hashes[0]
        for step in steps
        for _, event in step.events
        if isinstance(event, StoredBlocks)
    ]
    assert seen == list(range(6))
    assert read.skipped == {"duplicate_record": 4}


def test_a_restart_and_an_end_forget(tmp_path: Path) -> None:
    one = registration("a")
    records = [
        registered_record(one),
        events_record(0, 0, [stored(0, [1], range(4))]),
        reset_record(2),
        events_record(0, 0, [stored(0, [1], range(4))], incarnation=2),
        events_record(0, 0, [stored(0, [1], range(4))], incarnation=3),
        unregistered_record(one),
        events_record(0, 0, [stored(0, [1], range(4))]),
    ]
    steps, read = steps_of(capture_of(tmp_path / "a.capture", records))
    assert [step.forgets for step in steps] == [False, False, True, False, True, True, False]
    assert [step.position for step in steps] == list(range(7))
    assert not read.skipped


def test_what_cannot_be_read_is_counted(tmp_path: Path) -> None:
    records = [b"\xc1", events_record(0, 0, []), b"\x80"]
    steps, read = steps_of(capture_of(tmp_path / "a.capture", records))
    assert [step.position for step in steps] == [1]
    assert sum(read.skipped.values()) == 2


def test_it_ends_where_it_is_asked_to(tmp_path: Path) -> None:
    path = capture_of(tmp_path / "a.capture", history(600))
    asked: list[int] = []
    with Capture(path) as capture:
        read = BlockEvents(
            CaptureRecords(capture),
            total=600,
            tell=lambda progress: asked.append(progress.done),
            stopped=lambda: len(asked) > 1,
        )
        assert 0 < sum(1 for _ in read) < 300
    assert (read.ended, asked) == (False, [0, 256])


def test_times_are_those_of_engines_where_they_have_any(tmp_path: Path) -> None:
    records = [events_record(5, 5, []), events_record(0, 0, [], stream=registration("b").stream)]
    steps, _ = steps_of(capture_of(tmp_path / "a.capture", records))
    assert [step.engine_time for step in steps] == [5.0, 1001.0]
    assert Offset(steps[0].position) == 0
