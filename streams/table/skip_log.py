"""Names records that were skipped in the service's log, without flooding it.

Two bridges that follow one publisher write everything twice, and a table that is folded again meets
all of that once more: every record is counted, the first of each reason are named.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from streams.table.fold import SkippedRecord

logger = logging.getLogger(__name__)

NAMED_MAX: Final = 100
"""Of each reason, in each `WINDOW_S`."""

WINDOW_S: Final = 60.0


class SkippedRecords:
    """One user at a time. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun_at = clock()
        self._named: dict[str, int] = {}

    def name(self, place: object, skipped: SkippedRecord) -> None:
        """Says where the record is and why it was skipped.

        Args:
            place: what the offset is of: a partition, or "".
            skipped: the record.
        """
        now = self._clock()
        if now - self._begun_at > WINDOW_S:
            self._begun_at = now
            self._named.clear()
        count = self._named[skipped.reason] = self._named.get(skipped.reason, 0) + 1
        if count <= NAMED_MAX:
            at = f"{place}:{skipped.offset}" if place != "" else f"offset {skipped.offset}"
            text = "Skipped the record at %s (%s): %s"
            logger.warning(text, at, skipped.reason, skipped.detail, exc_info=skipped.error)
        elif count == NAMED_MAX + 1:
            logger.warning(
                "More records are skipped (%s): counted, and not named for a minute", skipped.reason
            )
