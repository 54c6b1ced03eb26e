"""What the messages of one publisher came to, in numbers."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bridge.wire.drop_reasons import DropReason
from schemas.errors import LeftOutError, PassedOverError, ToleratedError, WireError
from schemas.limits import REPEATS_DOUBTED
from schemas.troubles import NO_TROUBLES, Troubles, registrable, shortened

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
        last_drop: what was dropped last, and why.
        last_other: what was of another stream last, likewise.
        number: of the last batch that came live; -1: none has.
        repeats: how many have come under that number since its first, one after the other.
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
    last_drop: WireError | None = None
    last_other: WireError | None = None
    number: int = -1
    repeats: int = 0

    def note_number(self, number: int) -> None:
        """A batch of this number came live."""
        self.repeats = self.repeats + 1 if number == self.number else 0
        self.number = number
        if self.repeats == REPEATS_DOUBTED:
            _logger.warning(
                "Expected each batch of %s under a number of its own, got %d in a row under %d:"
                " what is lost of it does not show, and its answers are unconfirmed",
                *(self.publisher, self.repeats + 1, number),
            )

    def troubles(self, link: str, other_ranks: Iterable[int] = ()) -> Troubles:
        """What there is to say against the publisher; `link`: why no link comes up; `other_ranks`:
        that publish at its address. Where all that comes is of other streams, it may be of its own
        by another name.
        """
        others = 0 if self.events else self.passed_over[DropReason.OTHER_STREAM]
        last, repeats = self.last_other if others else self.last_drop, self.repeats
        if last is None and not (repeats or link or other_ranks):
            return NO_TROUBLES
        return Troubles(
            dropped=sum(self.dropped.values()) + others,
            reason="" if last is None else last.reason,
            detail="" if last is None else shortened(str(last.detail)),
            repeats=repeats,
            number=self.number if repeats else 0,
            link=shortened(link),
            other_ranks=registrable(other_ranks),
        )

    def count_drop(self, error: WireError, things: int = 1) -> None:
        """Counts what is dropped, and logs the first of each kind."""
        if things and not self.dropped[error.reason]:
            _logger.warning(
                "Dropped something of %s: %s. More of this kind is only counted",
                *(self.publisher, error),
            )
        self.dropped[error.reason] += things
        self.last_drop = error if things else self.last_drop

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
        if error.reason == DropReason.OTHER_STREAM:
            self.last_other = error
