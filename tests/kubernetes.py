"""Objects of the Kubernetes API as an API server sends them, and a server that replays them."""

import asyncio
import json
import threading
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

NAMESPACE = "models"


def pod(
    name: str = "vllm-0",
    uid: str = "uid-0",
    *,
    address: str = "127.0.0.1",
    ready: bool = True,
    phase: str = "Running",
    version: str = "1",
    label: str | None = "vllm",
    **annotations: str,
) -> dict[str, Any]:
    """A pod with one engine; annotations are written with underscores, without their prefix."""
    notes = {"model": "m", "block_size": "16"} | annotations
    labels = {} if label is None else {"reprise.dev/engine": label}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid,
            "resourceVersion": version,
            "labels": labels,
            "annotations": {
                f"reprise.dev/{key.replace('_', '-')}": value for key, value in notes.items()
            },
        },
        "spec": {"nodeName": "node-1", "containers": [{"name": "vllm", "image": "vllm"}]},
        "status": {
            "phase": phase,
            "podIP": address,
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False"},
            ],
        },
    }


def endpoint_slice(
    *pods: Mapping[str, Any], uid: str = "slice-0", version: str = "1", **ports: int
) -> dict[str, Any]:
    """Of a Service that has the label, and points to pods that need not have it."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "addressType": "IPv4",
        "metadata": {
            "name": "vllm-x7f",
            "namespace": NAMESPACE,
            "uid": uid,
            "resourceVersion": version,
            "labels": {
                "kubernetes.io/service-name": "vllm",
                "reprise.dev/engine": "vllm",
                "reprise.dev/model": "m",
                "reprise.dev/block-size": "16",
            },
        },
        "ports": [
            {"name": name.replace("_", "-"), "port": port, "protocol": "TCP"}
            for name, port in ports.items()
        ],
        "endpoints": [
            {
                "addresses": [one["status"]["podIP"]],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": "node-1",
                "zone": "z1",
                "targetRef": {
                    "kind": "Pod",
                    "name": one["metadata"]["name"],
                    "namespace": NAMESPACE,
                    "uid": one["metadata"]["uid"],
                },
            }
            for one in pods
        ],
    }


class HttpServer:
    """An aiohttp application in a thread of its own.

    Attributes:
        port: of 127.0.0.1.
    """

    def __init__(self, app: web.Application) -> None:
        self.port = 0
        self.loop = asyncio.new_event_loop()
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        self._thread = threading.Thread(target=self._run)
        self._started = threading.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        self.loop.run_until_complete(self._start())
        self.loop.run_forever()
        self.loop.run_until_complete(self._runner.cleanup())
        self.loop.close()

    async def _start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        self._started.set()


class ApiServer:
    """Lists and watches of pods and slices, on a port of its own, as a test says.

    Attributes:
        requests: what was asked: the kind, and the parameters of the URL.
        is_away: every request is answered 503.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.is_away = False
        self._objects: dict[str, dict[str, dict[str, Any]]] = {"pods": {}, "endpointslices": {}}
        self._version = 100
        self._oldest = 0
        self._watches: dict[str, list[asyncio.Queue[bytes | None]]] = {
            name: [] for name in self._objects
        }
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._server = HttpServer(app)

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for kind in self._objects:
            self.send(kind, None)
        self._server.__exit__(*error)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.port}"

    def put(self, found: dict[str, Any], *, is_told: bool = True) -> None:
        """An object is there, or another one; `is_told`: watches hear of it."""
        kind = _kind(found)
        uid = found["metadata"]["uid"]
        event = "MODIFIED" if uid in self._objects[kind] else "ADDED"
        self._stamp(found)
        self._objects[kind][uid] = found
        if is_told:
            self.tell(kind, event, found)

    def delete(self, found: dict[str, Any], *, is_told: bool = True) -> None:
        """An object is there no more."""
        kind = _kind(found)
        self._objects[kind].pop(found["metadata"]["uid"], None)
        self._stamp(found)
        if is_told:
            self.tell(kind, "DELETED", found)

    def tell(self, kind: str, event: str, found: Mapping[str, Any]) -> None:
        """An event, whether it is so or not."""
        self.send(kind, json.dumps({"type": event, "object": found}).encode() + b"\n")

    def send(self, kind: str, line: bytes | None) -> None:
        """Bytes of every watch; None: they end."""

        def put() -> None:
            for queue in self._watches[kind]:
                queue.put_nowait(line)

        self._server.loop.call_soon_threadsafe(put)

    def forget_history(self) -> None:
        """Versions so far are too old for a watch, as after a compaction of etcd; watches end."""
        self._version += 1
        self._oldest = self._version
        for kind in self._objects:
            self.send(kind, None)

    def expire(self, kind: str) -> None:
        """Watches end with the error event of 410, as they do while they run."""
        self._version += 1
        self._oldest = self._version
        status = {
            "kind": "Status",
            "code": 410,
            "message": "too old resource version",
            "reason": "Expired",
        }
        self.tell(kind, "ERROR", status)
        self.send(kind, None)

    def watches(self, kind: str = "pods") -> int:
        """How many are open."""
        return len(self._watches[kind])

    def lists(self, kind: str = "pods") -> int:
        """How often all was asked for."""
        return sum(1 for one, given in self.requests if one == kind and "watch" not in given)

    def _stamp(self, found: dict[str, Any]) -> None:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        parts = urlsplit(str(request.rel_url))
        kind = parts.path.rpartition("/")[2]
        given = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.requests.append((kind, given))
        if self.is_away:
            return web.json_response({"kind": "Status", "code": 503}, status=503)
        if "watch" in given:
            return await self._watch(request, kind, given)
        return self._list(kind, given)

    def _list(self, kind: str, given: Mapping[str, str]) -> web.Response:
        found = sorted(self._objects[kind].values(), key=lambda one: str(one["metadata"]["uid"]))
        begin, limit = int(given.get("continue", "0")), int(given.get("limit", "500"))
        meta = {"resourceVersion": str(self._version)}
        if begin + limit < len(found):
            meta["continue"] = str(begin + limit)
        return web.json_response({"metadata": meta, "items": found[begin : begin + limit]})

    async def _watch(
        self, request: web.Request, kind: str, given: Mapping[str, str]
    ) -> web.StreamResponse:
        if int(given.get("resourceVersion", "0")) < self._oldest:
            status = {"kind": "Status", "code": 410, "reason": "Expired"}
            return web.json_response(status, status=410)
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._watches[kind].append(queue)
        try:
            while (line := await queue.get()) is not None:
                await answer.write(line)
        finally:
            self._watches[kind].remove(queue)
        return answer


def _kind(found: Mapping[str, Any]) -> str:
    return "pods" if found["kind"] == "Pod" else "endpointslices"
