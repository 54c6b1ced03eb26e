"""What a backup says of itself, and what a start finds in a copy of a data directory."""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from logs.embedded import EmbeddedLog
from schemas.causes import cause_of
from schemas.errors import BackupError, DamagedError
from schemas.limits import DATABASE_OPENING_BYTES, MIB
from schemas.positions import Seconds
from storage.faults import disk_errors, disk_full
from storage.files import read_file, sync_path
from streams.kernel import open_kernel
from streams.table.driver import recover
from streams.table.fold import Fold
from streams.table.recovery import RecoveryAction
from streams.table.store import TableStore
from streams.table.table import Table
from streams.table.verification import context_digests

BACKUP_MANIFEST_BYTES_MAX: Final = 256 * MIB  # with a digest of each context and file

MANIFEST: Final = "backup.json"
VERSION: Final = 1


class CopiedFile(msgspec.Struct, frozen=True):
    """One file of a backup."""

    bytes: Annotated[int, Meta(ge=0)]
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What `backup.json` says.

    Attributes:
        version: of the backup's form.
        made_at: when its databases were opened.
        seed: of the prefix hash.
        position: the last record that the table has; -1 for none.
        digests: by context, in words; those without entries are left out.
        files: by path below the directory.
    """

    version: int
    reprise: str
    made_at: Seconds
    seed: int
    position: int
    digests: dict[str, str]
    files: dict[str, CopiedFile]


class BackupState(NamedTuple):
    """What a start finds.

    Attributes:
        goes_on: whether the table goes on from what its rows cover, or there is none.
        seed: of the prefix hash.
        position: the last record that is in the table.
    """

    goes_on: bool
    seed: int
    position: int
    digests: dict[str, str]


def recover_copy(data: Path, seed: int) -> BackupState:
    """Brings the table up to the log, as a start does. Cost O(entries).

    Raises:
        BackupError: the copy is damaged; its directory does not last, so no remedy names it.
    """
    try:
        return _recovered(data, seed)
    except DamagedError as error:
        raise BackupError(
            f"Expected databases that a start can use, but of the copy, to {error.action} fails:"
            f" {error.file or 'its files'}: {error.detail}. Use another backup, or, of a data"
            " directory, `reprise repair` first"
        ) from error


def _recovered(data: Path, seed: int) -> BackupState:
    with_table = (data / "table").exists()
    if with_table:
        store = TableStore(data / "table")
        try:
            made_with = store.seed()
            seed = seed if made_with is None else made_with
        finally:
            store.close()
    log = EmbeddedLog(data / "log")
    try:
        table = Table(data / "table", lambda: Fold(open_kernel(seed)), log=log)
        try:
            plan = recover(table, log).plan
            position, digests = table.fold.offset, context_digests(table.fold.kernel)
        finally:
            table.close()
    finally:
        log.close()
    return BackupState(
        not with_table or plan.action is RecoveryAction.RESUME, seed, position, digests
    )


def read_manifest(backup: Path) -> Manifest:
    """What a backup says of itself.

    Raises:
        BackupError: it is none, or of a newer version.
    """
    path = backup / MANIFEST
    try:
        content = read_file(path, BACKUP_MANIFEST_BYTES_MAX)
    except OSError as error:
        raise BackupError(
            f"Expected a backup with a {MANIFEST}, got none: {cause_of(error)}"
        ) from error
    try:
        version = msgspec.json.decode(content, type=dict)["version"]
        if isinstance(version, int) and version > VERSION:
            raise BackupError(
                f"Expected a backup of version {VERSION} or older, got {version} at {path}; a newer"
                " Reprise made it: upgrade this one"
            )
        return _manifests.decode(content)
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError, RecursionError) as error:
        why = "no version" if isinstance(error, KeyError) else cause_of(error)
        raise BackupError(
            f"Expected a backup's {MANIFEST}, got another file ({why}): {path}"
        ) from error


_manifests: Final = msgspec.json.Decoder(Manifest)


def expect_none(path: Path) -> None:
    """Raises BackupError where there is something already."""
    if path.exists():
        raise BackupError(f"Expected a directory that is to be made, got one that exists: {path}")


@contextmanager
def made_whole(to: Path, *, what: str, suffix: str) -> Iterator[Path]:
    """A directory to be filled, which is put in place once all of it is durable; nothing is left of
    it where that fails. `what`: as "backup".
    """
    making = to.with_name(to.name + suffix)
    with disk_errors(f"begin a {what}", making):
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
    try:
        yield making
        with disk_errors(f"finish the {what}", to):
            make_durable(making)
            making.rename(to)
            sync_path(to.parent)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def check_room(size_bytes: int, path: Path) -> None:
    """Raises DiskFullError where so many bytes have no room."""
    there = next(place for place in (path, *path.parents) if place.exists())
    needed = size_bytes + DATABASE_OPENING_BYTES
    if shutil.disk_usage(there).free < needed:
        raise disk_full("copy all", path, needed)


def file_names(directory: Path) -> list[str]:
    """All files below, by path below it, sorted."""
    return sorted(
        file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()
    )


def facts_of(file: Path) -> CopiedFile:
    """Its size and its SHA-256; reads all of it."""
    digest, size = hashlib.sha256(), 0
    with disk_errors("read", file), file.open("rb") as opened:
        while block := opened.read(MIB):
            digest.update(block)
            size += len(block)
    return CopiedFile(size, digest.hexdigest())


def make_durable(directory: Path) -> None:
    """All below survives a power cut on return."""
    for path in (*directory.rglob("*"), directory):
        sync_path(path)
