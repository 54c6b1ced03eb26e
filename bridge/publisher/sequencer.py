"""From received messages to log records, for a set of publishers. No I/O, no threads, and no clock
but for how much is done at once.

A bad event never costs its batch, and a bad batch never its stream; whatever is dropped is counted
under its publisher and a `DropReason`. A batch of which nothing can be used may have removed
blocks, so a `gap` stands for it. One is enough: while the publisher is degraded by an earlier one,
such batches count as empty, so that an engine that we do not understand does not fill the log with
gaps.

A publisher that can replay is held at a gap: its live batches wait, decoded and bounded, while
`gap_repair` asks for what is missing; `accept` takes the replayed batches, `resume` the ones
that waited. Whatever is still missing then becomes a `gap` record. The others go on meanwhile.

An unexpected error costs one window of one publisher: the publisher goes back to where the window
started, is counted under `internal_error`, and is held as at a gap where it can replay. Where it
cannot, or that does not help, a gap stands for the window.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bridge.publisher.anchor import Anchor, Joint
from bridge.publisher.causes import MISSED, RESTARTED
from bridge.publisher.counters import PublisherCounters
from bridge.publisher.lane import Lane
from bridge.publisher.waiting import Held, Missing
from bridge.publisher.window import Window
from bridge.sockets.raw_message import RawMessage
from bridge.wire import DecodedBatch, open_source
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.errors import BatchError, RegistrationConflictError
from schemas.identities import PublisherKey
from schemas.limits import HELD_BATCHES_MAX, HELD_BYTES_MAX, HELD_TURN_S
from schemas.positions import NO_CURSOR, Cursor, Proof
from schemas.records import SequencedRecord
from schemas.registration import Registration

_FAULT: Final = "Unexpected error in messages of %s; replaying them, or writing a gap for them"
_logger = logging.getLogger(__name__)


class Sequencer:
    """Turns messages of many publishers into records; one owner.

    Args:
        packer: of hashes and tokens; the kernel's where there is one.
    """

    def __init__(self, packer: ArrayPacker | None = None) -> None:
        self._packer = packer or PythonArrayPacker()
        self._lanes: dict[PublisherKey, Lane] = {}
        self._gaps: list[PublisherKey] = []
        self.held_bytes = 0
        self.unregistered_messages = 0
        self.faults = 0

    def add(
        self, registration: Registration, cursor: Cursor = NO_CURSOR, *, repairs: bool = False
    ) -> None:
        """Follows a publisher from its last batch in the log.

        Args:
            registration: the publisher.
            cursor: that batch.
            repairs: hold the publisher at a gap until `resume`; `take_gaps` names it.

        Raises:
            RegistrationConflictError: it is followed already.
        """
        publisher = registration.publisher
        if publisher in self._lanes:
            raise RegistrationConflictError(f"Expected a new publisher, got: {publisher}")
        source = open_source(registration, self._packer)
        self._lanes[publisher] = Lane(registration, source, cursor, repairs)

    def remove(self, publisher: PublisherKey) -> None:
        """Forgets a publisher; its messages that are still under way are counted and dropped."""
        lane = self._lanes.pop(publisher, None)
        if lane is not None:
            self.held_bytes -= lane.held_bytes

    def process(self, messages: Sequence[RawMessage], now: float) -> list[SequencedRecord]:
        """The records of one window.

        Args:
            messages: in the order of arrival.
            now: Unix seconds; the records' bridge_time.

        Returns:
            Each publisher's records in the order of its messages; publishers in the order of their
            first.
        """
        return self.process_until(messages, now, math.inf)[0]

    def process_until(
        self, messages: Sequence[RawMessage], now: float, until: float
    ) -> tuple[list[SequencedRecord], int]:
        """The same, of as many of the first messages as there is time for; and how many these are.

        Args:
            messages: in the order of arrival.
            now: Unix seconds; the records' bridge_time.
            until: monotonic seconds; one message is taken whatever it takes.
        """
        windows: dict[PublisherKey, tuple[Lane, Window]] = {}
        at = 0
        while at < len(messages):
            if at and time.monotonic() >= until:
                break
            message = messages[at]
            publisher = message.publisher
            open_window = windows.get(publisher)
            if open_window is None:
                lane = self._lanes.get(publisher)
                if lane is None:
                    self.unregistered_messages += 1
                    at += 1
                    continue
                open_window = windows[publisher] = (lane, lane.open(now))
            lane, window = open_window
            if 0 < message.link < lane.first_link:
                lane.drop_earlier(1)
                at += 1
                continue
            if message.link != lane.link:
                self._begin_link(lane, message.link)
            if taken := self._take_run(lane, window, messages, at):
                at += taken
                lane.received_at = messages[at - 1].received_at
                continue
            at += 1
            lane.received_at = message.received_at
            batch: DecodedBatch | None = None
            try:
                lane.heard += 1
                batch = lane.decode(message)
                if batch is not None:
                    lane.received_time = batch.engine_time or lane.received_time
                    self._take(lane, window, batch, message.size_bytes)
            except Exception:
                _logger.exception(_FAULT, lane.counters.publisher)
                self._count_fault(lane)
                if batch is None or lane.held is not None:
                    # Nothing is known of this batch: at least the next one is missing.
                    self._ask_again(lane, window, _after(lane.tracker.cursor))
                else:
                    lost_to = lane.roll_back()
                    window = lane.open(now)
                    windows[publisher] = (lane, window)
                    self._ask_again(lane, window, lost_to)
        records: list[SequencedRecord] = []
        for lane, window in windows.values():
            records += self._close(lane, window, now, ask_again=True)
            lane.lateness.note(lane.received_time, lane.received_at)
        return records, at

    def _take_run(self, lane: Lane, window: Window, messages: Sequence[RawMessage], at: int) -> int:
        """See `Lane.take_run`; an error there costs nothing, since each is then decoded alone."""
        try:
            return lane.take_run(window, messages, at)
        except Exception:
            _logger.exception(
                "Unexpected error in messages of %s; decoding each alone", lane.counters.publisher
            )
            self._count_fault(lane)
            return 0

    def _take(self, lane: Lane, window: Window, batch: DecodedBatch, size_bytes: int) -> None:
        if lane.held is None and lane.needs_repair(batch):
            self._hold_at_gap(lane, MISSED)
        if lane.held is None:
            if lane.accept(batch, window, lane.link):
                lane.unplaced = 0  # what may have been missing is a gap now, or was not there
        else:
            self._hold(lane, batch, size_bytes)

    def _begin_link(self, lane: Lane, link: int) -> None:
        """The publisher's first message over another link: that it follows on proves nothing, since
        the engine may have restarted and come exactly as far. Its replay can tell.
        """
        lane.begin_link(link)
        if lane.repairs and lane.held is None:
            self._hold_at_gap(lane, lane.away)

    def _hold_at_gap(self, lane: Lane, cause: str) -> None:
        lane.held, lane.cause = deque(), cause
        self._gaps.append(lane.publisher)

    def _hold(self, lane: Lane, batch: DecodedBatch, size_bytes: int) -> None:
        assert lane.held is not None
        if len(lane.held) >= HELD_BATCHES_MAX or self.held_bytes + size_bytes > HELD_BYTES_MAX:
            lane.counters.count_drop(
                BatchError(DropReason.HELD_FULL, f"no room for batch {batch.sequence}")
            )
            lane.overflowed = Held(batch, size_bytes, lane.link)
            return
        lane.held.append(Held(batch, size_bytes, lane.link))
        lane.held_bytes += size_bytes
        self.held_bytes += size_bytes

    # Holding and repairing one publisher

    def take_gaps(self) -> list[PublisherKey]:
        """The publishers that have been held at a gap since the last call."""
        gaps, self._gaps = self._gaps, []
        return gaps

    def hold(self, publisher: PublisherKey, cause: str = "") -> None:
        """Lets the publisher's batches wait from now on, until `resume`.

        Args:
            publisher: whose.
            cause: why some of them may be missing, where it did not wait for another one.

        Raises:
            KeyError: it is not followed; so for all below.
        """
        lane = self._lanes[publisher]
        lane.is_resuming = False
        lane.asked_link = lane.live_link
        lane.cause = lane.cause or lane.away or cause
        if lane.held is None:
            lane.held = deque()

    def is_resuming(self, publisher: PublisherKey) -> bool:
        """Whether `resume` has left batches that may follow as they are: it is to be called again
        until it has not.
        """
        lane = self._lanes.get(publisher)
        return lane is not None and lane.is_resuming

    def is_held(self, publisher: PublisherKey) -> bool:
        """Whether the publisher's batches wait."""
        lane = self._lanes.get(publisher)
        return lane is not None and lane.held is not None

    def place(self, publisher: PublisherKey, anchor: Anchor, *, away: str = "") -> None:
        """Sets the publisher's last batch in the log, see `Lane.place`; `away` says why batches may
        be missing behind it.
        """
        lane = self._lanes[publisher]
        lane.place(anchor)
        lane.away = away

    def has_in_common(self, publisher: PublisherKey, anchor: Anchor) -> bool:
        """Whether that batch of the log came to us, too, and waits."""
        return self._common(self._lanes[publisher], anchor) > 0

    def _common(self, lane: Lane, anchor: Anchor) -> int:
        """How many batches wait up to the log's last one, which its time tells; 0 for none. A gap
        has no time: up to its end, behind the last one before it that came live.
        """
        last = Proof(anchor.cursor.sequence, anchor.engine_time)
        batch = last if last.engine_time else anchor.heard
        if batch is None or not batch.engine_time:
            return 0
        held = list(lane.held or ())
        waiting = [(one.batch.sequence, one.batch.engine_time) for one in held]
        if batch not in waiting:
            return 0
        common = len(waiting) - waiting[::-1].index(batch)
        link = held[common - 1].link
        while (
            common < len(held)
            and held[common].link == link
            and batch.sequence < waiting[common][0] <= last.sequence
        ):
            common += 1
        return common

    def join(self, publisher: PublisherKey, joint: Joint) -> None:
        """Another bridge has written up to here what came to both: that is dropped. What waits
        behind it is of the log's incarnation.

        Args:
            publisher: held, and placed.
            joint: what that bridge knows.
        """
        lane = self._lanes[publisher]
        common, link = self._common(lane, lane.anchor), joint.link
        last, over = lane.held[common - 1] if lane.held and common else None, lane.overflowed
        if last is not None and lane.proof is None:
            link = link or last.link  # its process has published that batch
        if (
            (last is not None and over is not None)
            and over.link == last.link
            and over.batch.sequence <= lane.tracker.sequence
        ):
            lane.overflowed = None  # that bridge has had no room for it either
        for _ in range(common):
            self._pop(lane)
        lane.counters.duplicates += common
        if link:
            lane.link = max(lane.link, link)
            lane.prove(link)
            if joint.is_whole:
                lane.pairing.note_whole()

    def anchor(self, publisher: PublisherKey) -> Anchor:
        """The publisher's last accepted batch."""
        return self._lanes[publisher].anchor

    def proven(self, publisher: PublisherKey) -> Proof:
        """The last batch that is known to be of the log's incarnation; see `anchor`."""
        return self._lanes[publisher].proven

    def link(self, publisher: PublisherKey) -> int:
        """The link that brought the publisher's last message; 0 where that is not known."""
        return self._lanes[publisher].link

    def prove(self, publisher: PublisherKey, link: int) -> None:
        """The engine still has the batch of `proven`, and was asked when this was the link."""
        lane = self._lanes[publisher]
        if lane.link == link:
            lane.prove(link)

    def adopt_link(self, publisher: PublisherKey, link: int, *, heard: int) -> None:
        """What comes over this link is of the log's incarnation, too: its engine was asked while it
        was up, and has the log's last batch of then; see `Lane.adopt_link`.
        """
        self._lanes[publisher].adopt_link(link, heard=heard)

    def note_link(self, publisher: PublisherKey, link: int, *, is_up: bool = True) -> None:
        """This link is up, or will be the next one."""
        lane = self._lanes[publisher]
        lane.live_link, lane.is_up = link, is_up

    def up_link(self, publisher: PublisherKey) -> int:
        """The link that is up; 0 for none, or where that is not known."""
        lane = self._lanes[publisher]
        return lane.live_link if lane.is_up else 0

    def live_link(self, publisher: PublisherKey) -> int:
        """See `note_link`; 0 where that is not known."""
        return self._lanes[publisher].live_link

    # Whose a replay is: see `bridge.publisher.pairing`

    def trusts_replay(self, publisher: PublisherKey) -> bool:
        """Whether its replay socket has shown batches that came live, as they came."""
        return self._lanes[publisher].pairing.is_trusted

    def vouch_for_replay(self, publisher: PublisherKey) -> None:
        """The engine itself has said that the replay socket is its own."""
        self._lanes[publisher].pairing.vouch()

    def comparable(self, publisher: PublisherKey) -> int | None:
        """With which batch a replay is to begin, to be compared with what came live; None where
        nothing did, or it has been shown.
        """
        pairing = self._lanes[publisher].pairing
        return None if pairing.is_shown or pairing.live is None else pairing.live.sequence

    def is_of(self, publisher: PublisherKey, link: int) -> bool:
        """See `Lane.is_of`."""
        return self._lanes[publisher].is_of(link)

    def recognises(self, publisher: PublisherKey, batch: DecodedBatch) -> bool | None:
        """See `Lane.recognises`."""
        return self._lanes[publisher].recognises(batch)

    def differs(self, publisher: PublisherKey, batch: DecodedBatch, link: int) -> bool:
        """See `Lane.differs`."""
        return self._lanes[publisher].differs(batch, link)

    def differs_from_waiting(self, publisher: PublisherKey, batch: DecodedBatch, link: int) -> bool:
        """The same, of the first batch that waits."""
        held = self._lanes[publisher].held
        first = held[0] if held else None
        return first is not None and 0 < first.link == link and _is_other(batch, first.batch)

    def compare(self, publisher: PublisherKey, batch: DecodedBatch, *, is_anchored: bool) -> None:
        """A batch of a reply that is taken, or could be; see `Pairing.show`."""
        pairing = self._lanes[publisher].pairing
        if pairing.is_shown and not (is_anchored and pairing.is_open):
            return
        waiting = self.first_waiting(publisher)
        if pairing.live is not None and pairing.live.recognises(batch):
            pairing.show(is_anchored=True)
        elif waiting is not None and _is_same(batch, waiting):
            pairing.show(is_anchored=is_anchored)

    def refuse(
        self, publisher: PublisherKey, batch: DecodedBatch, now: float, *, link: int
    ) -> list[SequencedRecord]:
        """Its replay is another publisher's, as this batch of it shows: what may have been taken of
        it before is withdrawn, and what of that incarnation came live is lost.

        Args:
            publisher: held.
            batch: see `differs`.
            now: Unix seconds; the records' bridge_time.
            link: that had brought its last message when it was asked.
        """
        lane = self._lanes[publisher]
        detail = f"Expected batch {batch.sequence} as it came live from a replay, got another one"
        error = BatchError(DropReason.REPLAY_DIFFERS, f"{detail}: is `replay_endpoint` its own?")
        live, is_open = lane.pairing.live, lane.pairing.is_open
        lane.counters.count_drop(error)
        lane.pairing.distrust()
        if not is_open:
            return []
        records = self.begin_incarnation(publisher, now, link=link, reason=error.reason)
        if live is not None:
            window = lane.open(now)
            lane.lose(
                window, Missing(Cursor(lane.tracker.incarnation, live.sequence), error.reason)
            )
            records += self._close(lane, window, now)
        return records

    def drop_earlier(self, publisher: PublisherKey, link: int) -> bool:
        """Drops the first batch that waits, and all that came over the same link, where that was
        before this one: a link ends with the process at its other end. Returns whether it did.

        Args:
            publisher: the engine has been asked, and has another batch of that number.
            link: the live one when it was asked.
        """
        lane = self._lanes[publisher]
        first = self._first_held(lane)
        if first is None or not 0 < first.link < link:
            return False
        dropped = 0
        while lane.held and lane.held[0].link <= first.link:
            dropped += not lane.is_older(lane.held[0].batch, lane.held[0].link)
            self._pop(lane)
        if lane.overflowed is not None and lane.overflowed.link <= first.link:
            lane.overflowed = None  # of that incarnation, too
        lane.drop_earlier(dropped)
        return True

    def first_waiting(self, publisher: PublisherKey) -> DecodedBatch | None:
        """The first batch that waits and is not in the log; those before it are dropped."""
        first = self._first_held(self._lanes[publisher])
        return None if first is None else first.batch

    def first_waiting_link(self, publisher: PublisherKey) -> int:
        """The link that brought it; 0 where nothing waits, or that is not known."""
        first = self._first_held(self._lanes[publisher])
        return 0 if first is None else first.link

    def _first_held(self, lane: Lane) -> Held | None:
        """Drops what is in the log: else each question would look at all of it again."""
        while lane.held and lane.is_older(lane.held[0].batch, lane.held[0].link):
            older = self._pop(lane)
            lane.note_again(older.batch, older.link)
        return lane.held[0] if lane.held else None

    def waiting(self, publisher: PublisherKey) -> int:
        """How many of its live batches wait."""
        return len(self._lanes[publisher].held or ())

    def misses(self, publisher: PublisherKey) -> bool:
        """Whether batches are missing that the publisher may still have."""
        waiting, lane = self.first_waiting(publisher), self._lanes[publisher]
        return lane.missing is not None or (waiting is not None and lane.needs_repair(waiting))

    def decode(self, message: RawMessage) -> DecodedBatch | None:
        """The batch of a replayed message; None, counted, where it cannot be decoded."""
        lane = self._lanes[message.publisher]
        try:
            return lane.decode(message)
        except Exception:
            _logger.exception(_FAULT, lane.counters.publisher)
            self._count_fault(lane)
            return None

    def decode_ahead(self, message: RawMessage) -> DecodedBatch | None:
        """What `process` would make of the message's frames; None where it is to say why it cannot.

        On any thread; a lane's messages are decoded one at a time, but for replayed ones.
        """
        lane = self._lanes.get(message.publisher)
        try:
            if lane is None:
                return None
            return lane.source.decode(message.frames)
        except Exception:  # noqa: BLE001 -- `process` meets it again, and counts it
            return None

    def accept(
        self, publisher: PublisherKey, batches: Iterable[DecodedBatch], now: float, *, link: int
    ) -> list[SequencedRecord]:
        """The records of replayed batches, in order; gaps between them are lost for good. The
        records say why these had been missing: the cause of the wait.

        Args:
            publisher: held.
            batches: as its engine has them.
            now: Unix seconds; the records' bridge_time.
            link: that had brought its last message when it was asked for them.
        """
        lane = self._lanes[publisher]
        window = lane.open(now)
        lane.begin_repaired()
        for batch in batches:
            window = self._accept(lane, window, batch, link, now)
        lane.repaired = ""
        return self._close(lane, window, now)

    def release(
        self, publisher: PublisherKey, before_time: float, now: float
    ) -> Iterator[list[SequencedRecord]]:
        """The records of the batches that wait and are older than `before_time`, an engine time; as
        many at a time as take HELD_TURN_S.
        """
        lane = self._lanes[publisher]
        window, until = lane.open(now), time.monotonic() + HELD_TURN_S
        while lane.held:
            if time.monotonic() >= until:
                yield self._close(lane, window, now)
                window, until = lane.open(now), time.monotonic() + HELD_TURN_S
            batch = lane.held[0].batch
            if batch.engine_time is not None and batch.engine_time >= before_time:
                break
            is_older = lane.is_older(batch, lane.held[0].link)
            if not is_older and batch.sequence <= lane.tracker.sequence:
                break  # it is the first one of the next incarnation
            link = self._pop(lane).link
            if not is_older:
                window = self._accept(lane, window, batch, link, now)
        yield self._close(lane, window, now)

    def begin_incarnation(
        self, publisher: PublisherKey, now: float, *, link: int, reason: str = RESTARTED
    ) -> list[SequencedRecord]:
        """The reset that withdraws all that the publisher announced in the incarnation before.

        Args:
            publisher: whose engine was asked.
            now: Unix seconds; the record's bridge_time.
            link: that had brought its last message when it was asked.
            reason: of the reset.
        """
        lane = self._lanes[publisher]
        lane.counters.restarts += 1
        lane.cause = reason
        window = lane.open(now)
        lane.tracker.begin_incarnation()
        lane.forget_incarnation(link)
        window.add_reset(incarnation=lane.tracker.incarnation, reason=reason)
        return window.close()

    def begin_process(
        self, publisher: PublisherKey, now: float, *, last_link: int, link: int
    ) -> Iterator[list[SequencedRecord]]:
        """Another process of the engine is at the other end of the link: what waits of the one
        before is written, then the reset. As many records at a time as take HELD_TURN_S.

        Args:
            publisher: held.
            now: Unix seconds; the records' bridge_time.
            last_link: what came up to this one is of the process before; of a link between the two
                it is not known whose it is, so it is dropped.
            link: the live one.
        """
        lane = self._lanes[publisher]
        dropped = 0
        while self._waits_before(lane, link):  # more may have come while the last was handed on
            window, until = lane.open(now), time.monotonic() + HELD_TURN_S
            while self._waits_before(lane, link):
                held = self._pop(lane)
                if 0 < held.link <= last_link:
                    window = self._accept(lane, window, held.batch, held.link, now)
                else:
                    dropped += 1
                if time.monotonic() >= until:
                    break
            yield self._close(lane, window, now)
        lane.drop_earlier(dropped)
        lane.begin_process(link)
        lane.missing = None  # if it is of this process, it is replayed, or a gap
        live = lane.pairing.live
        records = self.begin_incarnation(publisher, now, link=link)
        if live is not None and live.link == link > 0:
            # It was taken for one of the process before, and is withdrawn with that.
            self.expect(publisher, Cursor(lane.tracker.incarnation, live.sequence), RESTARTED)
        yield records

    def begin_at(self, publisher: PublisherKey, link: int) -> None:
        """The process over this link is known, and the log has the reset of an incarnation of which
        it has no batch yet: what came over earlier links may be of the process before.
        """
        lane = self._lanes[publisher]
        if lane.tracker.sequence >= 0 or lane.tracker.incarnation <= 1:
            return
        dropped = 0
        while lane.held and 0 < lane.held[0].link < link:
            self._pop(lane)
            dropped += 1
        lane.drop_earlier(dropped)
        lane.begin_process(link)

    def _waits_before(self, lane: Lane, link: int) -> bool:
        first = self._first_held(lane)
        return first is not None and first.link < link

    def know_link(self, publisher: PublisherKey, link: int) -> None:
        """What comes over this link is of the process that published the log's incarnation, and so
        is what came since over others.
        """
        self._lanes[publisher].prove(link)

    def lose(
        self, publisher: PublisherKey, sequence: int, error: BatchError, now: float, *, link: int
    ) -> list[SequencedRecord]:
        """The gap for all up to this batch, where the log does not have it; it counts as dropped.

        Args:
            publisher: held.
            sequence: of a batch that its engine has, and that cannot be received.
            error: why not; its reason is the gap's.
            now: Unix seconds; the record's bridge_time.
            link: that had brought its last message when it was asked for them.
        """
        lane = self._lanes[publisher]
        lane.counters.count_drop(error)
        if lane.tracker.sequence == -1:
            lane.prove(link)  # the log has nothing else of this incarnation
        window = lane.open(now)
        lane.lose(window, Missing(Cursor(lane.tracker.incarnation, sequence), error.reason))
        return self._close(lane, window, now)

    def expect(self, publisher: PublisherKey, cursor: Cursor, reason: str) -> None:
        """Everything up to `cursor` has been sent: what is missing at `resume` is a gap.

        Args:
            publisher: held.
            cursor: of the last batch that is known to have been sent.
            reason: of the gap, unless a batch that waits shows the gap anyway.
        """
        lane = self._lanes[publisher]
        lane.missing, lane.cause = Missing(cursor, reason), reason

    def resume(
        self, publisher: PublisherKey, now: float, *, until: float = math.inf
    ) -> list[SequencedRecord]:
        """Ends the wait: the records of what waited, in order, after a gap for what is missing.

        A further gap among the batches that waited, or after them where there was no room, holds
        the publisher again: see `take_gaps`.

        Args:
            publisher: held.
            now: Unix seconds; the records' bridge_time.
            until: monotonic seconds, after which the rest waits on: see `is_resuming`.
        """
        lane = self._lanes[publisher]
        window = lane.open(now)
        if lane.missing is not None and self.first_waiting(publisher) is None:
            lane.lose(window, lane.missing)
        lane.missing = None
        is_later, lane.is_resuming = lane.is_resuming, False
        has_taken = False
        while (held := self._first_held(lane)) is not None:
            if has_taken and time.monotonic() >= until:
                lane.is_resuming = True
                return self._close(lane, window, now)
            is_unasked = is_later or has_taken or 0 < lane.asked_link < held.link
            if is_unasked and lane.needs_repair(held.batch):
                self._gaps.append(publisher)
                lane.cause = MISSED
                return self._close(lane, window, now)
            has_taken = True
            self._pop(lane)
            window = self._accept(lane, window, held.batch, held.link, now)
        lane.held, lane.cause = None, ""
        self._ask_for_overflowed(lane, window)
        return self._close(lane, window, now)

    def _ask_for_overflowed(self, lane: Lane, window: Window) -> None:
        """What had no room while the publisher was held: the batch that would show it as a gap may
        never come.
        """
        held, lane.overflowed = lane.overflowed, None
        lost_to = None if held is None else lane.lost_to(held.batch)
        if lost_to is not None:
            self._ask_again(lane, window, lost_to, DropReason.HELD_FULL)

    def _pop(self, lane: Lane) -> Held:
        assert lane.held
        held = lane.held.popleft()
        lane.held_bytes -= held.size_bytes
        self.held_bytes -= held.size_bytes
        return held

    # Unexpected errors

    def take_back(
        self, publisher: PublisherKey, now: float, *, ask_again: bool
    ) -> list[SequencedRecord]:
        """Goes back to before the publisher's last records, which could not be handed on.

        Args:
            publisher: whose.
            now: Unix seconds.
            ask_again: hold it as at a gap, where it can replay.

        Returns:
            The gap that stands for them, where the publisher is not asked for them again.
        """
        lane = self._lanes[publisher]
        self._count_fault(lane)
        if not ask_again:
            return self._lose(lane, now).close()
        lost_to = lane.roll_back()
        window = lane.open(now)
        self._ask_again(lane, window, lost_to)
        return window.close()

    def _accept(
        self, lane: Lane, window: Window, batch: DecodedBatch, link: int, now: float
    ) -> Window:
        """Appends the batch to the window; on an error, starts a window with a gap instead."""
        try:
            lane.accept(batch, window, link)
        except Exception:
            _logger.exception(_FAULT, lane.counters.publisher)
            self._count_fault(lane)
            return self._lose(lane, now)
        return window

    def _close(
        self, lane: Lane, window: Window, now: float, *, ask_again: bool = False
    ) -> list[SequencedRecord]:
        try:
            return window.close()
        except Exception:
            _logger.exception(_FAULT, lane.counters.publisher)
            self._count_fault(lane)
            if not ask_again:
                return self._lose(lane, now).close()
            lost_to = lane.roll_back()
            window = lane.open(now)
            self._ask_again(lane, window, lost_to)
            return window.close()

    def _lose(self, lane: Lane, now: float) -> Window:
        """A new window with a gap for the last one."""
        lost_to = lane.roll_back()
        window = lane.open(now)
        lane.lose(window, Missing(lost_to, DropReason.INTERNAL_ERROR))
        return window

    def _ask_again(
        self,
        lane: Lane,
        window: Window,
        lost_to: Cursor,
        reason: str = DropReason.INTERNAL_ERROR,
    ) -> None:
        """Holds the publisher as at a gap; adds a gap where it cannot replay."""
        missing = Missing(lost_to, reason)
        if lane.held is not None:
            lane.missing = missing if lane.missing is None else max(lane.missing, missing)
        elif lane.repairs:
            lane.missing = missing
            self._hold_at_gap(lane, reason)
        else:
            lane.lose(window, missing)

    def _count_fault(self, lane: Lane) -> None:
        self.faults += 1
        lane.counters.dropped[DropReason.INTERNAL_ERROR] += 1

    # Reading

    def __contains__(self, publisher: object) -> bool:
        return publisher in self._lanes

    def cursor(self, publisher: PublisherKey) -> Cursor:
        """The publisher's last accepted batch.

        Raises:
            KeyError: it is not followed.
        """
        return self._lanes[publisher].tracker.cursor

    def proven_link(self, publisher: PublisherKey) -> int:
        """See `Lane.proven_link`.

        Raises:
            KeyError: it is not followed.
        """
        return self._lanes[publisher].proven_link

    def late_s(self, publisher: PublisherKey) -> float:
        """How much later its last batches came than others did; see `Lateness`.

        Raises:
            KeyError: it is not followed.
        """
        return self._lanes[publisher].lateness.late_s

    def behind_s(self, publisher: PublisherKey, since_epoch: float) -> float:
        """How far its engine's clock is behind ours, seconds; below 0 where it is ahead, and 0
        where that is not known.

        Args:
            publisher: whose.
            since_epoch: Unix seconds at 0 of the monotonic clock.

        Raises:
            KeyError: it is not followed.
        """
        return self._lanes[publisher].lateness.behind_s(since_epoch)

    def is_doubted(self, publisher: PublisherKey) -> bool:
        """Whether batches were accepted of which it is not known that they are of the incarnation
        of those before.

        Raises:
            KeyError: it is not followed.
        """
        return self._lanes[publisher].proof is not None

    def messages(self, publisher: PublisherKey) -> int:
        """How many of its messages came live, whatever is in them: an answer to a question says
        nothing of whether it is silent.

        Raises:
            KeyError: it is not followed.
        """
        return self._lanes[publisher].heard

    def unplaced(self, publisher: PublisherKey) -> int:
        """Which of its messages, live and replayed, had no place in the stream, the last one of
        them; 0 where a batch has come behind it.

        Raises:
            KeyError: it is not followed.
        """
        return self._lanes[publisher].unplaced

    def counters(self) -> dict[PublisherKey, PublisherCounters]:
        """The counters of every publisher that is followed; live, so read them only."""
        return {publisher: lane.counters for publisher, lane in list(self._lanes.items())}


def _is_same(one: DecodedBatch, other: DecodedBatch) -> bool:
    return (one.sequence, one.digest) == (other.sequence, other.digest)


def _is_other(one: DecodedBatch, other: DecodedBatch) -> bool:
    return one.sequence == other.sequence and one.digest != other.digest


def _after(cursor: Cursor) -> Cursor:
    return Cursor(cursor.incarnation, cursor.sequence + 1)
