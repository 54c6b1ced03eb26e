"""From received messages to log records, for a set of publishers. No I/O, no clock, no threads.

One bad event never costs its batch, one bad batch never its stream; whatever is left out is counted
under its publisher and a `DropReason`. A batch of which nothing can be used may have removed
blocks, so a `gap` stands for it. One is enough: while the publisher is degraded by an earlier one,
such batches are empty ones, lest an engine that we do not understand fill the log with gaps.

A publisher that can replay is held at a gap: its live batches wait, decoded and bounded, while
`gap_repair` asks for what is missing; `accept` takes the replayed batches, `resume` the ones
that waited. Whatever is still missing then becomes a `gap` record. The others go on meanwhile.
"""

from collections import deque
from collections.abc import Iterable

from bridge.sequencing.lane import RESTARTED, Anchor, Held, Lane, PublisherCounters
from bridge.sequencing.tracker import SequenceTracker
from bridge.sequencing.window import Window
from bridge.sockets.raw_message import RawMessage
from bridge.wire import DecodedBatch, open_source
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.errors import BatchError, RegistrationConflictError
from schemas.identities import PublisherKey
from schemas.limits import HELD_BATCHES_MAX, HELD_BYTES_MAX
from schemas.positions import NO_CURSOR, Cursor
from schemas.records import SequencedRecord
from schemas.registration import Registration


class Sequencer:
    """Folds messages of many publishers into records; one owner.

    Args:
        packer: of hashes and tokens; the kernel's where there is one.
    """

    def __init__(self, packer: ArrayPacker | None = None) -> None:
        self._packer = packer or PythonArrayPacker()
        self._lanes: dict[PublisherKey, Lane] = {}
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
        self._lanes[publisher] = Lane(registration.service_key, source, cursor, repairs)

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
        windows: dict[PublisherKey, tuple[Lane, Window]] = {}
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

    def _hold(self, lane: Lane, batch: DecodedBatch, size_bytes: int) -> None:
        assert lane.held is not None
        if len(lane.held) >= HELD_BATCHES_MAX or self.held_bytes + size_bytes > HELD_BYTES_MAX:
            lane.counters.count_drop(
                BatchError(DropReason.HELD_FULL, f"Expected room for batch: {batch.sequence}")
            )
            return
        lane.held.append(Held(batch, size_bytes))
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

    def _pop(self, lane: Lane) -> None:
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
        return {publisher: lane.counters for publisher, lane in self._lanes.items()}
