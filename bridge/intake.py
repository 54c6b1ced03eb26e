"""From received messages to log records, for a set of publishers. No I/O, no clock, no threads.

One bad event never costs its batch, one bad batch never its stream; whatever is left out is counted
under its publisher and a `DropReason`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from bridge.messages import RawMessage
from bridge.sequence import Outcome, SequenceTracker
from bridge.sources import Source, open_source
from bridge.window import Window
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.errors import RegistrationConflictError, WireError
from schemas.identities import PublisherKey
from schemas.positions import NO_CURSOR, Cursor
from schemas.records import SequencedRecord
from schemas.registration import Registration

RESTARTED: Final = "restarted"
JOINED_LATE: Final = "joined_late"
MISSED: Final = "missed"


@dataclass(slots=True)
class PublisherCounters:
    """What one publisher's messages came to since it was added; all but `dropped` only rise.

    Attributes:
        messages: received, of any use or none.
        batches: accepted into records, those without any usable event included.
        events: accepted into records.
        duplicates: batches that had been delivered before.
        gaps: places where batches are missing; lost_batches: how many are.
        restarts: new incarnations found.
        dropped: messages, batches and events left out, by `DropReason`.
        last_drop: the text of the last of them, for whoever looks into it.
    """

    messages: int = 0
    batches: int = 0
    events: int = 0
    duplicates: int = 0
    gaps: int = 0
    lost_batches: int = 0
    restarts: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    last_drop: str = ""

    def count_drop(self, error: WireError) -> None:
        """Counts one thing left out."""
        self.dropped[error.reason] += 1
        self.last_drop = str(error)


class _Lane:
    """All that is known of one publisher."""

    __slots__ = ("counters", "engine_time", "source", "tracker")

    def __init__(self, source: Source, cursor: Cursor) -> None:
        self.source = source
        self.tracker = SequenceTracker(cursor)
        self.counters = PublisherCounters()
        self.engine_time = 0.0

    def receive(self, message: RawMessage, window: Window) -> None:
        """Appends what the message says to the window."""
        counters = self.counters
        counters.messages += 1
        try:
            batch = self.source.decode(message.frames)
        except WireError as error:
            counters.count_drop(error)
            return
        tracker = self.tracker
        verdict = tracker.observe(batch.sequence, batch.digest)
        if verdict.outcome is Outcome.DUPLICATE:
            counters.duplicates += 1
            return
        if verdict.outcome is Outcome.RESTART:
            counters.restarts += 1
            window.add_reset(incarnation=tracker.incarnation, reason=RESTARTED)
        if verdict.gap is not None:
            first, last = verdict.gap
            counters.gaps += 1
            counters.lost_batches += last - first + 1
            reason = MISSED if first else JOINED_LATE
            window.add_gap(incarnation=tracker.incarnation, first=first, last=last, reason=reason)
        for dropped in batch.dropped:
            counters.count_drop(dropped)
        if batch.engine_time is not None:
            self.engine_time = batch.engine_time
        counters.batches += 1
        counters.events += len(batch.events)
        window.add_batch(
            incarnation=tracker.incarnation,
            sequence=batch.sequence,
            engine_time=self.engine_time,
            events=batch.events,
        )


class Intake:
    """Folds messages of many publishers into records; one owner.

    Args:
        packer: of hashes and tokens; the kernel's where there is one.
    """

    def __init__(self, packer: ArrayPacker | None = None) -> None:
        self._packer = packer or PythonArrayPacker()
        self._lanes: dict[PublisherKey, _Lane] = {}
        self.unregistered_messages = 0

    def add(self, registration: Registration, cursor: Cursor = NO_CURSOR) -> None:
        """Follows a publisher from its last batch in the log on.

        Raises:
            RegistrationConflictError: it is followed already.
        """
        publisher = registration.publisher
        if publisher in self._lanes:
            raise RegistrationConflictError(f"Expected a new publisher, got: {publisher}")
        self._lanes[publisher] = _Lane(open_source(registration, self._packer), cursor)

    def remove(self, publisher: PublisherKey) -> None:
        """Forgets a publisher; messages of it that are still under way are counted and left out."""
        self._lanes.pop(publisher, None)

    def process(self, messages: Iterable[RawMessage], now: float) -> list[SequencedRecord]:
        """The records of one window.

        Args:
            messages: in the order of arrival.
            now: Unix seconds; the records' bridge_time.

        Returns:
            Each publisher's records in the order of its messages; publishers in the order of their
            first.
        """
        windows: dict[PublisherKey, tuple[_Lane, Window]] = {}
        for message in messages:
            publisher = message.publisher
            open_window = windows.get(publisher)
            if open_window is None:
                lane = self._lanes.get(publisher)
                if lane is None:
                    self.unregistered_messages += 1
                    continue
                open_window = windows[publisher] = (lane, Window(publisher, now))
            open_window[0].receive(message, open_window[1])
        return [record for _, window in windows.values() for record in window.close()]

    def cursor(self, publisher: PublisherKey) -> Cursor:
        """The publisher's last accepted batch.

        Raises:
            KeyError: it is not followed.
        """
        return self._lanes[publisher].tracker.cursor

    def counters(self) -> dict[PublisherKey, PublisherCounters]:
        """The counters of every publisher that is followed; live, so read them only."""
        return {publisher: lane.counters for publisher, lane in self._lanes.items()}
