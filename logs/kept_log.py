"""A log of its own on this disk, beside that of the events.

It is opened when it is needed, synced, kept within its bounds, opened again after the disk has
failed, and set aside where it is damaged.
"""

import gc
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from logs.embedded import EmbeddedLog
from schemas.clock import REAL_CLOCK, Clock
from schemas.conditions import Conditions, Part
from schemas.errors import DamagedError, StorageError
from schemas.identities import Offset
from schemas.limits import LOG_RETENTION_CHECK_S
from storage.salvage import move_aside

KEPT_LOG_RETRY_S: Final = 10.0  # after it could not be written; what comes meanwhile is dropped

logger = logging.getLogger(__name__)


class KeptLogOptions(NamedTuple):
    """What one is.

    Attributes:
        path: of its directory.
        name: of people, as "the log of answers".
        lost: what it means that a damaged one is set aside, as "the answers begin anew".
        bytes_max, age_max_s: how much is kept.
        part: the condition that is set while it cannot be written; None: no condition is.
        retry_s: how long after a failure it is opened again; until then appending fails at once.
    """

    path: Path
    name: str
    lost: str
    bytes_max: int
    age_max_s: float
    part: Part | None = None
    retry_s: float = KEPT_LOG_RETRY_S


class KeptLog:
    """See the module. One thread, but for `sync` of the log itself.

    Args:
        options: what it is.
        make: opens or creates it.
        conditions: of the service.
        clock: of the process.

    Attributes:
        options, clock: the same.
        log: once it is open.
        has_failed: whether the disk failed, and it is not open again.
    """

    def __init__(
        self,
        options: KeptLogOptions,
        make: Callable[[Path], EmbeddedLog] = EmbeddedLog,
        conditions: Conditions | None = None,
        *,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.options = options
        self.clock = clock
        self.log: EmbeddedLog | None = None
        self.has_failed = False
        self._make = make
        self._conditions = conditions
        self._retry_at = 0.0
        self._retain_at = 0.0

    @property
    def end_offset(self) -> Offset:
        """See `ReadableLog`; 0 where it was never opened."""
        return Offset(0) if self.log is None else self.log.end_offset

    def opened(self) -> EmbeddedLog:
        """The log, open; a damaged one is set aside.

        Raises:
            DataDirectoryInUseError: another process has it open.
            StorageError: it cannot be opened, a newer Reprise wrote it, or the disk failed a moment
                ago.
        """
        if self.has_failed and self.clock.monotonic() < self._retry_at:
            raise StorageError(f"Cannot write {self.options.name}: it is tried again soon")
        if self.log is None:
            self.log = self._open()
        elif self.has_failed:
            self.log.reopen()
        if self.has_failed:
            self.has_failed = False
            if self._conditions is not None and self.options.part is not None:
                self._conditions.clear(self.options.part)
        return self.log

    def _open(self) -> EmbeddedLog:
        self.options.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return self._make(self.options.path)
        except DamagedError as error:
            problem = str(error)
        gc.collect()  # an iterator that the error held on to keeps the directory locked
        return self.begin_anew(problem, f"{self.options.lost}, and nothing else is lost")

    def begin_anew(self, problem: str, lost: str) -> EmbeddedLog:
        """Sets a damaged log aside; returns an empty one.

        Args:
            problem: what is wrong with it.
            lost: what that means.
        """
        if self.log is not None:
            self.log.close()
        aside = move_aside(self.options.path, self.options.name)
        logger.warning("%s. It was moved to %s: %s", problem, aside, lost)
        self.log = self._make(self.options.path)
        return self.log

    def append(self, values: Sequence[bytes]) -> Offset:
        """See `RecordLog`.

        Raises:
            StorageError: none of them was appended; or all, which shows at the end of the log
                that is open again.
        """
        try:
            return self.opened().append(values, now=self.clock.unix())
        except StorageError as error:
            self.note_failure(error)
            raise

    def note_failure(self, error: StorageError) -> None:
        """The disk failed: the log is opened again after a while."""
        if not self.has_failed or self.clock.monotonic() >= self._retry_at:
            self._retry_at = self.clock.monotonic() + self.options.retry_s
            if self._conditions is not None and self.options.part is not None:
                self._conditions.set(self.options.part, "disk", str(error))
        self.has_failed = True

    def retain(self, floor: Offset) -> None:
        """Drops what is old, now and then; what is at or above the floor is kept.

        Raises:
            StorageError: the disk fails; nothing was dropped.
        """
        if self.log is None or self.clock.monotonic() < self._retain_at:
            return
        self._retain_at = self.clock.monotonic() + LOG_RETENTION_CHECK_S
        self.log.retain(
            bytes_max=self.options.bytes_max,
            age_max_s=self.options.age_max_s,
            now=self.clock.unix(),
            floor=floor,
        )

    def close(self) -> None:
        """Closes it where it is open.

        Raises:
            StorageError: what it has not written is lost.
        """
        if self.log is not None:
            self.log.close()
