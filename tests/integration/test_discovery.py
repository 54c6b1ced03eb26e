"""`reprise discover` between an API server that replays what real ones send, and a service."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_keys import made
from tests.kubernetes import NAMESPACE, ApiServer, pod
from tests.processes import Service, until

pytestmark = pytest.mark.timeout(120)

GRACE_S = 2.0


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


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data") as running:
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


def test_pods_come_and_go_also_while_it_was_killed(
    discover: Discover, cluster: ApiServer, service: Service
) -> None:
    service.register("tcp://127.0.0.1:5999", instance_id="by-hand")
    by_hand = {"by-hand/0": ""}
    cluster.put(pod("a", "1", data_parallel_size="2"))
    discover.start()
    discover.until({"a/0": "1", "a/1": "1"} | by_hand)
    cluster.put(pod("b", "2", ready=False, events_port="6000"))
    cluster.put(pod("b", "2", events_port="6000"))
    discover.until({"a/0": "1", "a/1": "1", "b/0": "2"} | by_hand)
    cluster.delete(pod("a", "1"))
    discover.until({"b/0": "2"} | by_hand)
    assert cluster.lists() == 1, "all of that came by one watch"
    discover.kill()
    cluster.delete(pod("b", "2"))
    cluster.put(pod("c", "3", events_port="7000"))
    discover.start()
    discover.until({"c/0": "3"} | by_hand)


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
