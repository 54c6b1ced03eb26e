"""What the messages of one publisher came to, in numbers."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.errors import LeftOutError, PassedOverError, ToleratedError, WireError

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PublisherCounters:
    """What one publisher's messages came to since it was added; all but `dropped` only rise.

    Attributes:
        publisher: its name in the log, `instance|tenant|rank`.
        messages: received, usable or not.
        batches: accepted into records, those without any usable event included.
        events: accepted into records.
        duplicates: batches that had been delivered before.
        gaps: places where batches are missing; lost_batches: how many are.
        restarts: new incarnations found.
        dropped: messages, batches and events that were dropped, by `DropReason`.
        passed_over: events that are about something else than its blocks, likewise.
    """

    publisher: str = ""
    messages: int = 0
    batches: int = 0
    events: int = 0
    duplicates: int = 0
    gaps: int = 0
    lost_batches: int = 0
    restarts: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    passed_over: Counter[str] = field(default_factory=Counter)

    def count_drop(self, error: WireError, things: int = 1) -> None:
        """Counts what is dropped, and logs the first of each kind."""
        if things and not self.dropped[error.reason]:
            _logger.warning(
                "Dropped something of %s: %s. More of this kind is only counted",
                *(self.publisher, error),
            )
        self.dropped[error.reason] += things

    def count_drops(self, errors: Sequence[WireError]) -> list[WireError]:
        """Counts what a batch drops and passes over; returns what is missing without it."""
        lost = []
        for error in errors:
            if isinstance(error, PassedOverError):
                self._count_passed_over(error)
                continue
            self.count_drop(error)
            if not isinstance(error, LeftOutError):
                lost.append(error)
        return lost

    def _count_passed_over(self, error: PassedOverError) -> None:
        if not self.passed_over[error.reason]:
            is_used = isinstance(error, ToleratedError)
            done = "Using, but for what is not known," if is_used else "Passing over"
            _logger.info(
                "%s events of %s (further ones are only counted): %s",
                done,
                self.publisher,
                error,
            )
        self.passed_over[error.reason] += 1
