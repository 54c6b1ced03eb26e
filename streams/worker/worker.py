"""A worker: it folds the events into the tables of its partitions (`streams.worker.runner`)."""

import logging

from brokers.outages import Outage
from schemas.clock import REAL_CLOCK, Clock
from schemas.conditions import Conditions, Level, Part
from schemas.tracing import NO_TRACER, Tracer
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.worker.runner import AppRunner, WorkerTopic
from streams.worker.tables import PartitionTables
from streams.worker.worker_settings import StreamsSettings

logger = logging.getLogger(__name__)


class FoldWorker(AppRunner):
    """See the module.

    Attributes:
        tables: those of the present app.
    """

    def __init__(
        self,
        settings: StreamsSettings,
        *,
        tracer: Tracer = NO_TRACER,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Raises:
        ConfigurationError: the settings cannot be used.
        """
        kafka = settings.kafka
        conditions = Conditions(clock.unix, logger)
        conditions.set(Part.RECOVERY, "starting", "starting", Level.UNAVAILABLE, logged=False)
        folded = WorkerTopic(
            "FoldWorker",
            kafka.group("streams"),
            kafka.topics.events.name,
            None,
            settings.flush_s,
            settings.session_timeout_s,
            Part.WORKER,
            Level.UNAVAILABLE,
        )
        outage = Outage(
            kafka.bootstrap,
            "the tables stay as they are",
            conditions=conditions,
            level=Level.UNAVAILABLE,
        )
        super().__init__(kafka, folded, conditions, outage)
        self.settings = settings
        self._tracer = tracer
        self._clock = clock
        self.tables: PartitionTables | None = None

    @property
    def internal_errors(self) -> int:
        """Unexpected errors, of apps and of records."""
        return self.app_errors + (0 if self.tables is None else self.tables.internal_errors)

    def make_owner(self) -> PartitionTables:
        """See `AppRunner`."""
        settings, topics = self.settings, self.settings.kafka.topics
        self.tables = PartitionTables(
            settings.data,
            self._options,
            events_topic=topics.events.name,
            table_topic=topics.table.name,
            make_fold=lambda: Fold(open_kernel(settings.seed, name=settings.kernel)),
            tracer=self._tracer,
            clock=self._clock,
        )
        self.conditions.clear(Part.RECOVERY)
        return self.tables
