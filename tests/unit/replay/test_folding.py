"""A capture is folded as it is, at the pace that was asked for."""

from pathlib import Path

import pytest

from replay.as_records import CaptureRecords
from replay.capture.format import (
    CaptureEntry,
    CaptureKind,
    CaptureSelection,
    Header,
    PartitionSource,
)
from replay.capture.reader import Capture
from replay.capture.writer import CaptureWriter
from replay.folding import ReplayedTable, ReplayPace, fold_capture
from schemas.answer_states import AnswerState
from schemas.identities import Offset
from schemas.progress import Progress
from streams.kernel import open_kernel
from streams.table.fold import Fold
from tests.building import (
    SCOPE,
    events_record,
    objects,
    registered_record,
    registration,
    stored,
)
from tests.unit.replay.histories import SEED, captured, history, write_log


class Clock:
    """Monotonic seconds that pass only while somebody waits."""

    def __init__(self) -> None:
        self.now = 50.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.mark.parametrize(("speed", "lasts"), [(1.0, 9.0), (10.0, 0.9)])
def test_it_takes_as_long_as_it_took_by_the_speed(speed: float, lasts: float) -> None:
    clock = Clock()
    pace = ReplayPace(speed, clock=clock, sleep=clock.sleep)
    for time in (1000.0, 1001.0, 1000.5, 1009.0):
        pace.wait(time)
    assert clock.now - 50.0 == pytest.approx(lasts)


def test_at_full_speed_nothing_waits() -> None:
    clock = Clock()
    for time in (1000.0, 2000.0):
        ReplayPace(None, clock=clock, sleep=clock.sleep).wait(time)
    assert clock.slept == []


def test_a_pace_that_is_stopped_waits_no_longer() -> None:
    clock = Clock()
    pace = ReplayPace(1.0, clock=clock, sleep=clock.sleep, stopped=lambda: clock.now > 52.0)
    pace.wait(0.0)
    pace.wait(1e9)
    assert clock.now < 53.0


def test_the_end_may_come_before(tmp_path: Path) -> None:
    path = captured(write_log(tmp_path / "data", history()), tmp_path / "c")
    told: list[Progress] = []
    with Capture(path) as capture:
        records = CaptureRecords(capture)
        table = ReplayedTable(open_kernel(SEED), records)
        clock = Clock()
        assert not fold_capture(
            records,
            table,
            total=capture.entries,
            pace=ReplayPace(1.0, clock=clock, sleep=clock.sleep),
            tell=told.append,
            stopped=lambda: len(told) > 5,
        )
    assert table.records == 5


def test_partitions_are_one_table_that_says_where_each_is(tmp_path: Path) -> None:
    partitions = tuple(
        PartitionSource(partition=n, begin=0, end=9, complete=True, keeps_registrations=False)
        for n in range(3)
    )
    header = Header(
        kind=CaptureKind.RECORDS,
        created_at=0.0,
        created_by="test",
        source="",
        partitions=partitions,
    )
    with CaptureWriter(tmp_path / "c", header) as writer:
        for lane, name in ((0, "a"), (2, "b")):
            one = registration(name, port=5000 + lane)
            batch = events_record(0, 0, [stored(0, [1], range(4))], stream=one.stream)
            writer.add(CaptureEntry(lane, 3, 1.0, registered_record(one)))
            writer.add(CaptureEntry(lane, 5 + lane, 2.0, batch))
    with Capture(tmp_path / "c") as capture:
        records = CaptureRecords(capture)
        table = ReplayedTable(open_kernel(SEED), records)
        fold_capture(records, table, total=None)
    assert next(iter(table.lines())) == f"position 0:5,2:7  records 4  seed {SEED}"
    assert len(table.digests) == 2
    assert len(table.publishers) == 2
    assert {one.instance_id for one in table.registrations} == {"a", "b"}
    assert table.states.verdict(SCOPE, {}, 0.0).state is AnswerState.UNCONFIRMED


def test_objects_are_joined_within_their_partition_as_workers_do(tmp_path: Path) -> None:
    """One table is folded of all partitions, and has the digests that each worker's had."""
    partitions = tuple(
        PartitionSource(partition=n, begin=0, end=9, complete=True, keeps_registrations=False)
        for n in range(2)
    )
    header = Header(
        kind=CaptureKind.RECORDS,
        created_at=0.0,
        created_by="test",
        source="",
        partitions=partitions,
    )
    folds = [Fold(open_kernel(SEED)) for _ in partitions]
    with CaptureWriter(tmp_path / "c", header) as writer:
        for lane in range(2):
            pool = registration(f"pool#{lane}", kind="Mooncake", port=7000)
            engine = registration(f"engine-{lane}", port=5000 + lane)
            # Both have block 1, and each one that the other's partition does not.
            blocks = [stored(0, [one], range(4 * one, 4 * one + 4)) for one in (1, 2 + lane)]
            of_pool = events_record(0, 0, [objects(0, [11, 12, 13], [1, 2, 3])], stream=pool.stream)
            of_engine = events_record(0, 0, [*blocks], stream=engine.stream)
            those = [registered_record(pool), registered_record(engine), of_engine, of_pool]
            for offset, record in enumerate(those):
                writer.add(CaptureEntry(lane, offset, 1.0, record))
                folds[lane].apply(Offset(offset), record)
    with Capture(tmp_path / "c") as capture:
        records = CaptureRecords(capture)
        table = ReplayedTable(open_kernel(SEED), records)
        fold_capture(records, table, total=None)
    by_workers = [view for fold in folds for view in fold.kernel.contexts()]
    assert sorted(table.kernel.contexts()) == sorted(by_workers)
    assert table.kernel.stats()["waiting"] == 2
    assert sum(fold.kernel.stats()["waiting"] for fold in folds) == 2


def test_what_is_skipped_is_counted_and_named(tmp_path: Path) -> None:
    good = events_record(0, 0, [stored(0, [1], range(4))])
    data = write_log(tmp_path / "data", [b"\xc1", good, good])
    with Capture(captured(data, tmp_path / "c", CaptureSelection())) as capture:
        records = CaptureRecords(capture)
        table = ReplayedTable(open_kernel(SEED), records)
        fold_capture(records, table, total=None)
    assert table.skipped == {"malformed_record": 1, "duplicate_record": 1}
    assert [(skipped.partition, skipped.record.offset) for skipped in table.named] == [(0, 0)]
