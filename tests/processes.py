"""Real processes for tests: the HTTP interface, and a service to kill and to start again."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from schemas.limits import KIB

START_S = 30.0
THIS = (sys.executable, "-m", "reprise")
"""The program that is tested."""


class Api:
    """The HTTP interface at `base_url`, in the words of the tests."""

    base_url = ""

    def is_ready(self) -> bool:
        return self.get("/ready")[0] == 200

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> tuple[int, bytes, Mapping[str, str]]:
        address = urlsplit(self.base_url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=20)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return response.status, response.read(), headers
        finally:
            connection.close()

    def get(self, path: str) -> tuple[int, Any]:
        status, body, _ = self.request("GET", path)
        return status, json.loads(body)

    def exchange(self, path: str, fields: object) -> tuple[int, Any, Mapping[str, str]]:
        """A POST of JSON: status, document and headers."""
        content = {"Content-Type": "application/json"}
        status, body, headers = self.request("POST", path, json.dumps(fields).encode(), content)
        return status, json.loads(body), headers

    def post(self, path: str, fields: object) -> tuple[int, Any]:
        status, document, _ = self.exchange(path, fields)
        return status, document

    def register(self, endpoint: str, **fields: object) -> None:
        body = {
            "endpoint": endpoint,
            "type": "vLLM",
            "modelname": "m",
            "instance_id": "a",
            "block_size": 16,
            "dp_rank": 0,
        } | fields
        status, answer = self.post("/register", body)
        assert status == 200, answer

    def query(self, tokens: Sequence[int], **fields: object) -> dict[str, Any]:
        """The answers by instance."""
        body = {"model": "m", "block_size": 16, "token_ids": list(tokens)} | fields
        status, answer = self.post("/query", body)
        assert status == 200, answer
        found: dict[str, Any] = answer.get(fields.get("tenant_id", "default"), {})
        return found

    def longest(self, tokens: Sequence[int], instance_id: str = "a", **fields: object) -> int:
        found: int = self.query(tokens, **fields).get(instance_id, {}).get("longest_matched", -1)
        return found

    def digest(self) -> dict[str, Any]:
        status, answer = self.get("/digest")
        assert status == 200
        found: dict[str, Any] = answer
        return found

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        _, body, _ = self.request("GET", "/metrics")
        return sum_of_samples(body, name, labels)


def sum_of_samples(metrics: bytes, name: str, labels: Mapping[str, str]) -> float:
    """The sum of the samples of /metrics that have this name and these labels."""
    # Reading all of them costs more than the role takes to write them.
    lines = [line for line in metrics.decode().splitlines() if line.startswith(name)]
    return sum(
        sample.value
        for family in text_string_to_metric_families("\n".join(lines) + "\n")
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


class Service(Api):
    """`reprise up` on a data directory, on a port of the system's choice."""

    def __init__(
        self,
        data: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        program: Sequence[str] = THIS,
    ) -> None:
        self.data = data
        self._options = options
        self._environment = environment or {}
        self.program = program
        self._prefix = prefix
        self.process: subprocess.Popen[str] | None = None
        data.parent.mkdir(parents=True, exist_ok=True)
        self._log_path = data.with_name(data.name + ".stderr")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Starts the process and waits until it has recovered."""
        command = [*self._prefix, *self.program, "up", "--data", str(self.data)]
        command += ["--port", "0", *self._options]
        environment = dict(os.environ) | {"CONDUCTOR_CONFIG_PATH": str(self.data / "none")}
        with self._log_path.open("a") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment | dict(self._environment),
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Reprise answers on "):
                self.base_url = line.split()[3]
                break
        else:
            raise AssertionError(f"the service did not start:\n{self.log()}")
        until(self.is_ready, what=f"readiness:\n{self.log()}")

    def kill(self) -> None:
        """kill -9; nothing that the process had in memory only survives."""
        if self.process is not None:
            self.process.kill()
            self._reap()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        code = self.process.wait(START_S)
        self.process.stdout.close()
        self.process = None
        return code

    def restart(self) -> None:
        self.kill()
        self.start()

    def log(self) -> str:
        """The end of what it has said."""
        return self.whole_log()[-4000:]

    def whole_log(self) -> str:
        """All that it has said."""
        return self._log_path.read_text()

    def first_traceback(self) -> str:
        """What it said of an unexpected error; "" where it had none."""
        _, found, rest = self.whole_log().partition("Traceback")
        return (found + rest)[:4000]

    def peak_bytes(self) -> int:
        """The most memory that the process has had since it was started."""
        assert self.process is not None
        return peak_bytes(self.process.pid)


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * KIB
    raise AssertionError("the system does not say how much memory a process has had")


def until(holds: Callable[[], object], *, what: str, timeout_s: float = START_S) -> None:
    """Waits until it holds; a bound, not a measurement."""
    begin = time.monotonic()
    while not holds():
        waited_s = time.monotonic() - begin
        assert waited_s < timeout_s, f"did not happen within {timeout_s:.0f} s: {what}"
        # What is waited for shares the processor with the questions.
        time.sleep(min(max(waited_s / 10, 0.01), 0.2))
