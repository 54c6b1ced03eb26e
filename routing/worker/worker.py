"""The other thing that a worker folds: the routing log, into checkpoints for replicas.

An app of its own, of the same class and in the same process, on a thread with a loop of its own,
and not a second agent of the app that folds the events:

- what that app is asked, where to read on and what is covered, it is asked by partition, and
  partition 0 of one topic is not that of the other;
- a rebalance of either topic would stop both, and whatever ends an app ends all that it folds: a
  checkpoint that cannot be written would close the tables;
- workers of an older Reprise are in the group of the events, and do not know of this topic.

A loop of its own, since what a crash of Faust leaves behind is told by that (`runner`).
"""

import asyncio
import logging
import os
import threading
from typing import Final

from brokers.outages import Outage
from routing.log.topics import RoutingTopics
from routing.worker.table import RoutingTable
from schemas.clock import REAL_CLOCK
from schemas.conditions import Conditions, Level, Part
from schemas.errors import ConfigurationError, NewerVersionError
from schemas.limits import SHUTDOWN_S
from schemas.tracing import NO_TRACER, Tracer
from streams.worker.runner import AppRunner, LoopSpoiledError, WorkerTopic, wait_for
from streams.worker.worker_settings import StreamsSettings

ROUTING_FOLD_S: Final = 0.2  # routing records are gathered before they are folded: nobody waits
ROUTING_REFUSED_S: Final = 30.0  # after which topics of routing are tried again that cannot be used

logger = logging.getLogger(__name__)


class RoutingWorker(AppRunner):
    """Folds the routing log until it is told to stop; whatever happens, tables go on.

    Attributes:
        table: that of the present app.
    """

    def __init__(
        self,
        settings: StreamsSettings,
        conditions: Conditions,
        *,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Raises:
        ConfigurationError: the settings cannot be used.
        """
        kafka = settings.kafka
        self._topics = RoutingTopics.of(kafka)
        folded = WorkerTopic(
            "Routing",
            kafka.group("routing"),
            self._topics.log.name,
            self._topics,
            ROUTING_FOLD_S,
            settings.session_timeout_s,
            Part.ROUTING,
            Level.DEGRADED,
        )
        # That Kafka is away, the tables' app says.
        silent = Outage(kafka.bootstrap, conditions=Conditions(REAL_CLOCK.unix))
        super().__init__(kafka, folded, conditions, silent)
        self.table: RoutingTable | None = None
        self._tracer = tracer

    def make_owner(self) -> RoutingTable:
        """See `AppRunner`."""
        self.table = RoutingTable(self._options, self._topics, tracer=self._tracer)
        return self.table

    async def run(self) -> None:
        """See `AppRunner`; topics that cannot be used are tried again, as is a checkpoint that a
        newer Reprise wrote: meanwhile another worker has the log.

        Raises:
            DataDirectoryInUseError, LoopSpoiledError: see there.
        """
        while not self._stopping.is_set():
            try:
                await super().run()
            except (ConfigurationError, NewerVersionError) as error:
                self.conditions.set(Part.ROUTING, "refused", str(error))
                await wait_for(self._stopping, ROUTING_REFUSED_S)


class RoutingThread:
    """Runs a `RoutingWorker` on a loop of its own."""

    def __init__(self, worker: RoutingWorker) -> None:
        self._worker = worker
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="routing", daemon=True)

    def start(self) -> None:
        """Returns at once."""
        self._thread.start()

    def begin_stop(self) -> None:
        """Has it leave its group; from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._worker.stop)

    def join(self) -> None:
        """Waits for its end, within a bound."""
        self._thread.join(SHUTDOWN_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._worker.run())
        except LoopSpoiledError as error:
            logger.critical("Cannot restart routing in this process, which ends: %s", error)
            os._exit(1)  # an orderly exit would wait for what does not end
        except Exception:
            logger.exception("The fold of the routing log ended; restart the worker")
        finally:
            self._loop.close()
