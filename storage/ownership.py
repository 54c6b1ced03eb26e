"""Who may write a directory: one process, until it has ended with it.

RocksDB frees its own lock where a database is closed to be opened again, and that may fail for as
long as the disk is full. What a process knows of the files beside it holds only where no other one
has written them meanwhile.
"""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from weakref import finalize

from schemas.errors import DataDirectoryInUseError, StorageError
from storage.faults import holder_of


class Ownership:
    """A lock on a directory itself; it ends with the process, too. Where the file system has none
    for directories, as NFS, it only tells whether the directory is still there.
    """

    def __init__(self, path: Path) -> None:
        """Raises DataDirectoryInUseError where another process, or another object of this one, has
        it.
        """
        self._path = path
        # Open as long as this is: so no other directory gets its number.
        self._opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._end = finalize(self, os.close, self._opened)
        try:
            fcntl.flock(self._opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                self.end()
                raise DataDirectoryInUseError(str(path), holder=holder_of(path)) from error

    def check(self) -> None:
        """Raises StorageError where its path leads to another directory now, or to none."""
        found = None
        with suppress(FileNotFoundError):
            found = os.stat(self._path)
        if found is None or not os.path.samestat(found, os.fstat(self._opened)):
            became = "deleted" if found is None else "replaced"
            raise StorageError(
                f"Expected {self._path} to be the directory that this process opened, but it was"
                f" {became}. Put it back, or stop this process and start it on the one that is to"
                " be"
            )

    def end(self) -> None:
        """Another process may own it."""
        self._end()
