"""Embedded logs as an earlier Reprise wrote them."""

import shutil
import struct
from pathlib import Path

from storage.live_copy import copy_database
from storage.rocksdb import LOG, Database, new_batch


def of_an_earlier_format(path: Path) -> None:
    """Makes a log one from before records were in files."""
    newer = path.with_name(path.name + ".newer")
    path.rename(newer)
    source = Database.read_only(newer, LOG)
    copy_database(source, LOG, path, copied=lambda entries, size: None)
    source.close()
    database = Database(path, LOG)
    batch = new_batch()
    batch.put(b"mformat", struct.pack("<Q", 1))
    database.write(batch)
    database.close()
    assert not list(path.glob("*.rec"))
    shutil.rmtree(newer)


def without(path: Path, *offsets: int) -> None:
    """Takes records out of a log, as damage may."""
    of_an_earlier_format(path)
    database = Database(path, LOG)
    batch = new_batch()
    for offset in offsets:
        batch.delete(b"r" + struct.pack(">Q", offset))
    database.write(batch)
    database.close()
