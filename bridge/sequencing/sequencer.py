"""From received messages to log records, for a set of publishers. No I/O, no clock, no threads.

One bad event never costs its batch, one bad batch never its stream; whatever is left out is counted
under its publisher and a `DropReason`. A batch of which nothing can be used may have removed
blocks, so a `gap` stands for it. One is enough: while the publisher is degraded by an earlier one,
such batches are empty ones, lest an engine that we do not understand fill the log with gaps.

A publisher that can replay is held at a gap: its live batches wait, decoded and bounded, while
`gap_repair` asks for what is missing; `accept` takes the replayed batches, `resume` the ones
that waited. Whatever is still missing then becomes a `gap` record. The others go on meanwhile.
"""

import logging
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bridge.sequencing.tracker import Outcome, SequenceTracker
from bridge.sequencing.window import Window
from bridge.sockets.raw_message import RawMessage
from bridge.wire import DecodedBatch, Source, open_source
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.errors import BatchError, RegistrationConflictError, WireError
from schemas.events import Cleared
from schemas.identities import PublisherKey
from schemas.limits import HELD_BATCHES_MAX, HELD_BYTES_MAX
from schemas.positions import NO_CURSOR, Cursor
from schemas.records import SequencedRecord
from schemas.registration import Registration

RESTARTED: Final = "restarted"
JOINED_LATE: Final = "joined_late"
MISSED: Final = "missed"

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PublisherCounters:
    """What one publisher's messages came to since it was added; all but `dropped` only rise.

    Attributes:
        publisher: its name in the log, `instance|tenant|rank`.
        messages: received, of any use or none.
        batches: accepted into records, those without any usable event included.
        events: accepted into records.
        duplicates: batches that had been delivered before.
        gaps: places where batches are missing; lost_batches: how many are.
        restarts: new incarnations found.
        dropped: messages, batches and events left out, by `DropReason`.
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

    def count_drop(self, error: WireError) -> None:
        """Counts one thing left out, and says the first of each kind."""
        if not self.dropped[error.reason]:
            _logger.warning(
                "Left out what %s sent, as all of its kind from here on: %s", self.publisher, error
            )
        self.dropped[error.reason] += 1


class Anchor(NamedTuple):
    """A batch that is in the log, with the time by which its life is known again.

    Attributes:
        cursor: of the batch.
        engine_time: its own timestamp, Unix seconds; 0 where it is not known.
    """

    cursor: Cursor
    engine_time: float


NO_ANCHOR: Final = Anchor(NO_CURSOR, 0.0)


class _Held(NamedTuple):
    batch: DecodedBatch
    size_bytes: int


class _Lane:
    """All that is known of one publisher."""

    __slots__ = (
        "counters",
        "degraded",
        "engine_time",
        "held",
        "held_bytes",
        "repairs",
        "source",
        "tracker",
    )

    def __init__(self, name: str, source: Source, cursor: Cursor, repairs: bool) -> None:
        self.source = source
        self.tracker = SequenceTracker(cursor)
        self.counters = PublisherCounters(name)
        self.engine_time = 0.0
        self.degraded = False  # a gap was written, and no reset or clear since; not what was before
        self.repairs = repairs
        self.held: deque[_Held] | None = None
        self.held_bytes = 0

    def decode(self, message: RawMessage) -> DecodedBatch | None:
        """The message's batch, or None, counted, where it has no place in the stream."""
        self.counters.messages += 1
        try:
            return self.source.decode(message.frames)
        except WireError as error:
            self.counters.count_drop(error)
            return None

    def needs_repair(self, batch: DecodedBatch) -> bool:
        """Whether batches before this one are missing that the publisher may still have."""
        if not self.repairs or batch.sequence == self.tracker.sequence + 1:
            return False
        return self.tracker.peek(batch.sequence, batch.digest).gap is not None

    def accept(self, batch: DecodedBatch, window: Window) -> None:
        """Appends what the batch says to the window."""
        counters = self.counters
        tracker = self.tracker
        verdict = tracker.observe(batch.sequence, batch.digest)
        if verdict.outcome is Outcome.DUPLICATE:
            counters.duplicates += 1
            return
        if verdict.outcome is Outcome.RESTART:
            counters.restarts += 1
            self.degraded = False
            window.add_reset(incarnation=tracker.incarnation, reason=RESTARTED)
        if verdict.gap is not None:
            first, last = verdict.gap
            counters.gaps += 1
            counters.lost_batches += last - first + 1
            reason = MISSED if first else JOINED_LATE
            self.add_gap(window, first, last, reason)
        for dropped in batch.dropped:
            counters.count_drop(dropped)
        counters.batches += 1
        if batch.engine_time is None and not self.degraded:
            (unusable,) = batch.dropped
            self.add_gap(window, batch.sequence, batch.sequence, unusable.reason)
            return
        if batch.engine_time is not None:
            self.engine_time = batch.engine_time
        if self.degraded and any(isinstance(event, Cleared) for event in batch.events):
            self.degraded = False
        counters.events += len(batch.events)
        window.add_batch(
            incarnation=tracker.incarnation,
            sequence=batch.sequence,
            engine_time=self.engine_time,
            events=batch.events,
        )

    def add_gap(self, window: Window, first: int, last: int, reason: str) -> None:
        """Says that these batches are lost; the fold degrades the publisher by it."""
        self.degraded = True
        incarnation = self.tracker.incarnation
        window.add_gap(incarnation=incarnation, first=first, last=last, reason=reason)

    def is_older(self, batch: DecodedBatch) -> bool:
        """Whether a batch that waited is one that the log has: not above the cursor, nor later.

        The numbers alone could be those of a new life; its clock has gone on.
        """
        return (
            batch.sequence <= self.tracker.sequence
            and batch.engine_time is not None
            and batch.engine_time <= self.engine_time
        )


class Intake:
    """Folds messages of many publishers into records; one owner.

    Args:
        packer: of hashes and tokens; the kernel's where there is one.
    """

    def __init__(self, packer: ArrayPacker | None = None) -> None:
        self._packer = packer or PythonArrayPacker()
        self._lanes: dict[PublisherKey, _Lane] = {}
        self._gaps: list[PublisherKey] = []
        self.held_bytes = 0
        self.unregistered_messages = 0

    def add(
        self, registration: Registration, cursor: Cursor = NO_CURSOR, *, repairs: bool = False
    ) -> None:
        """Follows a publisher from its last batch in the log on.

        Args:
            registration: the publisher.
            cursor: that batch.
            repairs: hold the publisher at a gap, for whoever calls `take_gaps`, until `resume`.

        Raises:
            RegistrationConflictError: it is followed already.
        """
        publisher = registration.publisher
        if publisher in self._lanes:
            raise RegistrationConflictError(f"Expected a new publisher, got: {publisher}")
        source = open_source(registration, self._packer)
        self._lanes[publisher] = _Lane(registration.service_key, source, cursor, repairs)

    def remove(self, publisher: PublisherKey) -> None:
        """Forgets a publisher; messages of it that are still under way are counted and left out."""
        lane = self._lanes.pop(publisher, None)
        if lane is not None:
            self.held_bytes -= lane.held_bytes

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
            lane, window = open_window
            batch = lane.decode(message)
            if batch is None:
                continue
            if lane.held is None and lane.needs_repair(batch):
                lane.held = deque()
                self._gaps.append(publisher)
            if lane.held is None:
                lane.accept(batch, window)
            else:
                self._hold(lane, batch, message.size_bytes)
        return [record for _, window in windows.values() for record in window.close()]

    def _hold(self, lane: _Lane, batch: DecodedBatch, size_bytes: int) -> None:
        assert lane.held is not None
        if len(lane.held) >= HELD_BATCHES_MAX or self.held_bytes + size_bytes > HELD_BYTES_MAX:
            lane.counters.count_drop(
                BatchError(DropReason.HELD_FULL, f"Expected room for batch: {batch.sequence}")
            )
            return
        lane.held.append(_Held(batch, size_bytes))
        lane.held_bytes += size_bytes
        self.held_bytes += size_bytes

    # Holding and repairing one publisher

    def take_gaps(self) -> list[PublisherKey]:
        """The publishers that have been held at a gap since the last call."""
        gaps, self._gaps = self._gaps, []
        return gaps

    def hold(self, publisher: PublisherKey) -> None:
        """Lets the publisher's batches wait from now on, until `resume`.

        Raises:
            KeyError: it is not followed; so for all below.
        """
        lane = self._lanes[publisher]
        if lane.held is None:
            lane.held = deque()

    def is_held(self, publisher: PublisherKey) -> bool:
        """Whether the publisher's batches wait."""
        lane = self._lanes.get(publisher)
        return lane is not None and lane.held is not None

    def place(self, publisher: PublisherKey, anchor: Anchor) -> None:
        """Sets the publisher's last batch in the log; what was seen before is no evidence more."""
        lane = self._lanes[publisher]
        if lane.tracker.cursor != anchor.cursor:
            lane.tracker = SequenceTracker(anchor.cursor)
        lane.engine_time = anchor.engine_time

    def anchor(self, publisher: PublisherKey) -> Anchor:
        """The publisher's last accepted batch."""
        lane = self._lanes[publisher]
        return Anchor(lane.tracker.cursor, lane.engine_time)

    def first_waiting(self, publisher: PublisherKey) -> DecodedBatch | None:
        """The first batch that waits and that the log has not."""
        lane = self._lanes[publisher]
        return next((one.batch for one in lane.held or () if not lane.is_older(one.batch)), None)

    def decode(self, message: RawMessage) -> DecodedBatch | None:
        """The batch of a replayed message; None, counted, where it is none."""
        return self._lanes[message.publisher].decode(message)

    def accept(
        self, publisher: PublisherKey, batches: Iterable[DecodedBatch], now: float
    ) -> list[SequencedRecord]:
        """The records of replayed batches, in order; gaps between them are lost for good."""
        lane = self._lanes[publisher]
        window = Window(publisher, now)
        for batch in batches:
            lane.accept(batch, window)
        return window.close()

    def release(
        self, publisher: PublisherKey, before_time: float, now: float
    ) -> list[SequencedRecord]:
        """The records of the batches that wait and are older than `before_time`, an engine time."""
        lane = self._lanes[publisher]
        window = Window(publisher, now)
        while lane.held:
            batch = lane.held[0].batch
            if batch.engine_time is not None and batch.engine_time >= before_time:
                break
            self._pop(lane)
            if not lane.is_older(batch):
                lane.accept(batch, window)
        return window.close()

    def begin_incarnation(
        self, publisher: PublisherKey, now: float, reason: str = RESTARTED
    ) -> list[SequencedRecord]:
        """The record that withdraws all that the publisher announced in the life before."""
        lane = self._lanes[publisher]
        lane.counters.restarts += 1
        lane.degraded = False
        lane.tracker.begin_incarnation()
        window = Window(publisher, now)
        window.add_reset(incarnation=lane.tracker.incarnation, reason=reason)
        return window.close()

    def lose(
        self, publisher: PublisherKey, cursor: Cursor, now: float, *, reason: str
    ) -> list[SequencedRecord]:
        """The records that say that everything up to `cursor` is lost; none where it is known."""
        lane = self._lanes[publisher]
        window = Window(publisher, now)
        if cursor <= lane.tracker.cursor:
            return []
        if cursor.incarnation > lane.tracker.incarnation:
            window.add_reset(incarnation=cursor.incarnation, reason=reason)
            lane.degraded = False
            lane.tracker = SequenceTracker(Cursor(cursor.incarnation, -1))
        first, last = lane.tracker.sequence + 1, cursor.sequence
        if first <= last:
            lane.counters.gaps += 1
            lane.counters.lost_batches += last - first + 1
            lane.add_gap(window, first, last, reason)
        lane.tracker = SequenceTracker(cursor)
        lane.engine_time = 0.0
        return window.close()

    def resume(self, publisher: PublisherKey, now: float) -> list[SequencedRecord]:
        """Ends the wait: the records of what waited, in order; what is missing before it is a gap.

        A further gap among the batches that waited holds the publisher again: see `take_gaps`.
        """
        lane = self._lanes[publisher]
        window = Window(publisher, now)
        first = True
        while lane.held:
            batch = lane.held[0].batch
            if lane.is_older(batch):
                lane.counters.duplicates += 1
                self._pop(lane)
                continue
            if not first and lane.needs_repair(batch):
                self._gaps.append(publisher)
                return window.close()
            first = False
            self._pop(lane)
            lane.accept(batch, window)
        lane.held = None
        return window.close()

    def _pop(self, lane: _Lane) -> None:
        assert lane.held
        size_bytes = lane.held.popleft().size_bytes
        lane.held_bytes -= size_bytes
        self.held_bytes -= size_bytes

    # Reading

    def __contains__(self, publisher: object) -> bool:
        return publisher in self._lanes

    def cursor(self, publisher: PublisherKey) -> Cursor:
        """The publisher's last accepted batch.

        Raises:
            KeyError: it is not followed.
        """
        return self._lanes[publisher].tracker.cursor

    def counters(self) -> dict[PublisherKey, PublisherCounters]:
        """The counters of every publisher that is followed; live, so read them only."""
        return {publisher: lane.counters for publisher, lane in list(self._lanes.items())}
