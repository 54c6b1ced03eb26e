"""Makes a data directory of a backup, and proves it by the digests that the backup says."""

import errno
import os
from pathlib import Path, PurePosixPath
from typing import Final

from reprise import __version__
from reprise.embedded.backup_manifest import (
    MANIFEST,
    BackupState,
    Manifest,
    check_room,
    expect_none,
    facts_of,
    made_whole,
    read_manifest,
    recover_copy,
)
from schemas.errors import BackupError
from schemas.limits import ERROR_DETAIL_CHARS_MAX, MIB
from schemas.progress import Progress, Tell, silent
from storage.faults import disk_errors
from storage.files import open_file

PATH_BYTES_MAX: Final = 4095  # of a file's name with its directories, as Linux has it

_NAMES_SHOWN: Final = 5


def restore(backup: Path, data: Path, *, tell: Tell = silent) -> Manifest:
    """Makes a data directory of a backup.

    Args:
        backup: as `back_up` made it; it is only read.
        data: the directory to make, which must not exist, or be empty.

    Raises:
        BackupError: `backup` is none, was changed, or is of a newer version; `data` has something.
        StorageError: something cannot be read or written. Nothing was left at `data`.
    """
    manifest = read_manifest(backup)
    if data.is_dir() and not any(data.iterdir()):
        data.rmdir()
    expect_none(data)
    check_room(sum(file.bytes for file in manifest.files.values()), data)
    with made_whole(data, what="restoration", suffix=".restoring") as making:
        _copy_files(backup, manifest, making, tell)
        _compare(recover_copy(making, manifest.seed), manifest)
    return manifest


def _copy_files(backup: Path, manifest: Manifest, making: Path, tell: Tell) -> None:
    total = sum(file.bytes for file in manifest.files.values())
    done = 0
    for name in manifest.files:
        _check_name(name)
    for number, (name, expected) in enumerate(manifest.files.items()):
        source, target = backup / name, making / name
        with disk_errors("restore", target):
            target.parent.mkdir(parents=True, exist_ok=True)
        _copy_file(backup, source, target, expected.bytes)
        if facts_of(target) != expected:
            raise BackupError(
                f"Expected a file of {expected.bytes:,} bytes with the SHA-256 of {MANIFEST},"
                f" got another: {source}. The backup is damaged; use another one"
            )
        done += expected.bytes
        tell(Progress(done, total, number + 1, done))


def _check_name(name: str) -> None:
    """Raises BackupError where a file of this name would not be one below the directory."""
    shown = name[:ERROR_DETAIL_CHARS_MAX]
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise BackupError(f"Expected paths below the backup, got one that leads out: {shown}")
    is_name = name.isprintable() and path.as_posix() == name and path.name
    if not is_name or len(os.fsencode(name)) > PATH_BYTES_MAX:
        raise BackupError(
            f"Expected names of files in {MANIFEST}, got one that no file of a backup has: {shown}"
        )


def _copy_file(backup: Path, source: Path, target: Path, size_bytes: int) -> None:
    """Copies no more than a byte beyond that size; what is longer is not what was backed up."""
    try:
        if any(one.is_symlink() for one in source.parents if backup in one.parents):
            raise OSError(errno.ELOOP, "its directory is a symbolic link")
        opened = open_file(source, follow_links=False)
    except OSError as error:
        raise BackupError(
            f"Expected a backup with all its files, got one without {source}: {error.strerror}"
        ) from error
    with opened, disk_errors("restore", target), target.open("xb") as copy:
        left = size_bytes + 1
        while left and (block := opened.read(min(left, MIB))):
            copy.write(block)
            left -= len(block)


def _compare(found: BackupState, manifest: Manifest) -> None:
    ours, theirs = found.digests, manifest.digests
    if found.position == manifest.position and ours == theirs:
        return
    others = sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))
    raise BackupError(
        f"Expected the digests of {MANIFEST} at position {manifest.position}, got others at"
        f" {found.position}, of {len(others)} contexts: {', '.join(others[:_NAMES_SHOWN])}. This"
        f" version ({__version__}) does not read what version {manifest.reprise} has written as it"
        " was meant: restore it with that one"
    )
