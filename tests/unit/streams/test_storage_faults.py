"""Damage below the rows: bytes of RocksDB's own files changed behind its back."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from logs.embedded import EmbeddedLog
from logs.interface import LogEntry
from schemas.errors import DiskError
from schemas.identities import Offset
from schemas.positions import LogBounds
from streams.table.driver import recover
from streams.table.fold import Fold
from streams.table.recovery import RecoveryAction
from streams.table.store import TableStore
from streams.table.table import Table
from streams.table.threads import run_without_loop
from streams.table.verification import fresh_fold
from tests.building import events_record, stored


def flip_a_byte(directory: Path) -> None:
    """In a block of the largest data file: RocksDB says the same of each."""
    file = max(directory.glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 0xFF
    file.write_bytes(content)


def write_history(path: Path, make_fold: Callable[[], Fold]) -> Fold:
    """A log and a table, each with most of it in a data file."""
    log = EmbeddedLog(path / "log")
    table = Table(path / "table", make_fold, log=log)
    recover(table, log)
    numbers = random.Random(1)
    for sequence in range(200):
        hashes = [numbers.getrandbits(64) for _ in range(20)]
        tokens = [numbers.getrandbits(31) for _ in range(80)]
        record = events_record(sequence, sequence, [stored(sequence, hashes, tokens)])
        table.apply([LogEntry(log.append([record]), record)])
        if sequence % 10 == 9:
            run_without_loop(table.flush(now=0.0))
    for owner in (log, table._store):
        owner._db.flush()
    log.close()
    table.close()
    return table.fold


def test_a_data_file_of_the_table_that_is_damaged_is_noticed_and_the_table_rebuilt(
    tmp_path: Path, any_fold: Callable[[], Fold]
) -> None:
    before = write_history(tmp_path, any_fold)
    flip_a_byte(tmp_path / "table")
    log = EmbeddedLog(tmp_path / "log")
    table = Table(tmp_path / "table", any_fold, log=log)
    assert recover(table, log).plan.action is RecoveryAction.REBUILD
    assert table.fold.kernel.contexts() == before.kernel.contexts()
    assert (tmp_path / "table.corrupt").is_dir()
    log.close()
    table.close()


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [("CURRENT", 3), ("MANIFEST-*", 100), ("MANIFEST-*", -9), ("*.sst", 1000)],
)
def test_a_table_that_cannot_be_opened_is_set_aside_and_rebuilt(
    tmp_path: Path,
    any_fold: Callable[[], Fold],
    caplog: pytest.LogCaptureFixture,
    pattern: str,
    kept: int,
) -> None:
    before = write_history(tmp_path, any_fold)
    file = max((tmp_path / "table").glob(pattern))
    file.write_bytes(file.read_bytes()[:kept])
    log = EmbeddedLog(tmp_path / "log")
    table = Table(tmp_path / "table", any_fold, log=log)
    plan = recover(table, log).plan
    assert plan.action is RecoveryAction.REBUILD
    assert f"{file.name} is damaged" in plan.reason
    (line,) = caplog.messages
    assert "table.corrupt, and the table is built again" in line
    assert table.fold.kernel.contexts() == before.kernel.contexts()
    assert (tmp_path / "table.corrupt" / file.name).exists()
    log.close()
    table.close()


def test_a_data_file_of_the_log_that_is_damaged_never_looks_like_its_end(
    tmp_path: Path, any_fold: Callable[[], Fold]
) -> None:
    write_history(tmp_path, any_fold)
    flip_a_byte(tmp_path / "log")
    with pytest.raises(DiskError):
        fresh_fold(any_fold(), EmbeddedLog(tmp_path / "log"))


def fail_to_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is undone."""

    def fails(*_: object) -> None:
        raise DiskError(action="write", path="table", detail="full")

    monkeypatch.setattr(TableStore, "commit", fails)


def test_a_flush_that_is_tried_again_later_writes_what_was_folded_since_too(
    tmp_path: Path, any_fold: Callable[[], Fold], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path / "table", any_fold, generation_min_bytes=0)
    table.apply([LogEntry(Offset(0), events_record(0, 0, [stored(0, [1], range(4))] * 9))])
    with monkeypatch.context() as patched:
        fail_to_commit(patched)
        with pytest.raises(DiskError):
            run_without_loop(table.flush(now=0.0))
    table.apply([LogEntry(Offset(1), events_record(1, 1, [stored(1, [1], range(4))]))])
    run_without_loop(table.flush(now=0.0))
    assert (table.flushed, table.generations) == (1, 1), "a dump of all that the rows cover"
    table.close()
    reopened = Table(tmp_path / "table", any_fold)
    plan = run_without_loop(reopened.open(LogBounds(0, 2), now=0.0))
    assert (plan.action, plan.start) == (RecoveryAction.RESUME, 2)
    assert reopened.fold.kernel.contexts() == table.fold.kernel.contexts()
    reopened.close()


def test_recovery_leaves_the_store_covering_the_end_of_the_log(
    tmp_path: Path, any_fold: Callable[[], Fold]
) -> None:
    log = EmbeddedLog(tmp_path / "log")
    table = Table(tmp_path / "table", any_fold, log=log)
    log.append([events_record(0, 0, [stored(0, [1], range(4))])])
    recover(table, log)
    table.close()
    store = TableStore(tmp_path / "table")
    assert store.covered() == 0
    log.close()
    store.close()
