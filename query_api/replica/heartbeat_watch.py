"""Until when a bridge's heartbeats count, as a replica sees it: without relying on another clock.

A heartbeat says what was so its `age` before it was written. When it was written is bounded three
times, on this process's own clock:

- by the log: it was not there when everything in the log until `as_of` had been applied already;
- by the bridge's own clock: the heartbeat that came soonest after it was written shows how the two
  clocks differ, and those that were held up, as by a bridge that was paused while it wrote, are so
  much older. Only the latest ones are compared, since clocks drift;
- by the Unix time that it has, since all may have been held up that were compared: until enough
  were, and from then on where that makes it older by no more than hosts' clocks may differ. One
  that is further behind is set wrong, and says nothing.

So a heartbeat that was found when reading began says nothing: the next one does. Pure.
"""

from collections.abc import Mapping
from typing import Final

from schemas.limits import STALE_S
from schemas.positions import Heartbeat
from streams.table.scope_states import ConfirmationSource

HEARTBEATS_COMPARED: Final = 64  # of a bridge, to find how its clock differs: a minute of them
HEARTBEATS_ENOUGH: Final = 10  # of a bridge, of which one was not held up
CLOCKS_DIFFER_S: Final = STALE_S / 2  # what is left of STALE_S is two heartbeats


class _Clock:
    """How a bridge's clock differs from this process's: the least of the latest differences."""

    def __init__(self, difference: float) -> None:
        self._before = self._least = difference
        self._count = 0
        self._is_settled = False

    def note(self, difference: float) -> float:
        if self._count == HEARTBEATS_COMPARED:
            self._before, self._least, self._count = self._least, difference, 0
        self._count += 1
        self._is_settled |= self._count >= HEARTBEATS_ENOUGH
        self._least = min(self._least, difference)
        return min(self._before, self._least)

    def admits(self, late_s: float) -> bool:
        """Whether all that were compared may have been so late."""
        return late_s <= CLOCKS_DIFFER_S or not self._is_settled


class HeartbeatWatch:
    """See the module. One writer.

    Attributes:
        fresh_until: of each bridge, by partition; monotonic seconds. Replaced whole.
    """

    def __init__(self) -> None:
        self.fresh_until: dict[ConfirmationSource, float] = {}
        self._uptimes: dict[ConfirmationSource, float] = {}
        self._clocks: dict[ConfirmationSource, _Clock] = {}

    def note(
        self,
        partition: int,
        bridges: Mapping[str, Heartbeat],
        *,
        now: float,
        unix: float,
        as_of: float,
    ) -> None:
        """Takes what a partition has now. Cost O(bridges).

        Args:
            partition: of the event log.
            bridges: their last heartbeats.
            now: monotonic seconds.
            unix: the same moment, Unix seconds.
            as_of: what the log had then was applied before this was.
        """
        fresh: dict[ConfirmationSource, float] = {}
        for bridge, heartbeat in bridges.items():
            source = ConfirmationSource(partition, bridge)
            before = self._uptimes.get(source)
            if before == heartbeat.uptime:
                continue
            self._uptimes[source] = heartbeat.uptime
            difference = now - heartbeat.uptime
            if before is None:
                self._clocks[source] = _Clock(difference)
                continue
            clock = self._clocks[source]
            written_at = heartbeat.uptime + clock.note(difference)
            said_at = now - (unix - heartbeat.time)
            if clock.admits(written_at - said_at):
                written_at = min(written_at, said_at)
            fresh[source] = min(written_at, as_of) - heartbeat.age + STALE_S
        if fresh:
            self.fresh_until = self.fresh_until | fresh
        if len(self._uptimes) > 2 * len(bridges) + HEARTBEATS_COMPARED:
            self._forget(partition, bridges)

    def _forget(self, partition: int, bridges: Mapping[str, Heartbeat]) -> None:
        """Forgets bridges that the table has forgotten."""
        for source in list(self._uptimes):
            if source.partition == partition and source.bridge not in bridges:
                del self._uptimes[source], self._clocks[source]
        self.fresh_until = {
            source: until for source, until in self.fresh_until.items() if source in self._uptimes
        }
