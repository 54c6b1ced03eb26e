"""How a replica leaves that others are to replace: it goes on answering until one of them is ready.

Compose stops the replicas of a service all at once. Those that leave tell each other apart by a
lock in the volume that they share: one after another has it, and the system frees it as a process
ends. Who waits for it still answers, so that the one who has it may count on that.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Final

from reprise.bounds import LEAVE_S
from reprise.front import addresses_of, is_ready
from schemas.setting import part, setting
from storage.slots import lock_file

LEAVE_UNSEEN_S: Final = 8.0  # a replica answers no longer where no other one is even being started
LEAVE_SETTLE_S: Final = 2.0  # until those who ask know of the other one
LEAVE_LOOK_S: Final = 0.3  # between two looks

LOCK_FILE: Final = "leaving.lock"

logger = logging.getLogger(__name__)


@part
class LeaveSettings:
    """To whom a replica leaves its clients.

    Attributes:
        shared: the directory of the lock.
    """

    to: str = setting(
        "serve.leave_to",
        "A name that stands for all replicas, on the same port: after SIGTERM this one goes on"
        f" answering until another is ready, {LEAVE_S:.0f} s at most.  [default: it ends at"
        " once]",
        flag="--leave-to",
        metavar="HOST",
        read=lambda text: text or None,
    )
    asked_by: str = setting(
        "serve.leave_for",
        "A name that stands for who asks the replicas: serve.leave_to waits no longer than it"
        " stands for anything.  [default: it is not looked up]",
        flag="--leave-for",
        metavar="HOST",
        default="",
    )
    shared: Path = Path("data")


class ReplicaLeave:
    """One leave of one replica."""

    def __init__(
        self,
        settings: LeaveSettings,
        port: int,
        *,
        own: Callable[[], list[str]] = lambda: addresses_of(socket.gethostname(), 0),
        ready: Callable[[str, int], bool] = is_ready,
        resolve: Callable[[str, int], list[str]] = addresses_of,
    ) -> None:
        """`own` says which addresses are this replica's; others are for tests, too."""
        self._settings = settings
        self._port = port
        self._own = own
        self._ready = ready
        self._resolve = resolve
        self._at_once = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, then: Callable[[], None]) -> None:
        """Has `then` called, on another thread, once there is somebody else; at most `LEAVE_S` from
        now. Called again, it does not wait any longer.
        """
        if self._thread is not None:
            self._at_once.set()
            return
        self._thread = threading.Thread(target=self._run, args=(then,), daemon=True)
        self._thread.start()

    def _run(self, then: Callable[[], None]) -> None:
        try:
            logger.info("Leaving: %s", self.wait())
        except Exception:
            logger.exception("Cannot tell whether another replica is ready; leaving at once")
        finally:
            then()

    def wait(self) -> str:
        """Waits; says why it is over."""
        began = monotonic()
        if not self._has_asker():
            return "nobody is there to ask"
        lock = self._lock(began + LEAVE_S)
        if lock is None:
            return "others have not left in time"
        # Kept open: others wait until this process has ended.
        since = monotonic()
        while not self._at_once.is_set():
            others = set(self._resolve(self._settings.to, self._port)) - set(self._own())
            if any(self._ready(address, self._port) for address in sorted(others)):
                self._at_once.wait(LEAVE_SETTLE_S)
                return "another replica is ready"
            now = monotonic()
            if now - began >= LEAVE_S or (not others and now - since >= LEAVE_UNSEEN_S):
                return "no other replica is ready in time"
            if not self._has_asker():
                return "nobody is there to ask"
            self._at_once.wait(LEAVE_LOOK_S)
        return "told to at once"

    def _has_asker(self) -> bool:
        asker = self._settings.asked_by
        return not asker or bool(self._resolve(asker, self._port))

    def _lock(self, deadline: float) -> int | None:
        path = self._settings.shared / LOCK_FILE
        os.makedirs(path.parent, exist_ok=True)
        while (lock := lock_file(path)) is None:
            if monotonic() >= deadline or not self._has_asker():
                return None
            if self._at_once.wait(LEAVE_LOOK_S):
                return None
        return lock
