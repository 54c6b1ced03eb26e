"""What of a bridge's records the workers have yet to fold, and whose next ones wait for that.

A log keeps its order: whatever stands before a record is folded before it. A bridge writes faster
than a worker folds, so one publisher that sends as fast as it can would delay all others of its
partition, by seconds. So a bridge keeps no more before the workers than they fold in LAG_S, and
whoever uses most of that waits in the inbox meanwhile, and in the spool beyond that. How far the
workers are is what their group has committed, and how fast they are what they say with it: see
`lag_watch`. The time between two commits would not tell that: while they have folded all that there
is they wait for more, and the less is written ahead of them, the longer.

A publisher may use as much as is free: alone all of it, beside another one that does two thirds,
and so on; and its equal outbox at any time, so there is always room for those that send little.
Where no worker gets on, nobody waits: the log takes everything.
"""

from collections import deque
from typing import Final, NamedTuple

from bridge.bounds import LAG_SILENT_S
from bridge.delivery.outbox import Outbox
from bridge.pace import TurnPace
from schemas.folded_work import FoldedWork
from schemas.identities import PublisherKey
from schemas.limits import KIB, MIB

LAG_S: Final = 0.01  # a bridge keeps no more before the workers than they fold in this time
LAG_UNSAID_S: Final = 0.05  # the same, by the time between two commits: most is no folding
LAG_BYTES_FIRST: Final = 1 * MIB  # of it, before it is known how fast they are
LAG_BYTES_MIN: Final = 128 * KIB  # of it, however slow they are
LAG_BYTES_MAX: Final = 64 * MIB  # of it, however fast
LAG_RECORD_BYTES: Final = 512  # that a record counts beside its bytes: a gap takes time, too
LAG_RECORDS_MAX: Final = 65_536  # of a partition that are remembered until they are folded


class _WrittenRecord(NamedTuple):
    offset: int
    outbox: Outbox
    size_bytes: int


class PartitionLag:
    """Of one partition of `events`. Sizes are in bytes of encoded records. Each call is O(1), but
    for `folded`.

    Attributes:
        size_bytes: what is yet to be folded.
    """

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self._pace = TurnPace(LAG_S, least=LAG_BYTES_MIN, most=LAG_BYTES_MAX, first=LAG_BYTES_FIRST)
        self._written: deque[_WrittenRecord] = deque()
        self._shares = 0  # that are not empty
        self.size_bytes = 0
        self._held_back: list[Outbox] = []
        self._waiting_since: float | None = None  # for the workers to get on
        self._moved_at = float("-inf")
        self._has_waited = False  # somebody, when they last got on
        self._end = -1

    # What becomes of records

    def add(self, outbox: Outbox, size_bytes: int) -> None:
        """A record waits to be written."""
        size_bytes += LAG_RECORD_BYTES
        self._shares += not outbox.unfolded_bytes
        outbox.unfolded_bytes += size_bytes
        self.size_bytes += size_bytes

    def remove(self, outbox: Outbox, size_bytes: int) -> None:
        """A record that was added is not written now: it went to the spool, or was dropped."""
        self._subtract(outbox, size_bytes + LAG_RECORD_BYTES)

    def written(self, outbox: Outbox, size_bytes: int, offset: int) -> None:
        """A record that was added is in the log."""
        self._written.append(_WrittenRecord(offset, outbox, size_bytes + LAG_RECORD_BYTES))
        if len(self._written) > LAG_RECORDS_MAX:
            self._forget_first()

    def _forget_first(self) -> int:
        _, outbox, size_bytes = self._written.popleft()
        self._subtract(outbox, size_bytes)
        return size_bytes

    def _subtract(self, outbox: Outbox, size_bytes: int) -> None:
        outbox.unfolded_bytes -= size_bytes
        self._shares -= not outbox.unfolded_bytes
        self.size_bytes -= size_bytes

    # Who waits

    @property
    def held_back(self) -> list[PublisherKey]:
        """The publishers that wait, or have been told to."""
        return [outbox.publisher for outbox in self._held_back]

    def holds_back(self, outbox: Outbox, now: float) -> bool:
        """Whether the publisher's next records have to wait; `now` in monotonic seconds."""
        if not self._is_full(outbox):
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        if self._is_silent(now):
            return False
        if not outbox.is_held_back:
            outbox.is_held_back = True
            self._held_back.append(outbox)
        return True

    def _is_full(self, outbox: Outbox) -> bool:
        amount, own_bytes = self._pace.amount, outbox.unfolded_bytes
        if self.size_bytes + own_bytes <= 2 * amount:
            return False
        # Where the workers have become slower, or a turn was a large one, there is more than there
        # should be: who has not caused that need not wait behind what is still to come as well.
        return own_bytes * self._shares > amount

    def _is_silent(self, now: float) -> bool:
        since = self._waiting_since
        return since is not None and now - max(since, self._moved_at) > LAG_SILENT_S

    # How far the workers are

    def asks(self, now: float) -> bool:
        """Whether it is to be looked how far the workers are: somebody waits, or may soon."""
        if not self._held_back and self.size_bytes <= self._pace.amount // 2:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        return True

    def folded(
        self, end: int | None, now: float, work: FoldedWork | None = None
    ) -> list[PublisherKey]:
        """The workers have folded the records before this offset; None where that is not known.
        Cost O(records folded).

        Args:
            work: what took how long; None for workers that do not say it.

        Returns:
            Those that need not wait any more.
        """
        if end is not None and end != self._end:
            freed_bytes = 0
            self._end = end
            while self._written and self._written[0].offset < end:
                freed_bytes += self._forget_first()
            waits = bool(self._held_back)
            if work is not None:
                done_bytes = work.size_bytes + LAG_RECORD_BYTES * work.records
                self._pace.note(done_bytes, work.took_s)
            elif freed_bytes and waits and self._has_waited:  # else they may have had too little
                self._pace.note(freed_bytes, (now - self._moved_at) * LAG_S / LAG_UNSAID_S)
            self._has_waited, self._moved_at = waits, now
        is_silent = self._is_silent(now)
        released = [one for one in self._held_back if is_silent or not self._is_full(one)]
        for outbox in released:
            outbox.is_held_back = False
        self._held_back = [outbox for outbox in self._held_back if outbox.is_held_back]
        return [outbox.publisher for outbox in released]
