"""One snapshot of the table and of the registry, read from the beginning of their topics on.

A replica answers from one snapshot. It makes another where the topics cannot be read on from where
the first stands (they were deleted and recreated, or tombstones may be gone), and changes over once
that one has caught up.

Pure: the reader of the topics calls `begin`, then `put_row`, `put_entry` and `advance` in the order
of each partition. One writer; reading may run beside it, in other threads.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from query_api.ports import Lag, Positions
from query_api.replica.heartbeat_watch import HeartbeatWatch
from query_api.replica.lag import NEVER, LagTracker
from query_api.replica.registry_table import RegistryTable
from schemas.identities import PublisherKey
from schemas.positions import Position
from schemas.registration import Registration
from streams.table.rows.format import OWNER_KEY
from streams.table.rows.reader import RowReader


class Topic(StrEnum):
    """The topics that a replica knows of; EVENTS is never read, only asked where it ends."""

    TABLE = "table"
    REGISTRY = "registry"
    EVENTS = "events"


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: Topic
    partition: int


class Snapshot:
    """See the module.

    Attributes:
        begun: whether it is known what must be read before it is complete.
        positions: what the table has folded; a new tuple at each change, after it.
        next_offsets: where to read on.
        faulty: whether a row was skipped for an unexpected error.
    """

    def __init__(
        self, make_table: Callable[[], RowReader], partitions: Mapping[Topic, int]
    ) -> None:
        self.table = make_table()
        self.registry = RegistryTable(self.table.states.list)
        self.heartbeats = HeartbeatWatch()
        self._as_of: dict[int, float] = {}
        self.begun = False
        self.faulty = False
        self.next_offsets = {
            TopicPartition(topic, partition): 0
            for topic in (Topic.TABLE, Topic.REGISTRY)
            for partition in range(partitions[topic])
        }
        self._tables = range(partitions[Topic.TABLE])
        self._targets: dict[TopicPartition, int] = {}
        self._lag = LagTracker[TopicPartition]()
        self.positions: Positions = self._positions()
        for partition, offset in self.positions:
            self.table.kernel.note_position(partition, offset)

    # Reading the topics

    def begin(self, now: float, ends: Mapping[TopicPartition, int]) -> None:
        """The topics end there now; the snapshot is complete once it has got there."""
        self.begun = True
        self._targets = {place: ends[place] for place in self.next_offsets}
        for place in ends:
            self._lag.add(place, as_of=now)
        self.note_ends(now, ends)

    def put_row(
        self, place: TopicPartition, key: bytes, value: bytes | None, *, as_of: float
    ) -> None:
        """The next row of the table topic, which was written at `as_of`."""
        self.table.put(place.partition, key, value)
        if key != OWNER_KEY:  # which a worker writes before it has folded anything
            self._lag.guess(TopicPartition(Topic.EVENTS, place.partition), as_of)

    def advance(self, place: TopicPartition, next_offset: int) -> Iterator[None]:
        """All before the offset was put. In steps, for where a partition has to be loaded."""
        before = self.next_offsets[place]
        if next_offset < before or (next_offset == before and place not in self._targets):
            return  # most polls of most partitions
        self.next_offsets[place] = next_offset
        if place.topic is Topic.TABLE:
            if self._has_reached(place):
                yield from self.table.catching_up(place.partition)
            self._note_covered(place.partition)
        self._lag.advance(place, next_offset)
        if self._has_reached(place):
            self._targets.pop(place, None)

    def _has_reached(self, place: TopicPartition) -> bool:
        return place in self._targets and self.next_offsets[place] >= self._targets[place]

    def _note_covered(self, partition: int) -> None:
        covered = self.table.covered(partition)
        if covered != self.positions[partition].offset:
            self._lag.advance(TopicPartition(Topic.EVENTS, partition), covered + 1)
            self.positions = self._positions()
        # Also where it is the same: rows written again for a position are behind it, too.
        self.table.kernel.note_position(partition, covered)

    def _positions(self) -> Positions:
        return tuple(
            Position(partition, self.table.covered(partition)) for partition in self._tables
        )

    def note_ends(self, now: float, ends: Mapping[TopicPartition, int]) -> None:
        """The topics, the event log included, ended there at `now`."""
        self._lag.note_ends(now, ends)

    def note_heartbeats(self, now: float, unix: float) -> None:
        """Looks at what was applied; to be called often, with the moment on both clocks."""
        for partition in self._tables:
            bridges = self.table.bridges(partition)
            if self.begun:
                # What was applied by the last look: a heartbeat that is new was not in it.
                as_of = self._as_of.get(partition, -NEVER)
                self.heartbeats.note(partition, bridges, now=now, unix=unix, as_of=as_of)
                place = TopicPartition(Topic.EVENTS, partition)
                self._as_of[partition] = self._lag.as_of(place)

    def put_written(
        self,
        place: TopicPartition,
        offset: int,
        publisher: PublisherKey,
        registration: Registration | None,
    ) -> None:
        """An entry of the registry that this process wrote, and may have read already."""
        if offset >= self.next_offsets[place]:
            self.registry.put_written(offset, publisher, registration)

    # What is known

    @property
    def complete(self) -> bool:
        """Whether it has caught up with where the topics ended when it was begun."""
        return self.begun and not self._targets

    def has_caught_up(self, place: TopicPartition) -> bool:
        """Whether one partition has been read to where it ended when this was begun."""
        return self.begun and place not in self._targets

    @property
    def registry_complete(self) -> bool:
        """The same of the registry alone."""
        return self.begun and all(
            place.topic is not Topic.REGISTRY for place in list(self._targets)
        )

    def needed_ends(self) -> dict[TopicPartition, int]:
        """Where the topics must end at the least, if they are still those that were read: after
        what was read, and where they ended when this was begun.
        """
        return {
            place: max(offset, self._targets.get(place, 0))
            for place, offset in self.next_offsets.items()
        }

    def progress(self) -> str:
        """What is missing until it is complete, for people."""
        left = sum(
            target - self.next_offsets[place] for place, target in list(self._targets.items())
        )
        return f"reading the table: {left} records of {len(self._targets)} partitions are left"

    def unread(self) -> int:
        """How many records the topics had beyond those read when they were last asked."""
        return self._records(self.next_offsets)

    def lag(self, now: float, *, reachable: bool) -> Lag:
        """How far it is behind."""
        return Lag(
            self.unread(),
            self._records(TopicPartition(Topic.EVENTS, partition) for partition in self._tables),
            self._lag.seconds(now, reachable=reachable),
            reachable,
        )

    def _records(self, places: Iterable[TopicPartition]) -> int:
        return sum(map(self._lag.records, places)) if self.begun else 0

    def stale_at(self, *, reachable: bool) -> float:
        """See `LagTracker`."""
        return self._lag.stale_at(reachable=reachable)
