"""What a recorder does where it cannot write, and after."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from logs.embedded import EmbeddedLog
from logs.interface import LogEntry
from schemas.errors import DiskError
from schemas.identities import Offset
from storage.rocksdb import WriteBatch, new_batch
from streams.bounds import HISTORY_RETRY_S
from streams.history.past_fold import Past
from streams.history.recorder import HISTORY_SYNC_S, HistoryRecorder
from streams.history.store import HistoryStore
from streams.kernel import open_kernel
from streams.table.driver import recover
from streams.table.fold import Fold
from streams.table.table import Table
from streams.table.threads import run_without_loop
from tests.building import events_record, registered_record, registration, stored
from tests.processes import until

FULL = DiskError(action="write the history", path="history", detail="No space left on device")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.1
        return self.now


def make_fold() -> Fold:
    return Fold(open_kernel(1337, name="reference"))


class Recorded:
    """A table with a history, fed record by record, each with a flush."""

    def __init__(self, path: Path, log: EmbeddedLog, clock: Callable[[], float]) -> None:
        self.log = log
        self.store = HistoryStore(path / "history")
        self.recorder = HistoryRecorder(self.store, seed=1337, clock=clock)
        self.table = Table(path / "table", make_fold, log=log, history=self.recorder)
        recover(self.table, log)
        self.fold(registered_record(registration("a")))

    def fold(self, record: bytes) -> int:
        offset = self.log.append([record])
        self.table.apply([LogEntry(offset, record)])
        run_without_loop(self.table.flush(now=0.0))
        return offset

    def batch(self, number: int) -> int:
        tokens = list(range(4 * number, 4 * number + 4))
        return self.fold(events_record(number, number, [stored(number, [number + 1], tokens)]))

    def entries_at(self, offset: int) -> int:
        past = Past(self.store, lambda: self.log, lambda: make_fold().kernel)
        fold = past.fold_as_of(Offset(offset), lambda stream: True)
        return sum(view.entries for view in fold.kernel.contexts())

    def close(self) -> None:
        self.table.close()
        self.store.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_recorded(tmp_path: Path, log: EmbeddedLog, clock: Clock) -> Callable[[], Recorded]:
    return lambda: Recorded(tmp_path, log, clock)


def test_a_full_disk_costs_the_table_nothing_and_is_told_once(
    make_recorded: Callable[[], Recorded],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="streams.history")
    recorded = make_recorded()
    recorded.batch(0)

    def fails(store: HistoryStore, batch: WriteBatch) -> None:
        raise FULL

    with monkeypatch.context() as patched:
        patched.setattr(HistoryStore, "write", fails)
        offsets = [recorded.batch(number) for number in range(1, 30)]
    assert "No space left" in recorded.recorder.problem
    told = [line for line in caplog.messages if "no longer recorded" in line]
    assert len(told) == 1
    assert recorded.table.flushed == offsets[-1]
    clock.now += HISTORY_RETRY_S
    last = recorded.batch(30)
    assert recorded.recorder.problem == ""
    assert caplog.messages[-1] == "The past is recorded again"
    # What was not recorded is folded from the log.
    assert [recorded.entries_at(offset) for offset in (offsets[0], offsets[-1], last)] == [
        2,
        30,
        31,
    ]
    recorded.close()


def test_without_its_log_a_flush_can_still_be_asked_and_what_is_between_cannot(
    make_recorded: Callable[[], Recorded],
) -> None:
    recorded = make_recorded()
    offsets = [recorded.batch(number) for number in range(10)]
    recorded.table.sync()
    runs = recorded.store.runs()
    assert [run.run.number for run in runs] == [1]
    assert list(recorded.store.flushes(runs[0].run, 0))[-1] == offsets[-1]
    recorded.close()


def test_what_a_kill_costs_is_copied_from_the_table_and_is_of_a_while_at_most(
    tmp_path: Path, make_recorded: Callable[[], Recorded], clock: Clock
) -> None:
    recorded = make_recorded()
    offsets = [recorded.batch(number) for number in range(3)]
    clock.now += HISTORY_SYNC_S
    offsets.append(recorded.batch(3))

    def is_written() -> bool:
        """A kill now would leave it: its file is there, and RocksDB's list of files has it."""
        shutil.rmtree(tmp_path / "killed", ignore_errors=True)
        shutil.copytree(tmp_path / "history", tmp_path / "killed")
        left = HistoryStore(tmp_path / "killed")
        lasts = [run.last for run in left.runs()]
        left.close()
        return lasts == offsets[3:4]

    until(is_written, what="another thread to have written it")
    offsets += [recorded.batch(number) for number in range(4, 8)]
    assert is_written()
    recorded.close()
    shutil.rmtree(tmp_path / "history")
    (tmp_path / "killed").rename(tmp_path / "history")
    again = make_recorded()
    (run,) = again.store.runs()
    assert run.run.number == 1, "the same one goes on"
    assert run.last > offsets[-1]
    assert [again.entries_at(offset) for offset in offsets] == list(range(1, 9))
    again.close()


def test_a_table_that_lost_its_rows_begins_another_run(
    tmp_path: Path, make_recorded: Callable[[], Recorded]
) -> None:
    recorded = make_recorded()
    recorded.batch(0)
    recorded.close()
    (tmp_path / "table").rename(tmp_path / "lost")
    again = make_recorded()
    assert [run.run.number for run in again.store.runs()] == [1, 2]
    assert again.entries_at(1) == 1
    again.close()


def log_without_its_beginning(path: Path) -> EmbeddedLog:
    """Of a table that is lost, and of whose three batches the log still has the last one."""
    log = EmbeddedLog(path / "log", segment_bytes=1)
    first = Recorded(path, log, lambda: 0.0)
    for number in range(3):
        first.batch(number)
    first.table.sync()
    first.close()
    (path / "table").rename(path / "lost")
    log.retain(bytes_max=0, age_max_s=0.0, now=1.0, floor=Offset(3), exempt=[0])
    return log


def assert_past_is_of_what_is_left(path: Path, log: EmbeddedLog) -> None:
    again = Recorded(path, log, lambda: 0.0)
    last = again.batch(3)
    assert sum(view.entries for view in again.table.fold.kernel.contexts()) == 2
    assert again.entries_at(last) == 2
    again.close()
    log.close()


def test_a_table_built_anew_is_asked_from_its_first_flush_on(tmp_path: Path) -> None:
    """The flush of another table before it would say what this one does not know any more."""
    log = log_without_its_beginning(tmp_path)
    assert_past_is_of_what_is_left(tmp_path, log)


def test_a_table_killed_while_it_was_built_anew_does_not_go_on_as_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_without_its_beginning(tmp_path)
    with monkeypatch.context() as killed:  # its table has rows, its history no flush of them
        killed.setattr(HistoryRecorder, "_write_flush", lambda recorder: None)
        Recorded(tmp_path, log, lambda: 0.0).close()
    assert_past_is_of_what_is_left(tmp_path, log)


def test_tables_that_were_built_anew_at_one_position_are_all_asked(tmp_path: Path) -> None:
    """An answer of the first of three was held against the other two, and called wrong."""
    log = log_without_its_beginning(tmp_path)
    position = log.end_offset - 1
    for number in range(2):
        store = HistoryStore(tmp_path / "history")
        recorder = HistoryRecorder(store, seed=1337, clock=lambda: 0.0)
        table = Table(tmp_path / "table", make_fold, log=log, history=recorder)
        recover(table, log)
        past = Past(store, lambda: log, lambda: make_fold().kernel)
        earlier = past.flushes_before_again(position)
        assert [one.run and one.run.number for one in earlier] == list(range(number + 1, 0, -1))
        assert not past.was_built_anew_at(position), "the first one is kept, too"
        table.close()
        (tmp_path / "table").rename(tmp_path / f"lost-{number}")
        if number:
            store.drop_before(position + 1)
            assert past.flushes_before_again(position) == []
            assert past.was_built_anew_at(position), "the others are kept no more"
        store.close()
    log.close()


def test_what_is_copied_of_the_table_of_a_whole_log_was_not_built_anew(
    tmp_path: Path, make_recorded: Callable[[], Recorded]
) -> None:
    """Else a wrong answer of the position where it was copied would be called beyond proof."""
    recorded = make_recorded()
    last = recorded.batch(0)
    recorded.close()
    (tmp_path / "history").rename(tmp_path / "lost")
    again = make_recorded()
    (run,) = again.store.runs()
    assert run.first <= last
    assert not any(run.was_built_anew_at(position) for position in range(last + 2))
    assert again.entries_at(last) == 1
    again.close()


def test_the_past_of_a_log_that_was_replaced_is_dropped(
    tmp_path: Path, make_recorded: Callable[[], Recorded], clock: Clock
) -> None:
    recorded = make_recorded()
    for number in range(5):
        recorded.batch(number)
    recorded.close()
    (tmp_path / "table").rename(tmp_path / "lost")
    other = EmbeddedLog(tmp_path / "other")
    again = Recorded(tmp_path, other, clock)
    assert [run.first for run in again.store.runs()] == [0]
    last = again.batch(7)
    assert again.entries_at(last) == 1
    again.close()
    other.close()


def test_a_store_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    store = HistoryStore(tmp_path / "history")
    batch = new_batch()
    batch.put(b"f", (2).to_bytes(4, "little"))
    store.write(batch)
    store.close()
    with pytest.raises(
        Exception, match=r"a history of version `1` or older, got `2` at .*/history"
    ):
        HistoryStore(tmp_path / "history")
