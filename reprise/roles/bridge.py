"""`reprise bridge`: a bridge made of its parts, and its monitor."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from bridge.bridge_settings import BridgeSettings
from bridge.service import Bridge
from bridge.sockets.reader import open_reader
from bridge.supervision import cancel
from brokers.availability import quiet_client, watch
from brokers.options import ClientOptions, client_options
from brokers.outages import Outage
from brokers.topics import ensure_topics
from logs.shared_condition import SharedCondition
from reprise import rooms
from reprise.http.open_files import raise_open_files_limit
from reprise.metrics.roles import bridge_metrics, http_collector, tracing_collector
from reprise.monitor import (
    Listening,
    listening_of,
    monitor_app,
    monitor_connections,
    monitored_here,
)
from reprise.roles.coordinator import coordinator_of
from reprise.roles.role_settings import BridgeRoleSettings
from reprise.tracing.opening import Tracing, tracing_of
from routing.decisions.queue import RoutingQueue
from routing.log.writer import RoutingWriter
from schemas.conditions import Conditions, Part
from streams.kernel import array_packer, socket_reader

if TYPE_CHECKING:
    from reprise.rooms import LmcacheBridge

logger = logging.getLogger(__name__)

ROLE: Final = "bridge"


def run_bridge(settings: BridgeRoleSettings) -> None:
    """Runs until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: the metrics port or one of LMCache's is taken, or Kafka or its topics
            cannot be used.
        StorageError: the spool cannot be opened.
    """
    raise_open_files_limit()
    quiet_client()
    with tracing_of(os.environ, ROLE) as tracing:
        asyncio.run(_run(settings, tracing))


async def _run(settings: BridgeRoleSettings, tracing: Tracing) -> None:
    kafka = settings.bridge.kafka
    options = client_options(kafka)
    listening = listening_of(settings.monitor)
    reader = open_reader(socket_reader)
    conditions = Conditions(time.time, logger)
    samples = RoutingQueue()
    load = RoutingWriter(kafka, options, samples, SharedCondition(conditions, Part.ROUTING))
    bridge = Bridge(
        settings.bridge,
        options,
        array_packer(),
        reader,
        conditions=conditions,
        on_load=samples.push_samples,
        tracer=tracing.tracer,
    )
    async with (
        _opened_lmcache(settings, options, tracing) as lmcache,
        _monitored(bridge, lmcache, listening, tracing),
    ):
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, bridge.stop)
        logger.info("Bridging to Kafka at %s, spool in %s", kafka.bootstrap, settings.bridge.data)
        async with contextlib.AsyncExitStack() as beside:
            prepare = partial(
                _prepare, settings.bridge, options, bridge.conditions, lmcache, load, beside
            )
            await bridge.run(prepare)
        logger.info("Stopped")


async def _prepare(
    settings: BridgeSettings,
    options: ClientOptions,
    conditions: Conditions,
    lmcache: "LmcacheBridge | None",
    load: RoutingWriter,
    beside: contextlib.AsyncExitStack,
) -> None:
    """Waits for the topics; from then on Kafka is watched for as long as `beside` is open."""
    servers = settings.kafka.bootstrap
    waiting = Outage(servers, "no engine is followed", conditions=conditions)
    await ensure_topics(settings.kafka, waiting)
    meanwhile = f"records wait in the spool, in {settings.data}"
    outage = Outage(servers, meanwhile, conditions=conditions)
    watching = asyncio.create_task(watch(options, outage))
    beside.callback(watching.cancel)
    if lmcache is not None:
        beside.push_async_callback(cancel, asyncio.create_task(lmcache.run()))
    if settings.load.scrape_s:
        writing = asyncio.create_task(load.run())
        beside.callback(writing.cancel)
        beside.push_async_callback(load.close)


@contextlib.asynccontextmanager
async def _opened_lmcache(
    settings: BridgeRoleSettings, options: ClientOptions, tracing: Tracing
) -> AsyncIterator["LmcacheBridge | None"]:
    """LMCache's workers are answered from here on, whether Kafka is there or not."""
    room, own = rooms.lmcache(), settings.bridge
    if room is None or not settings.lmcache.is_on:
        yield None
        return
    lmcache = room.bridge(settings.lmcache, own.kafka, options, own.data, tracing.tracer)
    try:
        coordinator = coordinator_of(lmcache.parts)
        lmcache.start()
        with contextlib.nullcontext() if coordinator is None else coordinator.serving():
            yield lmcache
    finally:
        lmcache.close()


@contextlib.asynccontextmanager
async def _monitored(
    bridge: Bridge,
    lmcache: "LmcacheBridge | None",
    listening: Listening | None,
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
    async with monitored_here(app, listening, connections):
        yield
