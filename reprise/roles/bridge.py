"""`reprise bridge`: a bridge made of its parts, and its monitor."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from bridge.memory.watch import MemorySettings
from bridge.service import Bridge, BridgeSettings
from bridge.sockets.reader import open_reader
from bridge.supervision import cancel
from brokers.availability import quiet_client, watch
from brokers.broker_settings import KafkaSettings
from brokers.options import ClientOptions, client_options
from brokers.outages import Outage
from brokers.topics import ensure_topics
from logs.shared_condition import SharedCondition
from reprise import rooms
from reprise.http.open_files import raise_open_files_limit
from reprise.http.tls import Tls
from reprise.http.tls_settings import TlsSettings
from reprise.metrics.roles import bridge_metrics, http_collector, tracing_collector
from reprise.monitor import (
    listen,
    monitor_app,
    monitor_connections,
    monitor_tls,
    monitored_here,
)
from reprise.tracing.opening import Tracing, tracing_of
from routing.decisions.queue import RoutingQueue
from routing.log.writer import RoutingWriter
from schemas.conditions import Conditions, Part
from streams.kernel import array_packer, socket_reader

if TYPE_CHECKING:
    from reprise.rooms import LmcacheBridge, LmcacheSettings

logger = logging.getLogger(__name__)

ROLE: Final = "bridge"


class BridgeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `reprise bridge` runs with; see `bridge.service.BridgeSettings`.

    Attributes:
        metrics_port: where `/health`, `/ready` and `/metrics` are; None for no monitor, 0 for any.
        metrics_host: the address to listen on there.
        metrics_tls: how that is encrypted; None: it is not.
        lmcache: serves LMCache's workers, too; None: it does not.
        memory: where segments of memory are; None for nowhere.
        scrape_load_s: how often engines are asked for their load; 0 for never.
    """

    kafka: KafkaSettings
    data: Path
    window_ms: int
    spool_bytes: int
    session_s: float
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    metrics_tls: TlsSettings | None = None
    lmcache: "LmcacheSettings | None" = None
    memory: MemorySettings | None = None
    scrape_load_s: float = 0.0


def run_bridge(options: BridgeOptions) -> None:
    """Runs until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: the metrics port or one of LMCache's is taken, or Kafka or its topics
            cannot be used.
        StorageError: the spool cannot be opened.
    """
    raise_open_files_limit()
    quiet_client()
    with tracing_of(os.environ, ROLE) as tracing:
        asyncio.run(_run(options, tracing))


async def _run(options: BridgeOptions, tracing: Tracing) -> None:
    settings = BridgeSettings(
        kafka=options.kafka,
        options=client_options(options.kafka),
        data=options.data,
        window_ms=options.window_ms,
        spool_bytes=options.spool_bytes,
        session_s=options.session_s,
        memory=options.memory,
        scrape_load_s=options.scrape_load_s,
    )
    listening = None
    tls = monitor_tls(options.metrics_tls)
    if options.metrics_port is not None:
        listening = listen(options.metrics_host, options.metrics_port, tls)
    reader = open_reader(socket_reader)
    conditions = Conditions(time.time, logger)
    samples = RoutingQueue()
    load = RoutingWriter(
        options.kafka, settings.options, samples, SharedCondition(conditions, Part.ROUTING)
    )
    bridge = Bridge(
        settings,
        array_packer(),
        reader,
        conditions=conditions,
        on_load=samples.push_samples,
        tracer=tracing.tracer,
    )
    async with (
        _opened_lmcache(options, settings.options, tracing) as lmcache,
        _monitored(bridge, lmcache, listening, tls, tracing),
    ):
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, bridge.stop)
        logger.info("Bridging to Kafka at %s, spool in %s", options.kafka.bootstrap, options.data)
        async with contextlib.AsyncExitStack() as beside:
            prepare = partial(
                _prepare, options, settings.options, bridge.conditions, lmcache, load, beside
            )
            await bridge.run(prepare)
        logger.info("Stopped")


async def _prepare(
    options: BridgeOptions,
    clients: ClientOptions,
    conditions: Conditions,
    lmcache: "LmcacheBridge | None",
    load: RoutingWriter,
    beside: contextlib.AsyncExitStack,
) -> None:
    """Waits for the topics; from then on Kafka is watched for as long as `beside` is open."""
    servers = options.kafka.bootstrap
    waiting = Outage(servers, "no engine is followed", conditions=conditions)
    await ensure_topics(options.kafka, waiting)
    meanwhile = f"records wait in the spool, in {options.data}"
    outage = Outage(servers, meanwhile, conditions=conditions)
    watching = asyncio.create_task(watch(clients, outage))
    beside.callback(watching.cancel)
    if lmcache is not None:
        beside.push_async_callback(cancel, asyncio.create_task(lmcache.run()))
    if options.scrape_load_s:
        writing = asyncio.create_task(load.run())
        beside.callback(writing.cancel)
        beside.push_async_callback(load.close)


@contextlib.asynccontextmanager
async def _opened_lmcache(
    options: BridgeOptions, clients: ClientOptions, tracing: Tracing
) -> AsyncIterator["LmcacheBridge | None"]:
    """LMCache's workers are answered from here on, whether Kafka is there or not."""
    room = rooms.lmcache()
    if room is None or options.lmcache is None:
        yield None
        return
    lmcache = room.bridge(options.lmcache, options.kafka, clients, options.data, tracing.tracer)
    lmcache.start()
    try:
        yield lmcache
    finally:
        lmcache.close()


@contextlib.asynccontextmanager
async def _monitored(
    bridge: Bridge,
    lmcache: "LmcacheBridge | None",
    listening: socket.socket | None,
    tls: Tls | None,
    tracing: Tracing,
) -> AsyncIterator[None]:
    """Serves `/health`, `/ready` and `/metrics` while the bridge runs, where a port is given."""
    if listening is None:
        yield
        return
    connections = monitor_connections()
    metrics = bridge_metrics(bridge, lmcache)
    metrics.register(http_collector(connections))
    metrics.register(tracing_collector(tracing.counts))
    app = monitor_app(
        ROLE, bridge.conditions, metrics, lambda: msgspec.structs.asdict(bridge.status())
    )
    async with monitored_here(app, listening, connections, tls):
        yield
