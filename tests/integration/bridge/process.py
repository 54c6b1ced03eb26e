"""Bridges as processes, and what they say of themselves."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brokers.broker_settings import KafkaSettings
from tests.integration.bridge.engine import Engine
from tests.processes import START_S, sum_of_samples, until

SESSION_S = 2


class BridgeProcess:
    """`reprise bridge` with its metrics on a port of the system's choice."""

    def __init__(self, data: Path, kafka: KafkaSettings, *options: str) -> None:
        self._command = [sys.executable, "-m", "reprise", "bridge", "--kafka", kafka.bootstrap]
        self._command += ["--topic-prefix", kafka.topic_prefix, "--data", str(data)]
        self._command += ["--set", f"kafka.events_partitions={kafka.events_partitions}"]
        self._command += ["--set", f"kafka.registry_partitions={kafka.registry_partitions}"]
        self._command += [
            "--set",
            f"kafka.session_timeout_s={SESSION_S}",
            "--metrics-port",
            "0",
            *options,
        ]
        self._log_path = data.with_name(data.name + ".stderr")
        self.process: subprocess.Popen[bytes] | None = None
        self._base_url = ""

    def start(self) -> None:
        start = len(self.log()) if self._log_path.exists() else 0
        with self._log_path.open("a") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        found: list[str] = []

        def has_port() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            found[:] = re.findall(r"Metrics on (http://\S+)/metrics", self.log()[start:])
            return bool(found)

        until(has_port, what="the metrics port")
        self._base_url = found[-1]

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(START_S)
            self.process = None

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(START_S)
        self.process = None
        return code

    def log(self) -> str:
        return self._log_path.read_text()

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self._base_url + path, timeout=10) as response:
            body: bytes = response.read()
        return body

    def health(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._get("/health"))
        return document

    def states(self) -> dict[str, str]:
        return {
            one["registration"]["instance_id"]: one["state"] for one in self.health()["publishers"]
        }

    def metric(self, name: str, **labels: str) -> float:
        return sum_of_samples(self._get("/metrics"), name, labels)


def until_live(bridge: BridgeProcess, *engines: Engine) -> None:
    names = {one.registration.instance_id for one in engines}
    until(
        lambda: {name for name, state in bridge.states().items() if state == "live"} >= names,
        what=f"the publishers are followed:\n{bridge.log()[-3000:]}",
    )
    # Before that, what an engine without a replay publishes would be lost.
    until(lambda: all(one.publisher.subscribers for one in engines), what="subscribers")


def until_shared(first: BridgeProcess, second: BridgeProcess, *engines: Engine) -> None:
    names = {one.registration.instance_id for one in engines}

    def holds() -> bool:
        one, two = set(first.states()), set(second.states())
        return bool(one and two) and one | two == names and not one & two

    until(holds, what=f"the bridges share the publishers:\n{first.log()}\n{second.log()}")


Bridges = Callable[..., BridgeProcess]
"""Starts a bridge, see the fixture `bridges`."""
