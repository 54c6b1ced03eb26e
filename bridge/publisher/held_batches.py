"""The live batches of one publisher that wait while it is held, and what is known to be missing."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bridge.link_numbers import LinkNumber
from bridge.wire import DecodedBatch
from schemas.clock import REAL_CLOCK, Clock
from schemas.identities import PublisherKey
from schemas.limits import MIB
from schemas.positions import Cursor

# What is dropped: reprise_bridge_dropped_total, by reason.
HELD_BATCHES_MAX: Final = 65_536  # of a publisher during a repair: reason="held_full"
HELD_BYTES_MAX: Final = 256 * MIB  # of all publishers: reason="held_full"


@dataclass(slots=True)
class IntakeTotals:
    """What the sequencers of one process share.

    Attributes:
        clock: for how much is done at once.
        held_bytes: of all batches that wait; HELD_BYTES_MAX bounds them together.
        gaps: the publishers that have been held at a gap since somebody has looked.
        faults: unexpected errors of the write path.
    """

    clock: Clock = REAL_CLOCK
    held_bytes: int = 0
    gaps: list[PublisherKey] = field(default_factory=list)
    faults: int = 0

    def count_fault(self) -> None:
        """Counts an unexpected error."""
        self.faults += 1

    def take_gaps(self) -> list[PublisherKey]:
        """The publishers that have been held at a gap since the last call."""
        gaps, self.gaps = self.gaps, []
        return gaps


class HeldBatch(NamedTuple):
    """A batch that waits, and the bytes of its message; over which link it came."""

    batch: DecodedBatch
    size_bytes: int
    link: LinkNumber


class MissingBatches(NamedTuple):
    """Batches that are known to have been sent, and become a gap unless a replay brings them.

    Attributes:
        cursor: everything up to it.
    """

    cursor: Cursor
    reason: str


class HeldBatches:
    """See the module; one owner.

    Args:
        totals: of all publishers, whose batches share one room.

    Attributes:
        overflowed: the last batch that had no room.
    """

    __slots__ = ("_batches", "_size_bytes", "_totals", "overflowed")

    def __init__(self, totals: IntakeTotals) -> None:
        self._totals = totals
        self._batches: deque[HeldBatch] = deque()
        self._size_bytes = 0
        self.overflowed: HeldBatch | None = None

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def first(self) -> HeldBatch | None:
        """The one that came first; None where none waits."""
        return self._batches[0] if self._batches else None

    def append(self, held: HeldBatch) -> bool:
        """Lets the batch wait behind the others; False where it has no room."""
        is_full = len(self._batches) >= HELD_BATCHES_MAX
        if is_full or self._totals.held_bytes + held.size_bytes > HELD_BYTES_MAX:
            self.overflowed = held
            return False
        self._batches.append(held)
        self._size_bytes += held.size_bytes
        self._totals.held_bytes += held.size_bytes
        return True

    def pop(self) -> HeldBatch:
        """Takes the first one."""
        held = self._batches.popleft()
        self._size_bytes -= held.size_bytes
        self._totals.held_bytes -= held.size_bytes
        return held

    def up_to(self, *, sequence: int, engine_time: float, last: int) -> list[HeldBatch]:
        """The first ones up to the batch of this number and time, with those behind it over the
        same link that go on to number `last`; none where that batch does not wait.
        """
        held = list(self._batches)
        named = [(one.batch.sequence, one.batch.engine_time) for one in held]
        if (sequence, engine_time) not in named:
            return []
        count = len(named) - named[::-1].index((sequence, engine_time))
        link = held[count - 1].link
        while (
            count < len(held)
            and held[count].link == link
            and sequence < held[count].batch.sequence <= last
        ):
            count += 1
        return held[:count]

    def forget_overflow(self, *, until: LinkNumber) -> None:
        """The batch that had no room is of no interest where it came over such a link."""
        if self.overflowed is not None and self.overflowed.link <= until:
            self.overflowed = None

    def forget_overflow_before(self, engine_time: float) -> None:
        """Likewise where it was sent before that time, at which another incarnation begins."""
        over = None if self.overflowed is None else self.overflowed.batch.engine_time
        if over is not None and over < engine_time:
            self.overflowed = None

    def clear(self) -> None:
        """Forgets all of them."""
        self._totals.held_bytes -= self._size_bytes
        self._batches.clear()
        self._size_bytes = 0
        self.overflowed = None
