"""Traces of the distributed form: of real processes on a real broker, by OTLP, at a collector."""

import re
import time
import urllib.error
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from brokers.broker_settings import KafkaSettings
from devtools.broker import free_ports
from tests.lmcache import CPU, ScriptedWorker
from tests.lmcache_commands import CommandSocket
from tests.load import Engine, Load
from tests.processes import until
from tests.roles import Role
from tests.router_protos import PACKED
from tests.spans import ROUTER_SPAN, TRACE, TRACEPARENT, Collector, KeptSpan, stuck_collector

pytestmark = pytest.mark.timeout(240)

WAIT_S = 60.0
STATE = "ot=th:0,router=a b"
TOKENS = list(range(1_000_000, 1_000_064))
Roles = dict[str, Role]
Make = Callable[..., Roles]


@pytest.fixture
def make(tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[Make]:
    """One of each role, which send their spans to an endpoint."""
    made: Roles = {}

    def roles(endpoint: str, **options: Sequence[str]) -> Roles:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        for name in ("bridge", "streams", "serve"):
            own = options.get(name, ())
            made[name] = Role(name, tmp_path / name, kafka_settings, *own, environment=environment)
            made[name].start()
        until(
            made["serve"].is_ready, what=f"a replica:\n{made['serve'].output()}", timeout_s=WAIT_S
        )
        return made

    yield roles
    for role in made.values():
        role.kill()


@pytest.fixture
def load(seed: int) -> Iterator[Load]:
    opened = Load(seed, [Engine("engine-0")], prompts=50)
    yield opened
    opened.close()


def decide(replica: Role, traceparent: str = TRACEPARENT, **fields: object) -> Any:
    offered = {"candidates": [{"instance_id": "a"}]}
    body = {"model": "other", "block_size": 16, "token_ids": TOKENS, **offered, **fields}
    return replica.post("/route", body, traceparent=traceparent, tracestate=STATE)


def publish(replica: Role, load: Load) -> None:
    """Registers an engine and has it send; returns once the replica has some of that."""
    for engine in load.engines:
        replica.post("/register", engine.registration())
    load.start()
    until(
        lambda: replica.metric("reprise_publisher_folded_sequence") > 2,
        what="what the engine sends reaches the replica",
        timeout_s=WAIT_S,
    )


def has(role: Role, metric: str, **labels: str) -> bool:
    return role.metric(metric, **labels) > 0


def of_trace(collector: Collector, name: str, trace: str = TRACE) -> list[KeptSpan]:
    return [span for span in collector.named(name) if span.trace == trace]


def events_folds(collector: Collector) -> dict[str, KeptSpan]:
    """By what appended their first record."""
    return {
        one.parent: one
        for one in collector.named("worker.fold")
        if one.parent and one.attributes["reprise.log"] == "events"
    }


def test_a_routers_trace_goes_through_all_roles(make: Make, load: Load) -> None:
    with Collector() as collector:
        roles = make(collector.endpoint)
        replica = roles["serve"]
        publish(replica, load)
        answer = decide(replica)
        name = answer["decision_id"]
        until(
            lambda: of_trace(collector, "worker.fold"), what="the decision's fold", timeout_s=WAIT_S
        )
        taken = replica.post("/feedback", {"decision_id": name, "event": "completed"})
        assert taken["accepted"] == 1
        until(
            lambda: len(of_trace(collector, "worker.fold")) > 1,
            what="the report's fold",
            timeout_s=WAIT_S,
        )
        until(lambda: of_trace(collector, "reprise.feedback"), what="the feedback")
        appends = {one.span: one for one in collector.named("bridge.append")}
        until(
            lambda: appends.keys() & events_folds(collector).keys(),
            what="the fold of what was appended",
        )
        for role in roles.values():
            assert role.metric("reprise_spans_exported_total") > 0
            assert role.metric("reprise_spans_dropped_total") == 0
    (routed,) = of_trace(collector, "reprise.route")
    assert (routed.role, routed.parent) == ("serve", ROUTER_SPAN)
    assert routed.attributes["reprise.decision_id"] == name
    (told,) = of_trace(collector, "reprise.feedback")
    folds = of_trace(collector, "worker.fold")
    assert {one.role for one in folds} == {"streams"}
    assert {one.attributes["reprise.log"] for one in folds} == {"routing"}
    for one in (told, *folds):
        assert (one.parent, one.links) == (routed.span, [(TRACE, routed.span)])
    assert {one.state for one in (routed, told, *folds)} == {STATE}
    # Of what engines send the trace begins at the bridge.
    for parent, fold in events_folds(collector).items():
        if parent in appends:
            appended = appends[parent]
            assert (appended.role, appended.parent, fold.role) == ("bridge", "", "streams")
            assert (fold.trace, (appended.trace, parent) in fold.links) == (appended.trace, True)
            (partition, last), (_, covered) = (
                one.attributes["reprise.position"].split(":") for one in (appended, fold)
            )
            assert fold.attributes["messaging.destination.partition.id"] == partition
            records = appended.attributes["messaging.batch.message_count"]
            assert int(covered) > int(last) - records


def test_a_command_goes_to_its_worker_and_back_in_its_requests_trace(
    make: Make, tmp_path: Path
) -> None:
    ports = free_ports(3)
    models = tmp_path / "models.json"
    models.write_text('{"default": {"modelname": "m", "block_size": 16}}')
    listed = ",".join(map(str, ports))
    lmcache = ("--lmcache", f"127.0.0.1:{listed}", "--set", f"lmcache.models={models}")
    with Collector() as collector, CommandSocket() as commanded:
        replica = make(collector.endpoint, bridge=lmcache)["serve"]
        with ScriptedWorker(
            ports, "l", peer="127.0.0.1:8200", command_port=commanded.port
        ) as worker:
            worker.register()
            until(
                lambda: [one["InstanceID"] for one in replica.get("/services")["services"]],
                what="the worker",
                timeout_s=WAIT_S,
            )
            body = {"instance_id": "l", "location": CPU}
            answer = replica.post("/clear", body, traceparent=TRACEPARENT)
        until(lambda: of_trace(collector, "command"), what="the command")
        until(lambda: of_trace(collector, "command.execute"), what="its execution")
    (given,) = of_trace(collector, "command")
    (executed,) = of_trace(collector, "command.execute")
    assert (given.role, given.parent) == ("serve", ROUTER_SPAN)
    assert (executed.role, executed.parent) == ("bridge", given.span)
    assert given.attributes["reprise.command.state"] == "done"
    for one in (given, executed):
        assert one.attributes["reprise.command.id"] == answer["event_id"]
        assert one.attributes["reprise.command.results.ok"] == 1


def test_a_replicas_look_ups_by_grpc_and_selections_have_spans(make: Make) -> None:
    with Collector() as collector:
        replica = make(
            collector.endpoint, serve=("--grpc", "0", "--set", "routing.select_service=true")
        )["serve"]
        (address,) = re.findall(r"Answering gRPC on (\S+)", replica.output())
        with closing(grpc.insecure_channel(address)) as channel:
            request = PACKED.MatchExternalKvPrefixRequest(hashes=[1, 2]).SerializeToString()
            call: Any = channel.unary_unary("/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix")
            assert call(request, timeout=WAIT_S, metadata=[("traceparent", TRACEPARENT)])
        worker = {"worker_id": 1, "model_name": "m", "block_size": 16, "type": "none"}
        replica.post("/workers", worker | {"endpoint": "http://127.0.0.1:1"})
        body = {"model_name": "m", "token_ids": TOKENS}
        until(partial(selected, replica, body), what="a worker", timeout_s=WAIT_S)
        until(lambda: of_trace(collector, "reprise.query"), what="the look-up")
        until(lambda: of_trace(collector, "reprise.route"), what="the selection")
    (looked,) = of_trace(collector, "reprise.query")
    assert (looked.parent, looked.attributes["rpc.system"]) == (ROUTER_SPAN, "grpc")
    assert {one.attributes["reprise.instance"] for one in of_trace(collector, "reprise.route")} == {
        "1"
    }


def selected(replica: Role, body: object) -> bool:
    try:
        replica.post("/select_and_reserve", body, traceparent=TRACEPARENT)
    except urllib.error.HTTPError as error:
        assert error.code == 503  # noqa: PT017 -- until the registration is read
        return False
    return True


def test_no_role_waits_for_a_collector_that_hangs(make: Make, load: Load) -> None:
    with stuck_collector() as collector:
        roles = make(collector.endpoint)
        publish(roles["serve"], load)
        until(lambda: collector.bodies, what="a request to the collector")
        for _ in range(20):
            assert decide(roles["serve"])["decision_id"]
        for role in roles.values():
            until(partial(has, role, "reprise_spans_waiting"), what="what waits")
        going_on(roles["serve"])
        for role in roles.values():
            begin = time.monotonic()
            assert role.stop() == 0, role.output()
            assert time.monotonic() - begin < 12, "it leaves, and drops what waits"
            assert (
                "Spans were dropped, as the collector did not take them: stopping" in role.output()
            )


def going_on(replica: Role) -> None:
    """What the engine sends still reaches the replica, which answers."""
    before = replica.metric("reprise_publisher_folded_sequence")
    until(
        lambda: replica.metric("reprise_publisher_folded_sequence") > before + 2,
        what="what the engine sends reaches the replica",
    )
    assert decide(replica)["decision_id"]
