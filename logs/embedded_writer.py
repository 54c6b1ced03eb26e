"""Writes what a source has to a log on this disk, window by window, on a thread of its own.

It costs the service nothing but what it takes: where the log cannot be written, requests are
answered as before, and what was to be written is dropped and counted.
"""

import logging
import threading
from typing import Final, Generic, Protocol, TypeVar

from logs.bounds import WINDOW_LOG_S
from logs.kept_log import KeptLog
from logs.source import RecordSource
from schemas.errors import StorageError
from schemas.identities import Offset
from schemas.limits import SHUTDOWN_S

WINDOW_LOG_SYNC_S: Final = 1.0  # what a power cut may cost of it
WINDOW_LOOKS: Final = 10  # within a window, whether there is much, where there was something before

ItemT = TypeVar("ItemT")
logger = logging.getLogger(__name__)


class Keeper(Protocol):
    """What keeps the state of a log's fold, so that old records can go."""

    @property
    def floor(self) -> Offset:
        """Records at or above it are kept, whatever their age."""
        ...

    def keep(self, *, is_last: bool) -> None:
        """Keeps the state now and then, and at the end.

        Raises:
            StorageError: the disk fails.
        """
        ...


class EmbeddedWriter(Generic[ItemT]):
    """See the module.

    Args:
        source: to take from.
        log: to write to; it is closed with this.
        thread: name of the thread.
        keeper: of the log's fold; None: there is none.
    """

    def __init__(
        self,
        source: RecordSource[ItemT],
        log: KeptLog,
        *,
        thread: str,
        keeper: Keeper | None = None,
    ) -> None:
        self.source = source
        self._log = log
        self._name = log.declared.name
        self._keeper = keeper
        self._sync_at = 0.0
        self._in_doubt: tuple[Offset, list[ItemT], int] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)

    def open(self) -> None:
        """See `EmbeddedRun`."""
        self._log.opened()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Writes what is left, and closes the log; within a bound."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(SHUTDOWN_S)
        try:
            while self.source.has_much and self.write():
                pass
            self.write()
            if self._keeper is not None and self._log.log is not None and not self._log.has_failed:
                self._keeper.keep(is_last=True)
            self._log.close()
        except StorageError as error:
            logger.error("Cannot close %s: %s. What it has not written is lost", self._name, error)

    def _run(self) -> None:
        is_busy = False
        while not self._rest(is_busy=is_busy):
            try:
                is_busy = self.write()
                self._maintain()
            except Exception:
                logger.exception("Unexpected error in %s; it goes on", self._name)

    def _rest(self, *, is_busy: bool) -> bool:
        """Until the window is over; where something comes, no longer than until that is much. Says
        whether it stops.
        """
        looks = WINDOW_LOOKS if is_busy else 1
        for _ in range(looks):
            if self.source.has_much and is_busy:
                break
            if self._stopping.wait(WINDOW_LOG_S / looks):
                return True
        return self._stopping.is_set()

    def write(self) -> bool:
        """Writes what there is now; on the disk's failure it is dropped and counted. Says whether
        there was any.
        """
        items, values, count = [], [], 0
        for size, item in self.source.take():
            try:
                values.append(self.source.encode(item).value)
            except Exception:  # a value that no record can have: the others are written
                self.source.unwritten += size
                logger.exception("A record of %s cannot be written; it is dropped", self._name)
            else:
                items.append(item)
                count += size
        if not items:
            return False
        first = None
        try:
            log = self._log.opened()
            self._settle(log.end_offset)
            first = log.end_offset
            self._log.append(values)
        except StorageError:
            self.source.unwritten += count
            if first is not None:
                self._in_doubt = (first, items, count)
        else:
            self._appended(first, items, count)
        return True

    def _settle(self, end: Offset) -> None:
        """The log is open, and ends there. A write may have reached the disk before its error, and
        a fold without its records would differ from the log.
        """
        if self._in_doubt is None:
            return
        (first, items, count), self._in_doubt = self._in_doubt, None
        if end > first:
            self.source.unwritten -= count
            self._appended(first, items, count)

    def _appended(self, first: Offset, items: list[ItemT], count: int) -> None:
        self.source.written_items += count
        self.source.appended(items, first)

    def _maintain(self) -> None:
        log = self._log.log
        if log is None or self._log.has_failed:
            return
        try:
            now = self._log.clock.monotonic()
            if now >= self._sync_at:
                self._sync_at = now + WINDOW_LOG_SYNC_S
                log.sync()
            floor = self._log.end_offset
            if self._keeper is not None:
                self._keeper.keep(is_last=False)
                floor = self._keeper.floor
            self._log.retain(floor)
        except StorageError as error:
            self._log.note_failure(error)
