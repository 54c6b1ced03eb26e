"""A file that stands in its place only once it is whole."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from schemas.errors import ConfigurationError
from storage.faults import disk_errors

_ACTION = "write an export"


class OutputFile(io.RawIOBase):
    """A file that is only written; every error is a `DiskError` that names `path`."""

    def __init__(self, file: int, path: Path) -> None:
        self._file = file
        self._path = path
        self.size_bytes = 0

    def writable(self) -> bool:
        """See `io.RawIOBase`."""
        return True

    def tell(self) -> int:
        """See `io.RawIOBase`."""
        return self.size_bytes

    def write(self, content: Any, /) -> int:
        """Writes all of it."""
        view = memoryview(content).cast("B")
        size = len(view)
        with disk_errors(_ACTION, self._path):
            while view:
                written = os.write(self._file, view)
                self.size_bytes += written
                view = view[written:]
        return size


@contextmanager
def whole_file(path: Path, *, replace: bool) -> Iterator[OutputFile]:
    """What is written in the body is the file at `path` from the body's end on, durably. A body
    that raises leaves nothing; what stood there before stays until then.

    Args:
        path: of the file.
        replace: whether one may stand there.

    Raises:
        ConfigurationError: one stands there, and may not.
        DiskError: it cannot be written.
    """
    if not replace and path.exists():
        raise ConfigurationError(f"Expected no file, got one that --force would replace: {path}")
    partial = path.with_name(f"{path.name}.partial")
    with disk_errors(_ACTION, path):
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        try:
            yield OutputFile(file, path)
            with disk_errors(_ACTION, path):
                os.fsync(file)
        finally:
            os.close(file)
        with disk_errors(_ACTION, path):
            os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
