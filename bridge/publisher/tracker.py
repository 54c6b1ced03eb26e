"""Finds gaps, duplicates and restarts in a publisher's sequence numbers. Pure.

A publisher numbers its batches from 0 in each incarnation, and nothing on the wire says which
incarnation a batch is from. So a number that is not above the last one means one of two things: the
batch was delivered twice, or the process has restarted. It is taken for a duplicate only on
evidence: the same number with the same payload was seen in this incarnation, within the last
`DUPLICATE_WINDOW` numbers. Payloads begin with the engine's clock, so no two incarnations send the
same one. Some kinds send no time: there two incarnations that do the same first send the same
bytes, which prove nothing.

Without evidence it is a restart, which withdraws all that the publisher announced. That is the safe
direction: a duplicate mistaken for a restart costs an under-report until the blocks are announced
again; a restart mistaken for a duplicate would leave blocks of a dead process in the answers, for
good. For the same reason a restarted bridge, which has seen nothing yet, takes every number that is
not above its cursor in the log for a restart.

What numbers cannot show: a new incarnation whose first batch that we receive is numbered above the
last one of the incarnation before. It looks like a gap, or like the next batch, and is treated as
one.
"""

from array import array
from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from schemas.limits import DUPLICATE_WINDOW
from schemas.positions import NO_CURSOR, Cursor


class SequenceOutcome(Enum):
    """What one batch is to its stream."""

    NEXT = "next"
    GAP = "gap"
    DUPLICATE = "duplicate"
    RESTART = "restart"


class Gap(NamedTuple):
    """Batches `first..last` of the current incarnation were never received."""

    first: int
    last: int


class Verdict(NamedTuple):
    """What to do with one batch.

    All but a duplicate are accepted: after a restart write a reset, then the gap if there is one,
    then the batch.
    """

    outcome: SequenceOutcome
    gap: Gap | None = None


_NEXT: Final = Verdict(SequenceOutcome.NEXT)
_DUPLICATE: Final = Verdict(SequenceOutcome.DUPLICATE)
_RESTART: Final = Verdict(SequenceOutcome.RESTART)


class SequenceTracker:
    """Follows one publisher; one owner.

    Args:
        cursor: the publisher's last batch in the log. Only what this tracker has
            seen itself proves duplicates.
    """

    __slots__ = ("_fingerprints", "incarnation", "sequence")

    def __init__(self, cursor: Cursor = NO_CURSOR) -> None:
        self.incarnation = max(cursor.incarnation, 1)
        self.sequence = cursor.sequence
        self._fingerprints = array("q", bytes(8 * DUPLICATE_WINDOW))

    @property
    def cursor(self) -> Cursor:
        """The last accepted batch; sequence -1 before the first one of the incarnation."""
        return Cursor(self.incarnation, self.sequence)

    def peek(self, sequence: int, payload_digest: int) -> Verdict:
        """What `observe` would say; moves nothing."""
        expected = self.sequence + 1
        if sequence == expected:
            return _NEXT
        if sequence > expected:
            return Verdict(SequenceOutcome.GAP, Gap(expected, sequence - 1))
        fingerprint = hash((sequence, payload_digest))
        if self._fingerprints[sequence % DUPLICATE_WINDOW] == fingerprint:
            return _DUPLICATE
        return Verdict(SequenceOutcome.RESTART, Gap(0, sequence - 1)) if sequence else _RESTART

    def recognises(self, sequence: int, payload_digest: int) -> bool | None:
        """Whether the batch of this number that was accepted had this payload; None where that is
        not known: it was accepted before the window, or elsewhere, or not at all.
        """
        if not self.sequence - DUPLICATE_WINDOW < sequence <= self.sequence:
            return None
        known = self._fingerprints[sequence % DUPLICATE_WINDOW]
        return known == hash((sequence, payload_digest)) if known else None

    def begin_incarnation(self) -> None:
        """Starts the publisher's next incarnation, of which nothing is known yet."""
        self.incarnation += 1
        self.sequence = -1
        self._fingerprints = array("q", bytes(8 * DUPLICATE_WINDOW))

    def observe(self, sequence: int, payload_digest: int, *, is_of_one_run: bool = True) -> Verdict:
        """The batch's place in the stream; moves the cursor to it unless it is a duplicate.

        Args:
            sequence: 0..SEQUENCE_MAX.
            payload_digest: 64 bits; equal payloads have equal digests.
            is_of_one_run: whether no other incarnation sends this payload.
        """
        fingerprint = hash((sequence, payload_digest))
        slot = sequence % DUPLICATE_WINDOW
        expected = self.sequence + 1
        if sequence == expected:
            verdict = _NEXT
        elif sequence > expected:
            verdict = Verdict(SequenceOutcome.GAP, Gap(expected, sequence - 1))
            self._forget(expected, sequence)
        elif is_of_one_run and self._fingerprints[slot] == fingerprint:
            return _DUPLICATE
        else:
            verdict = self._restart(sequence)
        self.sequence = sequence
        self._fingerprints[slot] = fingerprint
        return verdict

    def advance(self, payload_digests: Iterable[int]) -> None:
        """As `observe` of batches each of which is the next one."""
        sequence, fingerprints = self.sequence, self._fingerprints
        for digest in payload_digests:
            sequence += 1
            fingerprints[sequence % DUPLICATE_WINDOW] = hash((sequence, digest))
        self.sequence = sequence

    def _forget(self, first: int, end: int) -> None:
        """What stands at the places of these numbers is of much earlier ones."""
        for sequence in range(max(first, end - DUPLICATE_WINDOW), end):
            self._fingerprints[sequence % DUPLICATE_WINDOW] = 0

    def _restart(self, sequence: int) -> Verdict:
        self.begin_incarnation()
        return Verdict(SequenceOutcome.RESTART, Gap(0, sequence - 1)) if sequence else _RESTART
