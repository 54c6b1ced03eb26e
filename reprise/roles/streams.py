"""`reprise streams`: the worker (`streams.worker.worker`) as a process, with its monitor.

It needs nothing but the brokers. Two workers on one machine need two data directories.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from functools import partial
from typing import Final, NoReturn

from brokers.availability import quiet_client
from reprise.metrics.roles import http_collector, tracing_collector, worker_metrics
from reprise.monitor import (
    listening_of,
    monitor_app,
    monitor_connections,
    monitored_beside,
)
from reprise.roles.role_settings import StreamsRoleSettings
from reprise.tracing.opening import Tracing, tracing_of
from routing.worker.worker import RoutingThread, RoutingWorker
from streams.worker.app import quiet_logs
from streams.worker.runner import LoopSpoiledError
from streams.worker.worker import FoldWorker

logger = logging.getLogger(__name__)

ROLE: Final = "streams"


def _fields(worker: FoldWorker) -> dict[str, object]:
    """What `/health` of a worker adds: the partitions that it has, with the last folded offset."""
    owned = {} if worker.tables is None else dict(worker.tables.owned)
    return {
        "partitions": {
            str(partition): tables.table.fold.offset for partition, tables in sorted(owned.items())
        },
    }


def work(settings: StreamsRoleSettings) -> NoReturn:
    """Works until SIGINT or SIGTERM, and ends the process with 0.

    Raises:
        ConfigurationError, DataDirectoryInUseError, NewerVersionError: what waiting does not
            repair.
    """
    quiet_client()
    quiet_logs(logging.getLogger().level)
    with tracing_of(os.environ, ROLE) as tracing:
        asyncio.run(_work(settings, tracing))
    # All is written and closed. The interpreter's own end would take apart what Faust, its clients
    # and a thread that did not end in time still use: one in some hundreds crashed there.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0)


async def _work(settings: StreamsRoleSettings, tracing: Tracing) -> None:
    listening = listening_of(settings.monitor)
    worker = FoldWorker(settings.worker, tracer=tracing.tracer)
    routing = RoutingWorker(settings.worker, worker.conditions, tracer=tracing.tracer)
    routing_thread = RoutingThread(routing)

    def stop() -> None:
        routing_thread.begin_stop()
        worker.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    with contextlib.ExitStack() as monitor:
        if listening is not None:
            connections = monitor_connections()
            metrics = worker_metrics(worker, routing)
            metrics.register(http_collector(connections))
            metrics.register(tracing_collector(tracing.counts))
            app = monitor_app(ROLE, worker.conditions, metrics, partial(_fields, worker))
            monitor.enter_context(monitored_beside(app, listening, connections))
        routing_thread.start()
        try:
            await worker.run()
            routing_thread.join()
        except LoopSpoiledError as error:
            logger.critical("Cannot restart the worker in this process, which ends: %s", error)
            os._exit(1)  # an orderly exit would wait for what does not end
