"""NVIDIA Dynamo's standalone indexer as a process; `devtools.dynamo` says where it is installed."""

import http.client
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from devtools import dynamo
from devtools.broker import free_ports
from lab.benchmarks.embedded.service import cpu_seconds, until
from lab.benchmarks.peers.network import exposure

THREADS: Final = 4


def missing() -> str:
    """Why it cannot be measured here, and how to have it; or ""."""
    if dynamo.interpreter():
        return ""
    return (
        f"no {dynamo.PACKAGE}: `make peers` installs it, or {dynamo.VARIABLE} may name a Python"
        " that has it"
    )


def describe() -> str:
    """Which one it is, and who could reach it."""
    return f"{dynamo.PACKAGE} {dynamo.version()}, {THREADS} threads, {exposure()}"


class DynamoIndexer:
    """`python -m dynamo.indexer`, as long as the block runs."""

    def __init__(self) -> None:
        [port] = free_ports(1)
        self.address = ("127.0.0.1", port)
        self._directory = tempfile.TemporaryDirectory(prefix="reprise-bench-")
        self._log = Path(self._directory.name) / "log"

    def __enter__(self) -> Self:
        command = dynamo.command(port=self.address[1], threads=THREADS)
        with self._log.open("w") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            until(self._answers, poll_s=0.05)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(30)
        self._directory.cleanup()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def cpu_s(self) -> float:
        """See `cpu_seconds`."""
        return cpu_seconds(self.pid)

    def follow_all(
        self, model: str, endpoints: Sequence[str], block_size: int, *, first: int = 0
    ) -> None:
        """Subscribes to several, as workers with numbers from the first one on."""
        for number, endpoint in enumerate(endpoints, first):
            self.follow(model, number, endpoint, block_size)

    def follow(self, model: str, worker: int, endpoint: str, block_size: int) -> None:
        """Subscribes to one publisher."""
        fields = {
            "instance_id": worker,
            "endpoint": endpoint,
            "model_name": model,
            "block_size": block_size,
        }
        status, answer = self._request("POST", "/register", json.dumps(fields).encode())
        if status >= 300:
            raise RuntimeError(f"Expected a registration, got {status}: {answer.decode()}")

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"Expected the indexer to start: {self._log.read_text()[-2000:]}")
        try:
            return self._request("GET", "/health")[0] == 200
        except OSError:
            return False

    def _request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()
