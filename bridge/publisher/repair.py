"""Repairs one publisher from its engine's replay buffer: what to ask for, what to take. Pure.

The publisher's batches wait in the sequencer meanwhile. A replay cannot be trusted (Source: vLLM
0.9-0.33, SGLang 0.4.10-0.5.23): it may start later than asked for, have holes, end without its end
marker, and come from another incarnation of the engine, whose numbers look the same. So:

1. Each request starts at the last batch in the log, or where batches were accepted since of which
   that was not known, at the last one of the log's incarnation. Its reply is taken only if that
   batch comes back with the same engine time. If the time at that number differs, or no batch
   reaches it, the engine has restarted. Then what waits from the incarnation before is written,
   then a reset, and the new incarnation is asked for from 0. If that turns out to have begun before
   the log's last batch, the reply may have been lost: it is asked for once more, with some batches
   before it, and once again where that reply ends before it, too.
2. After a hole, or without an end, what is missing is asked for again from there. A hole that shows
   twice is the engine's own; the repair ends when several requests in a row bring nothing new.
   Where a reply breaks off twice at the same batch, that one is larger than what is read: it alone
   becomes a gap, and what is behind it is asked for.
3. Replayed batches are taken up to the first one that waits; if both have that number but not the
   same time, the one that waits is of another incarnation. It is of an earlier one, and dropped, if
   it came over a link that was gone when the engine was asked; else of a later one, and all that
   was replayed goes first. So it is dropped where it is later than all that the engine has told
   twice: one of the process that has told would be in its buffer.
4. What is still missing becomes a gap, by the sequencer.

A repair *confirms* the publisher where it is known that the log then has all that the engine had
sent: the reply began with the log's last batch, or with the first one of an incarnation, and went
on without a hole to what waits, or had nothing newer. A reply that ends with something new is not
believed to have had all: a long one loses what the engine's socket has no room for.

Not detected: an incarnation whose buffer no longer has the number of the log's last batch. It is
taken for the same incarnation with a gap, as live batches with such numbers are
(`bridge.publisher.tracker`). Where it begins right behind that batch, no gap tells: the log's
batches then stay in doubt, until a clear, or the engine's HTTP address, shows whose they are.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, NamedTuple

from bridge.link_numbers import NO_LINK
from bridge.publisher.sequencer import Sequencer
from bridge.sockets.raw_message import RawMessage
from bridge.wire import DecodedBatch
from bridge.wire.drop_reasons import DropReason
from schemas.answer_states import Doubt
from schemas.errors import BatchError
from schemas.limits import MESSAGE_BYTES_MAX, REPLAY_OVERLAP_BATCHES
from schemas.records import SequencedRecord

REPLAY_BARREN_MAX: Final = 4  # requests in a row that bring nothing new
REPLAY_REQUESTS_MAX: Final = 256  # of one repair
REPLAY_SKIPS_MAX: Final = 64  # batches of one repair at which replies break off; each is a gap
REPLAY_SKIPS_BARREN_MAX: Final = 8  # of them, one behind the other


class RepairResult(NamedTuple):
    """How a repair has ended.

    Attributes:
        doubt: why it does not confirm the publisher; None where it does.
        heard_all: whether the engine was heard to the end of what it has: of one that goes on where
            a live batch waits no more is read, and what its socket has dropped behind that one is
            not known.
    """

    doubt: Doubt | None
    heard_all: bool


class RepairStep(Enum):
    """What is to be done next."""

    MORE = "more"  # go on reading
    ASK = "ask"  # ask again, from `start`
    DONE = "done"  # nothing more is needed, or available


class ReplyEnding(Enum):
    """How a reply has ended."""

    SILENT = "silent"  # without anything that was taken, and without its marker
    BROKEN = "broken"  # without its marker, before what waits
    SHORT = "short"  # by its marker, and something is missing yet
    UNANCHORED = "unanchored"  # by its marker, before the log's last batch
    SAME = "same"  # so, too; but the log's last batch is of the process that has replied
    WHOLE = "whole"  # nothing is missing behind what was taken
    EMPTY = "empty"  # by its marker alone, and there was nothing to reply
    BEHIND = "behind"  # so, too; but the log has what an engine of its incarnation would reply


ENDINGS: Final = {
    ReplyEnding.SILENT: RepairStep.ASK,
    ReplyEnding.BROKEN: RepairStep.ASK,
    ReplyEnding.SHORT: RepairStep.ASK,
    ReplyEnding.UNANCHORED: RepairStep.ASK,
    ReplyEnding.SAME: RepairStep.DONE,
    ReplyEnding.WHOLE: RepairStep.DONE,
    ReplyEnding.EMPTY: RepairStep.DONE,
    ReplyEnding.BEHIND: RepairStep.ASK,
}
"""What to do next."""


class ReplayRepair:
    """Follows one repair; one owner, who reads the socket. The publisher is held, and stays so.

    While `begin` allows it, ask from `start`, give the replies to `feed` as long as `answer` is
    MORE, and the reply's end to `end` or `break_off`; on DONE, or when `begin` refuses, call
    `Sequencer.resume`.

    Args:
        sequencer: of the publisher, held.

    Attributes:
        answer: of what was fed last.
        is_sending: whether the engine may still be at the reply before, of which no more is read:
            it begins with the next one only after that.
        is_answered: whether the engine has answered anything.
    """

    def __init__(self, sequencer: Sequencer) -> None:
        self.answer = RepairStep.MORE
        self.requests = 0
        self.replayed = 0
        self.is_sending = self.is_answered = False
        self._sequencer = sequencer
        self._new_incarnation = False  # what is asked for is not in the log yet
        self._verified = False  # the reply under way is of the incarnation asked for
        self._anchored = False  # and that is proven by its first batch
        self._whole = self._heard_all = False
        self._differs = False  # it is another publisher's, as one of its batches has shown
        self._taken = 0  # batches of the reply under way
        self._highest = -1  # of their numbers, those passed over included
        self._ended_at: int | None = None  # the same, of the last whole reply
        self._link = NO_LINK  # which brought the last message, when it was asked for
        self._live_link = NO_LINK
        self._up_link = NO_LINK  # the one that was up then
        self._hole: tuple[int, int] | None = None
        self._broke_at: int | None = None  # the batch at which the reply before broke off
        self._behind = 0  # from where on what is behind such batches is asked for
        self._skips = self._barren_skips = 0
        self._asked_again = False
        self._ended_short = False  # the reply before this one ended before the log's last batch
        self._waited = 0  # how many live batches waited when the request under way was sent
        self._came_back = False
        self._barren = 0
        self._progress = True

    @property
    def start(self) -> int:
        """The first sequence to ask for."""
        comparable = None
        if not self._new_incarnation:
            comparable = self._sequencer.comparable()
        start = self._start if comparable is None else min(self._start, comparable)
        return max(start, self._behind)

    @property
    def _start(self) -> int:
        if self._new_incarnation:
            return 0
        sequence, engine_time = self._sequencer.stream.proven
        if self._asked_again:
            return max(sequence - REPLAY_OVERLAP_BATCHES, 0)
        return sequence if engine_time and sequence >= 0 else sequence + 1

    @property
    def doubt(self) -> Doubt | None:
        """Why it does not confirm the publisher; None where it does."""
        if self._differs:
            return Doubt.REPLAY_DIFFERS
        if self._whole:
            is_trusted = self._sequencer.stream.pairing.is_trusted
            return None if is_trusted else Doubt.REPLAY_UNMATCHED
        if self._broke_at is not None or self._skips:
            return Doubt.REPLAY_BROKEN
        return Doubt.NOTHING_REPLAYED if self.is_answered else Doubt.REPLAY_SILENT

    @property
    def repaired(self) -> RepairResult:
        """How it has ended."""
        return RepairResult(self.doubt, self._heard_all)

    def begin(self) -> bool:
        """Whether one more request may be sent; counts it."""
        self._barren = 0 if self._progress else self._barren + 1
        if self.requests >= REPLAY_REQUESTS_MAX or self._barren >= REPLAY_BARREN_MAX:
            return False
        self.requests += 1
        self._verified = self._anchored = self._whole = self._heard_all = False
        self._taken = 0
        self._highest = -1
        self._progress = False
        self.note_asked()
        return True

    def note_asked(self) -> None:
        """The request is sent now, where that is later than `begin`: the answer is about the links
        of this moment.
        """
        self._waited = self._sequencer.waiting
        links = self._sequencer.stream.links
        self._link, self._live_link, self._up_link = links.last, links.live, links.up

    def feed(self, messages: Iterable[RawMessage], now: float) -> Iterator[list[SequencedRecord]]:
        """Takes replies, in order; gives their records, a turn's worth at a time. At the end
        `answer` says whether to read on.
        """
        taken: list[DecodedBatch] = []
        answer = RepairStep.MORE
        for message in messages:
            batch = self._sequencer.decode(message)
            self.is_answered = True
            if batch is None:
                continue
            if self._is_of_another(batch):
                self._differs, self.answer = True, RepairStep.DONE
                yield self._sequencer.refuse(batch, now, link=self._link)
                return
            if not self._is_known(batch):
                answer = RepairStep.ASK
                break
            if not self._verified:
                if self._new_incarnation:
                    self._anchored = batch.sequence == 0
                    yield from self._begin_incarnation(batch, now)
                self._verified = True
            self._highest = max(self._highest, batch.sequence)
            answer = self._place(batch, taken)
            self._sequencer.compare(batch, is_anchored=self._anchored)
            if answer is not RepairStep.MORE:
                break
        if taken:
            if not self._is_proven(taken[0]):
                self._sequencer.doubt()
            self._progress = True
            self._barren_skips = 0
            self.replayed += len(taken)
            self._taken += len(taken)
            yield self._sequencer.accept(taken, now, link=self._link)
        if answer is RepairStep.DONE:
            self._end_whole(self._anchored and self._is_joined())
        self.is_sending = answer is RepairStep.ASK
        self.answer = answer

    def break_off(self, now: float) -> list[SequencedRecord]:
        """The link has broken at a message that is larger than what is read, or is none. `answer`
        says what to do next; returns the gap for that message, where it is known for the cause.
        """
        self.is_answered = self.is_sending = True
        self.answer = RepairStep.ASK
        if self._verified and self._is_joined():
            self._end_whole(self._anchored)
            self.answer = RepairStep.DONE
            return []
        broke_at = max(self._highest + 1, self.start)
        if not self._new_incarnation:
            last = self._sequencer.stream.cursor.sequence
            if self._verified and broke_at <= last:  # the log has it, or a gap for it
                self._behind = last + 1
                return []
            broke_at = max(broke_at, last + 1)
        is_again, self._broke_at = broke_at == self._broke_at, broke_at
        return self._skip(broke_at, now) if is_again else []

    def _skip(self, sequence: int, now: float) -> list[SequencedRecord]:
        """Goes on behind this batch."""
        self._skips += 1
        self._barren_skips += 1
        waiting = self._sequencer.first_waiting()
        if (
            self._skips > REPLAY_SKIPS_MAX
            or self._barren_skips > REPLAY_SKIPS_BARREN_MAX
            or (waiting is not None and not self._new_incarnation and waiting.sequence <= sequence)
        ):
            self.answer = RepairStep.DONE
            return []
        self._behind = sequence + 1
        self._progress = True
        if self._new_incarnation:
            return []  # it is told behind the reset
        anchored = self._anchored
        records = self._lose(sequence, now)
        if self._verified and self._is_joined():
            self._end_whole(anchored)
            self.answer = RepairStep.DONE
        return records

    def _lose(self, sequence: int, now: float) -> list[SequencedRecord]:
        detail = f"expected at most {MESSAGE_BYTES_MAX} bytes in batch {sequence} of a replay"
        error = BatchError(DropReason.MESSAGE_TOO_LARGE, f"{detail}, got more, or no message")
        return self._sequencer.lose(sequence, error, now, link=self._link)

    def _ask_for_incarnation(self, *, new: bool) -> None:
        """Asks for another incarnation than before; what was found out of that one's numbers says
        nothing of this one's.
        """
        self._new_incarnation = new
        self._broke_at, self._behind = None, 0

    def end(self, *, complete: bool) -> RepairStep:
        """The reply has ended: by its marker, or by silence where it is not `complete`."""
        self.is_answered = self.is_answered or complete
        self._heard_all = complete
        self.is_sending = self._verified and not complete
        if complete and self._verified:
            self._drop_process_before()
        elif complete:
            self._end_whole(self._is_whole_without_reply())
        ending = next(ending for is_so, ending in self._endings(complete) if is_so)
        match ending:
            case ReplyEnding.SILENT:
                self._note_silence()
            case ReplyEnding.UNANCHORED:
                # A reply may have lost its end, once.
                self._ask_for_incarnation(new=self._ended_short)
                self._ended_short = not self._new_incarnation
            case ReplyEnding.SHORT:
                self._ended_short = False
            case ReplyEnding.WHOLE:
                self._ended_short = self._ended_short and not complete
                self._end_whole(self._anchored)
            case ReplyEnding.BEHIND:
                self._ask_for_incarnation(new=True)  # it has not yet sent as much as the log has
        return ENDINGS[ending]

    def _endings(self, complete: bool) -> Iterator[tuple[bool, ReplyEnding]]:
        """The cases; one is so, and the first one counts."""
        if not complete:
            yield not self._verified, ReplyEnding.SILENT
            yield self._is_joined(), ReplyEnding.WHOLE
            yield True, ReplyEnding.BROKEN
        elif self._verified:
            is_unanchored = self._is_without_anchor()
            yield is_unanchored and self._is_same_process(), ReplyEnding.SAME
            yield is_unanchored, ReplyEnding.UNANCHORED
            yield self._is_beyond_reply() or self._is_short() or self._is_cut(), ReplyEnding.SHORT
            yield self._taken > 0 and not self._is_joined(), ReplyEnding.SHORT
            yield True, ReplyEnding.WHOLE
        else:
            yield not self._expects_reply(), ReplyEnding.EMPTY
            yield self._is_same_process(), ReplyEnding.EMPTY
            yield True, ReplyEnding.BEHIND

    def _drop_process_before(self) -> None:
        """Drops what waits of the process before the one that has replied."""
        is_end = self._highest == self._ended_at
        self._ended_at = self._highest
        while self._has_begun_again() or (is_end and self._is_beyond_reply()):
            if not self._sequencer.drop_earlier(self._live_link):
                break

    def _is_whole_without_reply(self) -> bool:
        """Whether an engine that has replied nothing has sent nothing, and the log has nothing of
        its incarnation: of a batch that was begun it has something, which may be of another one.
        """
        anchor = self._sequencer.stream.anchor
        is_empty = anchor.cursor.sequence == -1 and anchor.begun is None
        return is_empty and not self._is_short()

    def _expects_reply(self) -> bool:
        """Whether an engine of the log's incarnation would have had something to reply."""
        return not self._new_incarnation and (self._is_anchored() or self._has_begun_again())

    def _end_whole(self, is_whole: bool) -> None:
        """The reply has ended. Where it is known to be whole, what comes over the link that was up
        is of the process that gave it: a flood may leave the engine no batch to prove it later.
        """
        self._whole = is_whole
        if is_whole and self._up_link:
            self._sequencer.stream.links.adopt(self._up_link, heard=self._link)

    def _is_of_another(self, batch: DecodedBatch) -> bool:
        """Before all steps: whether a batch of this number came live over its link, and was
        another one.
        """
        link = self._up_link
        if self._sequencer.stream.differs(batch, link):
            return True
        return self._sequencer.differs_from_waiting(batch, link)

    def _is_known(self, batch: DecodedBatch) -> bool:
        """Step 1: whether the batch may be of the incarnation asked for; else what to ask for next
        is noted.
        """
        if not self._verified and self._may_be_the_one_before(batch):
            self._ask_for_incarnation(new=False)
            self._asked_again = True
            self._progress = True  # one more round
            return False
        if not self._new_incarnation and self._differs_from_begun(batch):
            self._ask_for_incarnation(new=True)
            return False
        sequence, engine_time = self._sequencer.stream.proven
        is_at_anchor = engine_time > 0 and batch.sequence == sequence
        if not self._verified or (is_at_anchor and not self._anchored):
            if not self._is_of_this_incarnation(batch):
                self._ask_for_incarnation(new=True)
                return False
            if not self._new_incarnation and self._is_anchor(batch):
                self._anchored = True
                self._sequencer.prove(self._link)
        return True

    def _is_without_anchor(self) -> bool:
        """Whether a whole reply, asked for from before the log's last batch on, ended before it: an
        engine of that incarnation would have it, whatever the clock of this one says.
        """
        if self._new_incarnation or self._anchored:
            return False
        sequence, engine_time = self._sequencer.stream.proven
        if engine_time > 0:
            return self._asked_again and self._highest < sequence
        # It cannot be recognised, but what was accepted since would be in the reply, too.
        return self._highest < self._sequencer.stream.cursor.sequence

    def _note_silence(self) -> None:
        """Not one reply. Either the engine was away, or has sent since: it was, and is back."""
        if not self._came_back and self._sequencer.waiting > self._waited:
            self._came_back, self._progress = True, True
        else:
            self._barren += 1

    def _is_anchored(self) -> bool:
        """Whether an engine of the log's incarnation would have had something to reply: the log has
        a batch of the number from which on it was asked, or of a later one.
        """
        return self._asked_again or self.start <= self._sequencer.stream.cursor.sequence

    def _is_same_process(self) -> bool:
        """Whether the log's last batch is of the process at the other end of the link: if that has
        it no more, or not in this reply, it has not restarted.
        """
        return self._sequencer.stream.is_of(self._up_link)

    def _has_begun_again(self) -> bool:
        """Whether a live batch, which the log does not have, is numbered as one that it has."""
        waiting = self._sequencer.first_waiting()
        cursor = self._sequencer.stream.cursor
        return waiting is not None and waiting.sequence <= cursor.sequence

    def _is_beyond_reply(self) -> bool:
        """Whether what waits came over a link that was gone when the engine was asked, and is later
        than all that it has told. If that ends there again, it is of the process before: a buffer
        has the newest.
        """
        first = self._sequencer.first_held()
        if first is None or not NO_LINK < first.link < self._live_link:
            return False
        return first.batch.sequence > self._highest

    def _is_short(self) -> bool:
        """Whether something is still missing before what the engine has sent live."""
        waiting = self._sequencer.first_waiting()
        next_sequence = self._sequencer.stream.cursor.sequence + 1
        return waiting is not None and waiting.sequence > next_sequence

    def _is_cut(self) -> bool:
        """Whether the log has a part of a batch, and neither a reply nor what waits has the rest:
        it was sent, whatever the reply says.
        """
        begun = self._sequencer.stream.anchor.begun
        return begun is not None and not self._is_joined()

    def _is_joined(self) -> bool:
        """Whether nothing is missing before what the engine has sent live."""
        return self._sequencer.first_waiting() is not None and not self._is_short()

    def _is_of_this_incarnation(self, batch: DecodedBatch) -> bool:
        """Step 1, for the first batch of a reply; without both times it counts as of it."""
        sequence, engine_time = self._sequencer.stream.proven
        if self._new_incarnation or batch.sequence > sequence:
            return True
        known = self._sequencer.stream.recognises(batch)
        if known is not None:
            return known
        if batch.engine_time is None or not engine_time:
            return True
        if batch.sequence < sequence:
            return batch.engine_time <= engine_time
        return batch.engine_time == engine_time

    def _differs_from_begun(self, batch: DecodedBatch) -> bool:
        """Whether the log has a part of a batch of this number, and of another time."""
        anchor = self._sequencer.stream.anchor
        begun, is_next = anchor.begun, batch.sequence == anchor.cursor.sequence + 1
        return begun is not None and is_next and batch.engine_time not in (None, begun)

    def _is_anchor(self, batch: DecodedBatch) -> bool:
        """Whether nothing can be missing between the log's last batch and this one of a reply that
        is taken: it is that batch, or the log has none of the incarnation and this is its first.
        """
        sequence, engine_time = self._sequencer.stream.proven
        if sequence == -1:
            return batch.sequence == 0
        return engine_time > 0 and (batch.sequence, batch.engine_time) == (sequence, engine_time)

    def _is_proven(self, batch: DecodedBatch) -> bool:
        """Whether the first batch that is taken of a reply is known to be of the log's incarnation,
        or follows on nothing of it, or a gap tells that it may not be.
        """
        sequence, engine_time = self._sequencer.stream.proven
        if self._taken or self._anchored or sequence < 0 or not engine_time:
            return True
        follows = batch.sequence == self._sequencer.stream.cursor.sequence + 1
        return not follows or self._is_same_process()

    def _may_be_the_one_before(self, batch: DecodedBatch) -> bool:
        """Whether what was taken for a new incarnation was there before the log's last batch."""
        _, engine_time = self._sequencer.stream.proven
        return (
            self._new_incarnation
            and not self._asked_again
            and batch.engine_time is not None
            and batch.engine_time <= engine_time
        )

    def _begin_incarnation(
        self, batch: DecodedBatch, now: float
    ) -> Iterator[list[SequencedRecord]]:
        """Ends the incarnation before, given the first batch that the new one still has."""
        self._new_incarnation = False
        if batch.engine_time is not None:
            yield from self._sequencer.release(batch.engine_time, now)
        yield self._sequencer.begin_incarnation(now, link=self._link)
        if 0 < self._behind <= batch.sequence:
            yield self._lose(self._behind - 1, now)

    def _place(self, batch: DecodedBatch, taken: list[DecodedBatch]) -> RepairStep:
        """Takes the batch if it is the next one; steps 2 and 3."""
        last = taken[-1].sequence if taken else self._sequencer.stream.cursor.sequence
        if batch.sequence <= last:
            return RepairStep.MORE
        waiting = self._sequencer.first_waiting()
        while (
            waiting is not None
            and waiting.sequence == batch.sequence
            and not batch.is_same(waiting)
            and self._sequencer.drop_earlier(self._live_link)
        ):
            waiting = self._sequencer.first_waiting()
        if waiting is not None and batch.is_same(waiting):
            return RepairStep.DONE if batch.sequence == last + 1 else self._miss(last, batch)
        if waiting is not None and last < waiting.sequence < batch.sequence:
            # What the engine no longer has, waits here; but for what is missing before it.
            return RepairStep.DONE if waiting.sequence == last + 1 else self._miss(last, waiting)
        if batch.sequence > last + 1 and self._miss(last, batch) is RepairStep.ASK:
            return RepairStep.ASK
        taken.append(batch)
        return RepairStep.MORE

    def _miss(self, last: int, batch: DecodedBatch) -> RepairStep:
        """A hole that shows twice is the engine's own: what was there is lost.

        Args:
            last: the batch before it.
            batch: the next one that is there, replayed or live.
        """
        hole = (last, batch.sequence)
        if hole == self._hole:
            return RepairStep.DONE
        self._hole = hole
        return RepairStep.ASK
