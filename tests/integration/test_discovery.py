"""`reprise discover` between an API server that replays what real ones send, and a service."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.integration.test_keys import made
from tests.kubernetes import NAMESPACE, ApiServer, HttpServer, endpoint_slice, pod
from tests.processes import Service, until

pytestmark = pytest.mark.timeout(120)

GRACE_S = 2.0
STRANGE = (
    b'{"type":"ADDED","object":{"metadata":{"uid":"x","labels":{"reprise.dev/engine":"vllm"}},'
    b'"status":{"podIP":7,"conditions":["Ready"]}}}\n{"type":"ADDED","object":{"metadata":[]}}\n'
)


class Discover:
    """The process, and the service that it keeps in step."""

    def __init__(
        self, service: Service, directory: Path, cluster: ApiServer, key: str = ""
    ) -> None:
        self.service = service
        self._log = directory / "discover.log"
        self._key = key
        self._command = [sys.executable, "-m", "reprise", "discover", "--url", service.base_url]
        self._command += ["--namespace", NAMESPACE, "--api-server", cluster.url]
        self._command += ["--grace", str(GRACE_S)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = dict(os.environ) | {"REPRISE_KEY": self._key}
        with self._log.open("a") as log:
            self.process = subprocess.Popen(self._command, stderr=log, env=environment)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def log(self) -> str:
        return self._log.read_text()

    def registered(self) -> dict[str, str]:
        """The uid of each pod's registration, by instance and rank."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        body = self.service.request("GET", "/services", None, headers)[1]
        return {
            f"{one['InstanceID']}/{one['DPRank']}": one["Labels"].get("k8s-uid", "")
            for one in json.loads(body)["services"]
        }

    def until(self, wanted: dict[str, str]) -> None:
        until(
            lambda: self.registered() == wanted,
            what=f"{wanted} is registered, not {self.registered()}\n{self.log()[-2000:]}",
        )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service") / "data") as running:
        yield running


@pytest.fixture
def cluster() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def discover(service: Service, cluster: ApiServer, tmp_path: Path) -> Iterator[Discover]:
    process = Discover(service, tmp_path, cluster)
    yield process
    process.kill()
    for one in service.get("/services")[1]["services"]:
        fields = {"instance_id": one["InstanceID"], "dp_rank": one["DPRank"]}
        service.post("/unregister", fields | {"tenant_id": one["TenantID"]})


def test_pods_come_and_go(discover: Discover, cluster: ApiServer) -> None:
    cluster.put(pod("a", "1", data_parallel_size="2"))
    discover.start()
    discover.until({"a/0": "1", "a/1": "1"})
    cluster.put(pod("b", "2", ready=False, events_port="6000"))
    cluster.put(pod("b", "2", events_port="6000"))
    discover.until({"a/0": "1", "a/1": "1", "b/0": "2"})
    cluster.delete(pod("a", "1"))
    discover.until({"b/0": "2"})
    assert cluster.lists() == 1, "all of that came by one watch"


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
    cluster.send("pods", None)
    until(lambda: cluster.watches() == 1 and len(cluster.requests) >= 5, what="another watch")
    versions = [given["resourceVersion"] for kind, given in cluster.requests if "watch" in given]
    assert all(int(version) >= 100 for version in versions)
    assert cluster.lists() == 1


def test_an_api_server_that_is_away_changes_nothing(discover: Discover, cluster: ApiServer) -> None:
    cluster.put(pod("a", "1"))
    discover.start()
    discover.until({"a/0": "1"})
    cluster.is_away = True
    cluster.send("pods", None)
    until(lambda: "Cannot follow pods: 503" in discover.log(), what="it is said")
    assert discover.registered() == {"a/0": "1"}
    cluster.put(pod("b", "2", events_port="6000"), is_told=False)
    cluster.is_away = False
    cluster.forget_history()
    discover.until({"a/0": "1", "b/0": "2"})
    assert discover.log().count("Cannot follow pods: 503") == 1


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
    assert discover.process is not None
    assert discover.process.poll() is None


def test_what_went_while_it_was_killed_is_unregistered(
    discover: Discover, cluster: ApiServer, service: Service
) -> None:
    service.register("tcp://127.0.0.1:5999", instance_id="by-hand")
    cluster.put(pod("a", "1"))
    discover.start()
    discover.until({"a/0": "1", "by-hand/0": ""})
    discover.kill()
    cluster.delete(pod("a", "1"))
    cluster.put(pod("b", "2", events_port="6000"))
    discover.start()
    discover.until({"b/0": "2", "by-hand/0": ""})


def test_pods_of_a_service_with_the_label_need_none(discover: Discover, cluster: ApiServer) -> None:
    unlabelled = pod("a", "1", label=None)
    cluster.put(endpoint_slice(unlabelled, kv_events=6000, http=8000))
    discover.start()
    discover.until({"a/0": "1"})
    cluster.put(endpoint_slice(kv_events=6000))
    discover.until({})


def test_a_pod_that_cannot_be_registered_is_named_once_and_the_others_are(
    discover: Discover, cluster: ApiServer
) -> None:
    cluster.put(pod("wrong", "1", block_size="many"))
    cluster.put(pod("metadata", "2", address="169.254.169.254"))
    cluster.put(pod("a", "3"))
    discover.start()
    discover.until({"a/0": "3"})
    cluster.put(pod("b", "4", events_port="6000"))
    discover.until({"a/0": "3", "b/0": "4"})
    assert discover.log().count("reprise.dev/block-size from 1 to") == 1
    assert discover.log().count("Not registered: metadata rank 0") == 1


def test_many_pods_are_listed_in_pages(discover: Discover, cluster: ApiServer) -> None:
    for number in range(601):
        is_ready, port = number % 200 == 0, str(9000 + number)
        cluster.put(pod(f"p{number}", f"u{number}", ready=is_ready, events_port=port))
    discover.start()
    discover.until({"p0/0": "u0", "p200/0": "u200", "p400/0": "u400", "p600/0": "u600"})
    assert cluster.lists() == 2


def test_a_key_that_may_not_register_is_said(cluster: ApiServer, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    reader = made(keys, "reader", "--right", "read")
    both = made(keys, "discover", "--right", "read", "--right", "register")
    with Service(tmp_path / "data", "--keys", str(keys)) as service:
        cluster.put(pod("a", "1"))
        process = Discover(service, tmp_path, cluster, reader)
        process.start()
        until(lambda: "right" in process.log(), what="it is said")
        process.kill()
        process = Discover(service, tmp_path, cluster, both)
        process.start()
        process.until({"a/0": "1"})
        assert process.process is not None
        process.process.terminate()
        assert process.process.wait(30) == 0
        process.process = None


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
        (found,) = discover.service.get("/services")[1]["services"]
        assert (found["ModelName"], found["BlockSize"]) == ("deepseek", 32)
