"""`reprise bridge`: a bridge made of its parts, and its `/health` and `/metrics`."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from bridge.service import Bridge, BridgeSettings
from brokers.availability import quiet_client, watch
from brokers.options import ClientOptions, client_options
from brokers.outages import Outage
from brokers.settings import KafkaSettings
from brokers.topics import ensure_topics
from reprise.roles.http_server import raise_open_files_limit
from schemas.errors import ConfigurationError
from schemas.identities import PublisherKey
from streams.kernel import array_packer

logger = logging.getLogger(__name__)

_REQUEST_S: Final = 5.0
_PUBLISHER_LABELS: Final = ("tenant", "instance", "model", "dp_rank")
_COUNTERS: Final = {
    "messages": "Messages received.",
    "batches": "Batches put into records.",
    "events": "Events put into records.",
    "duplicates": "Batches delivered again.",
    "gaps": "Places where batches are missing.",
    "lost_batches": "Batches missing in them.",
    "restarts": "New incarnations found.",
}


class BridgeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `reprise bridge` runs with; see `bridge.service.BridgeSettings`.

    Attributes:
        metrics_port: where `/health` and `/metrics` are served, None for nowhere, 0 for any.
        metrics_host: the address to listen on there.
    """

    kafka: KafkaSettings
    data: Path
    window_ms: int
    spool_bytes: int
    session_s: float
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"


def run_bridge(options: BridgeOptions) -> None:
    """Runs until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: the metrics port is taken, or Kafka or its topics cannot be used.
        StorageError: the spool cannot be opened.
    """
    raise_open_files_limit()
    quiet_client()
    asyncio.run(_run(options))


async def _run(options: BridgeOptions) -> None:
    settings = BridgeSettings(
        kafka=options.kafka,
        options=client_options(options.kafka),
        data=options.data,
        window_ms=options.window_ms,
        spool_bytes=options.spool_bytes,
        session_s=options.session_s,
    )
    async with _monitored(options) as monitor:
        bridge = Bridge(settings, array_packer())
        monitor.bridge = bridge
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, bridge.stop)
        logger.info("Bridging to Kafka at %s, spool in %s", options.kafka.bootstrap, options.data)
        async with contextlib.AsyncExitStack() as beside:
            await bridge.run(partial(_prepare, options, settings.options, beside))
        logger.info("Stopped")


async def _prepare(
    options: BridgeOptions, clients: ClientOptions, beside: contextlib.AsyncExitStack
) -> None:
    """Waits for the topics; from then on Kafka is watched for as long as `beside` is open."""
    servers = options.kafka.bootstrap
    await ensure_topics(options.kafka, Outage(servers, "no engine is followed"))
    outage = Outage(servers, f"records wait in the spool, in {options.data}")
    watching = asyncio.create_task(watch(clients, outage))
    beside.callback(watching.cancel)


class _Monitor:
    """Answers `GET /health` and `GET /metrics` on the bridge's own loop."""

    def __init__(self) -> None:
        self.bridge: Bridge | None = None
        self._metrics = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector):
            collector(registry=self._metrics)
        self._metrics.register(_BridgeCollector(self))

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request and its answer; the connection is closed then."""
        try:
            async with asyncio.timeout(_REQUEST_S):
                request = await reader.readline()
                while (await reader.readline()).strip():
                    pass
                _, path, *_ = request.decode("latin-1").split()
                status, kind, body = self._answer_to(path.partition("?")[0])
                head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n"
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
        except (OSError, ValueError, TimeoutError) as error:
            logger.debug("A request ended: %r", error)
        finally:
            writer.close()

    def _answer_to(self, path: str) -> tuple[str, str, bytes]:
        if path == "/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._metrics)
        if path != "/health":
            return "404 Not Found", "text/plain", b"/metrics and /health are here\n"
        if self.bridge is None:
            return "503 Service Unavailable", "application/json", b'{"problem":"starting"}'
        # A bridge without Kafka does its work: it spools. So it is healthy, and says what is wrong.
        return "200 OK", "application/json", msgspec.json.encode(self.bridge.status())


@contextlib.asynccontextmanager
async def _monitored(options: BridgeOptions) -> AsyncIterator[_Monitor]:
    monitor = _Monitor()
    if options.metrics_port is None:
        yield monitor
        return
    try:
        server = await asyncio.start_server(
            monitor.answer, options.metrics_host, options.metrics_port
        )
    except OSError as error:
        raise ConfigurationError(
            f"Expected to listen on {options.metrics_host}:{options.metrics_port}, got:"
            f" {error.strerror or error}. Choose another by --metrics-port"
        ) from error
    logger.info("Metrics on http://%s:%d/metrics", *server.sockets[0].getsockname()[:2])
    try:
        yield monitor
    finally:
        server.close()


class _BridgeCollector(Collector):
    """Collects from the bridge at each scrape, on its loop. Cost O(publishers)."""

    def __init__(self, monitor: _Monitor) -> None:
        self._monitor = monitor

    def describe(self) -> list[Metric]:
        """Nothing: a registry would otherwise collect once at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        bridge = self._monitor.bridge
        if bridge is not None:
            yield from _totals(bridge)
            yield from _publishers(bridge)


def _totals(bridge: Bridge) -> Iterator[Metric]:
    status = bridge.status()
    writer, spool = bridge.writer, bridge.spool
    gauges = {
        "reprise_bridge_healthy": ("1 while records reach the log.", not status.problem),
        "reprise_bridge_partitions": ("Owned of the registry.", len(status.partitions)),
        "reprise_bridge_publishers": ("Publishers followed.", len(status.publishers)),
        "reprise_spool_records": ("Records that wait on disk.", spool.records),
        "reprise_spool_bytes": ("Bytes of them.", spool.size_bytes),
        "reprise_spool_max_bytes": ("The bound on them.", spool.bytes_max),
        "reprise_queue_bytes": ("Bytes that wait for Kafka in memory.", writer.queue_bytes),
        "reprise_held_bytes": (
            "Bytes that wait for a replay.",
            bridge.pump.sequencer.held_bytes,
        ),
        "reprise_inbox_messages": ("Messages that wait to be read.", len(bridge.pump.inbox)),
        "reprise_inbox_bytes": ("Bytes of them.", bridge.pump.inbox.size_bytes),
    }
    counters = {
        "reprise_bridge_written_records": ("Acknowledged by Kafka.", writer.written_records),
        "reprise_bridge_written_bytes": ("Bytes of them.", writer.written_bytes),
        "reprise_bridge_produce_errors": ("Failed writes.", writer.produce_errors),
        "reprise_bridge_spooled_records": ("Put into the spool.", spool.spooled_records),
        "reprise_bridge_takeovers": (
            "Publishers taken over.",
            bridge.ownership.takeovers,
        ),
        "reprise_bridge_rebalances": (
            "Of the group.",
            bridge.registry.rebalances,
        ),
        "reprise_bridge_replay_requests": ("Sent to engines.", bridge.pump.replayer.requests),
        "reprise_bridge_replayed_batches": ("Got by them.", bridge.pump.replayer.replayed_batches),
        "reprise_bridge_unusable_entries": (
            "Registry entries and notes that cannot be used.",
            bridge.registry.unusable_entries + bridge.cursors.unreadable,
        ),
        "reprise_bridge_faults": (
            "Errors nobody thought of.",
            bridge.faults,
        ),
    }
    for name, (text, value) in gauges.items():
        yield GaugeMetricFamily(name, text, value=float(value))
    for name, (text, count) in counters.items():
        yield CounterMetricFamily(name, text, value=count)


def _publishers(bridge: Bridge) -> Iterator[Metric]:
    labels = _PUBLISHER_LABELS
    families = {
        name: CounterMetricFamily(f"reprise_bridge_{name}", text, labels=labels)
        for name, text in _COUNTERS.items()
    }
    dropped = CounterMetricFamily(
        "reprise_bridge_dropped",
        "Messages, batches, events and records left out, by reason.",
        labels=(*labels, "reason"),
    )
    connected = GaugeMetricFamily(
        "reprise_publisher_connected", "1 while the link is up.", labels=labels
    )
    sequence = GaugeMetricFamily(
        "reprise_publisher_sequence", "Last batch taken from the publisher.", labels=labels
    )
    state = GaugeMetricFamily(
        "reprise_publisher_state", "1 for the state it is in.", labels=(*labels, "state")
    )
    for publisher, counters in bridge.counters().items():
        for name, family in families.items():
            family.add_metric(_labels(publisher), getattr(counters, name))
    for (publisher, reason), count in sorted(bridge.dropped().items()):
        dropped.add_metric((*_labels(publisher), reason), count)
    for one in bridge.status().publishers:
        values = _labels(one.registration.publisher)
        connected.add_metric(values, float(one.connected))
        sequence.add_metric(values, one.sequence)
        state.add_metric((*values, one.state), 1.0)
    yield from (*families.values(), dropped, connected, sequence, state)


def _labels(publisher: PublisherKey) -> tuple[str, str, str, str]:
    stream = publisher.stream
    return (stream.tenant_id, stream.instance_id, stream.model_name, str(publisher.dp_rank))
