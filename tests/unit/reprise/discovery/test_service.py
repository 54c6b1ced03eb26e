"""Discovery between an API server that replays what real ones send, and a service's own routes."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from aiohttp import web

from console.service_client import RefusedError
from query_api.http.answers import services_document
from query_api.http.models import Service, Services
from reprise.application import create_app
from reprise.discovery import object_follower, service
from reprise.discovery.api_server import ApiServer as ApiClient
from reprise.discovery.api_server import ApiSettings
from reprise.discovery.membership import Membership
from reprise.discovery.object_follower import ObjectFollower
from reprise.discovery.service import MembershipSink, PodComplaints, PodDiscovery, readers
from tests.fakes import AsgiClient, FakeTable
from tests.kubernetes import NAMESPACE, ApiServer, HttpServer, endpoint_slice, pod
from tests.processes import until

STRANGE = (
    b'{"type":"ADDED","object":{"metadata":{"uid":"x","labels":{"reprise.dev/engine":"vllm"}},'
    b'"status":{"podIP":7,"conditions":["Ready"]}}}\n{"type":"ADDED","object":{"metadata":[]}}\n'
)


class Registrar:
    """Asks the routes of a service that stands in the same process."""

    url = "http://service"

    def __init__(self) -> None:
        self._table = FakeTable()
        self._client = AsgiClient(create_app(self._table, self._table))

    def registered(self) -> list[Service]:
        document = services_document(self._table.services())
        return msgspec.convert(document, Services).services

    async def services(self) -> list[Service]:
        """See `PodRegistrar`."""
        return self.registered()

    async def send(self, path: str, body: dict[str, Any]) -> None:
        """See `PodRegistrar`."""
        if "169.254." in body.get("endpoint", ""):  # as `AllowedEngines` has it
            raise RefusedError(400, "Expected the address of an engine")
        reply = await asyncio.to_thread(self._client.post_json, path, body)
        if reply.status != 200:
            raise RefusedError(reply.status, reply.body.decode())


class Discover:
    """`run_discovery` without its signals, on a loop in a thread, and the service of it."""

    def __init__(self, cluster: ApiServer) -> None:
        self._settings = ApiSettings(cluster.url)
        self._registrar = Registrar()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._run()])
        self._running: asyncio.Future[None] | None = None

    async def _run(self) -> None:
        changed = asyncio.Event()
        membership, said = Membership(0.1), PodComplaints()
        async with ApiClient(self._settings, NAMESPACE, "reprise.dev/engine") as server:
            followers = [
                ObjectFollower(
                    source, server, MembershipSink(source, read, membership, said, changed.set)
                )
                for source, read in readers().items()
            ]
            registrar: Any = self._registrar
            discovery = PodDiscovery(NAMESPACE, membership, followers, registrar, changed, said)
            self._running = asyncio.ensure_future(discovery.run())
            await asyncio.wait([self._running])

    def start(self) -> None:
        self._thread.start()

    def is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    def stop(self) -> None:
        until(self.is_running, what="it runs")
        assert self._running is not None
        self._loop.call_soon_threadsafe(self._running.cancel)
        self._thread.join(10)
        self._loop.close()

    def services(self) -> list[Service]:
        return self._registrar.registered()

    def registered(self) -> dict[str, str]:
        """The uid of each pod's registration, by instance and rank."""
        return {
            f"{one.InstanceID}/{one.DPRank}": one.Labels.get("k8s-uid", "")
            for one in self.services()
        }

    def until(self, wanted: dict[str, str]) -> None:
        until(
            lambda: self.registered() == wanted,
            what=f"{wanted} is registered, not {self.registered()}",
        )


@pytest.fixture
def cluster() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def discover(cluster: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Discover]:
    monkeypatch.setattr(object_follower, "DISCOVERY_RETRY_S", 0.05)
    monkeypatch.setattr(service, "DISCOVERY_GATHER_S", 0.02)
    running = Discover(cluster)
    yield running
    running.stop()


def test_a_pod_made_anew_under_its_name_is_registered_anew(
    discover: Discover, cluster: ApiServer
) -> None:
    """As a StatefulSet does: the delete may even come after the new pod."""
    cluster.put(pod("a", "1"))
    discover.start()
    discover.until({"a/0": "1"})
    cluster.put(pod("a", "2"))
    cluster.delete(pod("a", "1"))
    discover.until({"a/0": "2"})
    cluster.tell("pods", "MODIFIED", pod("a", "1"))  # long after its end
    cluster.put(pod("b", "3", events_port="6000"))
    discover.until({"a/0": "2", "b/0": "3"})


def test_versions_that_are_too_old_are_followed_by_a_list(
    discover: Discover, cluster: ApiServer
) -> None:
    cluster.put(pod("a", "1"))
    cluster.put(pod("b", "2", events_port="6000"))
    discover.start()
    discover.until({"a/0": "1", "b/0": "2"})
    cluster.delete(pod("a", "1"), is_told=False)
    cluster.put(pod("c", "3", events_port="7000"), is_told=False)
    cluster.forget_history()
    discover.until({"b/0": "2", "c/0": "3"})
    cluster.put(pod("d", "4", events_port="8000"), is_told=False)
    cluster.expire("pods")  # as an event of a watch that runs
    discover.until({"b/0": "2", "c/0": "3", "d/0": "4"})
    assert cluster.lists() == 3


def test_a_watch_that_ends_goes_on_where_it_was(discover: Discover, cluster: ApiServer) -> None:
    cluster.put(pod("a", "1"))
    discover.start()
    discover.until({"a/0": "1"})
    until(lambda: cluster.watches() == 1, what="a watch")
    second = pod("b", "2", events_port="6000")
    cluster.put(second)
    cluster.send("pods", None)

    def versions() -> list[str]:
        asked = [given for kind, given in cluster.requests if kind == "pods"]
        return [given["resourceVersion"] for given in asked if "watch" in given]

    until(lambda: len(versions()) == 2, what="another watch")
    assert versions()[1] == second["metadata"]["resourceVersion"]
    assert cluster.lists() == 1


def test_an_api_server_that_is_away_changes_nothing(
    discover: Discover, cluster: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put(pod("a", "1"))
    discover.start()
    discover.until({"a/0": "1"})
    cluster.is_away = True
    cluster.send("pods", None)
    until(lambda: "Cannot follow pods: 503" in caplog.text, what="it is said")
    asked = len(cluster.requests)
    until(lambda: len(cluster.requests) > asked + 1, what="it is asked again")
    assert discover.registered() == {"a/0": "1"}
    cluster.put(pod("b", "2", events_port="6000"), is_told=False)
    cluster.is_away = False
    cluster.forget_history()
    discover.until({"a/0": "1", "b/0": "2"})
    assert caplog.text.count("Cannot follow pods: 503") == 1


@pytest.mark.parametrize(
    "line",
    [b"{\n", b"[]\n", b"\xff\xfe\n", b'{"type":"ADDED","object":[]}\n', b'{"type":1}\n', STRANGE],
)
def test_a_line_that_is_no_event_ends_nothing(
    discover: Discover, cluster: ApiServer, line: bytes
) -> None:
    cluster.put(pod("a", "1"))
    discover.start()
    discover.until({"a/0": "1"})
    cluster.send("pods", line)
    until(lambda: cluster.watches() == 1, what="it goes on")
    cluster.put(pod("b", "2", events_port="6000"))
    cluster.forget_history()
    discover.until({"a/0": "1", "b/0": "2"})
    assert discover.is_running()


def test_pods_of_a_service_with_the_label_need_none(discover: Discover, cluster: ApiServer) -> None:
    unlabelled = pod("a", "1", label=None)
    cluster.put(endpoint_slice(unlabelled, kv_events=6000, http=8000))
    discover.start()
    discover.until({"a/0": "1"})
    cluster.put(endpoint_slice(kv_events=6000))
    discover.until({})


def test_a_pod_that_cannot_be_registered_is_named_once_and_the_others_are(
    discover: Discover, cluster: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put(pod("wrong", "1", block_size="many"))
    cluster.put(pod("metadata", "2", address="169.254.169.254"))
    cluster.put(pod("a", "3"))
    discover.start()
    discover.until({"a/0": "3"})
    cluster.put(pod("b", "4", events_port="6000"))
    discover.until({"a/0": "3", "b/0": "4"})
    assert caplog.text.count("reprise.dev/block-size from 1 to") == 1
    assert caplog.text.count("Not registered: metadata rank 0") == 1


def test_many_pods_are_listed_in_pages(discover: Discover, cluster: ApiServer) -> None:
    for number in range(601):
        is_ready, port = number % 200 == 0, str(9000 + number)
        cluster.put(pod(f"p{number}", f"u{number}", ready=is_ready, events_port=port))
    discover.start()
    discover.until({"p0/0": "u0", "p200/0": "u200", "p400/0": "u400", "p600/0": "u600"})
    assert cluster.lists() == 2


def test_an_engine_is_asked_for_its_model_and_block_size(
    discover: Discover, cluster: ApiServer
) -> None:
    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "deepseek"}]})

    async def metrics(_: web.Request) -> web.Response:
        text = 'vllm:cache_config_info{block_size="32",cache_dtype="auto"} 1.0\n'
        return web.Response(text=text)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_get("/metrics", metrics)
    with HttpServer(app) as engine:
        one = pod("a", "1", http_port=str(engine.port))
        for name in ("model", "block-size"):
            del one["metadata"]["annotations"][f"reprise.dev/{name}"]
        cluster.put(one)
        discover.start()
        discover.until({"a/0": "1"})
        (found,) = discover.services()
        assert (found.ModelName, found.BlockSize) == ("deepseek", 32)
