import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from rocksdict import DBCompressionType, Options, Rdict

from schemas.errors import DataDirectoryInUseError, DiskError, StorageError
from storage.faults import PID_FILE
from storage.files import takes_direct_io
from storage.rocksdb import (
    HISTORY,
    LOG,
    SPOOL,
    TABLE,
    Database,
    Preset,
    disk_errors,
    memory_by_database,
    new_batch,
    says_corruption,
)


def put(database: Database, **values: bytes) -> None:
    batch = new_batch()
    for key, value in values.items():
        batch.put(key.encode(), value)
    database.write(batch)


@pytest.mark.parametrize("preset", [LOG, TABLE, SPOOL], ids=lambda preset: preset.name)
def test_what_was_written_is_there_after_every_opening(tmp_path: Path, preset: Preset) -> None:
    database = Database(tmp_path, preset)
    put(database, a=b"1", b=b"2")
    database.reopen()
    put(database, c=b"3")
    database.close()
    database = Database(tmp_path, preset)
    assert list(database.scan(b"", b"")) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    database.close()


def left_by_a_kill(database: Database, to: Path) -> list[tuple[bytes, bytes]]:
    """What the files have while the database is open."""
    shutil.copytree(database.path, to)
    left = Database(to, HISTORY)
    found = list(left.scan(b"", b""))
    left.close()
    return found


def test_of_a_history_a_kill_leaves_what_was_synced_and_no_hole(tmp_path: Path) -> None:
    database = Database(tmp_path / "open", HISTORY)
    put(database, a=b"1")
    database.sync()
    put(database, b=b"2")
    assert left_by_a_kill(database, tmp_path / "killed") == [(b"a", b"1")]
    database.close()
    database = Database(tmp_path / "open", HISTORY)
    assert list(database.scan(b"", b"")) == [(b"a", b"1"), (b"b", b"2")]
    database.close()


def test_a_file_system_without_direct_io_takes_data_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def refusing(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        return really(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refusing)
    assert not takes_direct_io(tmp_path)
    database = Database(tmp_path, LOG)
    put(database, a=b"1")
    database.flush()
    assert database.get(b"a") == b"1"
    assert not list(tmp_path.glob("*.tmp"))
    database.close()


def test_a_database_that_was_written_with_another_codec_is_read(tmp_path: Path) -> None:
    options = Options(raw_mode=True)
    options.set_compression_type(DBCompressionType.zstd())
    older = Rdict(str(tmp_path), options)
    older[b"k"] = b"v" * 1000
    older.flush()
    older.close()
    database = Database(tmp_path, LOG)
    assert database.get(b"k") == b"v" * 1000
    database.close()


def test_reopening_ends_iterators_that_are_still_referenced(tmp_path: Path) -> None:
    database = Database(tmp_path, TABLE)
    put(database, a=b"1", b=b"2")
    kept = database.scan(b"", b"")
    assert next(kept) == (b"a", b"1")
    del kept
    database.reopen()
    assert database.get(b"b") == b"2"
    database.close()


def test_closing_twice_is_closing_once(tmp_path: Path) -> None:
    database = Database(tmp_path, TABLE)
    database.close()
    database.close()
    database.reopen()
    put(database, a=b"1")
    database.close()


def test_a_database_that_is_open_elsewhere_says_so(tmp_path: Path) -> None:
    database = Database(tmp_path / "log", TABLE)
    with pytest.raises(DataDirectoryInUseError, match="Stop that process, or"):
        Database(tmp_path / "log", TABLE)
    (tmp_path / PID_FILE).write_text(f"{os.getpid()}\n")
    with pytest.raises(DataDirectoryInUseError, match=rf"Stop process {os.getpid()}, or .*ARGS="):
        Database(tmp_path / "log", TABLE)
    database.close()


def test_a_path_that_cannot_be_a_database_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="Cannot open the spool at"):
        Database(tmp_path / "file", SPOOL)


def test_a_missing_database_is_not_made_by_a_reader(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Expected a log at"):
        Database.read_only(tmp_path / "log", LOG)
    assert not (tmp_path / "log").exists()


def test_a_reader_sees_what_was_there_and_a_follower_what_comes(tmp_path: Path) -> None:
    writer = Database(tmp_path / "log", LOG)
    put(writer, a=b"1")
    reader = Database.read_only(tmp_path / "log", LOG)
    follower = Database.following(tmp_path / "log", LOG, tmp_path / "scratch")
    put(writer, b=b"2")
    follower.catch_up()
    assert (reader.get(b"a"), reader.get(b"b")) == (b"1", None)
    assert (follower.get(b"a"), follower.get(b"b")) == (b"1", b"2")
    for database in (reader, follower, writer):
        database.close()


def test_a_scan_stays_within_its_prefix(tmp_path: Path) -> None:
    database = Database(tmp_path, TABLE)
    put(database, a1=b"", a2=b"", a3=b"", b1=b"")
    assert [key for key, _ in database.scan(b"a2", b"a")] == [b"a2", b"a3"]
    assert database.last_key_before(b"a9") == b"a3"
    assert database.last_key_before(b"a") is None
    database.close()


def test_an_error_says_what_was_tried_where(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskError, match="write the table") as raised,
        disk_errors("write the table", tmp_path),
    ):
        raise Exception("IO error: No space left")
    assert str(tmp_path) in str(raised.value)
    assert "no space left on its file system" in str(raised.value)


def test_corruption_is_told_from_other_errors() -> None:
    assert says_corruption(Exception("Corruption: block checksum mismatch"))
    assert not says_corruption(Exception("IO error: No space left on device"))


def test_what_databases_take_of_memory_is_told_by_kind(tmp_path: Path) -> None:
    before = memory_by_database().get("log", 0)
    one, other = Database(tmp_path / "1", LOG), Database(tmp_path / "2", LOG)
    batch = new_batch()
    batch.put(b"key", bytes(2 * 1024 * 1024))
    one.write(batch)
    full = memory_by_database()["log"] - before
    assert full > 2 * 1024 * 1024
    one.flush()
    assert memory_by_database()["log"] - before < full / 2
    one.close()
    other.close()
    assert (one.memory_bytes(), other.memory_bytes()) == (0, 0)
