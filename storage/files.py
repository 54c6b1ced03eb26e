"""Files that may be anything: a path that an operator, a capture or a backup names can be a pipe, a
device, a link, or have no end. All that reads one whole opens it here.
"""

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

_PLAIN: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class FileVersion(NamedTuple):
    """Tells one state of a file from another; a link to a file is that file."""

    changed_ns: int
    size: int
    inode: int


def version_of(path: Path) -> FileVersion | None:
    """Of the file as it is now; None where there is none that can be looked at."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return FileVersion(found.st_mtime_ns, found.st_size, found.st_ino)


def open_file(path: Path, *, follow_links: bool = True) -> BinaryIO:
    """Opens a regular file to be read; never waits for what is none.

    Args:
        follow_links: whether the name itself may be a symbolic link.

    Raises:
        OSError: it cannot be opened, or is no regular file; `strerror` says why.
    """
    try:
        # Before it is opened: to open a pipe lets its writer go on, and a device may do anything.
        _check(path, os.stat(path, follow_symlinks=follow_links))
        opened = os.open(path, _PLAIN | (0 if follow_links else os.O_NOFOLLOW))
    except ValueError as error:
        raise OSError(errno.EINVAL, "its name has a NUL", str(path)) from error
    try:
        _check(path, os.fstat(opened))  # another file may have taken the name
        return os.fdopen(opened, "rb")
    except BaseException:
        os.close(opened)
        raise


def read_file(path: Path, bytes_max: int) -> bytes:
    """All of a regular file.

    Raises:
        OSError: as `open_file`, or it has more bytes than that.
    """
    with open_file(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"it has more than {bytes_max:,} bytes", str(path))
    return content


def _check(path: Path, found: os.stat_result) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "a pipe, a socket or a device"
    raise OSError(errno.EINVAL, f"it is no regular file, but {what}", str(path))


def sync_path(path: Path) -> None:
    """The file, or the names in the directory, survive a power cut on return."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def takes_direct_io(directory: Path) -> bool:
    """Whether files there may be written past the page cache; some file systems refuse it."""
    direct = getattr(os, "O_DIRECT", 0)  # not where there is no Linux
    if not direct:
        return False
    try:
        with tempfile.NamedTemporaryFile(dir=directory, suffix=".tmp") as probe:
            os.close(os.open(probe.name, os.O_RDWR | os.O_CLOEXEC | direct))
    except OSError:
        return False
    return True
