"""A query replica: the read side of the service over a copy of the table that a reader of Kafka
feeds (`query_api.replica.topic_reader`).
"""

import logging
from collections.abc import Callable, Mapping
from time import monotonic

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from query_api.ports import Health, Positions, ServiceView
from query_api.replica.lag import NEVER
from query_api.replica.snapshot import Copy, Place, TableReader, Topic
from schemas.identities import PrefixScope, PublisherKey
from schemas.positions import AnswerState, PublisherState
from streams.kernel.interface import Kernel

MakeTable = Callable[[], TableReader]
logger = logging.getLogger(__name__)


class Replica:
    """Implements `query_api.ports.View`. The reader writes, on one thread; all others only read.

    Attributes:
        copy: what is answered from.
        loading: what is being read; the same, but while another copy is made.
        ready: whether a copy was ever complete.
        recovery_s: how long the latest complete copy took.
        entries_skipped: what was left out of the registry, in all copies.
        rebuilds: copies made anew.
        reachable, failed_checks: whether Kafka answered when last asked; how often not.
    """

    def __init__(
        self,
        make_table: MakeTable,
        partitions: Mapping[Topic, int],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._make_table = make_table
        self._partitions = partitions
        self._clock = clock
        self.copy = self.loading = Copy(make_table, partitions)
        self.ready = False
        self.rebuilds = 0
        self.recovery_s = 0.0
        self._begun_at = clock()
        self.entries_skipped = 0
        self.reachable = False
        self.failed_checks = 0
        self._problem = ""
        self._events_ends: dict[int, int] = {}
        self._stale_at = -NEVER
        self.metrics = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.metrics)

    # The reader's side

    def begin_again(self) -> None:
        """Makes another copy; until it is complete, answers come from the one that there is."""
        self.loading = Copy(self._make_table, self._partitions)
        self.rebuilds += 1
        self._begun_at = self._clock()
        if not self.ready:
            self.copy = self.loading

    def note_ends(self, ends: Mapping[Place, int]) -> None:
        """Kafka has answered: the topics end there."""
        now = self._clock()
        self.reachable, self._problem = True, ""
        self._events_ends = {
            place.partition: end for place, end in ends.items() if place.topic is Topic.EVENTS
        }
        if self.loading.begun:
            self.loading.note_ends(now, ends)
        else:
            self.loading.begin(now, ends)
        self.note_progress()

    def note_unreachable(self, problem: str) -> None:
        """Kafka has not answered, or not as it should."""
        self.failed_checks += 1
        self.reachable, self._problem = False, problem
        self._stale_at = -NEVER

    def note_progress(self) -> None:
        """Something was applied: changes over to a copy that is complete and as far."""
        new = self.copy is not self.loading or not self.ready
        if new and self.loading.complete and self._is_as_far():
            self.recovery_s = self._clock() - self._begun_at
            self.copy, self.ready = self.loading, True
            logger.info(
                "Read the table in %.2f s: %d publishers, %d registered",
                self.recovery_s,
                len(self.copy.table.publishers),
                len(self.copy.registry.registrations),
            )
        # While another copy is made, nothing new comes into the one that there is.
        current = self.copy is self.loading and self.reachable
        self._stale_at = self.copy.stale_at(reachable=current)

    def _is_as_far(self) -> bool:
        """Whether what is loaded covers what is answered from, as far as the events still go.

        A table topic that was lost is empty until a worker has written it again.
        """
        if not self.ready:
            return True
        loaded = dict(self.loading.positions)
        return all(
            loaded[partition] >= min(offset, self._events_ends.get(partition, 0) - 1)
            for partition, offset in self.copy.positions
        )

    # View

    @property
    def kernel(self) -> Kernel:
        """See `View`."""
        return self.copy.table.kernel

    def health(self) -> Health:
        """See `View`."""
        problem = self._problem
        if not problem and not self.loading.complete:
            problem = self.loading.progress()
        elif not problem and self.copy is not self.loading:
            problem = "the table topic was lost: waiting for the workers to write it again"
        copy = self.copy
        lag = copy.lag(self._clock(), reachable=self.reachable)
        return Health(self.ready, problem, copy.table.kernel.name, copy.positions, lag)

    def positions(self) -> Positions:
        """See `View`."""
        return self.copy.positions

    def state(self, scope: PrefixScope) -> AnswerState:
        """See `View`."""
        if self._clock() >= self._stale_at:
            return AnswerState.STALE
        degraded = self.copy.table.is_degraded(scope)
        return AnswerState.DEGRADED if degraded else AnswerState.EXACT

    def services(self) -> list[ServiceView]:
        """See `View`."""
        registered = list(self.copy.registry.registrations)
        views = [view for view in map(self.service, registered) if view is not None]
        return sorted(views, key=lambda view: view.registration.service_key)

    def service(self, publisher: PublisherKey) -> ServiceView | None:
        """See `View`."""
        registration = self.copy.registry.registrations.get(publisher)
        if registration is None:
            return None
        state = self.copy.table.publishers.get(publisher, PublisherState())
        return ServiceView(registration, state, connected=None)
