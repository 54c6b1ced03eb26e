"""A log of its own beside that of the events, written window by window by a thread.

It costs the service nothing but what it takes: where it cannot be written, requests are answered as
before, and what was to be written is dropped and counted.
"""

import gc
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from logs.embedded import EmbeddedLog
from schemas.conditions import Conditions, Part
from schemas.errors import DamagedError, StorageError
from schemas.identities import Offset
from schemas.limits import (
    LOG_RETENTION_CHECK_S,
    SHUTDOWN_S,
    WINDOW_LOG_RETRY_S,
    WINDOW_LOG_S,
    WINDOW_LOG_SYNC_S,
)
from storage.salvage import move_aside

logger = logging.getLogger(__name__)

LogT = TypeVar("LogT", bound=EmbeddedLog)


class WindowLogOptions(NamedTuple):
    """What one is.

    Attributes:
        name: of people, as "the log of answers".
        thread: its thread's name.
        part: the condition that is set while it cannot be written.
        bytes_max, age_max_s: how much is kept.
    """

    name: str
    thread: str
    part: Part
    bytes_max: int
    age_max_s: float


class WindowLog(ABC):
    """See the module."""

    def __init__(
        self,
        open_log: Callable[[], EmbeddedLog],
        options: WindowLogOptions,
        conditions: Conditions,
        *,
        log: EmbeddedLog | None = None,
    ) -> None:
        """Args:
        open_log: opens it, once something is to be written; it is closed with this.
        options: what it is.
        conditions: of the service.
        log: the same, where it is open already.
        """
        self._open_log = open_log
        self._log = log
        self._options = options
        self._conditions = conditions
        self._failed = False
        self._retry_at = 0.0
        self._sync_at = 0.0
        self._retain_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=options.thread, daemon=True)

    @abstractmethod
    def take(self) -> Sequence[bytes]:
        """The records of what has come since the last call."""

    @abstractmethod
    def appended(self, first: Offset) -> None:
        """What was taken last is in the log, from that offset on."""

    @abstractmethod
    def lost(self) -> None:
        """What was taken last could not be written."""

    def maintain(self) -> None:  # noqa: B027 -- most have nothing to do
        """Called after each window that did not fail.

        Raises:
            StorageError: the disk fails.
        """

    @property
    def floor(self) -> Offset:
        """What is at or above it, is kept whatever its age."""
        return Offset(0) if self._log is None else self._log.end_offset

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Writes what is left, and closes the log; within a bound."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(SHUTDOWN_S)
        try:
            self.write()
            if self._log is not None:
                if not self._failed:
                    self.maintain()
                self._log.close()
        except StorageError as error:
            logger.error(
                "Cannot close %s: %s. What it has not written is lost", self._options.name, error
            )

    def _run(self) -> None:
        while not self._stopping.wait(WINDOW_LOG_S):
            try:
                self.write()
                self._maintain(time.monotonic())
            except Exception:
                logger.exception("Unexpected error in %s; it goes on", self._options.name)

    def write(self) -> None:
        """Writes what there is now; on the disk's failure it is dropped and counted."""
        records = self.take()
        if not records:
            return
        try:
            first = self._opened().append(records, now=time.time())
        except StorageError as error:
            self.lost()
            self._note(error)
        else:
            self.appended(first)

    def _opened(self) -> EmbeddedLog:
        if self._failed and time.monotonic() < self._retry_at:
            raise StorageError(f"Cannot write {self._options.name}: it is tried again soon")
        if self._log is None:
            self._log = self._open_log()
        elif self._failed:
            self._log.reopen()
        if self._failed:
            self._failed = False
            self._conditions.clear(self._options.part)
        return self._log

    def _note(self, error: StorageError) -> None:
        if not self._failed or time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + WINDOW_LOG_RETRY_S
            self._conditions.set(self._options.part, "disk", str(error))
        self._failed = True

    def _maintain(self, now: float) -> None:
        if self._failed or self._log is None:
            return
        try:
            if now >= self._sync_at:
                self._sync_at = now + WINDOW_LOG_SYNC_S
                self._log.sync()
            self.maintain()
            if now >= self._retain_at:
                self._retain_at = now + LOG_RETENTION_CHECK_S
                self._log.retain(
                    bytes_max=self._options.bytes_max,
                    age_max_s=self._options.age_max_s,
                    now=time.time(),
                    floor=self.floor,
                )
        except StorageError as error:
            self._note(error)


def open_or_begin_anew(path: Path, name: str, make: Callable[[Path], LogT], *, lost: str) -> LogT:
    """Opens or creates such a log; a damaged one is set aside.

    Args:
        path: of the log.
        name: of people, as "the log of answers".
        make: opens it.
        lost: what that means, as "the answers begin anew".

    Raises:
        DataDirectoryInUseError: another process has it open.
        StorageError: it cannot be opened, or a newer Reprise wrote it.
    """
    try:
        return make(path)
    except DamagedError as error:
        problem = str(error)
    gc.collect()  # an iterator that the error held on to keeps the directory locked
    aside = move_aside(path, name)
    logger.warning("%s. It was moved to %s: %s, and nothing else is lost", problem, aside, lost)
    return make(path)
