"""What the room adds to each role. Roles find it through `reprise.rooms`, and do without it where
an installation leaves it out.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brokers.broker_settings import KafkaSettings
from brokers.options import ClientOptions
from lmcache_adapter.acting.settings import ActingSettings
from lmcache_adapter.commands.log import COMMANDS
from lmcache_adapter.settings import LmcacheSettings
from logs.declaration import EmbeddedParts
from schemas.identities import PublisherKey
from schemas.tracing import Tracer

if TYPE_CHECKING:
    from bridge.delivery.log_sink import LogSink
    from lmcache_adapter.distributed import LmcacheBridge
    from lmcache_adapter.embedded import EmbeddedLmcache
    from lmcache_adapter.http.workers import WorkerSource
    from lmcache_adapter.parts import LmcacheParts
    from lmcache_adapter.ports import WorkerCommands
    from lmcache_adapter.replica import ReplicaLmcache
    from logs.loop_thread import LoopThread
    from query_api.http.feature import MakeFeature


class LmcacheRoom:
    """See the module. Each method imports what its role needs, and no more.

    Attributes:
        logs: those that it declares.
        settings: of roles that workers connect to.
        acting_settings: of roles that can act on advice.
    """

    logs: Final = (COMMANDS,)
    settings = LmcacheSettings
    acting_settings = ActingSettings

    def feature(
        self, workers: "WorkerSource | None", commands: "WorkerCommands | None"
    ) -> "MakeFeature":
        """The routes of a role that answers by HTTP; see `lmcache_feature`."""
        from lmcache_adapter.feature import lmcache_feature

        return lmcache_feature(workers, commands)

    def parts(
        self,
        settings: LmcacheSettings,
        *,
        data: Path,
        sink: "LogSink",
        loop: asyncio.AbstractEventLoop,
        floor: Callable[[PublisherKey], int],
    ) -> "LmcacheParts":
        """What runs beside the pump of `reprise up`; see `LmcacheParts`.

        Raises:
            ConfigurationError: an address cannot be bound.
            StorageError: a file cannot be written.
        """
        from lmcache_adapter.parts import LmcacheParts

        return LmcacheParts(
            settings, data=data, sink=sink, loop=loop, floor=floor, take_lost=sink.take_lost
        )

    def embedded(self, parts: "LmcacheParts", logs: EmbeddedParts) -> "EmbeddedLmcache":
        """What `reprise up` has of the room beside its write path; see `EmbeddedLmcache`.

        Raises:
            StorageError: the log of commands cannot be opened.
        """
        from lmcache_adapter.embedded import EmbeddedLmcache

        return EmbeddedLmcache(parts, logs)

    def replica(
        self, kafka: KafkaSettings, options: ClientOptions, thread: "LoopThread", tracer: Tracer
    ) -> "ReplicaLmcache":
        """What `reprise serve` has of the room; see `ReplicaLmcache`."""
        from lmcache_adapter.replica import ReplicaLmcache

        return ReplicaLmcache(kafka, options, thread, tracer=tracer)

    def bridge(
        self,
        settings: LmcacheSettings,
        kafka: KafkaSettings,
        options: ClientOptions,
        data: Path,
        tracer: Tracer,
    ) -> "LmcacheBridge":
        """What `reprise bridge` has of the room; see `LmcacheBridge`.

        Raises:
            ConfigurationError: an address cannot be bound.
            StorageError: something in `data` cannot be opened or written.
        """
        from lmcache_adapter.distributed import LmcacheBridge

        return LmcacheBridge(settings, kafka, options, data, tracer=tracer)


ROOM: Final = LmcacheRoom()
