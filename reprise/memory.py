"""Gives back to the system what a spike has left.

The C library keeps what was freed, since it may be wanted again: after some hundred large messages
or bodies that may be a GiB for good. So whenever the process has grown, it is asked for some time
to give back what is free, and from then on now and then, for what is freed long after it has grown,
as when all engines clear. That costs milliseconds each time, in a thread of its own.
"""

import ctypes
import resource
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from schemas.limits import MIB

# Memory that a spike took and the C library kept.
MEMORY_LOOK_S: Final = 5.0  # between two looks how much memory the process has
MEMORY_GROWTH_BYTES: Final = 32 * MIB  # of a process, before it is asked to give back
MEMORY_TRIMS: Final = 12  # looks at which it is asked then
MEMORY_TRIM_LOOKS: Final = 12  # after so many looks without, one that stays grown is asked again


class MemoryReturner:
    """Decides when to trim. Pure but for its arguments.

    Args:
        resident: the bytes that the process has in memory.
        trim: asks for what is free to be given back.
    """

    def __init__(self, resident: Callable[[], int], trim: Callable[[], object]) -> None:
        self._resident = resident
        self._trim = trim
        self._start = self._floor = resident()
        self._left = self._since = 0

    def look(self) -> None:
        """To be called now and then."""
        now = self._resident()
        if now > self._floor + MEMORY_GROWTH_BYTES:
            self._floor = now
            self._left = MEMORY_TRIMS  # what has grown may be in use for a while yet
        self._since += 1
        is_large = now > self._start + MEMORY_GROWTH_BYTES
        if self._left or (is_large and self._since >= MEMORY_TRIM_LOOKS):
            self._left = max(self._left - 1, 0)
            self._since = 0
            self._trim()
            now = self._resident()
        self._floor = min(self._floor, now)


def return_memory() -> None:
    """Starts the thread of this process, where the system has what it takes."""
    with suppress(OSError, AttributeError):
        trim = ctypes.CDLL(None).malloc_trim
        returner = MemoryReturner(resident_bytes, lambda: trim(0))
        threading.Thread(target=_run, args=(returner,), name="memory", daemon=True).start()


def _run(returner: MemoryReturner) -> None:
    pause = threading.Event()
    while not pause.wait(MEMORY_LOOK_S):
        with suppress(OSError):
            returner.look()


def resident_bytes() -> int:
    """What this process has in memory.

    Raises:
        OSError: the system does not tell.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
