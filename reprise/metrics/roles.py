"""Which role exposes which metrics, and where it has their values. Cost O(publishers) a scrape."""

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from reprise.metrics.delivery import DELIVERY, MEMBERSHIP, REACHABLE
from reprise.metrics.http import HTTP
from reprise.metrics.load import LOAD
from reprise.metrics.log import COMMANDS, DISK, FOLLOWED, HISTORY, LOG, WAITING
from reprise.metrics.memory import LOOKS, SEGMENTS
from reprise.metrics.process import PROCESS, Role, process_registry
from reprise.metrics.publishers import (
    ACTIVITIES,
    ENGINE_HTTP,
    FOLDED,
    LEDGERS,
    RECEIVED,
    REPLAY,
    STANDINGS,
    ReceivedTraffic,
    received,
)
from reprise.metrics.relay import RELAY
from reprise.metrics.replica import LAG, REPLICA
from reprise.metrics.table import FOLDED_OFFSETS, INDEX, RECOVERY, TABLES, Tables, WrittenPartition
from reprise.metrics.tracing import TRACING
from reprise.metrics.worker import CHECKPOINTS, CRASHES, RECORDS, RESTARTS, ROUTING_RESTARTS
from schemas.conditions import Part
from schemas.metric_family import RoleCollector
from schemas.positions import Position

if TYPE_CHECKING:
    from bridge.relay.relay import Relay
    from bridge.service import Bridge
    from query_api.replica.replica import Replica
    from reprise.embedded.service import EmbeddedService
    from reprise.http.connections import Connections
    from reprise.logs import LogRuns
    from reprise.rooms import LmcacheBridge, ReplicaLmcache
    from reprise.tracing.opening import SpanCounts
    from routing.worker.worker import RoutingWorker
    from streams.history.follower import HistoryFollower
    from streams.worker.worker import FoldWorker


def embedded_collector(service: "EmbeddedService") -> RoleCollector:
    """Of the service in one process."""
    write, intake, folding, view = service.write, service.intake, service.folding, service.view
    conditions, log, table = service.conditions, service.data.log, service.data.table
    pump, sink = intake.pump, intake.sink

    def internal_errors() -> int:
        return write.faults + service.faults

    def tables() -> Tables:
        written = (table.written_rows, table.written_bytes, table.generations)
        return {0: WrittenPartition(folding.fold, folding.flushed_offset, *written)}

    collector = RoleCollector()
    collector.add(PROCESS, lambda: Role(conditions, internal_errors))
    collector.add(
        RECEIVED,
        lambda: received(pump, dropped_later=sink.dropped),
    )
    collector.add(REPLAY, lambda: pump.engines.replayer)
    collector.add(ACTIVITIES, lambda: dict(pump.followed))
    collector.add(ENGINE_HTTP, lambda: pump.engines.http)
    collector.add(LOG, lambda: log)
    history = service.data.history
    if history is not None:
        collector.add(HISTORY, lambda: history)
    collector.add(WAITING, lambda: sink)
    collector.add(COMMANDS, lambda: intake.commands.refused)
    service.logs.collect(collector)
    collector.add(DISK, lambda: conditions)
    collector.add(RECOVERY, lambda: write.recovery)
    collector.add(FOLDED_OFFSETS, view.positions)
    collector.add(TABLES, tables)
    collector.add(FOLDED, lambda: dict(folding.fold.publishers))
    collector.add(LEDGERS, lambda: dict(folding.fold.ledgers.current))
    collector.add(STANDINGS, view.standings)
    collector.add(SEGMENTS, view.memory)
    collector.add(LOOKS, lambda: write.memory)
    collector.add(LOAD, lambda: write.load)
    collector.add(INDEX, lambda: view.kernel)
    if service.lmcache is not None:
        service.lmcache.collect(collector)
    return collector


def bridge_metrics(bridge: "Bridge", lmcache: "LmcacheBridge | None" = None) -> CollectorRegistry:
    """Of a bridge; collected on its loop."""

    def internal_errors() -> int:
        return bridge.faults + (0 if lmcache is None else lmcache.faults)

    def incoming() -> ReceivedTraffic:
        publishers = bridge.status().publishers
        return received(
            bridge.pump,
            dropped_later=bridge.writer.delivery.dropped + bridge.spool.dropped,
            states={status.registration.publisher: status.state for status in publishers},
        )

    collector = RoleCollector()
    collector.add(PROCESS, lambda: Role(bridge.conditions, internal_errors))
    collector.add(REACHABLE, lambda: not bridge.conditions.has(Part.KAFKA))
    collector.add(RECEIVED, incoming)
    collector.add(REPLAY, lambda: bridge.pump.engines.replayer)
    collector.add(ACTIVITIES, lambda: dict(bridge.pump.followed))
    collector.add(ENGINE_HTTP, lambda: bridge.pump.engines.http)
    collector.add(DELIVERY, lambda: bridge)
    collector.add(LOOKS, lambda: bridge.memory)
    collector.add(LOAD, lambda: bridge.load)
    collector.add(MEMBERSHIP, lambda: bridge)
    if lmcache is not None:
        lmcache.collect(collector)
    return _registered(collector)


def relay_metrics(relay: "Relay") -> CollectorRegistry:
    """Of a relay; collected beside its loop, from counters that it only ever replaces."""
    collector = RoleCollector()
    collector.add(PROCESS, lambda: Role(relay.conditions, lambda: relay.faults))
    collector.add(RELAY, lambda: relay)
    return _registered(collector)


def worker_metrics(worker: "FoldWorker", routing: "RoutingWorker") -> CollectorRegistry:
    """Of a stream worker; collected beside its loop, from counters that it only ever replaces."""

    def tables() -> Tables:
        owned = {} if worker.tables is None else dict(worker.tables.owned)
        return {
            number: WrittenPartition(
                partition.table.fold,
                partition.table.flushed,
                partition.table.written_rows,
                partition.table.written_bytes,
                partition.table.generations,
            )
            for number, partition in owned.items()
        }

    collector = RoleCollector()
    collector.add(PROCESS, lambda: Role(worker.conditions, lambda: worker.internal_errors))
    collector.add(REACHABLE, lambda: not worker.conditions.has(Part.KAFKA))
    collector.add(RESTARTS, lambda: worker.restarts)
    collector.add(CRASHES, lambda: worker.crashes)
    collector.add(RECORDS, lambda: None if worker.tables is None else worker.tables.counters)
    collector.add(
        FOLDED_OFFSETS,
        lambda: tuple(
            Position(number, table.fold.offset) for number, table in sorted(tables().items())
        ),
    )
    collector.add(TABLES, tables)
    collector.add(CHECKPOINTS, lambda: routing.table)
    collector.add(ROUTING_RESTARTS, lambda: routing.restarts)
    return _registered(collector)


def replica_collector(
    replica: "Replica",
    logs: "LogRuns | None" = None,
    lmcache: "ReplicaLmcache | None" = None,
) -> RoleCollector:
    """Of a query replica; `lmcache` is the room of LMCache, if it is installed."""
    collector = RoleCollector()
    collector.add(PROCESS, lambda: Role(replica.conditions, lambda: replica.internal_errors))
    collector.add(REACHABLE, lambda: replica.reachable)
    collector.add(LAG, lambda: replica.health().lag)
    collector.add(REPLICA, lambda: replica)
    collector.add(RECOVERY, lambda: replica)
    collector.add(FOLDED_OFFSETS, replica.positions)
    collector.add(FOLDED, lambda: dict(replica.current.table.publishers))
    collector.add(LEDGERS, lambda: dict(replica.current.table.ledgers))
    collector.add(STANDINGS, replica.standings)
    collector.add(SEGMENTS, replica.memory)
    collector.add(INDEX, lambda: replica.current.table.kernel)
    if logs is not None:
        logs.collect(collector)
    if lmcache is not None:
        lmcache.collect(collector)
    return collector


def history_collector(follower: "HistoryFollower") -> RoleCollector:
    """Of the past that a replica keeps."""
    collector = RoleCollector()
    collector.add(HISTORY, lambda: follower)
    collector.add(FOLLOWED, lambda: follower)
    return collector


def http_collector(connections: "Connections") -> RoleCollector:
    """Of the HTTP server of any role."""
    collector = RoleCollector()
    collector.add(HTTP, lambda: connections)
    return collector


def tracing_collector(counts: "SpanCounts | None") -> RoleCollector:
    """Of the spans of any role; None where tracing is off."""
    collector = RoleCollector()
    collector.add(TRACING, lambda: counts)
    return collector


def _registered(collector: RoleCollector) -> CollectorRegistry:
    registry = process_registry()
    registry.register(collector)
    return registry
