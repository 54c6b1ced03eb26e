"""Backups of a data directory of the embedded service, which may be running.

A backup is a directory that holds what a data directory does, and `backup.json`: which files there
are, with their SHA-256, and what a start finds in them, the digest of each context at a position.

    Step 1. plain files are read, and databases opened as they are now: the history before the
    table, the log last. So the log has what the table covers, as after a crash.
    Step 2. plain files are read again: where one has changed, all is begun anew.
    Step 3. all is copied, and the copy is recovered as a start does: its digests are noted.

A restoration (`reprise.embedded.restoration`) copies the files, compares their SHA-256, and
recovers them again: it must come to the same digests. Either one makes its directory under another
name, and renames it when it is whole.
"""

import shutil
import time
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from reprise import __version__
from reprise.embedded.backup_manifest import (
    MANIFEST,
    VERSION,
    Manifest,
    check_room,
    expect_none,
    facts_of,
    file_names,
    made_whole,
    recover_copy,
)
from reprise.logs import log_presets
from schemas.errors import BackupError
from schemas.progress import Progress, Tell, silent
from storage.faults import disk_errors
from storage.live_copy import copy_database, open_snapshot
from storage.rocksdb import HISTORY, LOG, TABLE, Database, Preset

BACKUP_ATTEMPTS: Final = 3  # to find the parts of a data directory beside each other

_FIRST: Final = ("history", "table")
_LAST: Final = "log"
_PRESETS: Final = {"history": HISTORY, "table": TABLE}


class _Snapshot(NamedTuple):
    """A data directory at one moment: its plain files, and its databases in the order in which they
    were opened; both by path below the directory.
    """

    files: dict[Path, bytes]
    databases: dict[Path, Database]

    def close(self) -> None:
        for database in self.databases.values():
            database.close()


def back_up(data: Path, to: Path, *, seed: int, tell: Tell = silent) -> Manifest:
    """Makes a backup. Cost: all of it is read and written once, and recovered in memory.

    Args:
        data: the data directory; a service may be using it.
        to: the backup's directory, which must not exist.
        seed: of the prefix hash, where there is no table that says so.

    Raises:
        BackupError: `to` exists, or `data` changes faster than it can be looked at.
        DiskFullError: there is no room for it; nothing was kept.
        StorageError: something cannot be read or written; nothing was kept.
    """
    expect_none(to)
    if not (data / "log" / "CURRENT").exists():
        raise BackupError(
            f"Expected a data directory of `reprise up`, got one without a log: {data}"
        )
    with made_whole(to, what="backup", suffix=".making") as making:
        manifest = _made(data, making, seed, tell)
        with disk_errors("finish the backup", to):
            (making / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
    return manifest


# Making


def _made(data: Path, making: Path, seed: int, tell: Tell) -> Manifest:
    for attempts_left in reversed(range(BACKUP_ATTEMPTS)):
        made_at = time.time()
        snapshot = _opened(data)
        if snapshot is None:
            continue
        with disk_errors("begin a backup", making):
            shutil.rmtree(making)
            making.mkdir()
        try:
            _write(snapshot, data, making, tell)
        finally:
            snapshot.close()
        found = recover_copy(making, seed)
        if found.goes_on or not attempts_left:  # else retention may have come between
            return Manifest(
                version=VERSION,
                reprise=__version__,
                made_at=made_at,
                seed=found.seed,
                position=found.position,
                digests=found.digests,
                files={name: facts_of(making / name) for name in file_names(making)},
            )
    raise BackupError(
        f"Expected a data directory of which plain files stand still for a moment, got one where"
        f" they changed each of {BACKUP_ATTEMPTS} times: {data}; stop the service, and try again"
    )


def _opened(data: Path) -> _Snapshot | None:
    """Steps 1 and 2; None where plain files changed meanwhile."""
    files = _plain_files(data)
    snapshot = _Snapshot(files, {})
    try:
        for name in _databases(data):
            preset = _preset_of(name)
            snapshot.databases[name] = open_snapshot(data / name, preset)
        if _plain_files(data) == files:
            return snapshot
    except BaseException:
        snapshot.close()
        raise
    snapshot.close()
    return None


def _databases(data: Path) -> list[Path]:
    """Those of the service by path, in the order in which they are opened. What a repair has set
    aside has a dot in its name, and is left out.
    """
    found = [
        current.parent.relative_to(data)
        for current in data.rglob("CURRENT")
        if not any("." in part for part in current.parent.relative_to(data).parts)
    ]

    def rank(name: Path) -> tuple[int, str]:
        text = name.as_posix()
        if text in _FIRST:
            return _FIRST.index(text), ""
        return len(_FIRST) + (text == _LAST), text

    return sorted(found, key=rank)


def _preset_of(name: Path) -> Preset:
    return (_PRESETS | log_presets()).get(name.as_posix(), LOG)


def _plain_files(data: Path) -> dict[Path, bytes]:
    """The service's own, by path: what it notes beside its databases."""
    with disk_errors("read", data):
        return {
            file.relative_to(data): file.read_bytes()
            for directory in (data, *_directories(data))
            for file in sorted(directory.iterdir())
            if file.is_file() and not file.name.endswith(".tmp")
        }


def _directories(data: Path) -> list[Path]:
    """Those below that hold databases, and are none."""
    return sorted(
        one
        for one in data.rglob("*")
        if one.is_dir()
        and not (one / "CURRENT").exists()
        and not any("." in part for part in one.relative_to(data).parts)
    )


def _write(snapshot: _Snapshot, data: Path, making: Path, tell: Tell) -> None:
    total = sum(
        file.stat().st_size
        for name in snapshot.databases
        for file in (data / name).iterdir()
        if file.is_file()
    )
    check_room(total, making)
    done = entries = 0

    def copied(more_entries: int, more_bytes: int) -> None:
        nonlocal done, entries
        done += more_bytes
        entries += more_entries
        tell(Progress(min(done, total), total, entries, done))

    for name, content in snapshot.files.items():
        with disk_errors("write a backup", making / name):
            (making / name).parent.mkdir(parents=True, exist_ok=True)
            (making / name).write_bytes(content)
    for name, database in snapshot.databases.items():
        preset = _preset_of(name)
        copy_database(database, preset, making / name, copied=copied)
