"""`reprise streams`: the worker (`streams.worker.worker`) as a process, with its metrics.

It needs nothing but the brokers. Two workers on one machine need two data directories.
"""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from brokers.availability import quiet_client
from reprise.metrics.embedded import outcome_families
from schemas.errors import ConfigurationError
from streams.worker.app import quiet_logs
from streams.worker.tables import PartitionTables
from streams.worker.worker import LoopSpoiledError, StreamsSettings, Worker

__all__ = ["StreamsSettings", "work"]

logger = logging.getLogger(__name__)


class WorkerCollector(Collector):
    """Collects from a worker at each scrape."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def describe(self) -> list[Metric]:
        """Nothing: a registry would otherwise collect once at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        worker = self._worker
        yield GaugeMetricFamily("reprise_ready", "1 while at work.", value=not worker.says)
        yield CounterMetricFamily("reprise_worker_restarts", "Apps begun anew.", worker.restarts)
        yield CounterMetricFamily(
            "reprise_worker_crashes", "Apps that Faust itself ended.", worker.crashes
        )
        tables = worker.tables
        if tables is None:
            return
        outcomes = CounterMetricFamily(
            "reprise_worker_records", "Records brought, by what became of them.", labels=["outcome"]
        )
        for outcome, count in sorted(tables.counters.items()):
            outcomes.add_metric([outcome], count)
        yield outcomes
        yield from _partition_metrics(tables)


_GAUGES = {
    "folded_offset": "Last folded offset.",
    "flushed_offset": "Last offset that the table topic covers.",
    "entries": "Live entries.",
    "memory_bytes": "Memory of the index.",
}
_COUNTERS = {
    "flushed_rows": "Rows written to the table topic.",
    "flushed_bytes": "Bytes of them.",
    "generations": "Contexts rewritten.",
}


def _partition_metrics(tables: PartitionTables) -> Iterator[Metric]:
    gauges = {
        name: GaugeMetricFamily(f"reprise_table_{name}", text, labels=["partition"])
        for name, text in _GAUGES.items()
    }
    counters = {
        name: CounterMetricFamily(f"reprise_table_{name}", text, labels=["partition"])
        for name, text in _COUNTERS.items()
    }
    every = sorted(dict(tables.owned).items())
    for partition, owned in every:
        table, labels = owned.table, [str(partition)]
        stats = table.fold.kernel.stats()
        gauges["folded_offset"].add_metric(labels, table.fold.offset)
        gauges["flushed_offset"].add_metric(labels, table.flushed)
        gauges["entries"].add_metric(labels, stats["entries"])
        gauges["memory_bytes"].add_metric(labels, stats["memory_bytes"])
        counters["flushed_rows"].add_metric(labels, table.written_rows)
        counters["flushed_bytes"].add_metric(labels, table.written_bytes)
        counters["generations"].add_metric(labels, table.generations)
    yield from (*gauges.values(), *counters.values())
    folds = [([str(partition)], owned.table.fold) for partition, owned in every]
    yield from outcome_families(folds, labels=["partition"])


def serve_metrics(worker: Worker, host: str, port: int) -> ThreadingHTTPServer:
    """Answers /metrics and /health on a thread of its own.

    Raises:
        ConfigurationError: the address cannot be bound.
    """
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    registry.register(WorkerCollector(worker))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/metrics":
                    self._answer(200, "text/plain; version=0.0.4", generate_latest(registry))
                case "/health":
                    status = 503 if worker.problem else 200
                    body = msgspec.json.encode(_health(worker))
                    self._answer(status, "application/json", body)
                case _:
                    self._answer(404, "text/plain", b"/metrics and /health are here\n")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Requests are not news."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise ConfigurationError(
            f"Expected to listen on {host}:{port}, got: {error.strerror or error}."
            " Choose another by --metrics-port"
        ) from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


def _health(worker: Worker) -> dict[str, object]:
    tables = worker.tables
    owned = {} if tables is None else dict(tables.owned)
    return {
        "ready": not worker.says,
        "problem": worker.says,
        "partitions": {
            str(partition): one.table.fold.offset for partition, one in sorted(owned.items())
        },
    }


def work(settings: StreamsSettings) -> None:
    """Works until SIGINT or SIGTERM.

    Raises:
        ConfigurationError, DataDirectoryInUseError, RowVersionError: what waiting does not repair.
    """
    quiet_client()
    quiet_logs(logging.getLogger().level)
    asyncio.run(_work(settings))


async def _work(settings: StreamsSettings) -> None:
    worker = Worker(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, worker.stop)
    server = None
    if settings.metrics_port is not None:
        server = serve_metrics(worker, settings.metrics_host, settings.metrics_port)
        logger.info("Metrics on http://%s:%d/metrics", *server.server_address[:2])
    try:
        await worker.run()
    except LoopSpoiledError as error:
        logger.critical("The process ends: %s", error)
        os._exit(1)  # in order it would wait for what does not end
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()
