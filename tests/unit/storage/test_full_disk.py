"""A database on a disk that fills up: each error says what to do, and it goes on with room."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from schemas.errors import DiskError, StorageError
from storage.rocksdb import LOG, Database, disk_errors, new_batch
from tests.small_disks import SmallDisk, mounted


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "small", "16m") as disk:
        yield disk


def write(database: Database, key: bytes, size: int = 100_000) -> None:
    batch = new_batch()
    batch.put(key, bytes(size))
    with disk_errors("append to the log", database.path):
        database.write(batch)


def write_much(database: Database) -> None:
    for number in range(100):
        write(database, b"%d" % number)


def filled(disk: SmallDisk) -> Database:
    database = Database(disk.path / "log", LOG)
    write(database, b"kept")
    disk.fill()
    with pytest.raises(DiskError, match=r"no space left .* Free some there"):
        write_much(database)
    return database


def test_a_write_after_one_that_failed_says_so_and_how_much_is_free(disk: SmallDisk) -> None:
    database = filled(disk)
    with pytest.raises(DiskError) as raised:
        write(database, b"more")
    assert "Writer has previous error" not in str(raised.value)
    assert "MiB are free" in str(raised.value)


def test_one_that_cannot_be_opened_again_says_why_until_it_can(disk: SmallDisk) -> None:
    database = filled(disk)
    uses: list[Callable[[], object]] = [
        lambda: write(database, b"more"),
        lambda: database.get(b"kept"),
        database.live_bytes,
        lambda: list(database.scan(b"", b"")),
        database.sync,
    ]
    for _ in range(2):
        with pytest.raises(StorageError, match=r"no space left on its file system\. Free at least"):
            database.reopen()
        for use in uses:
            with (
                pytest.raises(DiskError, match=r"no space left on its file system\. Free at least"),
                disk_errors("use it", database.path),
            ):
                use()
    disk.empty()
    database.reopen()
    write(database, b"more")
    assert database.get(b"kept") is not None
    assert database.get(b"more") is not None
    database.close()
