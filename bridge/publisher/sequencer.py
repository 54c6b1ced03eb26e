"""The order of each publisher's batches: what follows at once, what waits, and what is missing; and
the log records of all of them, a turn at a time. No I/O, no threads, and no clock but for how much
is done at once.

A bad event never costs its batch, and a bad batch never its stream; whatever is dropped is counted
under its publisher and a `DropReason`. A batch of which nothing can be used may have removed
blocks, so a `gap` stands for it. One is enough: while the publisher is degraded by an earlier one,
such batches count as empty, so that an engine that we do not understand does not fill the log with
gaps.

A publisher that can replay is held at a gap: its live batches wait, decoded and bounded, while
`bridge.publisher.repair` asks for what is missing; `accept` takes the replayed batches, `resume`
the ones that waited. Whatever is still missing then becomes a `gap` record.

An unexpected error costs one window of one publisher: the publisher goes back to where the window
started, is counted under `internal_error`, and is held as at a gap where it can replay. Where it
cannot, or that does not help, a gap stands for the window.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from bridge.bounds import HELD_TURN_S
from bridge.link_numbers import NO_LINK, LinkNumber
from bridge.publisher.anchor import Anchor, Joint
from bridge.publisher.causes import MISSED, RESTARTED
from bridge.publisher.held_batches import HeldBatch, HeldBatches, IntakeTotals, MissingBatches
from bridge.publisher.stream import BatchStream
from bridge.publisher.waits import BatchWait, Wait, WaitChange
from bridge.publisher.window import Window
from bridge.sockets.raw_message import RawMessage, RawRun, Received
from bridge.wire import DecodedBatch, open_source
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import BatchError
from schemas.identities import PublisherKey
from schemas.positions import NO_CURSOR, Cursor, Proof
from schemas.records import SequencedRecord
from schemas.registration import Registration

FAULT: Final = "Unexpected error in messages of %s; replaying them, or writing a gap for them"
_logger = logging.getLogger(__name__)


class Sequencer:
    """Of one publisher; one owner.

    Args:
        cursor: its last batch in the log.
        repairs: whether to hold it at a gap until `resume`.
        packer: of hashes and tokens; the kernel's where there is one.
        totals: of all publishers of this process.
        wait: for what its batches wait at first.
    """

    __slots__ = (
        "_asked_link",
        "_held",
        "_missing",
        "_now",
        "_totals",
        "_wait",
        "_window",
        "stream",
    )

    def __init__(
        self,
        registration: Registration,
        cursor: Cursor = NO_CURSOR,
        *,
        repairs: bool = False,
        packer: ArrayPacker | None = None,
        totals: IntakeTotals | None = None,
        wait: Wait = Wait.NOTHING,
    ) -> None:
        source = open_source(registration, packer or PythonArrayPacker())
        self.stream = BatchStream(registration, source, cursor, repairs)
        self._wait = BatchWait(wait)
        self._totals = IntakeTotals() if totals is None else totals
        self._held = HeldBatches(self._totals)
        self._missing: MissingBatches | None = None  # becomes a gap at the end of the wait
        self._asked_link = NO_LINK  # that was up as the wait began: what the engine was asked over
        self._now: float  # of the turn under way, as its window
        self._window: Window

    @property
    def waits_for(self) -> Wait:
        """For what its batches wait."""
        return self._wait.now

    @property
    def is_held(self) -> bool:
        """Whether its batches wait."""
        return self._wait.holds

    @property
    def is_resuming(self) -> bool:
        """Whether `resume` has left batches that may follow as they are: it is to be called again
        until it has not.
        """
        return self._wait.now is Wait.HELD_BATCHES

    # Live batches

    def begin_turn(self, now: float) -> None:
        """Messages come, until `end_turn`; `now`, Unix seconds, is the records' bridge_time."""
        self._now, self._window = now, self.stream.open(now)

    def take(self, received: Sequence[Received], at: int) -> int:
        """Takes the message at this place, or the first one of the run there, and those behind it
        that simply follow on; returns how many these are.
        """
        first, stream = received[at], self.stream
        is_run = isinstance(first, RawRun)
        if stream.links.is_earlier(first.link):
            stream.drop_earlier(first.messages)
            return first.messages
        if first.link != stream.links.last:
            self._begin_link(first.link)
        if not self._wait.holds and (taken := self._take_run(received, at)):
            last = first if is_run else received[at + taken - 1]
            stream.arrivals.received_at = last.received_at
            return taken
        self._take_alone(first.message(0) if isinstance(first, RawRun) else first)
        return 1

    def _take_alone(self, message: RawMessage) -> None:
        stream = self.stream
        stream.arrivals.received_at = message.received_at
        batch: DecodedBatch | None = None
        try:
            batch = stream.decode(message)
            if batch is not None and stream.passes_over(batch):
                return
            stream.arrivals.messages += 1
            if batch is not None:
                self._take_batch(batch, message)
        except Exception:  # noqa: BLE001 -- it is logged and counted there
            self._fail(batch)

    def _take_run(self, received: Sequence[Received], at: int) -> int:
        """See `BatchStream.take_run`; an error there costs nothing, since each is then decoded
        alone.
        """
        try:
            return self.stream.take_run(self._window, received, at)
        except Exception:
            _logger.exception(
                "Unexpected error in messages of %s; decoding each alone",
                self.stream.counters.publisher,
            )
            self.count_fault()
            return 0

    def _take_batch(self, batch: DecodedBatch, message: RawMessage) -> None:
        """A batch came live: it follows, or waits."""
        stream, link = self.stream, self.stream.links.last
        arrivals = stream.arrivals
        stream.counters.note_number(batch.sequence)
        arrivals.engine_time = batch.engine_time or arrivals.engine_time
        if not self._wait.holds and stream.needs_repair(batch):
            self._hold_at_gap(MISSED)
        if self._wait.holds:
            self._let_wait(HeldBatch(batch, message.size_bytes, link))
        elif stream.accept(batch, self._window, link):
            stream.unplaced = 0  # what may have been missing is a gap now, or was not there

    def end_turn(self) -> list[SequencedRecord]:
        """The records of the messages that were taken."""
        records = self._close(self._window, self._now, request_replay=True)
        del self._window  # else its records would be kept
        self.stream.arrivals.end_turn()
        return records

    def _begin_link(self, link: LinkNumber) -> None:
        """The publisher's first message over another link: that it follows on proves nothing, since
        the engine may have restarted and come exactly as far. Its replay can tell.
        """
        self.stream.begin_link(link)
        if self.stream.repairs and not self.is_held:
            self._hold_at_gap(self.stream.causes.away)

    def _fail(self, batch: DecodedBatch | None) -> None:
        """A message of the turn has met an unexpected error; `batch`: of it, where it is known."""
        _logger.exception(FAULT, self.stream.counters.publisher)
        self.count_fault()
        if batch is None or self.is_held:
            # Nothing is known of this batch: at least the next one is missing.
            self._request_replay(self._window, _after(self.stream.cursor))
        else:
            self._window = self._go_back(self._now)

    def _hold_at_gap(self, cause: str) -> None:
        self._wait.change(WaitChange.MISSED)
        self.stream.causes.wait = cause
        self._totals.gaps.append(self.stream.publisher)

    def _let_wait(self, held: HeldBatch) -> None:
        if not self._held.append(held):
            self.stream.counters.count_drop(
                BatchError(DropReason.HELD_FULL, f"no room for batch {held.batch.sequence}")
            )

    # For what its batches wait, beside what shows by themselves

    def place(self) -> None:
        """The place in the log is known."""
        if self._wait.now in (Wait.PLACE, Wait.ENDING):
            self._wait.change(WaitChange.PLACED)

    def ask(self, cause: str = "", *, is_check: bool) -> None:
        """The engine is asked for what is missing, or whether anything is."""
        self._wait.change(WaitChange.CHECKED if is_check else WaitChange.REPAIRED)
        self.hold(cause)

    def promote(self) -> None:
        """A check has found that something is missing: the engine is asked for that."""
        if self._wait.now is Wait.CHECK:
            self._wait.change(WaitChange.REPAIRED)

    def restart_repair(self) -> None:
        """What was asked has met an unexpected error, and is asked again."""
        self.end_asking()
        self.ask(is_check=False)

    def end_asking(self) -> None:
        """Nothing is asked any more; what is held waits until something is."""
        if self._wait.holds:
            self._wait.change(WaitChange.MISSED)

    def unplace(self) -> None:
        """The place in the log is no longer known."""
        self._wait.change(WaitChange.UNPLACED)
        self.hold()

    def stop(self) -> None:
        """Nothing more is asked: this process ends."""
        self._wait.change(WaitChange.STOPPED)

    def forget(self) -> None:
        """The publisher is followed no more."""
        self._wait.change(WaitChange.LEFT)
        self._held.clear()

    # Holding and repairing

    def hold(self, cause: str = "") -> None:
        """Lets the publisher's batches wait from now on, until `resume`.

        Args:
            cause: why some of them may be missing, where it did not wait for another one.
        """
        if not self._wait.holds or self.is_resuming:
            self._wait.change(WaitChange.MISSED)
        self._asked_link = self.stream.links.live
        self.stream.causes.hold(cause)

    def set_anchor(self, anchor: Anchor, *, away: str = "") -> None:
        """Sets the publisher's last batch in the log, see `BatchStream.set_anchor`; `away` says why
        batches may be missing behind it.
        """
        self.stream.set_anchor(anchor)
        self.stream.causes.away = away

    def has_in_common(self, anchor: Anchor) -> bool:
        """Whether that batch of the log came to us, too, and waits."""
        return bool(self._common(anchor))

    def _common(self, anchor: Anchor) -> list[HeldBatch]:
        """The batches that wait up to the log's last one, which its time tells. A gap has no time:
        up to its end, behind the last one before it that came live.
        """
        last = Proof(anchor.cursor.sequence, anchor.engine_time)
        batch = last if last.engine_time else anchor.heard
        if batch is None or not batch.engine_time:
            return []
        sequence, engine_time = batch
        return self._held.up_to(sequence=sequence, engine_time=engine_time, last=last.sequence)

    def join(self, joint: Joint) -> None:
        """Another bridge has written up to here what came to both: that is dropped. What waits
        behind it is of the log's incarnation.
        """
        common, link = self._common(self.stream.anchor), joint.link
        last, over = common[-1] if common else None, self._held.overflowed
        if last is not None and not self.stream.is_doubted:
            link = link or last.link  # its process has published that batch
        if (
            (last is not None and over is not None)
            and over.link == last.link
            and over.batch.sequence <= self.stream.cursor.sequence
        ):
            self._held.overflowed = None  # that bridge has had no room for it either
        for _ in common:
            self._held.pop()
        self.stream.counters.duplicates += len(common)
        if link:
            self.stream.links.join(link)
            self.stream.prove(link)
            if joint.is_whole:
                self.stream.pairing.note_whole()

    def prove(self, link: LinkNumber) -> None:
        """The engine still has the batch of `proven`, and was asked when this was the link."""
        if self.stream.links.last == link:
            self.stream.prove(link)

    def doubt(self) -> None:
        """What follows may be of another incarnation: its replay does not have the last batch."""
        self.stream.doubt()

    # Whose a replay is: see `bridge.publisher.pairing`

    def comparable(self) -> int | None:
        """With which batch a replay is to begin, to be compared with what came live; None where
        nothing did, or it has been shown.
        """
        pairing = self.stream.pairing
        return None if pairing.is_shown or pairing.live is None else pairing.live.sequence

    def differs_from_waiting(self, batch: DecodedBatch, link: LinkNumber) -> bool:
        """The same, of the first batch that waits."""
        first = self._held.first
        if first is None or not NO_LINK < first.link == link:
            return False
        return batch.sequence == first.batch.sequence and not batch.is_same(first.batch)

    def compare(self, batch: DecodedBatch, *, is_anchored: bool) -> None:
        """A batch of a reply that is taken, or could be; see `Pairing.show`."""
        pairing = self.stream.pairing
        if pairing.is_shown and not (is_anchored and pairing.is_open):
            return
        waiting = self.first_waiting()
        if pairing.live is not None and pairing.live.recognises(batch):
            pairing.show(is_anchored=True)
        elif waiting is not None and batch.is_same(waiting):
            pairing.show(is_anchored=is_anchored)

    def refuse(self, batch: DecodedBatch, now: float, *, link: LinkNumber) -> list[SequencedRecord]:
        """Its replay is another publisher's, as this batch of it shows: what may have been taken of
        it before is withdrawn, and what of that incarnation came live is lost.

        Args:
            batch: see `differs`.
            now: Unix seconds; the records' bridge_time.
            link: that had brought its last message when it was asked.
        """
        detail = f"Expected batch {batch.sequence} as it came live from a replay, got another one"
        error = BatchError(DropReason.REPLAY_DIFFERS, f"{detail}: is `replay_endpoint` its own?")
        live, is_open = self.stream.pairing.live, self.stream.pairing.is_open
        self.stream.counters.count_drop(error)
        self.stream.pairing.distrust()
        if not is_open:
            return []
        records = self.begin_incarnation(now, link=link, reason=error.reason)
        if live is not None:
            window, lost_to = self.stream.open(now), self.stream.at(live.sequence)
            self.stream.lose(window, MissingBatches(lost_to, error.reason))
            records += self._close(window, now)
        return records

    def drop_earlier(self, link: LinkNumber) -> bool:
        """Drops the first batch that waits, and all that came over the same link, where that was
        before this one: a link ends with the process at its other end. Returns whether it did.

        Args:
            link: the live one when it was asked.
        """
        first = self.first_held()
        if first is None or not NO_LINK < first.link < link:
            return False
        dropped = 0
        link = first.link
        while (held := self._held.first) is not None and held.link <= link:
            dropped += not self.stream.is_older(held.batch, held.link)
            self._held.pop()
        self._held.forget_overflow(until=link)  # of that incarnation, too
        self.stream.drop_earlier(dropped)
        return True

    def first_waiting(self) -> DecodedBatch | None:
        """The first batch that waits and is not in the log; those before it are dropped."""
        first = self.first_held()
        return None if first is None else first.batch

    def first_held(self) -> HeldBatch | None:
        """The same, with its link. Drops what is in the log: else each question would look at all
        of it again.
        """
        while (first := self._held.first) is not None and self.stream.is_older(
            first.batch, first.link
        ):
            self._held.pop()
            self.stream.note_again(first.batch, first.link)
        return first

    @property
    def waiting(self) -> int:
        """How many of its live batches wait."""
        return len(self._held)

    def misses(self) -> bool:
        """Whether batches are missing that the publisher may still have."""
        waiting = self.first_waiting()
        is_behind = waiting is not None and self.stream.needs_repair(waiting)
        return self._missing is not None or is_behind

    def decode(self, message: RawMessage) -> DecodedBatch | None:
        """The batch of a replayed message; None, counted, where it cannot be decoded, or is of
        another rank, whose batches come from the same socket.
        """
        try:
            batch = self.stream.decode(message)
            return None if batch is not None and self.stream.passes_over(batch) else batch
        except Exception:
            _logger.exception(FAULT, self.stream.counters.publisher)
            self.count_fault()
            return None

    def decode_ahead(self, message: RawMessage) -> DecodedBatch | None:
        """What the intake would make of the message; None where the intake is to say why it cannot.

        On any thread; live messages are decoded one at a time.
        """
        try:
            return self.stream.read(message)
        except Exception:  # noqa: BLE001 -- the intake meets it again, and counts it
            return None

    def decoded(self, message: RawMessage) -> RawMessage:
        """The message with what `decode_ahead` makes of it."""
        return message._replace(batch=self.decode_ahead(message))

    def accept(
        self, batches: Iterable[DecodedBatch], now: float, *, link: LinkNumber
    ) -> list[SequencedRecord]:
        """The records of replayed batches, in order; gaps between them are lost for good. The
        records say why these had been missing: the cause of the wait.

        Args:
            batches: as its engine has them.
            now: Unix seconds; the records' bridge_time.
            link: that had brought its last message when it was asked for them.
        """
        window = self.stream.open(now)
        self.stream.causes.begin_repaired(self.stream.cursor.sequence)
        for batch in batches:
            window = self._accept(window, batch, link, now)
        self.stream.causes.end_repaired()
        return self._close(window, now)

    def release(self, before_time: float, now: float) -> Iterator[list[SequencedRecord]]:
        """The records of the batches that wait and are older than `before_time`, an engine time; as
        many at a time as take HELD_TURN_S.
        """
        window, until = self.stream.open(now), self._totals.clock.monotonic() + HELD_TURN_S
        while (first := self._held.first) is not None:
            if self._totals.clock.monotonic() >= until:
                yield self._close(window, now)
                window, until = self.stream.open(now), self._totals.clock.monotonic() + HELD_TURN_S
            batch, link = first.batch, first.link
            if batch.engine_time is not None and batch.engine_time >= before_time:
                break
            is_older = self.stream.is_older(batch, link)
            if not is_older and batch.sequence <= self.stream.cursor.sequence:
                break  # it is the first one of the next incarnation
            self._held.pop()
            if not is_older:
                window = self._accept(window, batch, link, now)
        self._held.forget_overflow_before(before_time)
        yield self._close(window, now)

    def begin_incarnation(
        self, now: float, *, link: LinkNumber, reason: str = RESTARTED
    ) -> list[SequencedRecord]:
        """The reset that withdraws all that the publisher announced in the incarnation before.

        Args:
            now: Unix seconds; the record's bridge_time.
            link: that had brought its last message when it was asked.
        """
        self.stream.causes.wait = reason
        window = self.stream.open(now)
        self.stream.begin_incarnation(window, link, reason)
        return window.close()

    def begin_process(
        self, now: float, *, last_link: LinkNumber, link: LinkNumber
    ) -> Iterator[list[SequencedRecord]]:
        """Another process of the engine is at the other end of the link: what waits of the one
        before is written, then the reset. As many records at a time as take HELD_TURN_S.

        Args:
            now: Unix seconds; the records' bridge_time.
            last_link: what came up to this one is of the process before; of a link between the two
                it is not known whose it is, so it is dropped.
            link: the live one.
        """
        dropped = 0
        while self._waits_before(link):  # more may have come while the last was handed on
            window, until = self.stream.open(now), self._totals.clock.monotonic() + HELD_TURN_S
            while self._waits_before(link):
                held = self._held.pop()
                if NO_LINK < held.link <= last_link:
                    window = self._accept(window, held.batch, held.link, now)
                else:
                    dropped += 1
                if self._totals.clock.monotonic() >= until:
                    break
            yield self._close(window, now)
        self._begin_process(link, dropped)
        self._missing = None  # if it is of this process, it is replayed, or a gap
        live = self.stream.pairing.live
        records = self.begin_incarnation(now, link=link)
        if live is not None and live.link == link > NO_LINK:
            # It was taken for one of the process before, and is withdrawn with that.
            self.expect(self.stream.at(live.sequence), RESTARTED)
        yield records

    def begin_at(self, link: LinkNumber) -> None:
        """The process over this link is known, and the log has the reset of an incarnation of which
        it has no batch yet: what came over earlier links may be of the process before.
        """
        if self.stream.cursor.sequence >= 0 or self.stream.cursor.incarnation <= 1:
            return
        dropped = 0
        while (first := self._held.first) is not None and NO_LINK < first.link < link:
            self._held.pop()
            dropped += 1
        self._begin_process(link, dropped)

    def _begin_process(self, link: LinkNumber, dropped: int) -> None:
        self.stream.drop_earlier(dropped)
        self.stream.links.first = link
        self._held.forget_overflow(until=LinkNumber(link - 1))

    def _waits_before(self, link: LinkNumber) -> bool:
        first = self.first_held()
        return first is not None and first.link < link

    def lose(
        self, sequence: int, error: BatchError, now: float, *, link: LinkNumber
    ) -> list[SequencedRecord]:
        """The gap for all up to this batch, where the log does not have it; it counts as dropped.

        Args:
            sequence: of a batch that its engine has, and that cannot be received.
            error: why not; its reason is the gap's.
            now: Unix seconds; the record's bridge_time.
            link: that had brought its last message when it was asked for them.
        """
        self.stream.counters.count_drop(error)
        if self.stream.cursor.sequence == -1:
            self.stream.prove(link)  # the log has nothing else of this incarnation
        window = self.stream.open(now)
        self.stream.lose(window, MissingBatches(self.stream.at(sequence), error.reason))
        return self._close(window, now)

    def expect(self, cursor: Cursor, reason: str) -> None:
        """Everything up to `cursor` has been sent: what is missing at `resume` is a gap.

        Args:
            cursor: of the last batch that is known to have been sent.
            reason: of the gap, unless a batch that waits shows the gap anyway.
        """
        self._missing, self.stream.causes.wait = MissingBatches(cursor, reason), reason

    def resume(self, now: float, *, until: float = math.inf) -> list[SequencedRecord]:
        """Ends the wait: the records of what waited, in order, after a gap for what is missing.

        A further gap among the batches that waited, or after them where there was no room, holds
        the publisher again: see `take_gaps`.

        Args:
            now: Unix seconds; the records' bridge_time.
            until: monotonic seconds, after which the rest waits on: see `is_resuming`.
        """
        window = self.stream.open(now)
        if self._missing is not None and self.first_waiting() is None:
            self.stream.lose(window, self._missing)
        self._missing = None
        is_later, has_taken = self.is_resuming, False
        while (held := self.first_held()) is not None:
            if has_taken and self._totals.clock.monotonic() >= until:
                self._wait.change(WaitChange.FOLLOWING)
                return self._close(window, now)
            is_unasked = is_later or has_taken or NO_LINK < self._asked_link < held.link
            if is_unasked and self.stream.needs_repair(held.batch):
                self._hold_at_gap(MISSED)
                return self._close(window, now)
            has_taken = True
            self._held.pop()
            window = self._accept(window, held.batch, held.link, now)
        self._wait.change(WaitChange.FOLLOWED)
        self.stream.causes.wait = ""
        self._ask_for_overflowed(window)
        return self._close(window, now)

    def _ask_for_overflowed(self, window: Window) -> None:
        """What had no room while the publisher was held: the batch that would show it as a gap may
        never come.
        """
        held, self._held.overflowed = self._held.overflowed, None
        lost_to = None if held is None else self.stream.lost_to(held.batch)
        if lost_to is not None:
            self._request_replay(window, lost_to, DropReason.HELD_FULL)

    # Unexpected errors

    def take_back(self, now: float, *, request_replay: bool) -> list[SequencedRecord]:
        """Goes back to before the publisher's last records, which could not be handed on.

        Args:
            now: Unix seconds.
            request_replay: hold it as at a gap, where it can replay.

        Returns:
            The gap that stands for them, where the publisher is not asked for them again.
        """
        self.count_fault()
        if not request_replay:
            return self._lose(now).close()
        return self._go_back(now).close()

    def _accept(self, window: Window, batch: DecodedBatch, link: LinkNumber, now: float) -> Window:
        """Appends the batch to the window; on an error, starts a window with a gap instead."""
        try:
            self.stream.accept(batch, window, link)
        except Exception:
            _logger.exception(FAULT, self.stream.counters.publisher)
            self.count_fault()
            return self._lose(now)
        return window

    def _close(
        self, window: Window, now: float, *, request_replay: bool = False
    ) -> list[SequencedRecord]:
        """The records of the window; on an error, a gap, or what is to be asked for again."""
        try:
            return window.close()
        except Exception:
            _logger.exception(FAULT, self.stream.counters.publisher)
            self.count_fault()
            if not request_replay:
                return self._lose(now).close()
            return self._go_back(now).close()

    def _go_back(self, now: float) -> Window:
        """A new window from where the last one began; what that had is asked for again."""
        lost_to = self.stream.roll_back()
        window = self.stream.open(now)
        self._request_replay(window, lost_to)
        return window

    def _lose(self, now: float) -> Window:
        """A new window with a gap for the last one."""
        lost_to = self.stream.roll_back()
        window = self.stream.open(now)
        self.stream.lose(window, MissingBatches(lost_to, DropReason.INTERNAL_ERROR))
        return window

    def _request_replay(
        self,
        window: Window,
        lost_to: Cursor,
        reason: str = DropReason.INTERNAL_ERROR,
    ) -> None:
        """Holds the publisher as at a gap; adds a gap where it cannot replay."""
        missing = MissingBatches(lost_to, reason)
        if self.is_held:
            self._missing = missing if self._missing is None else max(self._missing, missing)
        elif self.stream.repairs:
            self._missing = missing
            self._hold_at_gap(reason)
        else:
            self.stream.lose(window, missing)

    def count_fault(self) -> None:
        """Counts an unexpected error in a message."""
        self._totals.faults += 1
        self.stream.counters.dropped[DropReason.INTERNAL_ERROR] += 1


class Intake:
    """Makes log records of the messages of many publishers, a turn at a time; one owner.

    Args:
        find: the sequencer of a publisher; None where it is not followed.
        clock: for how much is done at once.

    Attributes:
        unregistered_messages: of publishers that are not followed; they are dropped.
    """

    def __init__(
        self, find: Callable[[PublisherKey], Sequencer | None], clock: Clock = REAL_CLOCK
    ) -> None:
        self.unregistered_messages = 0
        self._find = find
        self._clock = clock

    def process(self, received: Sequence[Received], now: float) -> list[SequencedRecord]:
        """The records of one window.

        Args:
            received: in the order of arrival.
            now: Unix seconds; the records' bridge_time.

        Returns:
            Each publisher's records in the order of its messages; publishers in the order of their
            first.
        """
        return self.process_until(received, now, math.inf)[0]

    def process_until(
        self, received: Sequence[Received], now: float, until: float
    ) -> tuple[list[SequencedRecord], int]:
        """The same, of as many of the first messages as there is time for; and how many these are.

        Args:
            received: in the order of arrival.
            now: Unix seconds; the records' bridge_time.
            until: monotonic seconds; one message is taken whatever it takes.
        """
        turns: dict[PublisherKey, Sequencer] = {}  # of this call alone
        left = list(received)
        at = messages = 0
        while at < len(left):
            if messages and self._clock.monotonic() >= until:
                break
            one = left[at]
            sequencer = self._turn_of(one.publisher, turns, now)
            if sequencer is None:
                taken = one.messages
                self.unregistered_messages += taken
            else:
                taken = sequencer.take(left, at)
            messages += taken
            if not isinstance(one, RawRun):
                at += taken
            elif taken < one.messages:
                left[at] = one.after(taken)
            else:
                at += 1
        records: list[SequencedRecord] = []
        for sequencer in turns.values():
            records += sequencer.end_turn()
        return records, messages

    def _turn_of(
        self, publisher: PublisherKey, turns: dict[PublisherKey, Sequencer], now: float
    ) -> Sequencer | None:
        """Its turn has begun; None where it is not followed."""
        sequencer = turns.get(publisher)
        if sequencer is None:
            sequencer = self._find(publisher)
            if sequencer is not None:
                turns[publisher] = sequencer
                sequencer.begin_turn(now)
        return sequencer


def _after(cursor: Cursor) -> Cursor:
    return Cursor(cursor.incarnation, cursor.sequence + 1)
