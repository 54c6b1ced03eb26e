"""The roles of the distributed form as processes, to be killed and started again."""

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from copy import copy
from email.message import Message
from pathlib import Path
from typing import Any

from brokers.broker_settings import KafkaSettings
from tests.processes import START_S, THIS, sum_of_samples, until

_ADDRESS = re.compile(r"(?:Reprise answers on|Metrics on) (http://[^\s/]+)")


class Role:
    """`reprise bridge|streams|serve` with a data directory of its own.

    `base_url` serves the API for `serve`, and /metrics and /health for the others.
    """

    def __init__(
        self,
        role: str,
        data: Path,
        kafka: KafkaSettings,
        *options: str,
        program: Sequence[str] = THIS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts nothing yet. `program` is what has the role as a command, `environment` is beside
        this one's.
        """
        self.name = data.name
        self.data = data
        self._program = program
        self._command = [role, "--data", str(data)]
        self._command += ["--kafka", kafka.bootstrap, "--topic-prefix", kafka.topic_prefix]
        self._command += ["--port", "0"] if role == "serve" else ["--metrics-port", "0"]
        self._command += options
        # Variables: releases before the file of settings know them, too.
        shape = {
            "REPRISE_EVENTS_PARTITIONS": str(kafka.events_partitions),
            "REPRISE_REGISTRY_PARTITIONS": str(kafka.registry_partitions),
        }
        self._environment = dict(os.environ) | shape | dict(environment or {})
        self._output = data.with_name(data.name + ".output")
        self.process: subprocess.Popen[bytes] | None = None
        self.base_url = ""

    def start(self) -> None:
        """Starts it; returns when it answers HTTP, ready or not."""
        begin = len(self.output()) if self._output.exists() else 0
        with self._output.open("a") as output:
            self.process = subprocess.Popen(
                [*self._program, *self._command],
                stdout=output,
                stderr=output,
                env=self._environment,
            )
        process = self.process

        def answers() -> bool:
            assert process.poll() is None, f"{self.name} has ended:\n{self.output()[-3000:]}"
            found = _ADDRESS.findall(self.output()[begin:])
            self.base_url = found[-1] if found else ""
            return bool(found)

        until(answers, what=f"{self.name} answers:\n{self.output()[-2000:]}", timeout_s=60)

    def by(self, program: Sequence[str]) -> "Role":
        """The same of another program: it goes on with what this one has left."""
        other = copy(self)
        other.process, other.base_url, other._program = None, "", program
        return other

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(START_S)
            self.process = None

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(START_S)
        self.process = None
        return code

    def pause(self) -> None:
        """SIGSTOP: its connections stay open and it says nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Ends `pause`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def output(self) -> str:
        return self._output.read_text()

    def get(self, path: str) -> Any:
        """The JSON document at the path; raises OSError for an error status too."""
        with urllib.request.urlopen(self.base_url + path, timeout=20) as response:
            return json.loads(response.read())

    def health(self) -> dict[str, Any]:
        """The document at /health, that of a role which says that it is not well included."""
        try:
            found: dict[str, Any] = self.get("/health")
        except urllib.error.HTTPError as error:
            found = json.loads(error.read())
        return found

    def metrics(self) -> bytes:
        with urllib.request.urlopen(self.base_url + "/metrics", timeout=20) as response:
            content: bytes = response.read()
        return content

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        return sum_of_samples(self.metrics(), name, labels)

    def post(self, path: str, fields: object, **headers: str) -> Any:
        return json.loads(self.exchange(path, fields, **headers)[0])

    def state(self, query: object) -> str:
        """What an answer to the query says of itself: `exact`, `degraded` or `stale`."""
        return self.exchange("/query", query)[1]["Reprise-State"]

    def exchange(self, path: str, fields: object, **headers: str) -> tuple[bytes, Message]:
        """POST: the body of the answer, and its headers."""
        request = urllib.request.Request(
            self.base_url + path,
            json.dumps(fields).encode(),
            {"Content-Type": "application/json"} | headers,
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.read(), response.headers

    def is_ready(self) -> bool:
        try:
            self.get("/ready")
        except OSError:
            return False
        return True
