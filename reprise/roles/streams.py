"""`reprise streams`: a worker that folds the partitions of the events that its group gives it.

It needs nothing but the brokers. Whatever ends its Faust app, a broker that is away, a partition
that another worker took, a full disk, it leaves the group, waits and begins anew; the tables are
where the topic is. Two workers on one machine need two data directories.
"""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

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

from brokers.availability import quiet_client, watch
from brokers.errors import KafkaError
from brokers.options import client_options
from brokers.outages import Outage
from brokers.settings import KafkaSettings
from brokers.topics import ensure_topics
from reprise.metrics.embedded import outcome_families
from reprise.settings import DEFAULT_SEED
from schemas.errors import (
    ConfigurationError,
    DataDirectoryInUseError,
    RepriseError,
    RowVersionError,
)
from schemas.limits import SHUTDOWN_S
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.worker.app import quiet_logs, run_app
from streams.worker.tables import EventsReader, PartitionTables

logger = logging.getLogger(__name__)

FLUSH_S: Final = 0.05
SESSION_TIMEOUT_S: Final = 10.0
RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 5.0
SETTLED_S: Final = 30.0
"""An app that ran for this long has not failed at its start: the next pause is short again."""

STOP_S: Final = SHUTDOWN_S - 2.0
"""For the last flush and commit, and for leaving the group."""

_FATAL: Final = (ConfigurationError, DataDirectoryInUseError, RowVersionError)
"""Waiting does not mend these."""


class StreamsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker runs with.

    Attributes:
        data: the copies of its tables.
        metrics_host, metrics_port: where /metrics and /health answer; port None for nowhere, 0 for
            any.
        flush_s: how long records are gathered before they are folded and written.
        session_timeout_s: after this long without a sign of life its partitions go to others.
    """

    kafka: KafkaSettings
    data: Path
    seed: int = DEFAULT_SEED
    kernel: str | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    flush_s: float = FLUSH_S
    session_timeout_s: float = SESSION_TIMEOUT_S


class Worker:
    """Runs one app after another until told to stop. `tables` are those of the present one."""

    def __init__(self, settings: StreamsSettings) -> None:
        """Raises ConfigurationError where the settings cannot be used."""
        self.settings = settings
        self.tables: PartitionTables | None = None
        self.problem = "starting"
        self.restarts = 0
        self.records = 0
        self._options = client_options(settings.kafka)
        self._outage = Outage(settings.kafka.bootstrap, "the tables stay as they are")
        self._stopping = asyncio.Event()

    @property
    def says(self) -> str:
        """What keeps records from the tables, Kafka away included, or ""."""
        return self.problem or self._outage.problem

    def stop(self) -> None:
        """Lets `run` flush, commit, leave the group and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Works until stopped.

        Raises:
            ConfigurationError, DataDirectoryInUseError, RowVersionError: what waiting cannot mend.
        """
        if not await self._ensure_topics():
            return
        pause_s = RETRY_FIRST_S
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                await self._run_app()
                return
            except _FATAL:
                raise
            except Exception as error:
                self.problem = f"{type(error).__name__}: {error}"
                foreseen = isinstance(error, RepriseError | KafkaError | OSError)
                level = logging.INFO if self._outage.problem and foreseen else logging.WARNING
                logger.log(level, "Beginning anew: %s", self.problem, exc_info=not foreseen)
            self.restarts += 1
            if time.monotonic() - started > SETTLED_S:
                pause_s = RETRY_FIRST_S
            await _wait(self._stopping, pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)
            if not await self._ensure_topics():
                return

    async def _ensure_topics(self) -> bool:
        """Whether the topics are there; False where it was told to stop before."""
        ensuring = asyncio.ensure_future(ensure_topics(self.settings.kafka, self._outage))
        stopped = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((ensuring, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not ensuring.done():
            ensuring.cancel()
            return False
        ensuring.result()
        return True

    async def _run_app(self) -> None:
        settings = self.settings
        topics = settings.kafka.topics
        tables = PartitionTables(
            settings.data,
            self._options,
            events_topic=topics.events.name,
            table_topic=topics.table.name,
            make_fold=lambda: Fold(open_kernel(settings.seed, name=settings.kernel)),
        )
        reader = EventsReader(
            tables,
            self._options,
            group=settings.kafka.group("streams"),
            topic=topics.events.name,
            flush_s=settings.flush_s,
            session_timeout_s=settings.session_timeout_s,
        )
        self.tables, self.problem = tables, ""
        watching = asyncio.create_task(watch(self._options, self._outage))
        app = run_app(
            self._options,
            group=settings.kafka.group("streams"),
            work=partial(reader.run, self._stopping),
        )
        try:
            if await _ended_in_time(asyncio.ensure_future(app), self._stopping):
                await tables.close()
        except BaseException:
            await tables.close()
            raise
        finally:
            watching.cancel()


async def _ended_in_time(app: "asyncio.Future[None]", stopping: asyncio.Event) -> bool:
    """Waits for the app; False where it was told to stop and did not, as while Kafka is away.

    What it has not flushed then is folded again by the next owner, as after a kill.
    """
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((app, stopped), return_when=asyncio.FIRST_COMPLETED)
        done, _ = await asyncio.wait((app,), timeout=STOP_S)
    except asyncio.CancelledError:
        app.cancel()
        await asyncio.wait((app,), timeout=STOP_S)
        raise
    finally:
        stopped.cancel()
    if not done:
        logger.warning("Leaving the group without its coordinator; it will notice")
        app.cancel()
        return False
    app.result()
    return True


async def _wait(stopping: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(stopping.wait(), timeout_s)
    except TimeoutError:
        return


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
        ConfigurationError, DataDirectoryInUseError, RowVersionError: what waiting cannot mend.
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
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()
