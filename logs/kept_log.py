"""A log of its own on this disk, beside that of the events.

It is opened when it is needed, synced, kept within its bounds, opened again after the disk has
failed, and set aside where it is damaged.
"""

import gc
import logging
from collections.abc import Sequence

from logs.declaration import EmbeddedParts, LogDeclaration
from logs.embedded import EmbeddedLog
from schemas.errors import DamagedError, StorageError
from schemas.identities import Offset
from schemas.limits import LOG_RETENTION_CHECK_S
from storage.salvage import move_aside

logger = logging.getLogger(__name__)


class KeptLog:
    """See the module. One thread, but for `sync` of the log itself.

    Attributes:
        data, path: directory of the data, and its own.
        log: once it is open.
        has_failed: whether the disk failed, and it is not open again.
    """

    def __init__(self, declared: LogDeclaration, parts: EmbeddedParts) -> None:
        self.declared = declared
        self.clock = parts.clock
        self.path = declared.path_in(parts.data)
        self.log: EmbeddedLog | None = None
        self.has_failed = False
        self.data = parts.data
        age_max_s = declared.age_max_s
        self._age_max_s = parts.age_max_s if age_max_s is None else age_max_s
        self._conditions = parts.conditions
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
            raise StorageError(f"Cannot write {self.declared.name}: it is tried again soon")
        if self.log is None:
            self.log = self._open()
        elif self.has_failed:
            self.log.reopen()
        if self.has_failed:
            self.has_failed = False
            if self.declared.part is not None:
                self._conditions.clear(self.declared.part)
        return self.log

    def _open(self) -> EmbeddedLog:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return self.declared.opened(self.data)
        except DamagedError as error:
            problem = str(error)
        gc.collect()  # an iterator that the error held on to keeps the directory locked
        return self.begin_anew(problem, f"{self.declared.lost}, and nothing else is lost")

    def begin_anew(self, problem: str, lost: str) -> EmbeddedLog:
        """Sets a damaged log aside; returns an empty one."""
        if self.log is not None:
            self.log.close()
        aside = move_aside(self.path, self.declared.name)
        logger.warning("%s. It was moved to %s: %s", problem, aside, lost)
        self.log = self.declared.opened(self.data)
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
            self._retry_at = self.clock.monotonic() + self.declared.retry_s
            if self.declared.part is not None:
                self._conditions.set(self.declared.part, "disk", str(error))
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
            bytes_max=self.declared.bytes_max,
            age_max_s=self._age_max_s,
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
