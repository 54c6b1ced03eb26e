"""NVIDIA Dynamo's standalone indexer as a process, where `ai-dynamo-runtime` is installed.

It has no option for its address: its port is open on all of them while it runs.
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Self

from benchmarks.embedded.service import until
from devtools.broker import free_ports

VARIABLE: Final = "REPRISE_DYNAMO_PYTHON"
PACKAGE: Final = "ai-dynamo-runtime"
THREADS: Final = 4
_VERSION: Final = f"import importlib.metadata as m; print(m.version({PACKAGE!r}))"


def interpreter() -> str:
    """The interpreter that has the package: the one that the variable names, or this one; or ""."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return named
    return sys.executable if find_spec("dynamo") and find_spec("dynamo.indexer") else ""


class DynamoIndexer:
    """`python -m dynamo.indexer`, as long as the block runs."""

    def __init__(self) -> None:
        [port] = free_ports(1)
        self.address = ("127.0.0.1", port)
        self._directory = tempfile.TemporaryDirectory(prefix="reprise-bench-")
        self._log = Path(self._directory.name) / "log"

    def __enter__(self) -> Self:
        command = [interpreter(), "-m", "dynamo.indexer", "--port", str(self.address[1])]
        with self._log.open("w") as output:
            self._process = subprocess.Popen(
                [*command, "--threads", str(THREADS)], stdout=output, stderr=output
            )
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

    @staticmethod
    def version() -> str:
        """The installed release."""
        said = subprocess.run(
            [interpreter(), "-c", _VERSION], capture_output=True, text=True, timeout=30, check=True
        )
        return said.stdout.strip()

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
