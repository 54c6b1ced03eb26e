"""LMCache on a replica: commands to the workers of all bridges, and advice that is carried out."""

from brokers.broker_settings import KafkaSettings
from brokers.options import ClientOptions
from lmcache_adapter.acting.actor import Actor
from lmcache_adapter.acting.settings import ActingSettings
from lmcache_adapter.commands.replica import ReplicaCommands
from lmcache_adapter.metrics.acting import ACTING
from lmcache_adapter.metrics.commands import ISSUED
from logs.loop_thread import LoopThread
from query_api.ports import View
from routing.decisions.router import Router
from schemas.metric_family import RoleCollector
from schemas.tracing import NO_TRACER, Tracer


class ReplicaLmcache:
    """See the module.

    Args:
        thread: on whose loop commands are written and read.

    Attributes:
        actor: acts on advice; None until `act`.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        options: ClientOptions,
        thread: LoopThread,
        *,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.commands = ReplicaCommands(kafka, options, thread, tracer=tracer)
        self.actor: Actor | None = None

    def act(self, view: View, router: Router, settings: ActingSettings) -> None:
        """Has advice carried out from `start` on; before `start`."""
        self.actor = Actor(view, router, self.commands, period_s=settings.period_s)

    def start(self) -> None:
        """Starts to follow commands, and to act."""
        self.commands.start()
        if self.actor is not None:
            self.actor.start()

    def stop(self) -> None:
        """Ends acting; commands end with the thread."""
        if self.actor is not None:
            self.actor.stop()

    def collect(self, collector: RoleCollector) -> None:
        """Adds the metrics of the room."""
        collector.add(ISSUED, lambda: self.commands)
        actor = self.actor
        if actor is not None:
            collector.add(ACTING, lambda: actor)
