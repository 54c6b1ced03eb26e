"""Dynamo's standalone indexer as a process, where the package `ai-dynamo-runtime` is installed.

It needs an interpreter that has it: the one named by REPRISE_DYNAMO_PYTHON, or the one that runs
the tests. It has no option for its address: its port is open on all of them while it runs.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from devtools.broker import free_ports
from tests.processes import Api, until

VARIABLE: Final = "REPRISE_DYNAMO_PYTHON"
PACKAGE: Final = "ai-dynamo-runtime"
_VERSION: Final = f"import importlib.metadata as m; print(m.version({PACKAGE!r}))"


def interpreter() -> str:
    """The interpreter that has the package, or ""."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return named
    return sys.executable if find_spec("dynamo") and find_spec("dynamo.indexer") else ""


def version() -> str:
    """The installed release."""
    said = subprocess.run(
        [interpreter(), "-c", _VERSION], capture_output=True, text=True, timeout=30, check=True
    )
    return said.stdout.strip()


class DynamoIndexer(Api):
    """`python -m dynamo.indexer`, with so many threads."""

    def __init__(self, threads: int, log: Path) -> None:
        """Starts it; returns when it answers."""
        [port] = free_ports(1)
        self.base_url = f"http://127.0.0.1:{port}"
        self._log = log
        command = [interpreter(), "-m", "dynamo.indexer", "--port", str(port)]
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [*command, "--threads", str(threads)], stdout=output, stderr=output
            )
        until(self._answers, what=f"the indexer answers:\n{log}")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)

    def follow(self, model: str, worker: int, endpoint: str, block_size: int) -> None:
        self._post(
            "/register",
            {"instance_id": worker, "endpoint": endpoint, "model_name": model,
             "block_size": block_size},
        )  # fmt: skip

    def longest_of_workers(self, model: str, tokens: list[int]) -> dict[int, int]:
        """What it credits each worker with, in tokens; a worker without a match is not in it."""
        scores = self._post("/query", {"model_name": model, "token_ids": tokens})["scores"]
        return {int(worker): max(ranks.values()) for worker, ranks in scores.items()}

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()[-3000:]
        try:
            return self.request("GET", "/health")[0] == 200
        except OSError:
            return False

    def _post(self, path: str, document: object) -> Any:
        headers = {"Content-Type": "application/json"}
        status, body, _ = self.request("POST", path, json.dumps(document).encode(), headers)
        assert status < 300, (status, body)
        return json.loads(body)
