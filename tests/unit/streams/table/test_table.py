import asyncio
import gc
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from logs.embedded import EmbeddedLog
from logs.interface import LogEntry
from schemas.errors import DiskError, RowVersionError, TableLostError
from schemas.events import BlockEvent
from schemas.identities import Offset
from schemas.positions import LogBounds, PublisherState
from schemas.records import PublisherReport
from streams.kernel import open_kernel
from streams.kernel.changes import Change, Op
from streams.table import table as tables
from streams.table.driver import FlushPace, FoldDriver, recover
from streams.table.fold import ALL_PROVEN, Fold
from streams.table.recovery import EVERY_OFFSET, RecoveryAction, RecoveryPlan
from streams.table.rows import format as rows
from streams.table.rows.format import RowKind, RowWrite
from streams.table.rows.reader import RowReader
from streams.table.store import LocalCopy, TableStore
from streams.table.table import Table
from streams.table.threads import run_without_loop
from streams.table.verification import fresh_fold
from tests.building import (
    SCOPE,
    events_record,
    gap_record,
    heartbeat_record,
    registered_record,
    registration,
    removed,
    stored,
    unregistered_record,
)
from tests.fakes import PoisonedKernel
from tests.kills import Killed, kills
from tests.slices import sliced
from tests.unit.streams.table_topic import MemoryTopic


def history() -> list[bytes]:
    return [
        registered_record(registration("a")),
        events_record(0, 0, [stored(0, [1, 2], range(8))]),
        events_record(1, 1, [stored(1, [3], range(8, 12), parent=2), removed(1, [1])]),
        gap_record(2, 3),
        events_record(4, 4, [stored(4, [1], range(4))]),
    ]


class Disk:
    """A data directory that is closed and opened again, as after a crash between two writes."""

    def __init__(self, path: Path, make_fold: Callable[[], Fold]) -> None:
        self.path = path
        self.make_fold = make_fold
        self.open()

    def open(self) -> None:
        self.log = EmbeddedLog(self.path / "log", segment_bytes=300)
        self.table = Table(
            self.path / "table", self.make_fold, log=self.log, generation_min_bytes=0
        )
        self.recovered = recover(self.table, self.log)

    @property
    def fold(self) -> Fold:
        return self.table.fold

    def close(self) -> None:
        self.log.close()
        self.table.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    def write(self, record: bytes) -> None:
        self.table.apply([LogEntry(self.log.append([record]), record)])

    def flush(self) -> None:
        run_without_loop(self.table.flush(now=0.0))

    def lose_rows(self) -> None:
        self.close()
        shutil.rmtree(self.path / "table")

    def truth(self) -> Fold:
        fold = self.make_fold()
        fresh_fold(fold, self.log)
        return fold


@pytest.fixture
def disk(tmp_path: Path, any_fold: Callable[[], Fold]) -> Disk:
    return Disk(tmp_path, any_fold)


@pytest.fixture
def each_disk(tmp_path: Path, make_fold: Callable[[], Fold]) -> Disk:
    """Of each kernel: what it dumps is what is looked at."""
    return Disk(tmp_path, make_fold)


def fails(*_: object) -> None:
    raise DiskError(action="write", path="table", detail="full")


def reopenings(monkeypatch: pytest.MonkeyPatch) -> list[TableStore]:
    """Grows by each store that is opened again."""
    reopened: list[TableStore] = []
    reopen = TableStore.reopen

    def reopens(store: TableStore) -> None:
        reopened.append(store)
        reopen(store)

    monkeypatch.setattr(TableStore, "reopen", reopens)
    return reopened


def same(one: Fold | RowReader, other: Fold) -> bool:
    return (
        one.kernel.contexts() == other.kernel.contexts()
        and one.publishers == other.publishers
        and {k: v.registration for k, v in one.registrations.items()}
        == {k: v.registration for k, v in other.registrations.items()}
    )


@pytest.mark.parametrize("flush_after", [0, 2, 5])
def test_a_table_cut_anywhere_recovers_to_a_fresh_fold(disk: Disk, flush_after: int) -> None:
    for count, record in enumerate(history(), 1):
        disk.write(record)
        if count == flush_after:
            disk.flush()
    disk.reopen()
    assert disk.recovered.plan.action is (
        RecoveryAction.RESUME if flush_after else RecoveryAction.REBUILD
    )
    assert disk.recovered.records == len(history()) - flush_after
    assert same(disk.fold, disk.truth())
    assert disk.fold.publishers[registration("a").publisher].degraded_since == 2


def test_a_lost_log_leaves_the_table_and_goes_on_behind_it(disk: Disk) -> None:
    for record in history():
        disk.write(record)
    disk.flush()
    before = disk.fold
    disk.close()
    for file in (disk.path / "log").iterdir():
        file.unlink()
    disk.open()
    assert disk.recovered.plan.action is RecoveryAction.ADOPT
    assert same(disk.fold, before)
    disk.write(events_record(5, 5, [stored(5, [9], range(4, 8), parent=1)]))
    assert disk.fold.offset == 5
    disk.reopen()
    action: RecoveryAction = disk.recovered.plan.action
    assert action is RecoveryAction.RESUME
    assert len(disk.fold.kernel.contexts()) == 1
    disk.close()


def test_a_rebuild_from_a_log_without_its_beginning_is_degraded_not_silently_wrong(
    disk: Disk,
) -> None:
    for record in history():
        disk.write(record)
    disk.flush()
    for sequence in range(5, 30):
        disk.write(events_record(sequence, sequence, [stored(sequence, [1], range(4))]))
    disk.flush()
    disk.log.retain(bytes_max=600, age_max_s=1e9, now=0.0, floor=disk.log.end_offset, exempt=[0])
    assert disk.log.complete_from > 5
    disk.lose_rows()
    disk.open()
    publisher = registration("a").publisher
    assert publisher in disk.fold.registrations
    assert disk.fold.publishers[publisher].degraded_since == 0
    disk.close()


def test_another_seed_rebuilds_the_table(disk: Disk) -> None:
    for record in history():
        disk.write(record)
    disk.flush()
    disk.close()
    disk.make_fold = lambda: Fold(open_kernel(7))
    disk.open()
    assert disk.recovered.plan.action is RecoveryAction.REBUILD
    assert same(disk.fold, disk.truth())
    disk.close()


def context_keys(database: Rdict) -> list[bytes]:
    keys = [key for key, _ in database.items()]
    return [key for key in keys if isinstance(key, bytes) and key[:1] == rows.CONTEXT]


def corrupt(disk: Disk, prefix: bytes, change: Callable[[bytes], bytes]) -> None:
    """Changes the first row under the prefix behind the store's back."""
    disk.close()
    database = Rdict(str(disk.path / "table"), Options(raw_mode=True))
    row = database.iter()
    row.seek(prefix)
    key, value = row.key(), row.value()
    assert key[:1] == prefix[:1]
    del row
    database.put(key, change(value))
    database.close()


@pytest.mark.parametrize("prefix", [rows.CONTEXT, rows.PUBLISHER, rows.REGISTRATION, rows.FACT])
def test_a_corrupt_row_sets_the_table_aside_and_rebuilds_it(disk: Disk, prefix: bytes) -> None:
    for record in history():
        disk.write(record)
        disk.flush()
    corrupt(disk, prefix, lambda value: value[:-1] + bytes([value[-1] ^ 1]))
    disk.open()
    assert disk.recovered.plan.action is RecoveryAction.REBUILD
    assert "table.corrupt" in disk.recovered.plan.reason
    assert (disk.path / "table.corrupt").is_dir()
    assert same(disk.fold, disk.truth())
    disk.close()


def test_a_missing_row_is_noticed(disk: Disk) -> None:
    for record in history():
        disk.write(record)
        disk.flush()
    disk.close()
    database = Rdict(str(disk.path / "table"), Options(raw_mode=True))
    keys = context_keys(database)
    if len(keys) > 1:
        database.delete(keys[0])
    database.close()
    disk.open()
    assert same(disk.fold, disk.truth())
    disk.close()


def test_rows_of_a_newer_version_stop_the_start_and_stay_as_they_are(disk: Disk) -> None:
    disk.write(history()[0])
    disk.flush()
    corrupt(disk, rows.COVERED_KEY, lambda value: b"\x09" + value[1:])
    with pytest.raises(RowVersionError, match="`1` or older, got `9`"):
        disk.open()
    disk.log.close()


def test_churn_begins_new_generations_and_drops_the_old_rows(each_disk: Disk) -> None:
    for sequence in range(200):
        event = stored(sequence, [1], range(4)) if sequence % 2 == 0 else removed(sequence, [1])
        each_disk.write(events_record(sequence, sequence, [event]))
        each_disk.flush()
    assert each_disk.table.generations > 10
    each_disk.close()
    database = Rdict(str(each_disk.path / "table"), Options(raw_mode=True))
    kept = context_keys(database)
    database.close()
    assert len(kept) < 20
    each_disk.open()
    assert same(each_disk.fold, each_disk.truth())
    each_disk.close()


def test_an_unfinished_generation_is_ignored(disk: Disk) -> None:
    for record in history()[:3]:
        disk.write(record)
        disk.flush()
    context = disk.fold.kernel.contexts()[0].context
    expected = disk.fold.kernel.contexts()
    disk.close()
    database = Rdict(str(disk.path / "table"), Options(raw_mode=True))
    place = rows.RowPlace(context, 40, 0)
    database.put(rows.row_key(place), rows.encode_row(rows.RowKind.CHUNK, 2, b"\0" * 24))
    database.close()
    disk.open()
    assert disk.fold.kernel.contexts() == expected
    disk.close()


def test_facts_that_this_version_does_not_know_are_let_be(disk: Disk) -> None:
    for record in history():
        disk.write(record)
    disk.flush()
    expected = disk.fold.kernel.contexts()
    disk.close()
    store = TableStore(disk.path / "table")
    row = rows.encode_row(rows.RowKind.DELTA, 1, b"from a later version")
    store.commit([RowWrite(rows.FACT + b"later", row)])
    store.close()
    disk.open()
    assert disk.recovered.plan.action is RecoveryAction.RESUME
    assert disk.fold.kernel.contexts() == expected
    disk.close()


# What the disk may cover


class SyncedLog(EmbeddedLog):
    """A log that knows how much of it is durable."""

    synced = 0

    def sync(self) -> None:
        super().sync()
        self.synced = self.end_offset


def synced_disk(path: Path, log: SyncedLog) -> Table:
    return Table(path / "table", lambda: Fold(open_kernel(1337)), log=log)


def test_a_row_covers_only_what_is_durable_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SyncedLog(tmp_path / "log")
    table = synced_disk(tmp_path, log)
    run_without_loop(table.open(log.bounds, now=0.0))
    covered: list[int] = []
    commit = TableStore.commit

    def committed(
        store: TableStore, writes: Iterable[RowWrite], local: LocalCopy | None = None
    ) -> None:
        assert table.fold.offset < log.synced
        covered.append(table.fold.offset)
        commit(store, writes, local)

    monkeypatch.setattr(TableStore, "commit", committed)
    for offset, record in enumerate(history()):
        table.apply([LogEntry(log.append([record]), record)])
        run_without_loop(table.flush(now=0.0))
        assert covered[-1] == table.flushed == offset
    table.close()
    log.close()


def test_a_flush_in_steps_covers_what_was_folded_before_it_and_that_is_durable(
    tmp_path: Path,
) -> None:
    log = SyncedLog(tmp_path / "log")
    table = synced_disk(tmp_path, log)
    run_without_loop(table.open(log.bounds, now=0.0))
    first, second, third = history()[:3]

    def fold(record: bytes) -> None:
        table.apply([LogEntry(log.append([record]), record)])

    fold(first)
    fold(second)
    with sliced(1):
        seen = []
        while table.flushed < 1:
            run_without_loop(table.flush_some(now=0.0))
            seen.append(table.is_flushing)
            if table.fold.offset == 1:
                fold(third)
        assert seen == [True] * (len(seen) - 1) + [False]
        assert len(seen) > 2
        assert (table.flushed, table.fold.offset) == (1, 2)
        assert log.synced > 1
        assert run_without_loop(table.flush(now=0.0)) > 0
    assert table.flushed == 2
    table.close()
    log.close()


def test_what_is_folded_at_a_start_is_durable_first(tmp_path: Path) -> None:
    """A process that died may have left records that a power cut would still take."""
    log = EmbeddedLog(tmp_path / "log")
    log.append(history())
    log.close()
    again = SyncedLog(tmp_path / "log")
    table = synced_disk(tmp_path, again)
    run_without_loop(table.open(again.bounds, now=0.0))
    assert again.synced == len(history())
    table.close()
    again.close()


# What the log no longer proves


ONE, TWO = registration("a"), registration("b", port=5558)


def degraded(fold: Fold) -> set[str]:
    return {key.stream.instance_id for key in fold.publishers if is_lossy(fold.publishers[key])}


def is_lossy(state: PublisherState) -> bool:
    return state.degraded_since is not None


def retire_the_beginning(disk: Disk) -> None:
    """Two registrations stay of what was before; `a` has held blocks, and is idle now."""
    disk.write(registered_record(ONE))
    disk.write(events_record(0, 0, [stored(0, [1], range(4))]))
    disk.write(registered_record(TWO))
    for sequence in range(30):
        batch = [stored(sequence, [sequence + 1], range(4))]
        disk.write(events_record(sequence, sequence, batch, stream=TWO.stream))
    disk.write(registered_record(registration("c", port=5559)))
    disk.flush()
    disk.log.retain(bytes_max=600, age_max_s=1e9, now=0.0, floor=disk.log.end_offset, exempt=[0, 2])
    assert disk.log.complete_from > 10


def test_idle_publishers_of_a_log_without_its_beginning_are_degraded_new_ones_are_not(
    disk: Disk,
) -> None:
    retire_the_beginning(disk)
    disk.lose_rows()
    disk.open()
    assert disk.recovered.plan.action is RecoveryAction.REBUILD
    assert degraded(disk.fold) == {"a", "b"}
    disk.reopen()
    action: RecoveryAction = disk.recovered.plan.action
    assert action is RecoveryAction.RESUME
    assert degraded(disk.fold) == {"a", "b"}
    disk.close()


@pytest.mark.parametrize("killed_after", [2, 3, 7])
def test_a_kill_in_a_rebuild_forgets_nothing_that_is_not_proven(
    disk: Disk, killed_after: int
) -> None:
    """Each record is flushed alone, so the last one is as well."""
    retire_the_beginning(disk)
    disk.lose_rows()
    disk.log = EmbeddedLog(disk.path / "log", segment_bytes=300)
    table = Table(disk.path / "table", disk.make_fold, log=disk.log)
    plan = run_without_loop(table.open(disk.log.bounds, now=0.0))
    assert plan.action is RecoveryAction.REBUILD
    for entry in list(disk.log.read(plan.start))[:killed_after]:
        table.apply([entry])
        run_without_loop(table.flush(now=0.0))
    table.close()
    disk.log.close()
    disk.open()
    action: RecoveryAction = disk.recovered.plan.action
    spared = 2  # registrations from before the log's beginning: what only covers them is no start
    assert action is (RecoveryAction.RESUME if killed_after > spared else RecoveryAction.REBUILD)
    assert degraded(disk.fold) == {"a", "b"}
    disk.close()


def test_a_rebuild_flushes_on_its_way_and_covers_its_last_record(disk: Disk) -> None:
    retire_the_beginning(disk)
    disk.lose_rows()
    disk.log = EmbeddedLog(disk.path / "log", segment_bytes=300)
    disk.table = Table(disk.path / "table", disk.make_fold, log=disk.log)
    recover(disk.table, disk.log, flush_changes_max=0)
    assert disk.table.flushed == disk.log.end_offset - 1
    disk.reopen()
    assert degraded(disk.fold) == {"a", "b"}
    disk.close()


class Worker:
    """A table with a topic, over a partition of the events that begins at `start`."""

    def __init__(self, path: Path, topic: MemoryTopic, make_fold: Callable[[], Fold]) -> None:
        self.table = Table(path, make_fold, topic.open())
        self.driver = FoldDriver(self.table, place=0)

    def open(self, start: int, end: int) -> RecoveryPlan:
        return asyncio.run(self.table.open(LogBounds(start, end), now=0.0))

    def fold(self, *records: bytes) -> None:
        start = self.table.next_offset
        entries = [LogEntry(Offset(start + at), value) for at, value in enumerate(records)]
        asyncio.run(self.driver.fold(entries))

    def flush(self) -> None:
        asyncio.run(self.driver.flush())


@pytest.fixture
def topic() -> MemoryTopic:
    return MemoryTopic()


@pytest.fixture
def worker(tmp_path: Path, topic: MemoryTopic, any_fold: Callable[[], Fold]) -> Worker:
    return Worker(tmp_path / "first", topic, any_fold)


def reader_of(topic: MemoryTopic, make_fold: Callable[[], Fold]) -> RowReader:
    reader = RowReader(make_fold().kernel)
    topic.follow(reader)
    reader.caught_up(0)
    return reader


def is_degraded(reader: RowReader) -> bool:
    """As an answer from these rows says."""
    return reader.states.is_degraded(SCOPE) or reader.is_damaged(SCOPE)


@pytest.mark.parametrize("end", [1000, 1001])
def test_a_registration_that_a_bridge_writes_again_proves_no_idle_publisher(
    worker: Worker, topic: MemoryTopic, any_fold: Callable[[], Fold], end: int
) -> None:
    assert worker.open(1000, end).unproven_before == EVERY_OFFSET
    worker.fold(registered_record(ONE))
    assert worker.table.fold.states.is_degraded(SCOPE)
    worker.flush()
    assert is_degraded(reader_of(topic, any_fold))
    worker.fold(registered_record(ONE))
    worker.flush()
    assert is_degraded(reader_of(topic, any_fold))
    worker.fold(unregistered_record(ONE), registered_record(ONE))
    worker.flush()
    assert not worker.table.fold.states.is_degraded(SCOPE)
    assert not is_degraded(reader_of(topic, any_fold))
    worker.table.close()


def test_the_next_owner_of_an_unproven_table_goes_on_not_knowing(
    worker: Worker, topic: MemoryTopic, any_fold: Callable[[], Fold], tmp_path: Path
) -> None:
    worker.open(1000, 1002)
    worker.fold(unregistered_record(TWO))
    worker.flush()
    worker.table.close()
    other = Worker(tmp_path / "second", topic, any_fold)
    assert other.open(1000, 1001).action is RecoveryAction.RESUME
    other.fold(registered_record(ONE), registered_record(TWO))
    assert degraded(other.table.fold) == {"a"}
    other.table.close()


def test_a_partition_without_records_says_so_and_that_it_proves_nothing(
    worker: Worker, topic: MemoryTopic, any_fold: Callable[[], Fold], tmp_path: Path
) -> None:
    worker.open(1000, 1000)
    worker.flush()
    worker.table.close()
    assert reader_of(topic, any_fold).covered(0) == 999
    other = Worker(tmp_path / "second", topic, any_fold)
    assert other.open(1000, 1000).action is RecoveryAction.RESUME
    other.fold(registered_record(ONE))
    assert degraded(other.table.fold) == {"a"}
    other.table.close()


def test_a_log_that_is_whole_again_proves_all(
    worker: Worker, topic: MemoryTopic, any_fold: Callable[[], Fold], tmp_path: Path
) -> None:
    worker.open(1000, 1000)
    worker.fold(registered_record(ONE))
    worker.flush()
    worker.table.close()
    topic.spoil()
    other = Worker(tmp_path / "second", topic, any_fold)
    assert other.open(0, 1).action is RecoveryAction.REBUILD
    other.fold(registered_record(ONE))
    other.flush()
    reader = reader_of(topic, any_fold)
    assert not is_degraded(reader)
    assert reader.unproven(0) == ALL_PROVEN
    other.table.close()


def test_a_record_that_nobody_foresaw_stops_no_worker_and_is_not_forgotten(
    topic: MemoryTopic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make_fold() -> Fold:
        return Fold(PoisonedKernel.around(open_kernel(1337, name="reference")))

    worker = Worker(tmp_path / "first", topic, make_fold)
    worker.open(0, 3)
    worker.fold(
        events_record(0, 0, [stored(0, [1], range(4))]),
        events_record(1, 1, [stored(1, [2], range(4), lora_name="poison")]),
        events_record(2, 2, [stored(2, [2], range(4, 8), parent=1)]),
    )
    assert worker.driver.faults == 1
    assert worker.driver.counters["records"] == 3
    (told,) = [record for record in caplog.records if "0:1 (internal_error)" in record.message]
    assert told.exc_info is not None
    assert worker.table.fold.offset == 2
    worker.flush()
    worker.table.close()
    assert is_degraded(reader_of(topic, make_fold))
    other = Worker(tmp_path / "second", topic, make_fold)
    other.open(0, 3)
    assert other.table.fold.states.is_degraded(SCOPE)
    other.table.close()


def test_an_error_nobody_foresaw_stops_no_recovery(tmp_path: Path) -> None:
    disk = Disk(tmp_path, lambda: Fold(PoisonedKernel.around(open_kernel(1337, name="reference"))))
    disk.write(events_record(0, 0, [stored(0, [1], range(4))]))
    disk.write(events_record(1, 1, [stored(1, [2], range(4), lora_name="poison")]))
    disk.reopen()
    assert disk.fold.offset == 1
    assert disk.fold.states.is_degraded(SCOPE)
    disk.reopen()
    assert disk.recovered.records == 0
    assert disk.fold.states.is_degraded(SCOPE)
    disk.close()


def test_what_waits_after_all_cannot_be_run_without_a_loop() -> None:
    with pytest.raises(AssertionError, match="it waits"):
        run_without_loop(asyncio.sleep(0))


# What is written


def test_what_is_written_is_counted_chunks_and_removals_included(
    topic: MemoryTopic, tmp_path: Path, make_fold: Callable[[], Fold]
) -> None:
    table = Table(tmp_path / "table", make_fold, topic.open(), generation_min_bytes=0)
    asyncio.run(table.open(LogBounds(0, 0), now=0.0))
    assert asyncio.run(table.flush(now=0.0)) == 0
    for offset, record in enumerate(history()[:2]):
        table.apply([LogEntry(Offset(offset), record)])
    written = asyncio.run(table.flush(now=0.0))
    assert written == table.written_rows == len(topic.rows) == 10
    assert table.written_bytes == sum(len(row.key) + len(row.value or b"") for row in topic.rows)
    assert table.generations == 1
    assert asyncio.run(table.flush(now=0.0)) == 0
    assert len(topic.rows) == 10
    table.apply([LogEntry(Offset(2), history()[2])])
    assert asyncio.run(table.flush(now=0.0)) == len(topic.rows) - 10 == table.written_rows - 10
    table.close()


def test_a_flush_opens_the_rows_again_only_after_one_that_failed(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopened = reopenings(monkeypatch)
    for record, is_full in zip(history(), [False, True, False, False], strict=False):
        disk.write(record)
        with monkeypatch.context() as patched:
            if is_full:
                patched.setattr(TableStore, "commit", fails)
                with pytest.raises(DiskError):
                    disk.flush()
        if not is_full:
            assert run_without_loop(disk.table.flush(now=0.0)) > 0
    assert len(reopened) == 1
    assert disk.table.flushed == 3
    disk.close()


def test_rows_are_synced_once(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(TableStore, "sync", lambda _: synced.append(disk.table.flushed))
    for record in history()[:2]:
        disk.write(record)
        disk.flush()
        disk.table.sync()
        disk.table.sync()
    assert (synced, disk.table.durable) == ([0, 1], 1)
    disk.close()


@pytest.mark.parametrize(("steps", "again"), [(1, 2), (6, 2), (7, 0)])
def test_what_a_flush_wrote_before_a_kill_does_not_count_and_is_removed(
    disk: Disk, steps: int, again: int
) -> None:
    first, second = history()[:2]
    disk.write(first)
    disk.flush()
    disk.write(second)
    with sliced(1):
        disk.write(events_record(1, 1, [stored(1, range(50, 54), range(16))]))
        for _ in range(steps):
            run_without_loop(disk.table.flush_some(now=0.0))
        disk.reopen()
        assert disk.recovered.records == again
        assert same(disk.fold, disk.truth())
        disk.flush()
    disk.reopen()
    assert disk.recovered.records == 0
    assert same(disk.fold, disk.truth())
    disk.close()


def test_a_disk_that_fails_in_a_step_of_a_flush_gets_all_of_it_again(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sliced(1):
        for record in history()[:3]:
            disk.write(record)
        run_without_loop(disk.table.flush_some(now=0.0))
        assert disk.table.is_flushing
        with monkeypatch.context() as patched:
            patched.setattr(TableStore, "write", fails)
            with pytest.raises(DiskError):
                run_without_loop(disk.table.flush_some(now=0.0))
        assert not disk.table.is_flushing
        disk.write(history()[3])
        disk.flush()
        assert disk.table.flushed == 3
        disk.reopen()
    assert disk.recovered.records == 0
    assert same(disk.fold, disk.truth())
    disk.close()


def test_a_generation_goes_on_though_records_come_between_the_steps_of_each_flush(
    disk: Disk,
) -> None:
    """Only where all that was folded is flushed may one begin, or become the current one."""
    driver = FoldDriver(disk.table, pace=FlushPace(flush_s=0.0))
    is_level = []
    with sliced(3):
        for number in range(60):
            hashes = [5 * number + at + 1 for at in range(5)]
            churn: list[BlockEvent] = [stored(number, hashes, range(20)), removed(number, hashes)]
            record = events_record(number, number, churn)
            run_without_loop(driver.fold([LogEntry(disk.log.append([record]), record)]))
            run_without_loop(driver.flush_if_due())
            is_level.append(not driver.has_unflushed)
    assert disk.table.generations > 1
    assert not all(is_level)
    disk.reopen()
    assert same(disk.fold, disk.truth())
    disk.close()


def test_who_had_the_table_last_may_go_on_with_it(
    worker: Worker, topic: MemoryTopic, disk: Disk
) -> None:
    worker.open(0, 0)
    assert asyncio.run(worker.table.take_again()) is True
    asyncio.run(topic.open().take())
    assert asyncio.run(worker.table.take_again()) is False
    assert asyncio.run(disk.table.take_again()) is True, "nobody else can have it"
    worker.table.close()
    disk.close()


def test_the_record_to_fold_next_is_the_first_that_the_log_has(worker: Worker) -> None:
    worker.open(1000, 1000)
    assert worker.table.next_offset == 1000
    worker.fold(registered_record(ONE))
    assert worker.table.next_offset == 1001
    worker.table.close()


# A table with a topic, from owner to owner


def owned(
    path: Path,
    topic: MemoryTopic,
    make_fold: Callable[[], Fold],
    end: int,
    *,
    generation_min_bytes: int = 0,
) -> tuple[Table, RecoveryPlan]:
    table = Table(path, make_fold, topic.open(), generation_min_bytes=generation_min_bytes)
    return table, asyncio.run(table.open(LogBounds(0, end), now=0.0))


def fold_on(table: Table, *records: bytes) -> None:
    for record in records:
        table.apply([LogEntry(Offset(table.next_offset), record)])
        asyncio.run(table.flush(now=0.0))


def live_rows(topic: MemoryTopic) -> dict[bytes, bytes]:
    found = {row.key: row.value for row in topic.rows}
    return {key: value for key, value in found.items() if value is not None}


def truth_of(make_fold: Callable[[], Fold], records: Iterable[bytes]) -> Fold:
    fold = make_fold()
    for offset, record in enumerate(records):
        fold.apply(Offset(offset), record)
    return fold


@pytest.mark.parametrize("least", [0, 1 << 20])
def test_each_owner_goes_on_where_the_one_before_it_was(
    topic: MemoryTopic, any_fold: Callable[[], Fold], tmp_path: Path, least: int
) -> None:
    records = [*history(), heartbeat_record("one", 7.0, [])]
    for end, record in enumerate(records):
        path = tmp_path / str(end % 2)
        table, _ = owned(path, topic, any_fold, end, generation_min_bytes=least)
        assert same(table.fold, truth_of(any_fold, records[:end]))
        fold_on(table, record)
        table.close()
    table, plan = owned(tmp_path / "last", topic, any_fold, len(records))
    assert plan == RecoveryPlan(RecoveryAction.RESUME, Offset(6), "the table covers 5")
    assert same(table.fold, truth_of(any_fold, records))
    assert list(table.fold.bridges) == ["one"]
    assert [row.key for row in topic.rows].count(rows.SEED_KEY) == 1
    table.close()


def test_a_table_that_is_taken_again_begins_anew_with_a_generation_that_failed(
    topic: MemoryTopic, any_fold: Callable[[], Fold], tmp_path: Path
) -> None:
    records = [
        events_record(0, 0, [stored(0, [1, 2, 3, 4], range(16))]),
        events_record(1, 1, [stored(1, [5], range(16, 20), parent=4)]),
    ]
    with sliced(1):
        place = topic.open()
        table = Table(tmp_path / "table", any_fold, place, generation_min_bytes=0)
        asyncio.run(table.open(LogBounds(0, 0), now=0.0))
        fold_on(table, records[0])
        asyncio.run(table.rewrite(8, now=0.0))
        assert table.can_rewrite, "in the middle of it"
        place.fails = "before"
        with pytest.raises(TableLostError):
            asyncio.run(table.rewrite(100, now=0.0))
        place.fails = ""
        assert asyncio.run(table.take_again())
        fold_on(table, records[1])
        while table.can_rewrite:
            asyncio.run(table.rewrite(1, now=0.0))
        assert table.generations == 1
        table.close()
    reader = reader_of(topic, any_fold)
    assert same(reader, truth_of(any_fold, records))
    assert not reader.take_skipped()


@pytest.mark.parametrize("with_topic", [True, False])
@pytest.mark.parametrize("is_written", [True, False])
def test_a_disk_that_fails_as_a_generation_becomes_the_current_one(
    topic: MemoryTopic,
    any_fold: Callable[[], Fold],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_written: bool,
    with_topic: bool,
) -> None:
    """The topic has its mark, and this disk may have it: no row may belong to the one before."""
    records = [
        events_record(0, 0, [stored(0, [1, 2, 3, 4], range(16)), removed(0, [2, 3, 4])]),
        events_record(1, 1, [stored(1, range(5, 105), range(400))]),
        events_record(2, 2, [stored(2, [105], range(400, 404), parent=104)]),
    ]
    place = topic.open() if with_topic else None
    table = Table(tmp_path / "table", any_fold, place, generation_min_bytes=0)
    asyncio.run(table.open(LogBounds(0, 0), now=0.0))
    commit = TableStore.commit

    def fail(
        store: TableStore, written: Iterable[RowWrite], local: LocalCopy | None = None
    ) -> None:
        written = list(written)
        is_mark = any(row.key[:1] == rows.MARK for row in written)
        if is_written or not is_mark:
            commit(store, written, local)
        if is_mark:
            raise DiskError(action="write", path="table", detail="full")

    with monkeypatch.context() as patch:
        patch.setattr(TableStore, "commit", fail)
        with pytest.raises(DiskError, match="full"):
            fold_on(table, records[0])
        table.apply([LogEntry(Offset(1), records[1])])
        with pytest.raises(DiskError, match="full"):
            asyncio.run(table.flush(now=0.0))
    assert not table.can_rewrite, "a flush has to reopen the disk's rows"
    asyncio.run(table.flush(now=0.0))
    fold_on(table, records[2])
    assert table.generations == 1, "the next flush made it the current one"
    table.close()
    if with_topic:
        reader = reader_of(topic, any_fold)
        assert same(reader, truth_of(any_fold, records))
        assert not reader.take_skipped()
    again = Table(tmp_path / "table", any_fold, topic.open() if with_topic else None)
    asyncio.run(again.open(LogBounds(0, 3), now=0.0))
    assert same(again.fold, truth_of(any_fold, records))
    again.close()


def test_a_flush_of_nothing_finishes_a_generation_that_failed_and_what_failed_after_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = TableStore.commit
    full: set[str] = {"mark"}

    def fail(
        store: TableStore, written: Iterable[RowWrite], local: LocalCopy | None = None
    ) -> None:
        written = list(written)
        if {"mark" if any(row.key[:1] == rows.MARK for row in written) else "flush"} & full:
            fails()
        commit(store, written, local)

    monkeypatch.setattr(TableStore, "commit", fail)
    disk.write(events_record(0, 0, [stored(0, [1], range(4))]))
    with pytest.raises(DiskError):
        disk.flush()
    full = {"flush"}
    with pytest.raises(DiskError):
        disk.flush()
    assert disk.table.generations == 1
    full = set()
    assert run_without_loop(disk.table.flush(now=0.0)) > 0
    disk.write(history()[0])
    disk.flush()
    assert disk.table.flushed == 1
    disk.close()


def begin_a_generation(disk: Disk) -> None:
    """In the middle of it: chunks of one entry are made in steps of one entry."""
    disk.write(events_record(0, 0, [stored(0, [1, 2, 3, 4], range(16))]))
    disk.flush()
    assert disk.table.can_rewrite


def finish_the_generation(disk: Disk) -> None:
    while disk.table.can_rewrite:
        run_without_loop(disk.table.rewrite(1, now=0.0))


def test_a_generation_made_in_steps_is_on_this_disk_too(each_disk: Disk) -> None:
    with sliced(1):
        begin_a_generation(each_disk)
        finish_the_generation(each_disk)
    assert each_disk.table.generations == 1
    each_disk.reopen()
    assert each_disk.recovered.plan.action is RecoveryAction.RESUME
    assert same(each_disk.fold, each_disk.truth())
    each_disk.close()


def test_no_generation_becomes_the_current_one_before_what_was_folded_is_flushed(
    disk: Disk,
) -> None:
    with sliced(1):
        begin_a_generation(disk)
        disk.write(events_record(1, 1, [stored(1, [5, 6], range(16, 24), parent=4)]))
        disk.flush()
        disk.write(events_record(2, 2, [stored(2, [7], range(24, 28), parent=6)]))
        run_without_loop(disk.table.rewrite(100, now=0.0))
        assert disk.table.generations == 0
        disk.flush()
        finish_the_generation(disk)
    assert disk.table.generations == 1
    disk.close()


@pytest.mark.parametrize("failing", ["commit", "write"])
def test_a_disk_that_fails_is_opened_again_before_a_generation_goes_on(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    reopened = reopenings(monkeypatch)
    with sliced(1):
        begin_a_generation(disk)
        disk.write(events_record(1, 1, [stored(1, [5], range(16, 20), parent=4)]))
        with monkeypatch.context() as patched:
            patched.setattr(TableStore, failing, fails)
            table = disk.table
            going_on = table.flush(now=0.0) if failing == "commit" else table.rewrite(100, now=0.0)
            with pytest.raises(DiskError):
                run_without_loop(going_on)
        assert not disk.table.can_rewrite
        disk.flush()
        finish_the_generation(disk)
    assert len(reopened) == 1
    assert disk.table.generations == 1
    disk.close()


def test_rows_after_a_new_generation_belong_to_it(
    topic: MemoryTopic, any_fold: Callable[[], Fold], tmp_path: Path
) -> None:
    records = [
        events_record(0, 0, [stored(0, [1], range(4))]),
        events_record(1, 1, [stored(1, range(2, 22), range(4, 84), parent=1)]),
    ]
    table, _ = owned(tmp_path / "first", topic, any_fold, 0)
    fold_on(table, *records)
    assert table.generations == 1, "of the first alone"
    table.close()
    table, _ = owned(tmp_path / "second", topic, any_fold, 2)
    assert same(table.fold, truth_of(any_fold, records))
    table.close()


def test_an_owner_that_lost_the_table_writes_no_more(
    topic: MemoryTopic, any_fold: Callable[[], Fold], tmp_path: Path
) -> None:
    first, _ = owned(tmp_path / "first", topic, any_fold, 0)
    second, _ = owned(tmp_path / "second", topic, any_fold, 0)
    with pytest.raises(TableLostError):
        fold_on(first, history()[0])
    fold_on(second, history()[0])
    first.close()
    second.close()


def test_a_topic_that_was_lost_gets_this_disks_rows_under_another_name(
    topic: MemoryTopic, any_fold: Callable[[], Fold], tmp_path: Path
) -> None:
    table, _ = owned(tmp_path / "table", topic, any_fold, 0)
    fold_on(table, *history())
    before = live_rows(topic)
    table.close()
    topic.lose()
    table, plan = owned(tmp_path / "table", topic, any_fold, 5)
    assert (plan.action, plan.start) == (RecoveryAction.PUBLISH, 5)
    names = [
        rows.decode_row(rows.COVERED_KEY, found[rows.COVERED_KEY]).body
        for found in (before, live_rows(topic))
    ]
    assert names[0] != names[1]
    reader = reader_of(topic, any_fold)
    assert reader.covered(0) == 4
    assert reader.kernel.contexts() == truth_of(any_fold, history()).kernel.contexts()
    assert live_rows(topic).keys() == before.keys()
    table.close()


@pytest.mark.parametrize("batches", [1, 2])
def test_a_copy_that_was_read_on_in_part_is_not_published_for_a_topic_that_was_lost(
    topic: MemoryTopic, any_fold: Callable[[], Fold], tmp_path: Path, batches: int
) -> None:
    later = [
        heartbeat_record("one", 7.0, [PublisherReport(ONE.publisher.stream, 0, "", 7.0)]),
        heartbeat_record("one", 8.0, [PublisherReport(ONE.publisher.stream, 0, "", 8.0)]),
    ]
    records = [*history(), *later]
    first, _ = owned(tmp_path / "first", topic, any_fold, 0)
    fold_on(first, *history())
    first.close()
    second, _ = owned(tmp_path / "second", topic, any_fold, 5)
    fold_on(second, *later)
    second.close()
    with kills() as kill:
        kill.left = 1 + 2 * batches  # behind `take` and so many commits
        with pytest.raises(Killed):
            owned(tmp_path / "first", topic, any_fold, 7)
    gc.collect()  # the dead one's lock
    topic.lose()
    first, plan = owned(tmp_path / "first", topic, any_fold, 7)
    fold_on(first, *records[first.next_offset :])
    assert same(first.fold, truth_of(any_fold, records))
    assert "had read it on in part" in plan.reason
    first.close()


def test_a_copy_that_is_corrupt_is_read_anew_from_the_topic(
    topic: MemoryTopic, any_fold: Callable[[], Fold], tmp_path: Path
) -> None:
    table, _ = owned(tmp_path / "table", topic, any_fold, 0)
    fold_on(table, *history())
    (context,) = [view.context for view in table.fold.kernel.contexts()]
    table.close()
    store = TableStore(tmp_path / "table")
    held = Change(1, 1, 0, 0, Op.SET, 1).encode()
    for n, body in enumerate((held, b"no change")):
        key = rows.row_key(rows.RowPlace(context._replace(instance_id="b"), 0, n))
        store.commit([RowWrite(key, rows.encode_row(RowKind.DELTA, 0, body))])
    store.close()
    table, plan = owned(tmp_path / "table", topic, any_fold, 5)
    assert plan.action is RecoveryAction.RESUME
    assert "its changes do not load" in plan.reason
    assert "the table topic has" not in plan.reason
    assert same(table.fold, truth_of(any_fold, history()))
    table.close()


def test_a_topic_that_is_corrupt_is_written_anew_and_all_its_rows_removed(
    topic: MemoryTopic, any_fold: Callable[[], Fold], tmp_path: Path
) -> None:
    table, _ = owned(tmp_path / "table", topic, any_fold, 0)
    fold_on(table, *history())
    name = rows.decode_row(rows.COVERED_KEY, live_rows(topic)[rows.COVERED_KEY]).body
    table.close()
    strange = rows.publisher_key(rows.PUBLISHER, TWO.publisher)
    topic.rows.insert(0, topic.rows[0]._replace(key=strange, value=b"?"))
    table, plan = owned(tmp_path / "other", topic, any_fold, 5)
    assert plan.action is RecoveryAction.REBUILD
    assert "the table topic has: " in plan.reason
    fold_on(table, history()[0])
    assert live_rows(topic).keys() == {
        rows.publisher_key(rows.REGISTRATION, ONE.publisher),
        rows.SEED_KEY,
        rows.COVERED_KEY,
    }
    assert rows.decode_row(rows.COVERED_KEY, live_rows(topic)[rows.COVERED_KEY]).body != name
    table.close()


# Opening


def test_a_table_that_was_not_opened_yet_covers_nothing(
    tmp_path: Path, any_fold: Callable[[], Fold]
) -> None:
    table = Table(tmp_path / "table", any_fold)
    assert (table.flushed, table.durable, table.next_offset) == (-1, -1, 0)
    assert not table.can_rewrite
    table.close()


def test_opening_again_begins_from_the_rows(disk: Disk) -> None:
    disk.write(history()[0])
    disk.flush()
    disk.write(history()[1])
    run_without_loop(disk.table.open(disk.log.bounds, now=0.0))
    assert (disk.fold.offset, disk.table.flushed) == (0, 0)
    assert disk.fold.kernel.contexts() == []
    disk.close()


def test_rows_that_could_not_be_opened_again_are_opened_by_the_next_try(disk: Disk) -> None:
    disk.write(history()[0])
    disk.flush()
    disk.table._store._db.close()
    disk.table.reopen()
    assert (
        run_without_loop(disk.table.open(disk.log.bounds, now=0.0)).action is RecoveryAction.RESUME
    )
    disk.close()


def test_a_table_of_a_newer_version_is_not_opened_nor_held(
    tmp_path: Path, any_fold: Callable[[], Fold]
) -> None:
    store = TableStore(tmp_path / "table")
    value = rows.encode_row(RowKind.DELTA, 0, b"")
    store.commit([RowWrite(rows.COVERED_KEY, b"\x09" + value[1:])])
    store.close()
    with pytest.raises(RowVersionError) as refused:
        Table(tmp_path / "table", any_fold)
    TableStore(tmp_path / "table").close()
    assert refused.value.__traceback__ is not None


@pytest.mark.parametrize("alone", [True, False])
def test_a_table_with_a_topic_has_a_least_of_its_own_for_a_generation(
    tmp_path: Path,
    topic: MemoryTopic,
    any_fold: Callable[[], Fold],
    monkeypatch: pytest.MonkeyPatch,
    alone: bool,
) -> None:
    monkeypatch.setattr(tables, "STORE_GENERATION_MIN_BYTES", 0)
    table = Table(tmp_path / "table", any_fold, None if alone else topic.open())
    asyncio.run(table.open(LogBounds(0, 0), now=0.0))
    fold_on(table, *history())
    assert bool(table.generations) is alone
    table.close()
