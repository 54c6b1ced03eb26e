"""The Helm chart: what it makes is what Kubernetes takes, and what the commands of Reprise take."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml
from kubernetes_asyncio import client

from query_api.access.key_ring import KeyRing
from query_api.access.rights import Right
from reprise.cli.main import main

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy/helm/reprise"
MANIFEST: Final = ROOT / "deploy/kubernetes/reprise.yaml"
EVERYTHING: Final = (
    "mode=distributed",
    "kafka.bootstrap=kafka:9092",
    "kafka.saslMechanism=SCRAM-SHA-256",
    "kafka.saslSecret=sasl",
    "kafka.caSecret=ca",
    "serve.history=true",
    "serviceMonitor.enabled=true",
    "prometheusRule.enabled=true",
    "dashboards.enabled=true",
    "discover.enabled=true",
    "inferencePool.enabled=true",
    "inferencePool.matchLabels.app=vllm",
    "gateway.enabled=true",
    "gateway.engines={http://a:8000,http://b:8000}",
    "gateway.type=LoadBalancer",
    "engineKeysSecret=vllm",
    "allowEngines=10.0.0.0/8",
    "storageClass=fast",
    "tracing.endpoint=http://collector:4318",
    "imagePullSecrets[0].name=registry",
    "nodeSelector.disk=ssd",
    "podLabels.team=serving",
    "podAnnotations.note=x",
    "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring",
    "settings.routing.policy=round-robin",
    "settings.streams.flush_ms=30",
    "env[0].name=CONDUCTOR_LOG_LEVEL",
    "env[0].value=DEBUG",
)
COMBINATIONS: Final = {
    "default": (),
    "demo": ("demo=true",),
    "embedded with a Secret": (
        "keys.existingSecret=own",
        "serviceMonitor.enabled=true",
        "discover.enabled=true",
        "service.type=LoadBalancer",
    ),
    "with a pool": ("inferencePool.enabled=true", "inferencePool.matchLabels.app=vllm"),
    "with a gateway": ("gateway.enabled=true", "engineKeysSecret=vllm"),
    "distributed": ("mode=distributed", "kafka.bootstrap=kafka:9092"),
    "everything": EVERYTHING,
    "nothing more": ("networkPolicy.enabled=false", "podDisruptionBudget.enabled=false"),
}
KINDS: Final = {
    "StatefulSet": client.V1StatefulSet,
    "Deployment": client.V1Deployment,
    "Service": client.V1Service,
    "Secret": client.V1Secret,
    "ConfigMap": client.V1ConfigMap,
    "NetworkPolicy": client.V1NetworkPolicy,
    "PodDisruptionBudget": client.V1PodDisruptionBudget,
    "ServiceAccount": client.V1ServiceAccount,
    "Role": client.V1Role,
    "RoleBinding": client.V1RoleBinding,
}
OTHERS: Final = {
    "ServiceMonitor": "monitoring.coreos.com/v1",
    "PrometheusRule": "monitoring.coreos.com/v1",
    "InferencePool": "inference.networking.k8s.io/v1",
}
"""Kinds of Prometheus's operator and of the Inference Extension, with their versions."""


@cache
def helm() -> str:
    """Its path; skips the test where it is not installed."""
    found = shutil.which("helm")
    if found is None:
        pytest.skip("no helm on the PATH: the chart is not rendered")
    return found


@cache
def template(*values: str) -> "subprocess.CompletedProcess[str]":
    """What `helm template` makes of the chart."""
    command = [helm(), "template", "reprise", str(CHART), "--namespace", "reprise"]
    command += ["--kube-version", "1.31.0"]
    for value in values:
        command += ["--set", value]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def documents(*values: str) -> list[dict[str, Any]]:
    done = template(*values)
    assert done.returncode == 0, done.stderr[-2000:]
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def unknown_fields(found: Any, kind: Any, path: str) -> list[str]:
    """Fields that the API does not have, and values of another kind, by its own OpenAPI document,
    of which the client's models are made.
    """
    if isinstance(kind, str):
        listed = re.fullmatch(r"list\[(.*)\]", kind)
        mapped = re.fullmatch(r"dict\(str, (.*)\)", kind)
        if listed:
            if not isinstance(found, list):
                return [f"{path}: expected a list, got {found!r}"]
            parts = (
                unknown_fields(one, listed[1], f"{path}[{at}]") for at, one in enumerate(found)
            )
            return [error for part in parts for error in part]
        if mapped:
            if not isinstance(found, dict):
                return [f"{path}: expected a mapping, got {found!r}"]
            parts = (unknown_fields(found[key], mapped[1], f"{path}.{key}") for key in found)
            return [error for part in parts for error in part]
        plain = {"str": str, "int": int, "bool": bool, "float": float}.get(kind)
        if plain:
            is_right = isinstance(found, plain) and not (plain is int and isinstance(found, bool))
            return [] if is_right else [f"{path}: expected {kind}, got {found!r}"]
        model = getattr(client, kind, None)
        if model is None:  # object, datetime: anything
            return []
        kind = model
    if not isinstance(found, dict):
        # A quantity, or a number or a string, is either.
        return (
            [] if not kind.openapi_types else [f"{path}: expected {kind.__name__}, got {found!r}"]
        )
    names = {name: attribute for attribute, name in kind.attribute_map.items()}
    errors = []
    for name, value in found.items():
        if name not in names:
            errors.append(f"{path}.{name}: {kind.__name__} has no such field")
        else:
            errors += unknown_fields(value, kind.openapi_types[names[name]], f"{path}.{name}")
    return errors


def write_settings(made: Iterable[Mapping[str, Any]], directory: Path) -> None:
    """Writes the file of settings where a pod that is run here reads it."""
    (found,) = [
        one
        for one in made
        if one["kind"] == "ConfigMap" and one["metadata"]["name"].endswith("-settings")
    ]
    (directory / "reprise.toml").write_text(found["data"]["reprise.toml"])


def containers(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    if found["kind"] not in ("StatefulSet", "Deployment"):
        return []
    spec = found["spec"]["template"]["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def test_the_check_finds_what_is_wrong() -> None:
    wrong = {"spec": {"replicas": "1", "template": {"spec": {"containerz": []}}}}
    found = unknown_fields(wrong, client.V1StatefulSet, "x")
    assert len(found) == 2
    assert "containerz" in found[1]


@pytest.mark.parametrize("name", COMBINATIONS)
def test_what_it_makes_is_what_kubernetes_takes(name: str) -> None:
    made = documents(*COMBINATIONS[name])
    assert made
    for one in made:
        where = f"{one['kind']} {one['metadata']['name']}"
        if one["kind"] in OTHERS:
            assert one["apiVersion"] == OTHERS[one["kind"]]
            continue
        assert unknown_fields(one, KINDS[one["kind"]], where) == []
        for label in one["metadata"]["labels"].values():
            assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", label), where
    names = [(one["kind"], one["metadata"]["name"]) for one in made]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_every_command_takes_its_arguments(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = documents(*COMBINATIONS[name])
    write_settings(made, tmp_path)

    def here(text: str) -> str:
        return text.replace("/var/lib/reprise", str(tmp_path)).replace("/settings", str(tmp_path))

    for one in made:
        for container in containers(one):
            if container["name"] == "keys":
                continue
            command, *arguments = container["args"]
            arguments = [here(text) for text in arguments]
            with monkeypatch.context() as environment:
                for variable in container.get("env", ()):
                    environment.setenv(variable["name"], here(str(variable.get("value", "x"))))
                found = main.get_command(click.Context(main), command)
                assert found is not None
                found.make_context(command, arguments)


def test_settings_are_one_file_over_which_the_value_settings_stands() -> None:
    def settings(*values: str) -> dict[str, Any]:
        (found,) = [
            tomllib.loads(one["data"]["reprise.toml"])
            for one in documents(*values)
            if one["kind"] == "ConfigMap" and one["metadata"]["name"].endswith("-settings")
        ]
        return found

    assert settings("settings.log.retention_gib=9", "settings.routing.policy=random") == {
        "access": {"open_probes": True},
        "log": {"retention_gib": 9, "retention_hours": 168},
        "routing": {"policy": "random"},
    }
    distributed = settings(*EVERYTHING)
    assert distributed["history"] == {"on": True, "gib": 4}
    assert distributed["streams"] == {"flush_ms": 30}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_containers_may_do_no_more_than_they_need(name: str) -> None:
    for one in documents(*COMBINATIONS[name]):
        for container in containers(one):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            spec = one["spec"]["template"]["spec"]
            assert spec["securityContext"]["runAsNonRoot"] is True
            has_token = spec["automountServiceAccountToken"]
            assert has_token == (container["name"] == "discover"), "only who asks the API has one"


@pytest.mark.parametrize("mode", [("mode=embedded",), EVERYTHING], ids=["embedded", "distributed"])
def test_spans_are_sent_by_all_roles_where_a_collector_is_named(mode: tuple[str, ...]) -> None:
    named = (*mode, "tracing.endpoint=http://collector:4318")
    for values, expected in (
        (named, "http://collector:4318"),
        ((*mode, "tracing.endpoint="), None),
    ):
        for one in documents(*values):
            for container in containers(one):
                if container["name"] in ("keys", "discover"):  # they have none
                    continue
                found = {item["name"]: item.get("value") for item in container["env"]}
                assert found.get("OTEL_EXPORTER_OTLP_ENDPOINT") == expected, container["name"]


def test_each_service_and_policy_selects_pods_that_there_are() -> None:
    made = documents(*EVERYTHING)
    pods = [
        one["spec"]["template"]["metadata"]["labels"]
        for one in made
        if one["kind"] in ("StatefulSet", "Deployment")
    ]
    selectors = [one["spec"]["selector"] for one in made if one["kind"] == "Service"]
    selectors += [
        one["spec"]["podSelector"]["matchLabels"] for one in made if one["kind"] == "NetworkPolicy"
    ]
    selectors += [
        one["spec"]["selector"]["matchLabels"]
        for one in made
        if one["kind"] == "PodDisruptionBudget"
    ]
    assert len(selectors) == 11
    for selector in selectors:
        assert sum(1 for labels in pods if selector.items() <= labels.items()) == 1, selector


def container_behind(service: Any, made: list[Any]) -> Any:
    """Where a Service leads."""
    (found,) = [
        container
        for one in made
        if one["kind"] == "StatefulSet"
        and service["spec"]["selector"].items()
        <= one["spec"]["template"]["metadata"]["labels"].items()
        for container in one["spec"]["template"]["spec"]["containers"]
    ]
    return found


@pytest.mark.parametrize("mode", [(), EVERYTHING], ids=["embedded", "distributed"])
def test_pool_names_a_picker_that_its_pods_are(mode: tuple[str, ...]) -> None:
    values = ("inferencePool.enabled=true", "inferencePool.matchLabels.app=vllm")
    made = documents(*mode, *values, "inferencePool.targetPorts={8000,8001}")
    (pool,) = [one for one in made if one["kind"] == "InferencePool"]
    assert set(pool["spec"]) == {"selector", "targetPorts", "endpointPickerRef"}
    assert pool["spec"]["selector"] == {"matchLabels": {"app": "vllm"}}
    assert pool["spec"]["targetPorts"] == [{"number": 8000}, {"number": 8001}]
    picker = pool["spec"]["endpointPickerRef"]
    assert picker["failureMode"] == "FailOpen"
    (service,) = [one for one in made if one["metadata"]["name"] == picker["name"]]
    (port,) = service["spec"]["ports"]
    assert port["port"] == picker["port"]["number"]
    container = container_behind(service, made)
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    told = {one["name"]: one.get("value") for one in container["env"]}
    assert told["REPRISE_EXT_PROC"] == f"0.0.0.0:{ports[port['targetPort']]}"
    policies = [one["spec"]["ingress"] for one in made if one["kind"] == "NetworkPolicy"]
    allowed = [
        rule for rules in policies for rule in rules if rule["ports"] == [{"port": "ext-proc"}]
    ]
    assert [rule["from"] for rule in allowed] == [[{"podSelector": {}}]]


@pytest.mark.parametrize("mode", [(), EVERYTHING], ids=["embedded", "distributed"])
def test_gateway_answers_where_its_service_leads(mode: tuple[str, ...]) -> None:
    engines = "gateway.engines={http://a:8000,http://b:8000}"
    made = documents(*mode, "gateway.enabled=true", "gateway.port=80", engines)
    (service,) = [one for one in made if one["metadata"]["name"] == "reprise-gateway"]
    (port,) = service["spec"]["ports"]
    assert port["port"] == 80
    container = container_behind(service, made)
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    told = {one["name"]: one.get("value") for one in container["env"]}
    assert told["REPRISE_GATEWAY"] == f"0.0.0.0:{ports[port['targetPort']]}"
    assert told["REPRISE_ENGINES"] == "http://a:8000,http://b:8000"
    policies = [one["spec"]["ingress"] for one in made if one["kind"] == "NetworkPolicy"]
    allowed = [
        rule for rules in policies for rule in rules if rule["ports"] == [{"port": "gateway"}]
    ]
    assert [rule["from"] for rule in allowed] == [[{"podSelector": {}}]]


@pytest.mark.parametrize(
    ("mode", "roles"), [((), {"up"}), (EVERYTHING, {"serve", "bridge"})], ids=["one", "several"]
)
def test_roles_that_ask_engines_have_the_keys_of_engines(
    mode: tuple[str, ...], roles: set[str]
) -> None:
    found = set()
    for one in documents(*mode, "engineKeysSecret=vllm"):
        if one["kind"] != "StatefulSet":
            continue
        pod = one["spec"]["template"]
        (container,) = pod["spec"]["containers"]
        told = {each["name"]: each.get("value", "") for each in container["env"]}
        if "REPRISE_ENGINE_KEYS" not in told:
            continue
        found.add(pod["metadata"]["labels"]["app.kubernetes.io/component"])
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "engine-keys"]
        assert volume["secret"]["secretName"] == "vllm"
        assert told["REPRISE_ENGINE_KEYS"] == f"{mounts['engine-keys']}/engine.keys"
    assert found == roles


def test_keys_of_the_chart_are_keys(tmp_path: Path) -> None:
    (secret,) = [one for one in documents(*EVERYTHING) if one["kind"] == "Secret"]
    data = secret["stringData"]
    path = tmp_path / "keys.toml"
    path.write_text(data["keys.toml"])
    ring = KeyRing(path)
    assert len(ring) == 3
    for name, rights in (
        ("operator", {Right.ADMIN}),
        ("metrics", {Right.READ}),
        ("discover", {Right.READ, Right.REGISTER}),
    ):
        key = ring.find(f"Bearer {data[f'{name}.key']}".encode())
        assert (key.id, rights <= key.access.rights) == (name, True)


def test_alerts_and_dashboards_are_those_of_the_project() -> None:
    made = documents(*EVERYTHING)
    (rule,) = [one for one in made if one["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load((ROOT / "monitoring/alerts.yml").read_text())
    (dashboards,) = [
        one
        for one in made
        if one["kind"] == "ConfigMap" and not one["metadata"]["name"].endswith("-settings")
    ]
    own = {one.name: one.read_text() for one in (ROOT / "monitoring/grafana/dashboards").iterdir()}
    assert {name: text.strip() for name, text in dashboards["data"].items()} == {
        name: text.strip() for name, text in own.items()
    }


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (("mode=both",), "mode: expected embedded or distributed, got: both"),
        (("mode=distributed",), "kafka.bootstrap: expected host:port"),
        (("demo=true", "keys.existingSecret=own"), "demo: only without keys.existingSecret"),
        (("serviceMonitor.enabled=true",), "serviceMonitor: put a key with the right `read`"),
        (("inferencePool.enabled=true",), "inferencePool.matchLabels: expected labels"),
        (("discover.enabled=true",), "discover: put a key with the rights read and register"),
    ],
)
def test_values_that_do_not_go_together_are_named(values: tuple[str, ...], said: str) -> None:
    done = template(*values)
    assert done.returncode != 0
    assert said in done.stderr


def test_the_manifest_is_what_the_chart_makes() -> None:
    made = documents()
    for one in made:
        template = one.get("spec", {}).get("template", {})
        for meta in (one["metadata"], template.get("metadata", {})):
            if meta:  # nobody but kubectl applies it
                meta["labels"]["app.kubernetes.io/managed-by"] = "kubectl"
                del meta["labels"]["helm.sh/chart"]
    assert manifest() == made, "run `make chart`"


def manifest() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


def test_the_manifest_is_what_kubernetes_takes() -> None:
    for one in manifest():
        assert unknown_fields(one, KINDS[one["kind"]], one["kind"]) == []
