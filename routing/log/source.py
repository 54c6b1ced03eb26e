"""What was decided, and what came of it, as a log of either form takes it."""

from collections.abc import Callable, Iterable

import msgspec

from logs.source import RecordSource, WindowEntry
from routing.decisions.queue import RoutingQueue, items_of
from schemas.clock import REAL_CLOCK
from schemas.routing_records import RoutingRecord, encode_routing
from schemas.topics import encode_run


class RoutingSource(RecordSource[RoutingRecord]):
    """What a queue has of decisions, reports and samples.

    Args:
        clock: Unix seconds.
    """

    def __init__(self, queue: RoutingQueue, clock: Callable[[], float] = REAL_CLOCK.unix) -> None:
        super().__init__("decisions")
        self.queue = queue
        self._clock = clock

    def take(self) -> Iterable[tuple[int, RoutingRecord]]:
        """See `RecordSource`."""
        return [(items_of(record), record) for record in self.queue.take(self._clock())]

    @property
    def has_much(self) -> bool:
        """See `RecordSource`."""
        return self.queue.has_much

    def encode(self, item: RoutingRecord) -> WindowEntry:
        """See `RecordSource`."""
        return WindowEntry(encode_run(item.run), encode_routing(item))


class WaitingSource(RoutingSource):
    """The same for a log that may be away: a record has the time at which it is handed on, not that
    of the window. After an outage that would set the time of the fold back.
    """

    def encode(self, item: RoutingRecord) -> WindowEntry:
        """See `RecordSource`."""
        return super().encode(msgspec.structs.replace(item, time=self._clock()))
