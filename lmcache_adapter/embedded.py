"""LMCache in the service in one process: commands to its workers, and advice that is carried out.

Its workers themselves are `lmcache_adapter.parts`, beside the pump of the write path.
"""

from collections.abc import Sequence

from lmcache_adapter.acting.actor import Actor
from lmcache_adapter.acting.settings import ActingSettings
from lmcache_adapter.commands.embedded import EmbeddedCommands
from lmcache_adapter.http.models import Worker
from lmcache_adapter.http.workers import worker_of
from lmcache_adapter.metrics.acting import ACTING
from lmcache_adapter.metrics.commands import EXECUTED, ISSUED
from lmcache_adapter.metrics.workers import LMCACHE, LMCACHE_COORDINATOR, LMCACHE_TOPIC, Lmcache
from lmcache_adapter.parts import LmcacheParts
from logs.declaration import EmbeddedParts
from query_api.ports import View
from routing.decisions.router import Router
from schemas.metric_family import RoleCollector


class EmbeddedLmcache:
    """See the module.

    Args:
        logs: what logs of the service are given.

    Attributes:
        parts: what is served beside the write path.
        commands: of clients to the workers; None: no worker connects to this service.
        actor: acts on advice; None until `act`.

    Raises:
        StorageError: the log of commands cannot be opened.
    """

    def __init__(self, parts: LmcacheParts, logs: EmbeddedParts) -> None:
        self.parts = parts
        self.commands: EmbeddedCommands | None = None
        self.actor: Actor | None = None
        if parts.service is not None:
            self.commands = EmbeddedCommands(logs, parts.service.locate)

    def act(self, view: View, router: Router, settings: ActingSettings) -> None:
        """Has advice carried out from `start` on, where there are commands; before `start`."""
        if self.commands is not None:
            self.actor = Actor(view, router, self.commands, period_s=settings.period_s)

    def start(self) -> None:
        """Starts its threads."""
        if self.commands is not None:
            self.commands.start()
        if self.actor is not None:
            self.actor.start()

    def stop(self) -> None:
        """Ends them; the workers are stopped by the write path."""
        if self.actor is not None:
            self.actor.stop()
        if self.commands is not None:
            self.commands.stop()

    async def lmcache_workers(self) -> Sequence[Worker]:
        """See `lmcache_adapter.http.workers.WorkerSource`."""
        return [worker_of(*view) for view in await self.parts.workers()]

    def collect(self, collector: RoleCollector) -> None:
        """Adds the metrics of the room."""
        workers, topic = self.parts.service, self.parts.topic
        coordinator = self.parts.coordinator
        if workers is not None:
            collector.add(LMCACHE, lambda: Lmcache(workers.counters, workers.dropped_by_reason()))
        issued, actor = self.commands, self.actor
        if issued is not None:
            collector.add(ISSUED, lambda: issued)
            collector.add(EXECUTED, lambda: issued.executor)
        if actor is not None:
            collector.add(ACTING, lambda: actor)
        if topic is not None:
            collector.add(LMCACHE_TOPIC, lambda: topic)
        if coordinator is not None:
            collector.add(LMCACHE_COORDINATOR, lambda: coordinator)
