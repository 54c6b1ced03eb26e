"""A query replica: the read side of the service, over a snapshot of the table that
`query_api.replica.topic_reader` keeps up to date.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from query_api.ports import Health, Positions
from query_api.replica.lag import NEVER
from query_api.replica.snapshot import Snapshot, Topic, TopicPartition
from query_api.table_view import TableView
from schemas.clock import REAL_CLOCK
from schemas.conditions import Condition, Conditions, Level, Part
from schemas.identities import PrefixScope, PublisherKey
from schemas.memory_segments import SegmentKey, SegmentState
from schemas.positions import PublisherState
from schemas.registration import Registration
from streams.kernel.interface import ReadOnlyKernel
from streams.table.ledger import Ledger
from streams.table.rows.reader import RowReader
from streams.table.scope_states import FreshUntil, ScopeStates

ROLE: Final = "serve"
MakeTable = Callable[[], RowReader]
logger = logging.getLogger(__name__)


class Replica(TableView):
    """Implements `query_api.ports.View`. The reader writes, on one thread; all others only read.

    Attributes:
        current: what is answered from.
        loading: what is being read; the same, except while another snapshot is made.
        conditions: what is wrong with it now; it is ready once a snapshot was complete.
        recovery_s: how long the latest complete snapshot took.
        entries_skipped: unusable entries of the registry, in all snapshots.
        rebuilds: how often another snapshot was made.
        reachable, failed_checks: whether Kafka answered when last asked; how often it did not.
        internal_errors: unexpected errors of the reader.
    """

    def __init__(
        self,
        make_table: MakeTable,
        partitions: Mapping[Topic, int],
        conditions: Conditions | None = None,
        *,
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
        unix: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        super().__init__(clock=clock)
        self._make_table = make_table
        self._partitions = partitions
        self._clock, self._unix = clock, unix
        self.current = self.loading = self._new_snapshot()
        self.rebuilds = 0
        self.recovery_s = 0.0
        self._begun_at = clock()
        self.entries_skipped = 0
        self.reachable = False
        self.failed_checks = self.internal_errors = 0
        self.conditions = conditions or Conditions(unix, logger)
        self.conditions.on_change = self.changed
        self._note_recovery(Level.UNAVAILABLE)
        self._events_ends: dict[int, int] = {}
        self._behind_at = -NEVER
        self.metrics = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.metrics)

    def _new_snapshot(self) -> Snapshot:
        snapshot = Snapshot(self._make_table, self._partitions)
        snapshot.table.states.on_change = self.changed
        return snapshot

    # The reader's side

    def reload(self) -> None:
        """Makes another snapshot; until it is complete, answers come from the current one."""
        self.loading = self._new_snapshot()
        self.rebuilds += 1
        self._begun_at = self._clock()
        if not self.ready:
            self.current = self.loading
            self.changed()
        else:
            self._note_recovery(Level.DEGRADED)

    def _note_recovery(self, level: Level) -> None:
        message = "waiting for Kafka to say where the topics end"
        self.conditions.set(Part.RECOVERY, "recovering", message, level, logged=False)

    def note_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Kafka has answered: the topics end there."""
        now = self._clock()
        self.reachable = True
        self.conditions.clear(Part.KAFKA)
        self._events_ends = {
            place.partition: end for place, end in ends.items() if place.topic is Topic.EVENTS
        }
        if self.loading.begun:
            self.loading.note_ends(now, ends)
        else:
            self.loading.begin(now, ends)
        self.note_progress()

    def note_unreachable(self, problem: str = "", reason: str = "unreachable") -> None:
        """Kafka has not answered, or not as it should; or, without a problem, was not asked yet."""
        self.reachable = False
        self._behind_at = -NEVER
        self.changed()
        if problem:
            self.failed_checks += 1
            self.conditions.set(Part.KAFKA, reason, problem)

    def note_read_failure(self, problem: str) -> None:
        """Kafka answers, and what it has cannot be read."""
        self.reachable = False
        self._behind_at = -NEVER
        self.conditions.set(Part.TABLE, "read_failed", problem)

    def note_read(self) -> None:
        """Records were read, or there are none."""
        self.conditions.clear(Part.TABLE)

    def note_progress(self) -> None:
        """Something was applied: changes over to a snapshot that is complete and as far."""
        new = self.current is not self.loading or not self.ready
        if new and self.loading.complete and self._is_as_far():
            self.recovery_s = self._clock() - self._begun_at
            self.current = self.loading
            self.changed()
            self.conditions.clear(Part.RECOVERY)
            logger.info(
                "Read the table in %.2f s: %d publishers, %d registered",
                self.recovery_s,
                len(self.current.table.publishers),
                len(self.current.registry.registrations),
            )
        self.current.note_heartbeats(self._clock(), self._unix())
        # While another snapshot is made, the current one gets nothing new.
        is_current = self.current is self.loading and self.reachable
        self._behind_at = self.current.stale_at(reachable=is_current)

    def _is_as_far(self) -> bool:
        """Whether what is loaded covers what is answered from, as far as the events still go.

        A table topic that was lost is empty until a worker has rewritten it.
        """
        if not self.ready:
            return True
        loaded = dict(self.loading.positions)
        return all(
            loaded[partition] >= min(offset, self._events_ends.get(partition, 0) - 1)
            for partition, offset in self.current.positions
        )

    # The table, as `TableView` asks for it

    @property
    def kernel(self) -> ReadOnlyKernel:
        """See `TableView`."""
        return self.current.table.kernel

    def positions(self) -> Positions:
        """See `TableView`."""
        return self.current.positions

    def _publishers(self) -> Mapping[PublisherKey, PublisherState]:
        return self.current.table.publishers

    def _states(self) -> ScopeStates:
        return self.current.table.states

    def _fresh_until(self) -> FreshUntil:
        return self.current.heartbeats.fresh_until

    def _stale_at(self) -> float:
        return self._behind_at

    def _is_damaged(self, scope: PrefixScope) -> bool:
        return self.current.faulty or self.current.table.is_damaged(scope)

    def _ledgers(self) -> Mapping[PublisherKey, Ledger]:
        return self.current.table.ledgers

    def _segments(self) -> Mapping[SegmentKey, SegmentState]:
        return self.current.table.segments()

    def _registrations(self) -> list[Registration]:
        """By the registry, but for publishers of which only the log knows."""
        current = self.current
        themselves = (
            registered.registration
            for registered in list(current.table.registrations.values())
            if registered.registration.is_self_registered
        )
        return [*current.registry.registrations.values(), *themselves]

    # View

    @property
    def ready(self) -> bool:
        """See `View`."""
        return self.conditions.ready

    def health(self) -> Health:
        """See `View`."""
        current = self.current
        lag = current.lag(self._clock(), reachable=self.reachable)
        conditions = tuple(map(self._with_progress, self.conditions.all()))
        return Health(ROLE, conditions, current.table.kernel.name, current.positions, lag)

    def _with_progress(self, condition: Condition) -> Condition:
        loading = self.loading
        if condition.part is not Part.RECOVERY or not loading.begun:
            return condition
        if loading.complete:
            message = "the table topic was lost: waiting for the workers to rewrite it"
            return condition._replace(message=message)
        return condition._replace(message=loading.progress())
