"""What keeps the write path from doing its work now, told in `/health` and by `stale` answers."""

import logging
import threading
from enum import StrEnum

from schemas.errors import StorageError

logger = logging.getLogger(__name__)


class Part(StrEnum):
    """What can be in trouble; each is mended by its own success."""

    RECOVERY = "recovery"
    LOG = "log"
    SYNC = "log sync"
    TABLE = "table"
    RETENTION = "log retention"
    THREAD = "thread"


class Troubles:
    """The troubles of all parts at once. Any thread may call it."""

    def __init__(self) -> None:
        self.disk_errors = 0
        self._lock = threading.Lock()
        self._texts: dict[Part, str] = {}

    @property
    def problem(self) -> str:
        """The first of them, or ""."""
        with self._lock:
            return next(iter(self._texts.values()), "")

    def begin(self, part: Part, text: str) -> None:
        """The part cannot work, for this reason."""
        with self._lock:
            self._texts.setdefault(part, text)

    def note(self, part: Part, error: StorageError) -> None:
        """An attempt failed; it will be made again. Logged when it is the first of a row."""
        with self._lock:
            self.disk_errors += 1
            known = part in self._texts
            self._texts.setdefault(part, str(error))
        if not known:
            logger.error("Trouble with the %s, trying again until it is over: %s", part, error)

    def end(self, part: Part) -> None:
        """The part works."""
        if part not in self._texts:
            return
        with self._lock:
            self._texts.pop(part, None)
        logger.info("No trouble with the %s any more", part)
