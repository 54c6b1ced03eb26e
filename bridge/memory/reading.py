"""Reads the segments of a directory: kvcached's, by its layout. Changes nothing there.

A segment is a file of 24 bytes, little-endian: its limit, what is used and what is preallocated, in
bytes, as signed 64-bit numbers. It has no magic number, so a name's prefix and the size are what
tells it from other files of the directory. Its writer holds an exclusive `flock` while it writes.

The directory may hold anything: a file is opened only where it is a regular one of that size, and
never by a symbolic link; what cannot be used is left out, counted by reason, and named.

It writes by `mmap`, which leaves the file's time of modification as it is: one has to look.
"""

import errno
import fcntl
import os
import stat
import struct
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NamedTuple

from bridge.bounds import MEMORY_ENTRIES_MAX
from bridge.memory.process_groups import group_is_there, group_of
from schemas.limits import MEMORY_BYTES_MAX, MEMORY_SEGMENTS_READ_MAX, NAME_BYTES_MAX

# What is left out: reprise_memory_files_skipped by reason.
MEMORY_NAMES_SHOWN_MAX: Final = 32  # files that were left out and are named; all are counted

LAYOUT: Final = struct.Struct("<3q")
DEFAULT_PREFIX: Final = "kvcached_"

LOCKED: Final = "locked"
"""Reason of a segment that is being written: it is read at the next look."""
EMPTY: Final = "empty"
"""Reason of a segment whose limit is 0: its writer has not begun yet, or has no memory."""
TOO_MANY: Final = "too_many"
"""Reason of a segment beyond MEMORY_SEGMENTS_READ_MAX, and of a name beyond MEMORY_ENTRIES_MAX."""

_DENIED: Final = (errno.EACCES, errno.EPERM)
_INODE_MASK: Final = 2**63 - 1
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY


class Reading(NamedTuple):
    """What one segment says.

    Attributes:
        total, used, preallocated: bytes.
        has_writers: whether the process group that its name has is there; None where it has none.
    """

    inode: int
    total: int
    used: int
    preallocated: int
    has_writers: bool | None = None


class Scan(NamedTuple):
    """What one look at a directory has found.

    Attributes:
        present: all names that may be segments, also those that could not be read now.
        skipped: what was left out, by reason; of it, `named` has the first ones with their reasons.
        error: why the directory cannot be read, or "": then nothing is known of its segments.
        reason: the same in one word.
    """

    readings: dict[str, Reading]
    present: frozenset[str]
    skipped: Counter[str]
    named: tuple[tuple[str, str], ...] = ()
    error: str = ""
    reason: str = ""


class _SkippedError(Exception):
    """A file is left out; its text is the reason."""


_DIRECTORY_REASONS: Final = {
    errno.ENOENT: "no_directory",
    errno.ENOTDIR: "no_directory",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
}


def read_segments(
    directory: Path,
    prefix: str = DEFAULT_PREFIX,
    *,
    known: Collection[str] = (),
    is_there: Callable[[int], bool] = group_is_there,
) -> Scan:
    """Looks at a directory once. Cost some 15 us for each segment, and 0.5 for every other name.

    Args:
        directory: where they are, as `/dev/shm`.
        prefix: of their names; "" for any.
        known: names that were read before: where there are too many, these come first.
        is_there: whether a process group exists.

    Returns:
        What was found; it never raises for what is there.
    """
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        return _unreadable(directory, error)
    try:
        return _Look(opened, is_there).scan(prefix, known)
    except OSError as error:
        return _unreadable(directory, error)
    finally:
        os.close(opened)


def _unreadable(directory: Path, error: OSError | ValueError) -> Scan:
    number = (error.errno if isinstance(error, OSError) else None) or 0
    why = os.strerror(number) if number else str(error)
    text = f"the directory of memory segments cannot be read: {directory}: {why}"
    reason = _DIRECTORY_REASONS.get(number, "unreadable")
    return Scan({}, frozenset(), Counter(), (), text, reason)


class _Look:
    """One look at a directory that is open.

    Args:
        directory: its descriptor.
        is_there: see `read_segments`.
    """

    def __init__(self, directory: int, is_there: Callable[[int], bool]) -> None:
        self._directory = directory
        self._is_there = is_there
        self._skipped: Counter[str] = Counter()
        self._named: list[tuple[str, str]] = []

    def scan(self, prefix: str, known: Collection[str]) -> Scan:
        """See `read_segments`; raises OSError where the directory cannot be read."""
        names = self._names(prefix, known)
        # Those that were read before come first: a flood of others displaces none of them.
        names.sort(key=lambda name: (name not in known, name))
        for name in names[MEMORY_SEGMENTS_READ_MAX:]:
            self._skip(name, TOO_MANY)
        del names[MEMORY_SEGMENTS_READ_MAX:]
        readings = {}
        for name in names:
            try:
                readings[name] = self._read(name)
            except _SkippedError as error:
                self._skip(name, str(error))
            except FileNotFoundError:
                continue  # it went meanwhile; the next look finds it gone
            except BlockingIOError:
                self._skip(name, LOCKED)
            except OSError as error:
                self._skip(name, "denied" if error.errno in _DENIED else "unreadable")
        return Scan(readings, frozenset(names), self._skipped, tuple(self._named))

    def _names(self, prefix: str, known: Collection[str]) -> list[str]:
        names: list[str] = []
        with os.scandir(self._directory) as entries:
            for number, entry in enumerate(entries):
                if number >= MEMORY_ENTRIES_MAX:
                    # How many there are behind it is not counted: it would have to be read.
                    self._skip(entry.name, TOO_MANY)
                    seen = set(names)
                    return names + [n for n in known if n not in seen and self._is_there_still(n)]
                if entry.name.startswith(prefix):
                    # Not printable are control characters, and what is no UTF-8.
                    if entry.name.isprintable() and len(entry.name) <= NAME_BYTES_MAX:
                        names.append(entry.name)
                    else:
                        self._skip(entry.name, "bad_name")
        return names

    def _is_there_still(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except OSError:
            return False
        return True

    def _skip(self, name: str, reason: str) -> None:
        self._skipped[reason] += 1
        if len(self._named) < MEMORY_NAMES_SHOWN_MAX:
            self._named.append((name, reason))

    def _read(self, name: str) -> Reading:
        # Before it is opened: to open a fifo lets its writer go on, and a device may do anything.
        _check(os.stat(name, dir_fd=self._directory, follow_symlinks=False))
        opened = os.open(name, _FLAGS, dir_fd=self._directory)
        try:
            inode = _check(os.fstat(opened))  # another file may have taken the name
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            content = os.pread(opened, LAYOUT.size, 0)
        finally:
            os.close(opened)  # which ends the lock
        if len(content) != LAYOUT.size:
            raise _SkippedError("wrong_size")
        total, used, preallocated = LAYOUT.unpack(content)
        if total == 0:
            raise _SkippedError(EMPTY)
        if not all(0 <= number <= MEMORY_BYTES_MAX for number in (total, used, preallocated)):
            raise _SkippedError("bad_numbers")
        group = group_of(name)
        has_writers = None if group is None else self._is_there(group)
        return Reading(inode, total, used, preallocated, has_writers)


def _check(status: os.stat_result) -> int:
    """Its inode; raises _SkippedError where it is no regular file of a segment's size."""
    if stat.S_ISLNK(status.st_mode):
        raise _SkippedError("symbolic_link")
    if not stat.S_ISREG(status.st_mode):
        raise _SkippedError("no_file")
    if status.st_size != LAYOUT.size:
        raise _SkippedError("wrong_size")
    return status.st_ino & _INODE_MASK
