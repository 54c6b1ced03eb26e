"""What is to be registered of a pod, or of an endpoint of an EndpointSlice. Pure.

    label       reprise.dev/engine: vLLM            whose events: a `type` of `POST /register`
    annotations reprise.dev/model: deepseek         else the engine's first one, /v1/models
                reprise.dev/block-size: "16"        else the engine is asked
                reprise.dev/events-port: "5557"     of rank 0; rank n has the nth port behind it
                reprise.dev/replay-port: "5558"     likewise; none: not asked for what was missed
                reprise.dev/http-port: "8000"       0: it has no HTTP server that may be asked
                reprise.dev/data-parallel-size: "1"
                reprise.dev/instance, tenant, lora, namespace, role, url, memory-segment,
                curve-server-key

Source: Kubernetes API, core/v1 Pod, discovery.k8s.io/v1 EndpointSlice.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from schemas.limits import LABEL_BYTES_MAX
from schemas.registration import PUBLISHER_KINDS

DISCOVERED_RANKS_MAX: Final = 1_024  # of one pod: an error in its annotation is refused and named
KUBERNETES_TEXT_CHARS_MAX: Final = 1_024  # of an annotation that is used

PREFIX: Final = "reprise.dev/"
ENGINE_LABEL: Final = PREFIX + "engine"
NAMESPACE_LABEL: Final = "k8s-namespace"
UID_LABEL: Final = "k8s-uid"
POD_LABEL: Final = "k8s-pod"

_KINDS: Final = {one.pod_label: kind for kind, one in PUBLISHER_KINDS.items() if one.pod_label}
_PORTS: Final = {"kv-events": "events-port", "kv-replay": "replay-port", "http": "http-port"}
_DEFAULT_EVENTS_PORT: Final = 5557
_DEFAULT_HTTP_PORT: Final = 8000
_GONE: Final = ("Succeeded", "Failed")


class UnusableError(ValueError):
    """A pod says something that cannot be registered; the text says what was expected."""


class Engine(NamedTuple):
    """A pod with an engine in it.

    Attributes:
        namespace, pod, uid: of the pod. A pod that is made anew has another uid.
        host: its address, as it stands in a URL.
        kind: whose events it publishes.
        facts: its settings, by the name behind `reprise.dev/`.
        node: the machine that it runs on, or "".
        zone: of an endpoint, or "".
        is_ready: whether requests would be sent to it.
    """

    namespace: str
    pod: str
    uid: str
    host: str
    kind: str
    facts: Mapping[str, str]
    node: str
    zone: str
    is_ready: bool

    @property
    def http_url(self) -> str:
        """Of its HTTP server; "" where it has none."""
        port = _port(self, "http-port", _DEFAULT_HTTP_PORT)
        return f"http://{self.host}:{port}" if port else ""


def read_pod(pod: Mapping[str, Any]) -> Engine | None:
    """The engine of a pod; None where there is none to register, now or ever.

    Args:
        pod: as the API server sends it.

    Raises:
        UnusableError: its label or annotations cannot be used.
    """
    meta, status = part(pod, "metadata"), part(pod, "status")
    labels, notes = part(meta, "labels"), part(meta, "annotations")
    kind, uid, address = labels.get(ENGINE_LABEL), meta.get("uid"), status.get("podIP")
    if not kind or not uid or not address or status.get("phase") in _GONE:
        return None
    ready = any(
        one.get("type") == "Ready" and one.get("status") == "True"
        for one in status.get("conditions") or ()
    )
    return Engine(
        namespace=str(meta.get("namespace", "")),
        pod=str(meta.get("name", "")),
        uid=str(uid),
        host=_host(address),
        kind=_KINDS.get(kind.lower(), kind),
        facts=_facts(notes),
        node=str(part(pod, "spec").get("nodeName") or ""),
        zone="",
        is_ready=ready,
    )


def read_slice(found: Mapping[str, Any]) -> list[Engine]:
    """The engines that a Service points to: its label is on its slices. Endpoints that are no pods
    are left out.

    Raises:
        UnusableError: the slice's labels cannot be used.
    """
    meta = part(found, "metadata")
    labels = part(meta, "labels")
    kind = labels.get(ENGINE_LABEL)
    if not kind or found.get("addressType") not in ("IPv4", "IPv6"):
        return []
    facts = dict(_facts(labels))
    for port in found.get("ports") or ():
        name = _PORTS.get(port.get("name") or "")
        if name and port.get("port"):
            facts.setdefault(name, str(port["port"]))
    engines = []
    for endpoint in found.get("endpoints") or ():
        target = part(endpoint, "targetRef")
        addresses = endpoint.get("addresses") or ()
        if target.get("kind") != "Pod" or not target.get("uid") or not addresses:
            continue
        ready = part(endpoint, "conditions").get("ready")
        engines.append(
            Engine(
                namespace=str(meta.get("namespace", "")),
                pod=str(target.get("name", "")),
                uid=str(target["uid"]),
                host=_host(addresses[0]),
                kind=_KINDS.get(kind.lower(), kind),
                facts=facts,
                node=str(endpoint.get("nodeName") or ""),
                zone=str(endpoint.get("zone") or ""),
                is_ready=ready is None or bool(ready),  # as the API says: null counts as ready
            )
        )
    return engines


def bodies(engine: Engine, model: str, block_size: int) -> list[dict[str, Any]]:
    """What `POST /register` is sent, one for each rank.

    Args:
        engine: a pod's.
        model: where its annotations do not say it.

    Raises:
        UnusableError: a setting cannot be used.
    """
    facts = engine.facts
    ranks = _number(engine, "data-parallel-size", 1, 1, DISCOVERED_RANKS_MAX)
    events = _port(engine, "events-port", _DEFAULT_EVENTS_PORT)
    replay = _port(engine, "replay-port", 0)
    for port in (events, replay):
        if port + ranks > 65_536:
            raise UnusableError(f"expected ports below 65536 for {ranks} ranks, got base {port}")
    named = {NAMESPACE_LABEL: engine.namespace, POD_LABEL: engine.pod, UID_LABEL: engine.uid}
    named |= {"host": engine.node, "zone": engine.zone}
    labels = {name: value[:LABEL_BYTES_MAX] for name, value in named.items() if value}
    common = {
        "type": engine.kind,
        "modelname": facts.get("model") or model,
        "instance_id": facts.get("instance") or engine.pod,
        "block_size": _number(engine, "block-size", block_size, 1, 1 << 20),
        "http_endpoint": engine.http_url,
        "tenant_id": facts.get("tenant", ""),
        "lora_name": facts.get("lora", ""),
        "additionalsalt": facts.get("namespace", ""),
        "role": facts.get("role", ""),
        "url": facts.get("url", ""),
        "memory_segment": facts.get("memory-segment", ""),
        "curve_server_key": facts.get("curve-server-key", ""),
        "kv_offloading": facts.get("kv-offloading", ""),
        "kv_partial_reuse": facts.get("kv-partial-reuse", ""),
        "kv_cache_groups": facts.get("kv-cache-groups", ""),
        "lora_reload": facts.get("lora-reload", ""),
    }
    reads = [name for name in facts.get("reads", "").split(",") if name]
    return [
        {name: value for name, value in common.items() if value}
        | ({"reads": sorted(set(reads))} if "reads" in facts else {})
        | {
            "endpoint": f"tcp://{engine.host}:{events + rank}",
            "dp_rank": rank,
            "labels": labels,
        }
        | ({"replay_endpoint": f"tcp://{engine.host}:{replay + rank}"} if replay else {})
        for rank in range(ranks)
    ]


def _facts(notes: Mapping[str, Any]) -> Mapping[str, str]:
    found = {
        name.removeprefix(PREFIX): str(value)
        for name, value in notes.items()
        if name.startswith(PREFIX) and name != ENGINE_LABEL
    }
    for name, value in found.items():
        if len(value) > KUBERNETES_TEXT_CHARS_MAX:
            text = f"expected {PREFIX}{name} of at most {KUBERNETES_TEXT_CHARS_MAX} characters"
            raise UnusableError(f"{text}, got {len(value)}")
    return found


def _port(engine: Engine, name: str, default: int) -> int:
    return _number(engine, name, default, 0, 65_535)


def _number(engine: Engine, name: str, default: int, low: int, high: int) -> int:
    text = engine.facts.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high):
        raise UnusableError(f"expected {PREFIX}{name} from {low} to {high}, got: {text[:80]}")
    return int(text)


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A mapping in a mapping; an empty one where it is not there, or something else."""
    found = document.get(name)
    return found if isinstance(found, Mapping) else {}
