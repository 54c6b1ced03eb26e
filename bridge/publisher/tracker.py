"""Finds gaps, duplicates and restarts in sequence numbers. Pure.

A sender numbers what it sends from 0 in each incarnation. What a number that does not follow on
means depends on what tells one incarnation from the next (`Evidence`), and on where the number
stands beside the last one (`NumberPlace`); `OUTCOMES` is the table:

                                    PAYLOAD        NUMBER                 NOTICE
                                    engines        servers of LMCache     workers of LMCache
    the next                        next           next                   next
    above it                        gap            gap                    gap
    not above the last one          restart        duplicate              backward
      with the payload that it had  duplicate      -                      -
    of a later incarnation          -              restart                -
    of an earlier one               -              stale                  -

**PAYLOAD**: nothing on the wire says which incarnation a batch is from. So a number that is not
above the last one means one of two things: the batch was delivered twice, or the process has
restarted. It is taken for a duplicate only on evidence: the same number with the same payload was
seen in this incarnation, within the last `DUPLICATE_WINDOW` numbers. Payloads begin with the
engine's clock, so no two incarnations send the same one. Some kinds send no time: there two
incarnations that do the same first send the same bytes, which prove nothing.

Without evidence it is a restart, which withdraws all that the publisher announced. That is the safe
direction: a duplicate mistaken for a restart costs an under-report until the blocks are announced
again; a restart mistaken for a duplicate would leave blocks of a dead process in the answers, for
good. For the same reason a restarted bridge, which has seen nothing yet, takes every number that is
not above its cursor in the log for a restart.

What these numbers cannot show: a new incarnation whose first batch that we receive is numbered
above the last one of the incarnation before. It looks like a gap, or like the next batch, and is
treated as one.

**NUMBER**: each batch names its incarnation, a later one by a higher number. So a number that is
not above the last one of its incarnation came before, whatever its payload.

**NOTICE**: a message of its own says that an incarnation begins, before anything of it comes. So a
number that goes back within one was never given by a sender that counts: something is missing, and
it is not known how much.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from typing import ClassVar, Final, NamedTuple

from schemas.limits import DUPLICATE_WINDOW
from schemas.positions import NO_CURSOR, Cursor


class Evidence(Enum):
    """What tells one incarnation of a sender from the next; see the module."""

    PAYLOAD = "payload"
    NUMBER = "number"
    NOTICE = "notice"


class NumberPlace(IntEnum):
    """Where a number stands beside the last one of its sender. An integer, since each duplicate of
    a replay is looked up by it, and Enum makes a hash of its own in Python.
    """

    NEXT = 0
    ABOVE = 1
    BELOW = 2  # not above the last one
    AGAIN = 3  # so, too, and with the payload that had come under it
    LATER = 4  # of a later incarnation
    EARLIER = 5  # of an earlier one


class SequenceOutcome(Enum):
    """What one batch is to its stream."""

    NEXT = "next"
    GAP = "gap"
    DUPLICATE = "duplicate"
    RESTART = "restart"
    STALE = "stale"  # of an incarnation that has been replaced
    BACKWARD = "backward"  # batches are missing, and it is not known which


OUTCOMES: Final[Mapping[Evidence, Mapping[NumberPlace, SequenceOutcome]]] = {
    Evidence.PAYLOAD: {
        NumberPlace.NEXT: SequenceOutcome.NEXT,
        NumberPlace.ABOVE: SequenceOutcome.GAP,
        NumberPlace.BELOW: SequenceOutcome.RESTART,
        NumberPlace.AGAIN: SequenceOutcome.DUPLICATE,
    },
    Evidence.NUMBER: {
        NumberPlace.NEXT: SequenceOutcome.NEXT,
        NumberPlace.ABOVE: SequenceOutcome.GAP,
        NumberPlace.BELOW: SequenceOutcome.DUPLICATE,
        NumberPlace.LATER: SequenceOutcome.RESTART,
        NumberPlace.EARLIER: SequenceOutcome.STALE,
    },
    Evidence.NOTICE: {
        NumberPlace.NEXT: SequenceOutcome.NEXT,
        NumberPlace.ABOVE: SequenceOutcome.GAP,
        NumberPlace.BELOW: SequenceOutcome.BACKWARD,
    },
}
"""What a batch is, by its evidence and its place. No other is possible."""


class Gap(NamedTuple):
    """Batches `first..last` of the current incarnation were never received."""

    first: int
    last: int


class Verdict(NamedTuple):
    """What to do with one batch.

    All but a duplicate and what is stale is accepted: after a restart write a reset, then the gap
    if there is one, then the batch.
    """

    outcome: SequenceOutcome
    gap: Gap | None = None


_NEXT: Final = Verdict(SequenceOutcome.NEXT)
_GAP: Final = SequenceOutcome.GAP
_RESTART: Final = SequenceOutcome.RESTART
_ABOVE, _BELOW, _AGAIN = NumberPlace.ABOVE, NumberPlace.BELOW, NumberPlace.AGAIN
_DROPPED: Final = (SequenceOutcome.DUPLICATE, SequenceOutcome.STALE)

_VERDICTS: Final = {
    evidence: {place: Verdict(outcome) for place, outcome in outcomes.items()}
    for evidence, outcomes in OUTCOMES.items()
}
"""The same, made once; of a gap and a restart, where nothing is missing."""


class NumberTracker:
    """Follows the numbers of one sender; one owner.

    Args:
        cursor: its last batch.
    """

    __slots__ = ("incarnation", "sequence")

    verdicts: ClassVar[Mapping[NumberPlace, Verdict]]

    def __init__(self, cursor: Cursor = NO_CURSOR) -> None:
        self.incarnation, self.sequence = cursor

    @property
    def cursor(self) -> Cursor:
        """The last accepted batch; sequence -1 before the first one of the incarnation."""
        return Cursor(self.incarnation, self.sequence)

    def begin_incarnation(self, at_least: int = 0) -> None:
        """Starts the sender's next incarnation, of which nothing is known yet.

        Args:
            at_least: which number it is to have; else it has the next one.
        """
        self.incarnation = max(self.incarnation + 1, at_least)
        self.sequence = -1

    def judge(self, place: NumberPlace, sequence: int) -> Verdict:
        """The verdict on this number; moves nothing."""
        verdict = self.verdicts[place]
        if verdict.outcome is _GAP:
            first = self.sequence + 1
        elif verdict.outcome is _RESTART:
            first = 0
        else:
            return verdict
        return Verdict(verdict.outcome, Gap(first, sequence - 1)) if sequence > first else verdict


class SequenceTracker(NumberTracker):
    """Follows one publisher, whose payloads are the evidence; one owner.

    Args:
        cursor: the publisher's last batch in the log. Only what this tracker has
            seen itself proves duplicates.
    """

    __slots__ = ("_digests",)

    verdicts = _VERDICTS[Evidence.PAYLOAD]

    def __init__(self, cursor: Cursor = NO_CURSOR) -> None:
        super().__init__(Cursor(max(cursor.incarnation, 1), cursor.sequence))
        self._forget_all()

    def _forget_all(self) -> None:
        # Of the last numbers, 0 where it is not known.
        self._digests = array("Q", bytes(8 * DUPLICATE_WINDOW))

    def peek(self, sequence: int, payload_digest: int) -> Verdict:
        """What `observe` would say; moves nothing."""
        if sequence == self.sequence + 1:
            return _NEXT
        return self.judge(self._place(sequence, payload_digest), sequence)

    def _place(self, sequence: int, payload_digest: int) -> NumberPlace:
        """Of a number that is not the next one."""
        if sequence > self.sequence:
            return _ABOVE
        return _AGAIN if self.recognises(sequence, payload_digest) else _BELOW

    def recognises(self, sequence: int, payload_digest: int) -> bool | None:
        """Whether the batch of this number that was accepted had this payload; None where that is
        not known: it was accepted before the window, or elsewhere, or not at all.
        """
        if not self.sequence - DUPLICATE_WINDOW < sequence <= self.sequence:
            return None
        known = self._digests[sequence % DUPLICATE_WINDOW]
        return known == (payload_digest or 1) if known else None

    def begin_incarnation(self, at_least: int = 0) -> None:
        """See `NumberTracker`."""
        super().begin_incarnation(at_least)
        self._forget_all()

    def observe(self, sequence: int, payload_digest: int, *, is_of_one_run: bool = True) -> Verdict:
        """The batch's place in the stream; moves the cursor to it unless it is a duplicate.

        Args:
            sequence: 0..SEQUENCE_MAX.
            payload_digest: 64 bits; equal payloads have equal digests.
            is_of_one_run: whether no other incarnation sends this payload.
        """
        verdict = _NEXT
        if sequence != self.sequence + 1:
            place = self._place(sequence, payload_digest)
            if place is _AGAIN and not is_of_one_run:
                place = _BELOW
            verdict = self.judge(place, sequence)
            if verdict.outcome is _GAP:
                self._forget(self.sequence + 1, sequence)
            elif verdict.outcome is _RESTART:
                self.begin_incarnation()
            else:
                return verdict
        self.sequence = sequence
        self._digests[sequence % DUPLICATE_WINDOW] = payload_digest or 1
        return verdict

    def advance(self, payload_digests: Sequence[int]) -> None:
        """As `observe` of batches each of which is the next one."""
        last = array("Q", payload_digests[-DUPLICATE_WINDOW:])  # of 2^64 one is taken for unknown
        self.sequence += len(payload_digests)
        at = (self.sequence + 1 - len(last)) % DUPLICATE_WINDOW
        fitting = min(len(last), DUPLICATE_WINDOW - at)
        self._digests[at : at + fitting] = last[:fitting]
        self._digests[: len(last) - fitting] = last[fitting:]

    def skip(self, numbers: int) -> None:
        """So many numbers behind the last accepted one are of no batch."""
        self._forget(self.sequence + 1, self.sequence + 1 + numbers)
        self.sequence += numbers

    def _forget(self, first: int, end: int) -> None:
        """What stands at the places of these numbers is of much earlier ones."""
        for sequence in range(max(first, end - DUPLICATE_WINDOW), end):
            self._digests[sequence % DUPLICATE_WINDOW] = 0


class IncarnationTracker(NumberTracker):
    """Follows a sender that names its incarnation with each number; one owner."""

    __slots__ = ()

    verdicts = _VERDICTS[Evidence.NUMBER]

    def observe(self, cursor: Cursor) -> Verdict:
        """The batch's place in the stream; moves the cursor to it unless it is to be dropped."""
        verdict = self.judge(self._place(cursor), cursor.sequence)
        if verdict.outcome not in _DROPPED:
            self.incarnation, self.sequence = cursor
        return verdict

    def _place(self, cursor: Cursor) -> NumberPlace:
        if cursor.incarnation != self.incarnation:
            is_later = cursor.incarnation > self.incarnation
            return NumberPlace.LATER if is_later else NumberPlace.EARLIER
        return _place_beside(cursor.sequence, self.sequence)


class ProcessTracker(NumberTracker):
    """Follows one process of a sender that gives notice of each; one owner.

    Args:
        sequence: its last number, -1 before the first.
    """

    __slots__ = ()

    verdicts = _VERDICTS[Evidence.NOTICE]

    def __init__(self, sequence: int = -1) -> None:
        super().__init__(Cursor(0, sequence))

    def observe_all(self, numbers: Iterable[int]) -> Verdict:
        """The verdict on the first of these that does not follow on; moves to the last."""
        found, expected = _NEXT, self.sequence + 1
        for number in numbers:
            if number != expected and found is _NEXT:
                self.sequence = expected - 1
                found = self.judge(_place_beside(number, self.sequence), number)
            expected = number + 1
        self.sequence = expected - 1
        return found


def _place_beside(sequence: int, last: int) -> NumberPlace:
    """Of a number whose payload says nothing."""
    if sequence == last + 1:
        return NumberPlace.NEXT
    return NumberPlace.ABOVE if sequence > last else NumberPlace.BELOW
