"""Segments of memory as kvcached makes them, in a directory of the test's own."""

import fcntl
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

GIB = 2**30

_WRITER = """
import os, sys
from pathlib import Path
from tests.memory_segments import Segment
segment = Segment(Path(sys.argv[1]) / sys.argv[2].replace("GROUP", str(os.getpgid(0))))
print(segment.path.name, flush=True)
for line in sys.stdin:
    segment.write(*map(int, line.split()))
    print("written", flush=True)
segment.remove()
segment.close()
"""


class Segment:
    """One, as kvcached writes it: a file of 24 bytes, mapped, under an exclusive lock."""

    def __init__(self, path: Path, total: int = 0, used: int = 0, preallocated: int = 0) -> None:
        self.path = path
        self._file = path.open("w+b")
        self._file.truncate(24)
        self._mapped = mmap.mmap(self._file.fileno(), 24)
        self.write(total, used, preallocated)

    def write(self, total: int, used: int, preallocated: int) -> None:
        with self.locked():
            self._mapped[:] = struct.pack("<3q", total, used, preallocated)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While its writer holds it."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @property
    def inode(self) -> int:
        return os.fstat(self._file.fileno()).st_ino

    def remove(self) -> None:
        self.path.unlink()

    def close(self) -> None:
        self._mapped.close()
        self._file.close()

    def __enter__(self) -> "Segment":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class SegmentProcess:
    """A process that writes one segment, in a process group of its own."""

    def __init__(self, directory: Path, name: str = "kvcached_vLLM_GROUP") -> None:
        """`GROUP` in the name stands for its process group."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(directory), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.name = self._answer()

    def write(self, total: int, used: int, preallocated: int) -> None:
        """Returns when it is written."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{total} {used} {preallocated}\n")
        self.process.stdin.flush()
        assert self._answer() == "written"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        """It removes its segment and ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._wait()

    def kill(self) -> None:
        """kill -9: the segment stays."""
        self.process.kill()
        self._wait()

    def _wait(self) -> None:
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()
