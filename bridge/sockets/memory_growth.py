"""Whether the process has grown suddenly: the one sign of a message that is not whole yet.

libzmq tells nothing of a message before its last frame, and a link over loopback or a fast network
brings hundreds of megabytes of one between two looks at links that cost nothing. To ask each link
what it has received costs 1 us; to ask what the process takes costs that for all of them.
"""

import os
from contextlib import suppress
from typing import Final

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_RESIDENT: Final = 1  # its place in the line


class MemoryGrowth:
    """Compares the process's memory with what it was; one owner.

    Where the system does not tell (it is not Linux), it never grows.

    Attributes:
        latest_bytes: what it took at the last call of `take`.
    """

    def __init__(self, path: str = "/proc/self/statm") -> None:
        self._descriptor: int | None = None
        with suppress(OSError):
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.latest_bytes = self._read()

    def take(self) -> int:
        """By how many bytes it has grown since the last call; 0 where it has shrunk. 2 us."""
        before, self.latest_bytes = self.latest_bytes, self._read()
        return max(0, self.latest_bytes - before)

    def now_bytes(self) -> int:
        """What it takes now; 0 where the system does not tell. 2 us."""
        return self._read()

    def close(self) -> None:
        """From then on it never grows."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self) -> int:
        if self._descriptor is None:
            return 0
        try:
            return int(os.pread(self._descriptor, 128, 0).split()[_RESIDENT]) * _PAGE_BYTES
        except (OSError, ValueError, IndexError):
            return 0
