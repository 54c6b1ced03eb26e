"""When an engine ends: when it is told to stop, or when its parent has been gone for too long.

A parent is known by its process id and the moment of its start, so that a number that the system
has given to another process since is not taken for it. An engine whose parent is gone can be
adopted by another process, as long as it still lives.

    POST /adopt  {"pid": n}: make that process the parent; refused while the parent lives
    POST /stop   end
"""

import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from lab.engines.control import JsonRoute, RequestError

PARENT_POLL_S: Final = 0.5
_STATE, _STARTED = 0, 19  # in /proc/N/stat, counted after the name; see proc(5)


class ProcessIdentity(NamedTuple):
    """A process: its number, and when it started."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether it still runs; one that has ended and was not reaped does not."""
        return _started_at(self.pid) == self.started


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this number now; None where there is none."""
    started = _started_at(pid)
    return None if started is None else ProcessIdentity(pid, started)


class AdoptRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /adopt`."""

    pid: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]


class ParentWatch:
    """Waits until an engine has to end. Methods may be called from any thread.

    Args:
        parent_pid: the process whose end ends the engine.
        orphan_grace_s: how long the engine runs on without a parent.
        when_orphaned: called, each time the parent is found to be gone, by the thread in `wait`.
        poll_s: how often the parent is looked at.
    """

    def __init__(
        self,
        parent_pid: int,
        *,
        orphan_grace_s: float = 0.0,
        when_orphaned: Callable[[], None] = lambda: None,
        poll_s: float = PARENT_POLL_S,
    ) -> None:
        self._parent = identify(parent_pid)
        self._orphan_grace_s = orphan_grace_s
        self._when_orphaned = when_orphaned
        self._poll_s = poll_s
        self._orphaned_at: float | None = None
        self._lock = threading.Lock()
        self._over = False
        # Not an `Event`: its `set` in a signal handler can wait for the very thread it interrupts.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def routes(self) -> dict[tuple[str, str], JsonRoute]:
        """Routes of the engine's HTTP interface."""
        request = msgspec.json.Decoder(AdoptRequest)
        return {
            ("POST", "/adopt"): lambda body: self._answer_adopt(request.decode(body).pid),
            ("POST", "/stop"): lambda _: self._answer_stop(),
        }

    def wait(self) -> None:
        """Return when the engine has to end."""
        while not self._over:
            try:
                self._wake.get(timeout=self._poll_s)
            except queue.Empty:
                self._look_after_parent(time.monotonic())

    def stop(self) -> None:
        """End the engine. A signal handler may call this."""
        self._over = True
        self._wake.put(None)

    def adopt(self, pid: int) -> None:
        """Make the process `pid` the parent.

        Raises:
            RequestError: the parent lives, there is no such process, or the engine is ending.
        """
        adopter = identify(pid)
        with self._lock:
            if adopter is None:
                raise RequestError(f"Expected a living process, got: {pid}")
            if self._over:
                raise RequestError("The engine is about to end")
            if self._parent is not None and self._parent != adopter and self._parent.alive:
                raise RequestError(f"The engine has a parent: {self._parent.pid}")
            self._parent, self._orphaned_at = adopter, None

    def _look_after_parent(self, now: float) -> None:
        with self._lock:
            if self._parent is not None and self._parent.alive:
                return
            first_seen = self._orphaned_at is None
            self._orphaned_at = now if self._orphaned_at is None else self._orphaned_at
            if now - self._orphaned_at >= self._orphan_grace_s:
                self._over = True
        if first_seen:
            self._when_orphaned()

    def _answer_adopt(self, pid: int) -> object:
        self.adopt(pid)
        return {"status": "adopted", "pid": pid}

    def _answer_stop(self) -> object:
        self.stop()
        return {"status": "stopping"}


def _started_at(pid: int) -> str | None:
    """When the process started, in the system's words, "" where it does not say; None if ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "" if not Path("/proc/self/stat").exists() and _exists(pid) else None
    # The name, in brackets, may have any character in it.
    fields = stat.rpartition(")")[2].split()
    return None if fields[_STATE] in ("Z", "X") else fields[_STARTED]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
