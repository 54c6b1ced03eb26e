"""The distributed form on one machine: a broker of its own, and the roles as processes on it.

Everything is on loopback, in a temporary directory, and ends with the block, by process id.
"""

import asyncio
import contextlib
import http.client
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import msgspec
from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from devtools.broker import Broker
from lab.benchmarks.embedded.service import MODEL, WatchedService, cpu_seconds, until
from lab.benchmarks.sizes import BLOCK_SIZE, KernelName

ROLES: Final = ("bridge", "streams", "serve")
REGISTRY_PARTITIONS: Final = 4
HEAP_MIB: Final = 512
START_S: Final = 120.0
STOP_S: Final = 30.0
POLL_S: Final = 0.01

# Kafka's own defaults. On a busy machine the shorter ones of tests have the only broker declared
# dead.
_PATIENT: Final = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}
_ADDRESS: Final = re.compile(r"(?:Reprise answers on|Metrics on) (http://[^\s/]+)")


class Role(WatchedService):
    """`reprise bridge|streams|serve` as a process with a directory of its own."""

    def __init__(self, command: list[str], output: Path) -> None:
        """Starts it; returns when it answers HTTP, ready or not."""
        self._output = output
        environment = os.environ | {"CONDUCTOR_CONFIG_PATH": str(output.with_suffix(".none"))}
        with output.open("a") as stream:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment
            )
        try:
            until(self._answers, poll_s=POLL_S, timeout_s=START_S)
            url = urlsplit(_ADDRESS.findall(self.log())[0])
        except BaseException:
            self.kill()
            raise
        self.address = (str(url.hostname), url.port or 0)
        self._connection = http.client.HTTPConnection(*self.address, timeout=60)

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"Expected a role to start, got: {self.log()[-2000:]}")
        return bool(_ADDRESS.findall(self.log()))

    def log(self) -> str:
        """What it wrote."""
        return self._output.read_text()

    def kill(self) -> None:
        """Kill -9."""
        self._process.kill()
        self._process.wait(STOP_S)

    def stop(self) -> None:
        """Lets it leave its group, so that the next one need not wait for its session to end."""
        self._connection.close()
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def cpu_s(self) -> float:
        """See `cpu_seconds`."""
        return cpu_seconds(self._process.pid)

    # HTTP

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """See `WatchedService`; the connection is kept where the server keeps it."""
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            self._connection.request(method, path, body, headers)
            response = self._connection.getresponse()
        except (http.client.HTTPException, ConnectionError):  # it was idle for too long
            self._connection.close()
            self._connection.request(method, path, body, headers)
            response = self._connection.getresponse()
        return response.status, response.read()

    def is_ready(self) -> bool:
        """Of a replica."""
        return self.request("GET", "/ready")[0] == 200

    def unregister(self, instance_id: str) -> None:
        """At a replica: has nobody follow the instance any more, and its blocks forgotten."""
        fields = {"type": "vLLM", "modelname": MODEL, "instance_id": instance_id}
        body = msgspec.json.encode(fields | {"block_size": BLOCK_SIZE, "dp_rank": 0})
        status, answer = self.request("POST", "/unregister", body)
        if status != 200:
            raise RuntimeError(f"Expected no registration, got {status}: {answer.decode()}")


class Cluster:
    """A broker, and deployments on it, one after the other."""

    def __init__(self, kernel: KernelName) -> None:
        self._kernel = kernel
        self.root = Path(tempfile.mkdtemp(prefix="reprise-bench-kafka-"))
        self.broker = Broker(self.root / "broker", heap_mib=HEAP_MIB, settings=_PATIENT)
        self._roles: list[Role] = []
        self._started = 0
        self._deployments = 0
        self.kafka = KafkaSettings(bootstrap="127.0.0.1:1")

    def __enter__(self) -> Self:
        try:
            self.broker.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for role in self._roles:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                role.kill()
        self.broker.kill()
        shutil.rmtree(self.root, ignore_errors=True)

    def deploy(self, *, partitions: int) -> None:
        """Ends the roles there are; the next ones have new topics, and the broker no others."""
        for role in self._roles:
            role.kill()
        self._roles.clear()
        if self._deployments:
            asyncio.run(_delete_topics(self.kafka))
        self._deployments += 1
        self.kafka = KafkaSettings(
            bootstrap=self.broker.bootstrap,
            topic_prefix=f"bench{self._deployments}",
            events_partitions=partitions,
            registry_partitions=REGISTRY_PARTITIONS,
        )
        asyncio.run(ensure_topics(self.kafka))

    def start(self, name: str, *options: str) -> Role:
        """Starts one of `ROLES` with an empty directory."""
        self._started += 1
        data = self.root / f"{name}-{self._started}"
        kafka = self.kafka
        command = [sys.executable, "-m", "reprise", name, "--data", str(data)]
        command += ["--kafka", kafka.bootstrap, "--topic-prefix", kafka.topic_prefix]
        command += ["--set", f"kafka.events_partitions={kafka.events_partitions}"]
        command += ["--set", f"kafka.registry_partitions={kafka.registry_partitions}"]
        command += ["--port", "0"] if name == "serve" else ["--metrics-port", "0"]
        command += [] if name == "bridge" else ["--set", f"kernel={self._kernel}"]
        role = Role([*command, *options], data.with_suffix(".output"))
        self._roles.append(role)
        return role

    def end(self, role: Role) -> None:
        """Ends one role in order."""
        role.stop()
        self._roles.remove(role)

    def wait_settled(self, worker: Role, *, timeout_s: float = START_S) -> None:
        """Until the worker has all of its partitions."""
        wanted = self.kafka.events_partitions
        until(lambda: owned_partitions(worker) == wanted, poll_s=0.02, timeout_s=timeout_s)

    def topic_bytes(self, topic: str, *, active: bool = True) -> int:
        """Bytes of the topic's segments in the broker's directory, with or without those that are
        being written.
        """
        total = 0
        for directory in (self.root / "broker" / "data").glob(f"{topic}-*"):
            for log in sorted(directory.glob("*.log"))[: None if active else -1]:
                with contextlib.suppress(FileNotFoundError):  # the cleaner has just replaced it
                    total += log.stat().st_size
        return total


async def _delete_topics(kafka: KafkaSettings) -> None:
    """So that the broker does not compact them while the next deployment is measured."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([topic.name for topic in kafka.topics])
    finally:
        await admin.close()


def owned_partitions(worker: Role) -> int:
    """How many tables a worker has open."""
    text = worker.request("GET", "/metrics")[1].decode()
    return sum(line.startswith("reprise_table_flushed_offset{") for line in text.splitlines())
