"""One publisher's stream of batches: what of it is accepted, into which records, and which
incarnation of the engine that is known to be. No I/O.
"""

import logging
from collections.abc import Sequence
from enum import Enum
from typing import Final

from bridge.link_numbers import NO_LINK, LinkNumber
from bridge.publisher.anchor import Anchor, BegunBatch, Checkpoint
from bridge.publisher.arrivals import Arrivals
from bridge.publisher.causes import JOINED_LATE, RECONNECTED, RESTARTED, SNAPSHOT, Causes
from bridge.publisher.counters import PublisherCounters
from bridge.publisher.event_numbers import EventNumbers
from bridge.publisher.held_batches import MissingBatches
from bridge.publisher.links import Links
from bridge.publisher.media import Media
from bridge.publisher.pairing import LiveBatch, Pairing
from bridge.publisher.tracker import SequenceOutcome, SequenceTracker
from bridge.publisher.window import Window
from bridge.publisher.windows import Windows
from bridge.sockets.raw_message import RawMessage, RawRun, Received
from bridge.wire import DecodedBatch, DecodedRun, MessageDecoder
from bridge.wire.batch import names_rank
from bridge.wire.drop_reasons import DropReason
from bridge.wire.stream_marks import WholeMark
from schemas.arrays import MessageRun
from schemas.errors import BatchError, WireError
from schemas.limits import OTHER_RANKS_MAX, SEQUENCE_MAX
from schemas.positions import Cursor, Proof
from schemas.registration import Registration, facts_of

RUN_MESSAGES_MAX: Final = 256  # decoded together, where they simply follow on

_logger = logging.getLogger(__name__)


class BatchPlace(Enum):
    """What a batch is to its stream."""

    NEXT = "next"  # it is accepted, and of the incarnation of those before, as far as is known
    UNPROVEN = "unproven"  # it is accepted, and may be of another incarnation from here on
    FIRST = "first"  # it is accepted, as the first one of its incarnation in the log
    RESTART = "restart"  # it is accepted, as the first one of another incarnation
    AGAIN = "again"  # the log has it


_NEXT: Final = SequenceOutcome.NEXT  # of most batches


def place_of(outcome: SequenceOutcome, *, is_first: bool, is_proven: bool) -> BatchPlace:
    """The case.

    Args:
        is_first: the log has no batch of the incarnation.
        is_proven: its link is known to be the incarnation's, or those before are in doubt already.
    """
    if outcome is SequenceOutcome.DUPLICATE:
        return BatchPlace.AGAIN
    if outcome is SequenceOutcome.RESTART:
        return BatchPlace.RESTART
    if is_first:
        return BatchPlace.FIRST
    return BatchPlace.NEXT if is_proven else BatchPlace.UNPROVEN


class BatchStream:
    """See the module; one owner, the publisher's sequencer.

    Attributes:
        repairs: whether batches that are missing can be asked for.
        counters, arrivals, links, causes, pairing: what is known of it beside its batches.
        degraded: whether a gap was written here, and no reset or clear since.
        unplaced: the last message without a place, where no batch came behind it; else 0.
        is_partial: whether it began with a snapshot that lacks what was stored before.
        is_shared: whether other ranks come from its address by numbers of their own, or are
            registered there: so a number alone does not say whose batch it is.
        other_ranks: those that came, each with its last link.
    """

    __slots__ = (
        "_begun",
        "_checkpoint",
        "_counts_by_rank",
        "_engine_time",
        "_has_told_gap",
        "_is_beginning",
        "_media",
        "_numbers",
        "_out_of_range",
        "_proof",
        "_resumes",
        "_run_max",
        "_source",
        "_tracker",
        "_windows",
        "arrivals",
        "causes",
        "counters",
        "degraded",
        "is_partial",
        "is_shared",
        "links",
        "other_ranks",
        "pairing",
        "publisher",
        "repairs",
        "unplaced",
    )

    def __init__(
        self, registration: Registration, source: MessageDecoder, cursor: Cursor, repairs: bool
    ) -> None:
        self.publisher = registration.publisher
        self.repairs = repairs
        self.counters = PublisherCounters(registration.service_key)
        self.arrivals = Arrivals()
        self.links = Links()
        self.causes = Causes()
        self.pairing = Pairing()
        self.degraded = False
        self.unplaced = 0
        self.other_ranks: dict[int, LinkNumber] = {}
        self.is_shared = False
        self._counts_by_rank = facts_of(registration.kind).counts_by_rank
        self._source = source
        self._tracker = SequenceTracker(cursor)
        self._engine_time = 0.0
        self._proof: Proof | None = None  # what follows it may be of another incarnation
        self._begun: BegunBatch | None = None
        self._numbers = EventNumbers()
        self._windows = Windows()
        self._windows.place(None, is_empty=cursor.sequence < 0)
        self._media = Media(registration)
        self._out_of_range: WireError | None = None  # of a batch whose number no gap can have
        self._run_max = RUN_MESSAGES_MAX  # of the next run: what is not plain is seen again
        self._has_told_gap = False
        self._resumes = registration.has_stream
        self._is_beginning = self.is_partial = False  # parts of a snapshot are to come
        self._checkpoint = Checkpoint(self.anchor, False)

    @property
    def cursor(self) -> Cursor:
        """The last accepted batch."""
        return self._tracker.cursor

    def at(self, sequence: int) -> Cursor:
        """The batch of this number in the incarnation of the last accepted one."""
        return Cursor(self._tracker.incarnation, sequence)

    @property
    def is_doubted(self) -> bool:
        """Whether batches were accepted of which it is not known that they are of the incarnation
        of those before.
        """
        return self._proof is not None

    @property
    def anchor(self) -> Anchor:
        """The last accepted batch, with what identifies its incarnation."""
        cursor, begun = self._tracker.cursor, self._begun
        begun_time = begun.engine_time if begun is not None and begun.after == cursor else None
        heard, window = self.pairing.heard, self._windows.largest
        names = self._media.names
        return Anchor(cursor, self._engine_time, self._proof, begun_time, heard, window, names)

    def set_anchor(self, anchor: Anchor) -> None:
        """Sets the last batch in the log; what was seen before no longer proves duplicates."""
        if self._tracker.sequence >= 0 and self._tracker.cursor > anchor.cursor:
            self.links.forget_last()
        if self._tracker.cursor != anchor.cursor:
            self._tracker = SequenceTracker(anchor.cursor)
            self.links.forget_proof()
            self.pairing.place(anchor.heard, is_open=anchor.cursor.sequence >= 0)
            self._numbers.forget()
        self._windows.place(anchor.window, is_empty=anchor.cursor.sequence < 0)
        self._media.names = anchor.media
        self._engine_time, self._proof = anchor.engine_time, anchor.proof
        self._begun = None if anchor.begun is None else BegunBatch(anchor.cursor, anchor.begun)

    # Which incarnation: numbers alone do not tell one from another that has come as far

    def begin_link(self, link: LinkNumber) -> None:
        """What comes now comes over this link."""
        self.links.last = link
        self.counters.number, self.counters.repeats = -1, 0  # an engine that restarts begins again
        self.causes.away = self.causes.away or RECONNECTED
        self.arrivals.begin_link()

    def drop_earlier(self, batches: int) -> None:
        """So many came over a link to a process of the engine before the one that the log has."""
        reason = "its link was to a process of the engine before the present one"
        self.counters.count_drop(BatchError(DropReason.EARLIER_INCARNATION, reason), batches)

    def prove(self, link: LinkNumber) -> None:
        """The engine still has the batch that the log has: all since is of one incarnation.

        Args:
            link: over which it sends that incarnation. Over a later one another may come.
        """
        self.links.proven, self._proof, self.causes.away = link, None, ""

    def begin_incarnation(self, window: Window, link: LinkNumber, reason: str) -> None:
        """Another one begins, over this link, by a reset for this reason."""
        self.counters.restarts += 1
        self._tracker.begin_incarnation()
        self._forget_incarnation(link)
        window.add_reset(incarnation=self._tracker.incarnation, reason=reason)

    def _forget_incarnation(self, link: LinkNumber) -> None:
        """Another one begins, over this link: nothing of the one before is true of it."""
        self.degraded = self.is_partial = self._is_beginning = False
        ranks = self.other_ranks.items()
        self.other_ranks = {rank: last for rank, last in ranks if last >= link}
        self._engine_time = 0.0
        self.pairing.begin_incarnation()
        self._numbers.forget()
        self._windows.forget()
        self._media.forget()
        self.prove(link)

    def doubt(self) -> None:
        """What is accepted from here on may be of another incarnation."""
        self._proof = self.proven

    @property
    def proven(self) -> Proof:
        """The last batch that is known to be of the log's incarnation."""
        return self._proof or Proof(self._tracker.sequence, self._engine_time)

    @property
    def proven_link(self) -> LinkNumber:
        """The link that brought the last message, where it is known to be of the log's incarnation
        with all before it; else NO_LINK.
        """
        links = self.links
        is_proven = links.proven == links.last and self._proof is None
        is_open = self.pairing.is_open and not self.pairing.was_shown
        is_whole = self.anchor.begun is None and not is_open and not self._is_beginning
        return links.last if is_proven and is_whole else NO_LINK

    def is_of(self, link: LinkNumber) -> bool:
        """Whether the log has a batch that the process at the other end of this link published."""
        live = self.pairing.live
        return self._is_all_of(link) or (live is not None and NO_LINK < live.link == link)

    def _is_all_of(self, link: LinkNumber) -> bool:
        return self.links.is_known(link) and not self.pairing.is_open and self._proof is None

    def differs(self, batch: DecodedBatch, link: LinkNumber) -> bool:
        """Whether a replayed batch is not the one that the log has of its number, and the process
        at the other end of this link published that: so it has not replayed this one.
        """
        live = self.pairing.live
        if live is not None and NO_LINK < live.link == link and live.recognises(batch) is False:
            return True
        return self._is_all_of(link) and self.recognises(batch) is False

    def recognises(self, batch: DecodedBatch) -> bool | None:
        """Whether this is the batch of its number in the log; None where that cannot be told."""
        live = self.pairing.live
        known = None if live is None else live.recognises(batch)
        return self._tracker.recognises(batch.sequence, batch.digest) if known is None else known

    # Windows

    def open(self, now: float) -> Window:
        """Starts a window; `roll_back` returns to here."""
        self._checkpoint = Checkpoint(self.anchor, self.degraded)
        return Window(self.publisher, now)

    def roll_back(self) -> Cursor:
        """Forgets the batches of the last window; returns the last of them."""
        lost_to = self._tracker.cursor
        self.set_anchor(self._checkpoint.anchor)
        self.degraded = self._checkpoint.degraded
        return lost_to

    def lose(self, window: Window, missing: MissingBatches) -> None:
        """Adds a gap for everything up to the cursor; nothing where it has been accepted."""
        cursor, reason = missing
        if cursor <= self._tracker.cursor:
            return
        if cursor.incarnation > self._tracker.incarnation:
            window.add_reset(incarnation=cursor.incarnation, reason=reason)
            self.degraded = False
            self._tracker = SequenceTracker(Cursor(cursor.incarnation, -1))
            self.pairing.begin_incarnation()
            self._windows.forget()
            self._media.forget()
        first, last = self._tracker.sequence + 1, cursor.sequence
        if first <= last:
            self.counters.gaps += 1
            self.counters.lost_batches += last - first + 1
            self.add_gap(window, first, last, reason)
        self._tracker = SequenceTracker(cursor)
        self._engine_time = 0.0

    # Batches

    def decode(self, message: RawMessage) -> DecodedBatch | None:
        """The message's batch; None, counted, where its sequence cannot be read, or whose it is."""
        self.counters.messages += 1
        batch = message.batch
        if not isinstance(batch, DecodedBatch):
            try:
                batch = self.read(message)
            except WireError as error:
                self.counters.count_drop(error)
                self.unplaced = self.counters.messages
                if error.reason == DropReason.SEQUENCE_RANGE:
                    self._out_of_range = WireError(error.reason, error.detail)
                return None
        if not self._tells_rank(batch, message):
            self.unplaced = self.counters.messages
            return None
        return batch

    def read(self, message: RawMessage) -> DecodedBatch:
        """The message's batch; any thread may ask, one at a time. WireError where its sequence
        cannot be read.
        """
        return self._source.decode(message.frames)

    def _tells_rank(self, batch: DecodedBatch, message: RawMessage) -> bool:
        """Whether it is known whose batch it is; counted where not."""
        if not self.is_shared:
            return True
        if batch.engine_time is None:
            self.counters.count_drops(batch.dropped)
            return False
        if names_rank(message.frames[-1]):
            return True
        detail = "Expected a batch that names its rank, as several publish at its address"
        self.counters.count_drop(BatchError(DropReason.RANK_MISMATCH, detail))
        return False

    def note_lost(self) -> None:
        """A message was lost of which it is not known whose it was: where it was one of these, the
        next one shows it.
        """
        self.counters.messages += 1
        self.unplaced = self.counters.messages

    def passes_over(self, batch: DecodedBatch) -> bool:
        """Whether the batch is of another rank, which numbers for itself: so its number says
        nothing of this stream.
        """
        if not (batch.other_ranks and self._counts_by_rank):
            return False
        self.counters.count_drops(batch.dropped)
        self.is_shared = True
        for rank in batch.other_ranks:
            if rank in self.other_ranks or len(self.other_ranks) < OTHER_RANKS_MAX:
                self.other_ranks[rank] = self.links.last
        return True

    def needs_repair(self, batch: DecodedBatch) -> bool:
        """Whether batches before this one are missing that the publisher may still have."""
        if (
            not self.repairs
            or batch.mark is not None
            or batch.sequence == self._tracker.sequence + 1
        ):
            return False
        return self._tracker.peek(batch.sequence, batch.digest).gap is not None

    # Batches that simply follow on

    def take_run(self, window: Window, received: Sequence[Received], at: int) -> int:
        """Accepts the next messages together, as far as they are plain batches that follow on: each
        costs a fifth of what it does alone, and comes to the same.

        Args:
            received: of any publishers.
            at: where this one's next are, over its present link.

        Returns:
            How many; 0 where the first is to be looked at alone.

        Raises:
            Exception: unexpected; nothing was accepted.
        """
        if not self._takes_runs():
            return 0
        frames = self._next_of(received, at)
        if not frames or self._tracker.sequence + len(frames) > SEQUENCE_MAX:
            return 0
        run = self._decode_run(frames, window)
        taken = 0 if run is None else len(run.digests)
        self._run_max = min(max(2 * taken, 2), RUN_MESSAGES_MAX)
        if run is not None:
            self._accept_run(run, window)
        return taken

    def _next_of(self, received: Sequence[Received], at: int) -> list[list[bytes]] | MessageRun:
        """The frames of the messages that may follow together; none where the first is alone."""
        first = received[at]
        if isinstance(first, RawRun):
            follows = first.run.begins(self._tracker.sequence + 1)
            return first.run.first(self._run_max) if follows else []
        frames: list[list[bytes]] = []
        for one in received[at : at + self._run_max]:
            if (
                isinstance(one, RawRun)
                or one.publisher is not first.publisher
                or one.link != first.link
                or one.batch is not None
            ):
                break
            frames.append(one.frames)
        return frames if len(frames) > 1 else []

    def _takes_runs(self) -> bool:
        """Whether plain batches that follow on would move the cursor, and nothing else."""
        return (
            self._tracker.sequence >= 0
            and not self.is_shared  # there each is to name its rank
            and (self.links.last == self.links.proven or self._proof is not None)
            and (self._begun is None or self._begun.after != self._tracker.cursor)
            and self._out_of_range is None
        )

    def _decode_run(
        self, messages: list[list[bytes]] | MessageRun, window: Window
    ) -> DecodedRun | None:
        """As many of the first as fit one record: the window's, or else a new one."""
        sequence = self._tracker.sequence + 1
        run = self._source.decode_run(messages, sequence, window.room_bytes)
        if run is None and window.room_bytes < window.next_room_bytes:
            run = self._source.decode_run(messages, sequence, window.next_room_bytes)
        return run

    def _accept_run(self, run: DecodedRun, window: Window) -> None:
        first, batches = self._tracker.sequence + 1, len(run.digests)
        self._media.of_run(run)
        window.add_batch(
            incarnation=self._tracker.incarnation,
            sequence=first,
            engine_time=run.engine_time,
            event_count=run.event_count,
            run=run.run,
            doubted=self._proof is not None,
            batches=batches,
            media=self._media.names or None,
        )
        self._tracker.advance(run.digests)
        self.causes.away = ""
        last = LiveBatch(self._tracker.sequence, run.digests[-1], run.engine_time, self.links.last)
        self.pairing.note_live(last)
        self._engine_time = run.engine_time
        self.arrivals.engine_time = run.engine_time or self.arrivals.engine_time
        self.unplaced = 0
        self.counters.messages += batches
        self.counters.number, self.counters.repeats = self._tracker.sequence, 0
        self.arrivals.messages += batches
        self.counters.batches += batches
        self.counters.events += run.event_count

    # Single batches

    def accept(self, batch: DecodedBatch, window: Window, link: LinkNumber) -> bool:
        """Appends the batch to the window, after the reset or gap that it shows; False where it had
        been accepted before.

        Args:
            link: that brought it, or that was there when it was asked for; NO_LINK for unknown.
        """
        if self._begun is not None:
            self._begin_other(self._begun, batch, window, link)
        if batch.mark is not None:
            return self._accept_whole(batch.mark, batch, window, link)
        if self._goes_on(batch, link):
            if self._proof is None:
                self.prove(link)
            self.note_again(batch, link)
            return False
        return self._accept(batch, window, link)

    def _goes_on(self, batch: DecodedBatch, link: LinkNumber) -> bool:
        """Whether a stream goes on where it was, over another link: it begins with the last batch
        that was accepted, so nothing is missing, and nothing has begun again.
        """
        if not self._resumes or link == self.links.proven:
            return False
        if batch.sequence != self._tracker.sequence or not batch.engine_time:
            return False
        known = self.recognises(batch)
        return batch.engine_time == self._engine_time if known is None else known

    def _accept_whole(
        self, mark: WholeMark, batch: DecodedBatch, window: Window, link: LinkNumber
    ) -> bool:
        """What begins with this batch takes the place of all that was known before."""
        if mark.begins:
            first = batch.sequence - batch.skipped
            if self._tracker.sequence >= 0:
                self.begin_incarnation(window, link, SNAPSHOT if first else RESTARTED)
            if first:  # its parts are numbered up to where it was taken
                self.add_gap(window, 0, first - 1, SNAPSHOT)
                incarnation = self._tracker.incarnation
                self._tracker = SequenceTracker(Cursor(incarnation, first - 1))
                self.prove(link)
            self.is_partial = False
        self._is_beginning = not mark.ends
        is_taken = self._accept(batch, window, link)
        if mark.unknown_before and self._proof is None:
            self.is_partial = True
            self.doubt()
        return is_taken

    def _accept(self, batch: DecodedBatch, window: Window, link: LinkNumber) -> bool:
        before, proven_link = self._tracker.sequence, self.links.proven
        if NO_LINK < link == proven_link and self.is_older(batch, link):
            # A link ends with the process at its other end: no restart. A replay was faster.
            self.note_again(batch, link)
            return False
        skipped = batch.skipped if before + 1 + batch.skipped == batch.sequence else 0
        if skipped:
            self._tracker.skip(skipped)
        outcome, gap = self._tracker.observe(
            batch.sequence, batch.digest, is_of_one_run=self._is_of_one_run(batch)
        )
        is_proven = link == proven_link or self._proof is not None
        if outcome is not _NEXT or before == -1 or not is_proven:  # else its place is NEXT
            place = place_of(outcome, is_first=before == -1, is_proven=is_proven)
            if place is BatchPlace.AGAIN:
                self.note_again(batch, link)
                return False
            self._note_place(place, before, window, link)
            is_of_others = bool(batch.other_ranks) and not batch.event_count
            if place is BatchPlace.RESTART and is_of_others and NO_LINK < link == proven_link:
                self.doubt()  # nothing has ended: that rank may count for itself
        if gap is not None:
            first, last = gap
            self.counters.gaps += 1
            self.counters.lost_batches += last - first + 1
            reason = self.causes.of_gap if first else JOINED_LATE
            self.add_gap(window, first, last, reason)
        if skipped:  # as so many batches without events
            window.add_batch(
                incarnation=self._tracker.incarnation,
                sequence=before + 1,
                engine_time=batch.engine_time or self._engine_time,
                event_count=0,
                run=b"",
                doubted=self._proof is not None,
                batches=skipped,
            )
        self.causes.away = ""
        self._add(batch, window, link)
        return True

    def _note_place(self, place: BatchPlace, before: int, window: Window, link: LinkNumber) -> None:
        if place is BatchPlace.RESTART:
            self.counters.restarts += 1
            self._forget_incarnation(link)
            window.add_reset(incarnation=self._tracker.incarnation, reason=RESTARTED)
        elif place is BatchPlace.FIRST:
            self.prove(link)  # the log has nothing else of this incarnation
        elif place is BatchPlace.UNPROVEN:
            self._proof = Proof(before, self._engine_time)

    def _add(self, batch: DecodedBatch, window: Window, link: LinkNumber) -> None:
        """Appends the batch to the window; a gap where nothing of it can be used."""
        had_media = self._media.names
        batch = self._media.of_batch(self._windows.of_batch(self._numbers.of_batch(batch)))
        lost = self.counters.count_drops(batch.dropped)
        # What follows on shows no gap, and may be of the same run: only a clear ends what it held.
        if self._out_of_range is not None and not batch.clears:
            lost.append(self._out_of_range)
        self._out_of_range = None
        self.counters.batches += 1
        if batch.engine_time is None and not self.degraded:
            (unusable,) = batch.dropped
            self.add_gap(window, batch.sequence, batch.sequence, unusable.reason)
            return
        if batch.engine_time is not None:
            self._engine_time = batch.engine_time
        if batch.clears and (self.degraded or self._proof is not None):
            self.degraded = self.is_partial = False
            self.prove(link)  # of what was before, nothing is left
        self.degraded = self.degraded or bool(lost)
        self.counters.events += batch.event_count
        window.add_batch(
            incarnation=self._tracker.incarnation,
            sequence=batch.sequence,
            engine_time=self._engine_time,
            event_count=batch.event_count,
            run=batch.run,
            parts=batch.parts,
            doubted=self._proof is not None,
            unusable=lost[0].reason if lost else "",
            is_whole=batch.engine_time is None,
            repaired=self.causes.repaired,
            other_ranks=batch.other_ranks,
            attention_window=self._windows.largest,
            media=self._media.names if had_media or self._media.names else None,
        )
        self._note_origin(batch, link)

    def _note_origin(self, batch: DecodedBatch, link: LinkNumber) -> None:
        if self.causes.repaired:
            self.pairing.note_replayed()
        else:
            live = LiveBatch(batch.sequence, batch.digest, self._engine_time, link)
            self.pairing.note_live(live, clears=batch.clears)

    def _begin_other(
        self, begun: BegunBatch, batch: DecodedBatch, window: Window, link: LinkNumber
    ) -> None:
        """Begins an incarnation where the log has a part of a batch of this number, and of another
        time: the engine has restarted.
        """
        if begun.after != self._tracker.cursor or batch.sequence != self._tracker.sequence + 1:
            return
        self._begun = None
        if batch.engine_time not in (None, begun.engine_time):
            self.begin_incarnation(window, link, RESTARTED)

    def lost_to(self, batch: DecodedBatch) -> Cursor | None:
        """Up to where batches are missing, given one that was dropped; None where none are."""
        incarnation = self._tracker.incarnation
        if batch.sequence > self._tracker.sequence:
            return Cursor(incarnation, batch.sequence)
        if batch.engine_time is not None and batch.engine_time > self._engine_time:
            return Cursor(incarnation + 1, batch.sequence)  # the engine has begun again
        return None

    def add_gap(self, window: Window, first: int, last: int, reason: str) -> None:
        """Adds a gap for these batches, by which the fold degrades the publisher."""
        self.degraded = True
        self._numbers.forget()
        # What was sent before we listened is no loss of ours.
        if reason not in (JOINED_LATE, SNAPSHOT) and not self._has_told_gap:
            self._has_told_gap = True
            _logger.warning(
                "Batches %d to %d of %s are lost (%s); its answers are degraded (further gaps of it"
                " are only counted)",
                first,
                last,
                self.counters.publisher,
                reason,
            )
        incarnation = self._tracker.incarnation
        window.add_gap(incarnation=incarnation, first=first, last=last, reason=reason)

    def is_older(self, batch: DecodedBatch, link: LinkNumber) -> bool:
        """Whether a batch that came over this link is in the log: neither above the cursor nor
        later.

        The number alone could be that of a new incarnation; the engine's clock tells them apart.
        Where that was set back, the publisher is not confirmed until its replay has told. What has
        other bytes than the batch of its number is not older: it is of a new incarnation, or what
        was replayed is another publisher's. One that cannot be read has no time: its link tells,
        where it is known to be the log's incarnation's.
        """
        if batch.sequence > self._tracker.sequence or batch.mark is not None:
            return False
        if self._goes_on(batch, link):
            return False  # what it shows is yet to be taken over
        if batch.engine_time is None:
            return self.links.is_known(link) and self.recognises(batch) is not False
        return batch.engine_time <= self._engine_time and self._repeats(batch) is not False

    def _repeats(self, batch: DecodedBatch) -> bool | None:
        """Whether this is the batch of its number in the log, and of its incarnation; None where
        that cannot be told. An engine never sends other bytes under a number once more.
        """
        known = self.recognises(batch)
        return known and self._is_of_one_run(batch)

    def _is_of_one_run(self, batch: DecodedBatch) -> bool:
        """Whether no other incarnation sends these bytes: they have a time. Without one it may have
        begun with the same, unless a replay has brought them, or they are the last ones again.
        """
        is_last = batch.sequence == self._tracker.sequence
        return batch.engine_time != 0.0 or self.repairs or is_last

    def note_again(self, batch: DecodedBatch, link: LinkNumber) -> None:
        """A batch came that the log has: live, where it had been replayed before, as a rule."""
        self.counters.duplicates += 1
        live = self.pairing.live
        is_new = not self.causes.repaired and (live is None or batch.sequence > live.sequence)
        if is_new and self.recognises(batch):
            time = batch.engine_time or 0.0
            self.pairing.note_live(LiveBatch(batch.sequence, batch.digest, time, link))
            self.pairing.show(is_anchored=True)
