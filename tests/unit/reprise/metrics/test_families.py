"""Every metric that is named somewhere is exposed by some role, and its help stands alone."""

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.registry import Collector
from zmq.auth import create_certificates

from bridge.bridge_settings import BridgeSettings
from bridge.relay.relay import Relay
from bridge.relay.relay_settings import RelayedEngine, RelaySettings
from bridge.service import Bridge
from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from devtools.broker import free_ports
from gateway.gateway import Gateway
from gateway.settings import GatewaySettings
from lmcache_adapter.acting.settings import ActingSettings
from lmcache_adapter.settings import LmcacheSettings
from query_api.access.access_settings import AccessSettings
from query_api.access.guard import Guard
from query_api.grpc.counts import GrpcCounts
from query_api.rpc.counts import RpcCounts
from reprise.application import create_app
from reprise.embedded.service import EmbeddedService
from reprise.http.connections import Connections
from reprise.metrics.roles import (
    bridge_metrics,
    embedded_collector,
    http_collector,
    relay_metrics,
    tracing_collector,
    worker_metrics,
)
from reprise.registered_engines import open_tokenizer
from reprise.roles.role_settings import ServeSettings
from reprise.roles.serve import ReplicaService
from reprise.settings import Settings
from routing.worker.worker import RoutingWorker
from schemas.conditions import Conditions, Level, Part
from streams.worker.worker import FoldWorker
from streams.worker.worker_settings import StreamsSettings
from tests.fakes import FakeTable
from tokens.settings import TokensSettings

ROOT = Path(__file__).parents[4]
LMCACHE = LmcacheSettings(listen="127.0.0.1:0,0,0", kafka="127.0.0.1:9")
ACTING = ActingSettings(is_on=True)
KAFKA = KafkaSettings(bootstrap="127.0.0.1:9")
PUBLISHER_LABELS = {"tenant", "instance", "model", "dp_rank"}
_NAME = re.compile(r"\breprise_[a-z][a-z_]*\b")
_SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_count", "_sum"),
}


def exposed(families: Mapping[str, Metric]) -> set[str]:
    """The names of all samples that the families can have."""
    return {
        family.name + suffix
        for family in families.values()
        for suffix in _SUFFIXES.get(family.type, ("",))
    }


def _named(collector: Collector) -> dict[str, Metric]:
    found = [family for family in collector.collect() if family.name.startswith("reprise_")]
    assert len({family.name for family in found}) == len(found), "one family, one name"
    return {family.name: family for family in found}


def _guard(data: Path) -> Guard:
    keys = data.with_suffix(".toml")
    keys.touch()
    return AccessSettings(keys=keys).open_guard()


def _embedded(data: Path) -> dict[str, Metric]:
    service = EmbeddedService(
        Settings(data=data, kernel="reference", lmcache=LMCACHE, acting=ACTING)
    )
    service.view.metrics.register(embedded_collector(service))
    service.view.metrics.register(http_collector(Connections()))
    service.view.metrics.register(tracing_collector(None))
    try:
        tokenizer = open_tokenizer(TokensSettings(), service.view, service.conditions)
        gateway = Gateway(GatewaySettings(), service.view, service.registry, service.router)
        create_app(
            service.view,
            service.registry,
            tokenizer=tokenizer,
            guard=_guard(data),
            gateway=gateway,
        )
        service.view.metrics.register(GrpcCounts())
        service.view.metrics.register(RpcCounts())
        return _named(service.view.metrics)
    finally:
        service.stop()


def _coordinator(data: Path) -> dict[str, Metric]:
    """It is served where LMCache's topic is not read."""
    lmcache = LmcacheSettings(coordinated="127.0.0.1:0")
    service = EmbeddedService(Settings(data=data, kernel="reference", lmcache=lmcache))
    service.view.metrics.register(embedded_collector(service))
    try:
        return _named(service.view.metrics)
    finally:
        service.stop()


async def _bridge(data: Path) -> dict[str, Metric]:
    bridge = Bridge(BridgeSettings(kafka=KAFKA, data=data), client_options(KAFKA))
    try:
        return _named(bridge_metrics(bridge))
    finally:
        await bridge.pump.close()
        bridge.spool.close()


async def _worker(data: Path) -> dict[str, Metric]:
    settings = StreamsSettings(kafka=KAFKA, data=data, seed=1337)
    worker = FoldWorker(settings)
    return _named(worker_metrics(worker, RoutingWorker(settings, worker.conditions)))


def _relay(data: Path) -> dict[str, Metric]:
    data.mkdir()
    create_certificates(data, "relay")
    (data / "bridges.txt").touch()
    [port] = free_ports(1)
    settings = RelaySettings(
        engines=(RelayedEngine(endpoint="tcp://127.0.0.1:9", listen=f"tcp://127.0.0.1:{port}"),),
        key=data / "relay.key_secret",
        bridge_keys=data / "bridges.txt",
    )
    relay = Relay(settings, Conditions(time.time))
    try:
        relay.conditions.set(Part.KEYS, "unreadable", "for the test", Level.UNAVAILABLE)
        return _named(relay_metrics(relay))
    finally:
        relay.close()


def _replica(data: Path) -> dict[str, Metric]:
    settings = ServeSettings(
        kafka=KAFKA,
        kernel="reference",
        data=data,
        keeps_history=True,
        audit_rate=1.0,
        acting=ACTING,
    )
    service = ReplicaService(settings, when_refused=lambda error: None)
    try:
        tokenizer = open_tokenizer(TokensSettings(), service.replica, service.replica.conditions)
        create_app(service.replica, FakeTable(), tokenizer=tokenizer, guard=_guard(data))
        return _named(service.replica.metrics)
    finally:
        service.stop()


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Metric]]:
    """The families of each role, from its real objects."""
    data = tmp_path_factory.mktemp("roles")
    return {
        "embedded": _embedded(data / "embedded"),
        "coordinator": _coordinator(data / "coordinator"),
        "bridge": asyncio.run(_bridge(data / "bridge")),
        "streams": asyncio.run(_worker(data / "streams")),
        "serve": _replica(data / "serve"),
        "relay": _relay(data / "relay"),
    }


def _texts() -> Iterator[tuple[str, str]]:
    for folder, pattern in (("monitoring", "**/*"), ("docs", "*.md"), (".", "README.md")):
        for path in sorted((ROOT / folder).glob(pattern)):
            if path.suffix in (".py", ".yml", ".json", ".md"):
                yield str(path.relative_to(ROOT)), path.read_text()


def test_every_name_in_monitoring_and_docs_is_exposed_by_some_role(
    roles: dict[str, dict[str, Metric]],
) -> None:
    packages = {path.name for path in (ROOT / "integrations").glob("*/reprise_*")}
    known = set().union(packages, *map(exposed, roles.values()))
    texts = dict(_texts())
    assert {"monitoring/alerts.yml", "docs/observe.md", "README.md"} <= texts.keys()
    unknown = {(path, name) for path, text in texts.items() for name in _NAME.findall(text)} - {
        (path, name) for path in texts for name in known
    }
    assert unknown == set()


def test_every_help_text_stands_alone(roles: dict[str, dict[str, Metric]]) -> None:
    families = [family for found in roles.values() for family in found.values()]
    fragments = [
        (family.name, family.documentation)
        for family in families
        if not family.documentation.endswith((".", ")."))
        or len(family.documentation.split()) < 4
        or re.search(r"\bof (them|it|that)\b|\b(them|that|it|one)\.$", family.documentation)
    ]
    assert fragments == []


def test_a_name_means_the_same_in_every_role(roles: dict[str, dict[str, Metric]]) -> None:
    meanings: dict[str, set[tuple[str, str]]] = {}
    for found in roles.values():
        for family in found.values():
            meanings.setdefault(family.name, set()).add((family.type, family.documentation))
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


def test_every_role_exposes_readiness_conditions_and_internal_errors(
    roles: dict[str, dict[str, Metric]],
) -> None:
    for name, found in roles.items():
        assert {"reprise_ready", "reprise_condition", "reprise_internal_errors"} <= found.keys()
        (ready,) = found["reprise_ready"].samples
        assert ready.value == 0.0, f"{name} has not started"
        levels = [sample.labels["level"] for sample in found["reprise_condition"].samples]
        assert "unavailable" in levels, name
