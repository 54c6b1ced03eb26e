"""The image, the compose file and the dashboard agree with each other and with the code."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from lab.demo.compose import RESOLVE_S, Replicas, addresses, reachable
from lab.demo.demo import COSTS
from lab.engines.engine import EngineOptions, EngineReady, EngineState, RankReady
from lab.traffic.index_client import Candidate, OutcomeReport, ServiceError
from reprise.bounds import HTTP_GRACE_S, LEAVE_S
from reprise.cli.bridge import bridge
from reprise.cli.serve import serve
from reprise.cli.streams import streams
from reprise.front import WAIT_S
from reprise.roles.leaving import LEAVE_SETTLE_S
from reprise.tracing.opening import NO_TRACING, open_tracing, tracing_of
from reprise.tracing.tracing_settings import ENDPOINT
from routing.costs import Costs
from schemas.tracing import SpanName
from tests.spans import Collector
from tests.unit.lab.demo.stub_service import StubService

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
ALERTS = (ROOT / "monitoring/alerts.yml").read_text()
METRIC = re.compile(r"\b(?:reprise_[a-z_]+|up)\b")
DASHBOARDS = sorted((ROOT / "monitoring/grafana/dashboards").glob("*.json"))


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> Any:
    return json.loads(request.param.read_text())


def test_dashboards_have_ids_and_titles_of_their_own() -> None:
    found = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert {path.stem for path in DASHBOARDS} == {"reprise", "loss", "decisions"}
    for name in ("uid", "title"):
        assert len({one[name] for one in found}) == len(found)


def test_panels_have_ids_of_their_own_and_the_provisioned_datasource(dashboard: Any) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    provisioned = (ROOT / "monitoring/grafana/provisioning/datasources/prometheus.yml").read_text()
    for panel in panels:
        for target in panel["targets"]:
            assert f"uid: {target['datasource']['uid']}\n" in provisioned


def test_panels_do_not_overlap(dashboard: Any) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells


def test_ports_are_published_on_loopback_only() -> None:
    published = re.findall(r"ports: (\[.*\])", COMPOSE)
    assert len(published) == 4
    for ports in published:
        assert ports.startswith('["127.0.0.1:')
        assert ports.count('"') == 2


def test_nobody_is_let_in_by_a_password_that_everybody_knows() -> None:
    assert "GF_SECURITY_ADMIN_PASSWORD__FILE: /keys/grafana.password\n" in COMPOSE
    assert "GF_SECURITY_ADMIN_PASSWORD:" not in COMPOSE
    assert "GF_AUTH_ANONYMOUS_ENABLED: ${GRAFANA_ANONYMOUS:-false}\n" in COMPOSE
    assert not re.search(r"PASSWORD\w*: \$\{\w+:-[^}]+\}", COMPOSE), "a default is known"


def test_every_file_that_is_mounted_is_there() -> None:
    mounted = re.findall(r"- \./(\S+?):/", COMPOSE)
    assert mounted
    for path in mounted:
        assert (ROOT / path).exists()


def test_shared_memory_is_mounted_to_be_read_and_looked_at_only_where_it_is_asked_for() -> None:
    assert '    volumes: ["bridge-data:/var/lib/reprise", "/dev/shm:/host-shm:ro"]\n' in COMPOSE
    assert COMPOSE.count("/dev/shm") == 1
    assert "    REPRISE_MEMORY_DIR: ${REPRISE_MEMORY_DIR:-}\n" in COMPOSE


def services() -> dict[str, str]:
    """The block of each service, by its name."""
    _, _, after = COMPOSE.partition("\nservices:\n")
    blocks = re.split(r"^  (?=[a-z0-9-]+:$)", after.partition("\nvolumes:")[0], flags=re.MULTILINE)
    return {block.partition(":")[0]: block for block in blocks if block.strip()}


def test_there_is_one_service_for_each_role_and_any_number_of_it_can_be_started() -> None:
    prometheus = (ROOT / "monitoring/prometheus.yml").read_text()
    numbered = [name for name in services() if re.fullmatch(r"(bridge|streams|serve)-.*", name)]
    assert numbered == []
    for role in ("bridge", "streams", "serve"):
        block = services()[role]
        assert "\n    deploy: {replicas: 2}\n" in block
        assert "ports:" not in block, "two containers cannot have one port"
        assert "container_name:" not in block
        assert "<<: [*kafka-client, *slots]" in block, "they share a volume, and keep apart in it"
        assert f"{role}-data:/var/lib/reprise" in block
        assert f"dns_sd_configs: [{{names: [{role}], type: A, " in prometheus


def test_a_rebuild_leaves_what_clients_ask_where_it_is() -> None:
    stage = DOCKERFILE.partition(" AS front\n")[2].partition("\n\n")[0]
    assert re.findall(r"COPY (.*)", stage) == ["reprise/front.py /front.py"]
    before = DOCKERFILE.partition(" AS front\n")[0]
    assert before.count("\nFROM ") == 1, "older builders build all stages before it"
    imports = re.findall(
        r"^(?:from|import) (\w+)", (ROOT / "reprise/front.py").read_text(), re.MULTILINE
    )
    assert imports
    assert set(imports) <= set(sys.stdlib_module_names)
    assert "target: front" in services()["front"]
    assert "depends_on:" not in services()["front"], "Compose 2 replaces it with what it depends on"


def test_a_replica_has_time_to_leave() -> None:
    (grace,) = re.findall(r"stop_grace_period: (\d+)s", services()["serve"])
    assert int(grace) > LEAVE_S + LEAVE_SETTLE_S + HTTP_GRACE_S + 10
    assert WAIT_S >= LEAVE_S


def test_health_checks_start_no_interpreter_and_have_patience() -> None:
    checks = re.findall(r"healthcheck:.*?start_period: \d+s", COMPOSE, re.DOTALL)
    assert len(checks) == COMPOSE.count("healthcheck:") - 1, "one is used twice"
    for check in checks:
        assert not re.search(r"\b(?:python3?|java|node|reprise )", check)
        assert int(re.findall(r"interval: (\d+)s", check)[0]) >= 5
        assert int(re.findall(r"timeout: (\d+)s", check)[0]) >= 10
        assert int(re.findall(r"retries: (\d+)", check)[0]) >= 6


@pytest.mark.parametrize(("answer", "code"), [("200 OK", 0), ("503 Service Unavailable", 1)])
def test_health_checks_go_by_the_status(answer: str, code: int) -> None:
    (program,) = re.findall(
        r"- >-\n((?:        .*\n)+)", services()["serve"].partition("healthcheck:")[2]
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        program = " ".join(program.split()).replace("$$", "$")
        program = program.replace("13333", str(listening.getsockname()[1]))
        with subprocess.Popen(["bash", "-c", program]) as asking:
            taken, _ = listening.accept()
            with taken:
                asked = b""
                while not asked.endswith(b"\r\n\r\n"):
                    asked += taken.recv(1000)
                assert asked == b"GET /ready HTTP/1.0\r\n\r\n"
                taken.sendall(f"HTTP/1.1 {answer}\r\n\r\n".encode())
                assert asking.wait(30) == code


def test_what_is_worth_an_alert_is_a_rule() -> None:
    rules = re.findall(r"expr: (.*?)\n +(?:for|labels):", ALERTS, re.DOTALL)
    assert len(rules) == ALERTS.count("- alert:")
    document = (ROOT / "docs/observe.md").read_text()
    table = document.partition("## Metrics worth an alert")[2].partition("\n\n|")[2]
    metrics = [row.split("|")[0] for row in table.partition("\n\n")[0].split("\n|")]
    documented = set(METRIC.findall(" ".join(metrics)))
    assert documented == set(METRIC.findall(" ".join(rules)))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_the_rules_do_what_their_tests_say() -> None:
    # The file of the key is a container's.
    check = ("check", "config", "--syntax-only", "prometheus.yml")
    for arguments in (("test", "rules", "alerts_test.yml"), check):
        command = ["promtool", *arguments]
        done = subprocess.run(
            command, cwd=ROOT / "monitoring", capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("role", [bridge, streams, serve])
def test_settings_of_a_role_are_documented_and_handed_on(role: click.Command) -> None:
    """But for paths, which are the container's own or mounted."""
    document = (ROOT / "docs/run.md").read_text()
    variables = [found for found in role.params if isinstance(found.envvar, str)]
    assert variables
    for found in variables:
        assert f"`{found.envvar}`" in document
        if not isinstance(found.type, click.Path):
            assert f"  {found.envvar}: " in COMPOSE


@pytest.mark.parametrize("role", [bridge, streams, serve])
def test_settings_are_by_default_what_they_are_without_compose_but_where_it_is_said(
    role: click.Command,
) -> None:
    document = (ROOT / "docs/run.md").read_text()
    rows = [line.split("|") for line in document.splitlines() if line.count("|") >= 6]
    for found in role.params:
        handed = re.search(rf"  {found.envvar}: \$\{{{found.envvar}:-(.+)\}}", COMPOSE)
        if handed:
            row = next(row for row in rows if f"`{found.envvar}`" in row[3])
            default = found.type.convert(handed[1], found, None)
            is_default = str(default) == str(found.default)
            assert "Compose:" in row[4] or is_default, (found.envvar, default, found.default)


def test_spans_are_sent_where_the_environment_says_and_nowhere_by_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    handed = dict(re.findall(r"^  (OTEL_\w+): \$\{\1:-(.*)\}$", COMPOSE, re.MULTILINE))
    assert ENDPOINT in handed
    assert len(handed) == COMPOSE.count("  OTEL_"), "each by its own name"
    for name, value in handed.items():
        monkeypatch.setenv(name, value)
    assert open_tracing(os.environ, "bridge") is NO_TRACING
    with Collector() as collector:
        monkeypatch.setenv(ENDPOINT, collector.endpoint)
        with tracing_of(os.environ, "bridge") as tracing, tracing.tracer.begin(SpanName.ROUTE):
            pass
        assert collector.named("reprise.route")
    assert [one for one in caplog.records if one.levelname != "INFO"] == []


def test_the_image_has_what_sends_spans() -> None:
    (program,) = re.findall(r"RUN python3 -c '(.*?)'", DOCKERFILE, re.DOTALL)
    program = program.replace("\\\n", "").replace("/tmp/pyproject.toml", "pyproject.toml")
    command = [sys.executable, "-c", program]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    expected = project["dependencies"] + project["optional-dependencies"]["otel"]
    assert made.stdout.splitlines() == expected


def test_older_builders_and_compose_take_the_files() -> None:
    assert "--mount" not in DOCKERFILE
    assert "<<" not in DOCKERFILE
    assert not re.search(r"^version:", COMPOSE, re.MULTILINE)
    assert not re.search(r"^(?:configs|name):", COMPOSE, re.MULTILINE)


def test_each_image_is_built_once_and_before_another_service_needs_it() -> None:
    before, _, _ = COMPOSE.partition("\nservices:\n")
    for key in ("build:", "pull_policy: if_not_present"):
        assert [name for name, block in services().items() if key in block] == ["keys", "front"]
        assert key not in before
    assert "\n  pull_policy: never\n" in before
    # Compose 1.29 builds and pulls in the order in which services depend on each other.
    started = "keys: {condition: service_completed_successfully}"
    after_kafka = before.partition("x-after-kafka: ")[2].partition("\n\n")[0]
    assert started in after_kafka
    assert started in before.partition("x-engine: ")[2]
    for role in ("bridge", "streams", "serve"):
        assert "depends_on: *after-kafka\n" in services()[role]
    assert "serve: {condition: service_healthy}" in services()["router"]


def test_the_least_version_is_named() -> None:
    for text in (COMPOSE, (ROOT / "README.md").read_text(), (ROOT / "docs/run.md").read_text()):
        assert "Compose 2.20" in text
        assert "1.29" in text
        assert "--scale" in text


def test_what_ends_all_of_it_names_every_profile() -> None:
    profiles = sorted(set(re.findall(r"profiles: \[(\w+)\]", COMPOSE)))
    assert profiles
    command = " ".join(["docker compose", *(f"--profile {name}" for name in profiles), "down"])
    for text in (
        COMPOSE,
        (ROOT / "README.md").read_text(),
        (ROOT / "docs/run.md").read_text(),
    ):
        assert command in text


def test_what_the_image_copies_is_in_the_build_context() -> None:
    allowed = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    pyproject = (ROOT / "pyproject.toml").read_text()
    packages = re.search(r"^include = \[(.*)\]$", pyproject, re.MULTILINE)
    assert packages
    for package in re.findall(r'"(\w+)\*"', packages[1]):
        assert package in allowed
    assert {"constraints.txt", "pyproject.toml", "README.md"} <= allowed


def test_an_engine_is_reachable_under_its_service_name() -> None:
    bound = EngineReady(
        instance_id="engine-1",
        model="demo",
        block_size=16,
        pid=1,
        http_host="0.0.0.0",
        http_port=8000,
        ranks=[
            RankReady(
                dp_rank=0, endpoint="tcp://0.0.0.0:5557", replay_endpoint="tcp://0.0.0.0:5657"
            ),
            RankReady(dp_rank=1, endpoint="tcp://0.0.0.0:5558", replay_endpoint=""),
        ],
    )
    state = EngineState(
        ready=bound, options=EngineOptions(instance_id="engine-1"), requests=0, batches=[0, 0]
    )
    seen = reachable(state, "engine-1")
    assert seen.http_host == "engine-1"
    assert [rank.endpoint for rank in seen.ranks] == ["tcp://engine-1:5557", "tcp://engine-1:5558"]
    assert [rank.replay_endpoint for rank in seen.ranks] == ["tcp://engine-1:5657", ""]


def test_engines_of_both_demonstrations_take_the_same_time() -> None:
    (costs,) = re.findall(r"- '--costs=(.*)'", COMPOSE)
    assert msgspec.json.decode(costs, type=Costs) == COSTS


def test_outcomes_are_reported_to_the_replica_that_decided_and_decisions_go_on_without_one() -> (
    None
):
    first, second = StubService(), StubService()
    replicas = Replicas([first.url, second.url])
    candidates = [Candidate(instance_id="engine-1", dp_rank=0, endpoint="")]

    def decide() -> str:
        answer = replicas.route([1] * 16, model="demo", block_size=16, candidates=candidates)
        return answer.decision_id

    try:
        decided = [decide() for _ in range(4)]
        assert first.decided == second.decided == 2
        replicas.feedback([OutcomeReport(decision_id=one, event="completed") for one in decided])
        for service in (first, second):
            assert len(service.reports) == 2
            for report in service.reports:
                assert str(report["decision_id"]).startswith(service.url)
        second.failing = True
        assert all(decide().startswith(first.url) for _ in range(4))
        replicas.feedback([OutcomeReport(decision_id=one, event="failed") for one in decided])
        assert len(first.reports) == 6, "those of the other one as well"
        first.failing = True
        with pytest.raises(ServiceError):
            replicas.feedback([OutcomeReport(decision_id=one, event="failed") for one in decided])
    finally:
        replicas.close()
        first.close()
        second.close()


def test_a_query_goes_to_the_next_replica_when_one_is_away() -> None:
    service = StubService()
    replicas = Replicas(["http://127.0.0.1:9", service.url])
    try:
        for _ in range(4):
            assert replicas.query([1] * 16, model="demo", block_size=16) == {}
    finally:
        replicas.close()
        service.close()


def test_replicas_that_come_and_go_are_noticed() -> None:
    first, second = StubService(), StubService()
    found, now = [first.url], [0.0]
    replicas = Replicas(
        ["http://serve:1"], resolve=lambda url: list(found), monotonic=lambda: now[0]
    )

    def query() -> None:
        assert replicas.query([1] * 16, model="demo", block_size=16) == {}

    try:
        query()
        found.append(second.url)
        query()
        assert list(replicas.clients) == [first.url]
        now[0] += RESOLVE_S
        query()
        assert list(replicas.clients) == [first.url, second.url]
        found.remove(first.url)
        now[0] += RESOLVE_S
        query()
        assert list(replicas.clients) == [second.url]
    finally:
        replicas.close()
        first.close()
        second.close()


def test_a_host_stands_for_all_its_addresses() -> None:
    assert addresses("http://127.0.0.1:9") == ["http://127.0.0.1:9"]
    assert addresses("http://nothing.invalid:9") == ["http://nothing.invalid:9"]
