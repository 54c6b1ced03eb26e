from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from schemas.errors import RowVersionError
from schemas.identities import Offset
from streams.kernel import open_kernel
from streams.log.embedded import EmbeddedLog
from streams.table import rows
from streams.table.fold import Fold
from streams.table.recovery import Action, fresh_fold, plan_recovery, recover
from streams.table.store import TableStore
from tests.building import (
    events_record,
    gap_record,
    registered_record,
    registration,
    removed,
    stored,
)


@pytest.mark.parametrize(
    ("covered", "same_seed", "complete_from", "end", "action", "start"),
    [
        (None, True, 0, 0, Action.REBUILD, 0),
        (None, True, 5, 9, Action.REBUILD, 0),
        (8, True, 0, 9, Action.RESUME, 9),
        (3, True, 0, 9, Action.RESUME, 4),
        (3, True, 4, 9, Action.RESUME, 4),
        (3, True, 5, 9, Action.REBUILD, 0),
        (3, False, 0, 9, Action.REBUILD, 0),
        (9, True, 0, 9, Action.ADOPT, 10),
        (-1, True, 0, 0, Action.RESUME, 0),
    ],
)
def test_the_decision_follows_from_the_offsets(
    covered: int | None, same_seed: bool, complete_from: int, end: int, action: Action, start: int
) -> None:
    plan = plan_recovery(
        covered=None if covered is None else Offset(covered),
        same_seed=same_seed,
        log_complete_from=Offset(complete_from),
        log_end=Offset(end),
    )
    assert (plan.action, plan.start) == (action, start)


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
        self.store = TableStore(self.path / "table", generation_min_bytes=0)
        self.recovered = recover(self.store, self.log, self.make_fold)
        self.fold = self.recovered.fold

    def close(self) -> None:
        self.log.close()
        self.store.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    def write(self, record: bytes) -> None:
        self.fold.apply(self.log.append([record]), record)

    def flush(self) -> None:
        self.store.flush(self.fold, self.fold.take_changes())

    def truth(self) -> Fold:
        fold = self.make_fold()
        fresh_fold(fold, self.log)
        return fold


@pytest.fixture
def disk(tmp_path: Path, make_fold: Callable[[], Fold]) -> Disk:
    return Disk(tmp_path, make_fold)


def same(one: Fold, other: Fold) -> bool:
    return (
        one.kernel.contexts() == other.kernel.contexts()
        and one.publishers == other.publishers
        and {k: v.registration for k, v in one.registrations.items()}
        == {k: v.registration for k, v in other.registrations.items()}
    )


@pytest.mark.parametrize("flush_after", range(6))
def test_a_table_cut_anywhere_recovers_to_a_fresh_fold(disk: Disk, flush_after: int) -> None:
    for count, record in enumerate(history(), 1):
        disk.write(record)
        if count == flush_after:
            disk.flush()
    disk.reopen()
    assert disk.recovered.plan.action is (Action.RESUME if flush_after else Action.REBUILD)
    assert disk.recovered.records == len(history()) - flush_after
    assert same(disk.fold, disk.truth())
    assert disk.fold.publishers[registration("a").publisher].degraded_since == 2


def test_a_lost_table_is_built_again_from_the_log(disk: Disk) -> None:
    for record in history():
        disk.write(record)
        disk.flush()
    before = disk.fold
    disk.close()
    for file in (disk.path / "table").iterdir():
        file.unlink()
    disk.open()
    assert disk.recovered.plan.action is Action.REBUILD
    assert same(disk.fold, before)
    disk.close()


def test_a_lost_log_leaves_the_table_and_goes_on_behind_it(disk: Disk) -> None:
    for record in history():
        disk.write(record)
    disk.flush()
    before = disk.fold
    disk.close()
    for file in (disk.path / "log").iterdir():
        file.unlink()
    disk.open()
    assert disk.recovered.plan.action is Action.ADOPT
    assert same(disk.fold, before)
    disk.write(events_record(5, 5, [stored(5, [9], range(4, 8), parent=1)]))
    assert disk.fold.offset == 5
    disk.reopen()
    action: Action = disk.recovered.plan.action
    assert action is Action.RESUME
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
    disk.store.set_aside()
    disk.reopen()
    publisher = registration("a").publisher
    assert publisher in disk.fold.registrations
    assert disk.fold.publishers[publisher].degraded_since == 0
    disk.close()


def test_another_seed_rebuilds_the_table(disk: Disk, kernel_name: str) -> None:
    for record in history():
        disk.write(record)
    disk.flush()
    disk.close()
    disk.make_fold = lambda: Fold(open_kernel(7, name=kernel_name))
    disk.open()
    assert disk.recovered.plan.action is Action.REBUILD
    assert same(disk.fold, disk.truth())
    disk.close()


def context_keys(database: Rdict) -> list[bytes]:
    keys = [key for key, _ in database.items()]
    return [key for key in keys if isinstance(key, bytes) and key[:1] == rows.CONTEXT]


def corrupt(disk: Disk, prefix: bytes, change: Callable[[bytes], bytes]) -> None:
    """Changes the first row under the prefix behind the store's back."""
    disk.close()
    database = Rdict(str(disk.path / "table"), Options(raw_mode=True))
    cursor = database.iter()
    cursor.seek(prefix)
    key, value = cursor.key(), cursor.value()
    assert key[:1] == prefix[:1]
    del cursor
    database.put(key, change(value))
    database.close()


@pytest.mark.parametrize("prefix", [rows.CONTEXT, rows.PUBLISHER, rows.REGISTRATION, rows.FACT])
def test_a_corrupt_row_sets_the_table_aside_and_rebuilds_it(disk: Disk, prefix: bytes) -> None:
    for record in history():
        disk.write(record)
        disk.flush()
    corrupt(disk, prefix, lambda value: value[:-1] + bytes([value[-1] ^ 1]))
    disk.open()
    assert disk.recovered.plan.action is Action.REBUILD
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
    assert disk.store.flushed_rows == 0
    disk.close()


def test_churn_begins_new_generations_and_drops_the_old_rows(disk: Disk) -> None:
    for sequence in range(200):
        event = stored(sequence, [1], range(4)) if sequence % 2 == 0 else removed(sequence, [1])
        disk.write(events_record(sequence, sequence, [event]))
        disk.flush()
    assert disk.store.generations > 10
    disk.close()
    database = Rdict(str(disk.path / "table"), Options(raw_mode=True))
    kept = context_keys(database)
    database.close()
    assert len(kept) < 20
    disk.open()
    assert same(disk.fold, disk.truth())
    disk.close()


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
