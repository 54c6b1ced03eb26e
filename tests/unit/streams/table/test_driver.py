import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logs.interface import LogEntry
from schemas.errors import DiskError, StorageError
from schemas.identities import Offset
from schemas.positions import LogBounds
from streams.table.driver import FlushPace, FoldDriver
from streams.table.fold import DUPLICATE, Fold
from streams.table.store import TableStore
from streams.table.table import Table
from streams.table.threads import run_without_loop
from tests.building import events_record, stored
from tests.slices import sliced


class Clock:
    """Turned by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def table(tmp_path: Path, any_fold: Callable[[], Fold]) -> Iterator[Table]:
    table = Table(tmp_path / "table", any_fold)
    run_without_loop(table.open(LogBounds(0, 0), now=0.0))
    yield table
    table.close()


def entry(number: int) -> LogEntry:
    batch = [stored(number, [number + 1], range(4 * number, 4 * number + 4))]
    return LogEntry(Offset(number), events_record(number, number, batch))


def test_a_flush_is_due_once_its_time_has_passed(table: Table) -> None:
    clock = Clock()
    driver = FoldDriver(table, pace=FlushPace(flush_s=5.0), clock=clock)
    run_without_loop(driver.fold([entry(0)]))
    clock.now = 4.0
    run_without_loop(driver.flush_if_due())
    assert (driver.has_unflushed, driver.flush_in()) == (True, 1.0)
    clock.now = 5.0
    run_without_loop(driver.flush_if_due())
    assert (driver.has_unflushed, driver.flush_in()) == (False, 5.0)
    assert table.flushed == 0


def test_a_flush_is_due_at_once_where_many_changes_wait(table: Table) -> None:
    driver = FoldDriver(table, pace=FlushPace(changes_max=3))
    run_without_loop(driver.fold([entry(0), entry(1)]))
    assert table.flushed == -1
    run_without_loop(driver.fold([entry(2), entry(3)]))
    assert table.flushed == 2


def test_a_flush_is_due_at_once_where_changes_of_many_contexts_wait(table: Table) -> None:
    def adapter(offset: int, *names: str) -> LogEntry:
        events = [
            stored(offset, [offset * 4 + at + 1], range(4), lora_name=name)
            for at, name in enumerate(names)
        ]
        return LogEntry(Offset(offset), events_record(offset, offset, events))

    driver = FoldDriver(table, pace=FlushPace(contexts_max=3))
    run_without_loop(driver.fold([adapter(0, "a", "b"), adapter(1, "b", "a")]))
    assert table.flushed == -1
    run_without_loop(driver.fold([adapter(2, "c")]))
    assert table.flushed == 2


def test_a_flush_that_is_due_is_made_in_steps_beside_what_is_folded(table: Table) -> None:
    clock = Clock()
    driver = FoldDriver(table, pace=FlushPace(flush_s=5.0, changes_max=3, sync_s=1.0), clock=clock)
    clock.now = 1.0
    with sliced(1):
        run_without_loop(driver.fold(map(entry, range(3))))
        assert (table.is_flushing, driver.flush_in()) == (True, 0.0)
        run_without_loop(driver.fold([entry(3)]))
        run_without_loop(driver.flush_if_due())
        run_without_loop(driver.flush_if_due())
        assert (table.flushed, table.durable) == (-1, -1)
        run_without_loop(driver.flush_if_due())
        assert (table.is_flushing, table.flushed, table.durable) == (False, 2, 2)
        assert driver.flush_in() == 5.0, "since it was begun"


def test_where_nobody_goes_on_with_a_flush_folding_does(table: Table) -> None:
    driver = FoldDriver(table, pace=FlushPace(changes_max=3))
    with sliced(1):
        run_without_loop(driver.fold(map(entry, range(5))))
        assert (table.flushed, table.is_flushing, table.pending_changes) == (-1, True, 2)
        for number, (flushed, pending) in enumerate([(-1, 3), (-1, 4), (2, 5), (2, 0)], 5):
            run_without_loop(driver.fold([entry(number)]))
            assert (table.flushed, table.pending_changes) == (flushed, pending)


def test_changes_do_not_gather_faster_than_a_flush_is_made(table: Table) -> None:
    driver = FoldDriver(table, pace=FlushPace(changes_max=3))
    with sliced(1):
        run_without_loop(driver.fold(map(entry, range(3))))
        assert table.is_flushing
        wide = [stored(3, range(100, 106), range(24))]
        run_without_loop(driver.fold([LogEntry(Offset(3), events_record(3, 3, wide))]))
    assert (table.flushed, table.is_flushing, table.pending_changes) == (3, False, 0)


def test_folding_in_threads_flushes_and_counts_as_folding_here_does(table: Table) -> None:
    driver = FoldDriver(table, pace=FlushPace(changes_max=3))
    repeated = entry(1)._replace(offset=Offset(2))
    later = [entry(number)._replace(offset=Offset(number + 1)) for number in range(2, 5)]
    asyncio.run(driver.fold_in_thread([entry(0), entry(1), repeated, *later]))
    assert driver.counters == {"records": 6, f"skipped_{DUPLICATE}": 1}
    assert (table.flushed, table.fold.offset, driver.has_unflushed) == (3, 5, True)


def test_a_flush_is_made_durable_once_the_sync_time_has_passed(table: Table) -> None:
    clock = Clock()
    driver = FoldDriver(table, pace=FlushPace(sync_s=10.0), clock=clock)
    durable = []
    for number, now in enumerate((0.0, 9.0, 10.0, 19.0, 20.0)):
        clock.now = now
        run_without_loop(driver.fold([entry(number)]))
        run_without_loop(driver.flush())
        durable.append(table.durable)
    assert durable == [-1, -1, 2, 2, 4]


def test_while_flushes_fail_only_time_makes_one_due_and_folding_goes_on(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    told: list[StorageError | None] = []
    driver = FoldDriver(
        table, pace=FlushPace(flush_s=5.0, changes_max=1), clock=clock, on_flush=told.append
    )
    with monkeypatch.context() as patch:
        patch.setattr(TableStore, "commit", fails)
        run_without_loop(driver.fold(map(entry, range(4))))
        assert [type(one) for one in told] == [DiskError]
    assert table.fold.offset == 3
    clock.now = 5.0
    run_without_loop(driver.flush_if_due())
    assert (told[1:], table.flushed) == ([None], 0), "what failed is written first"
    run_without_loop(driver.flush())
    assert table.flushed == 3
    run_without_loop(driver.fold([entry(4)]))
    assert table.flushed == 4, "flushes no longer fail"


def fails(*_: object) -> None:
    raise DiskError(action="write", path="table", detail="full")


def test_without_anybody_to_tell_the_error_of_a_flush_is_raised(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableStore, "commit", fails)
    driver = FoldDriver(table, pace=FlushPace(changes_max=1))
    with pytest.raises(DiskError):
        run_without_loop(driver.fold([entry(0)]))


def test_what_is_skipped_is_counted_and_named_with_its_place(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    driver = FoldDriver(table, place=7)
    asyncio.run(
        driver.fold([entry(0), entry(0)._replace(offset=Offset(1)), LogEntry(Offset(2), b"")])
    )
    assert driver.counters == {
        "records": 3,
        f"skipped_{DUPLICATE}": 1,
        "skipped_malformed_record": 1,
    }
    assert ["7:1 " in caplog.messages[0], "7:2 " in caplog.messages[1]] == [True, True]
    assert driver.faults == 0
