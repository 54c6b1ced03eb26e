"""A directory with files of records is one process's until it ends, also where its disk fails."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import DataDirectoryInUseError, StorageError
from storage import rocksdb
from storage.ownership import Ownership
from storage.record_files import AppendedPart, Entry, name_of
from storage.rocksdb import LOG, Database, new_batch
from storage.salvage import check_not_in_use, move_aside

MARK = Entry(b"s" + bytes(8), b"mark")


def append(database: Database, first: int, *, begins: bool = False) -> None:
    database.append([AppendedPart(first, [b"%d" % first], MARK if begins else None)])


def values(database: Database) -> list[bytes]:
    return [value for _, value in database.scan(b"r", b"r")]


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """One of two records that its process could not open again."""
    database = Database(tmp_path / "log", LOG)
    append(database, 0, begins=True)
    append(database, 1)
    database.sync()

    def full(*_: object, **__: object) -> None:
        raise OSError("IO error: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(rocksdb, "_opened", full)
        with pytest.raises(StorageError, match="no space left"):
            database.reopen()
    return database


def test_what_could_not_be_opened_again_is_not_free(failed: Database, tmp_path: Path) -> None:
    uses: list[Callable[[], Any]] = [
        lambda: Database(tmp_path / "log", LOG),
        lambda: check_not_in_use(tmp_path / "log"),
        lambda: move_aside(tmp_path / "log", "the log"),
    ]
    for use in uses:
        with pytest.raises(DataDirectoryInUseError):
            use()
    failed.reopen()
    append(failed, 2)
    failed.close()
    check_not_in_use(tmp_path / "log")
    again = Database(tmp_path / "log", LOG)
    assert values(again) == [b"0", b"1", b"2"]
    again.close()


def test_another_directory_in_its_place_is_left_alone_until_it_is_put_back(
    failed: Database, tmp_path: Path
) -> None:
    (tmp_path / "log").rename(tmp_path / "aside")
    with pytest.raises(StorageError, match=r"log to be the directory .*, but it was deleted"):
        failed.reopen()
    assert not (tmp_path / "log").exists()
    shutil.copytree(tmp_path / "aside", tmp_path / "log")
    with pytest.raises(StorageError, match=r"log to be the directory .*, but it was replaced"):
        failed.reopen()
    Database(tmp_path / "log", LOG).close()
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "aside").rename(tmp_path / "log")
    failed.reopen()
    append(failed, 2)
    assert values(failed) == [b"0", b"1", b"2"]
    failed.close()


@pytest.mark.parametrize("does", ["append", "begin a file", "replace the file"])
def test_where_nothing_can_be_owned_what_another_process_wrote_is_seen(
    failed: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    owned = failed._ownership
    assert owned is not None
    monkeypatch.setattr("fcntl.flock", lambda *_: None)
    owned.end()
    monkeypatch.setattr(owned, "check", lambda: None)
    last = tmp_path / "log" / name_of(0)
    if does == "append":
        last.write_bytes(last.read_bytes() + b"more")
    elif does == "begin a file":
        shutil.copy(last, tmp_path / "log" / name_of(2))
    else:
        shutil.copy(last, tmp_path / "copy")
        (tmp_path / "copy").rename(last)
    with pytest.raises(StorageError, match="another process has written there"):
        failed.reopen()


def test_an_opening_that_is_refused_owns_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "CURRENT").write_text("nothing\n")
    with pytest.raises(StorageError):
        Database(tmp_path / "log", LOG)
    Ownership(tmp_path / "log").end()


def test_a_sync_before_a_write_does_not_count_as_one_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention: its files go with the next sync, and only once its batch is durable."""
    database = Database(tmp_path / "log", LOG)
    for number in range(3):
        append(database, number, begins=True)
    database.sync()
    (wal,) = [path for path in (tmp_path / "log").glob("*.log") if path.stat().st_size]
    durable = wal.stat().st_size
    live = Database._live.fget  # type: ignore[attr-defined]

    class Between:
        """Syncs as a write is to begin, and notes what is durable."""

        def __init__(self, rdict: Any) -> None:
            self._rdict = rdict

        def __getattr__(self, name: str) -> Any:
            return getattr(self._rdict, name)

        def write(self, *written: Any) -> None:
            database.sync()
            self._rdict.write(*written)

        def flush_wal(self, *, sync: bool) -> None:
            nonlocal durable
            self._rdict.flush_wal(sync=sync)
            durable = wal.stat().st_size

    monkeypatch.setattr(Database, "_live", property(lambda one: Between(live(one))))
    batch = new_batch()
    batch.put(b"kept", b"an exempt record")
    database.write(batch, drop_before=2)
    database.sync()
    monkeypatch.undo()
    assert not (tmp_path / "log" / name_of(0)).exists()
    shutil.copytree(tmp_path / "log", tmp_path / "cut")
    with (tmp_path / "cut" / wal.name).open("r+b") as file:
        file.truncate(durable)
    left = Database(tmp_path / "cut", LOG)
    assert (left.get(b"kept"), values(left)) == (b"an exempt record", [b"2"])
    left.close()
    database.close()
