"""Dynamo's standalone indexer as a process; `devtools.dynamo` says where it is installed."""

import json
import subprocess
from pathlib import Path
from typing import Any

from devtools import dynamo
from devtools.broker import free_ports
from tests.processes import Api, until


class DynamoIndexer(Api):
    """`python -m dynamo.indexer`, with so many threads."""

    def __init__(self, threads: int, log: Path) -> None:
        """Starts it; returns when it answers."""
        [port] = free_ports(1)
        self.base_url = f"http://127.0.0.1:{port}"
        self._log = log
        with log.open("w") as output:
            self._process = subprocess.Popen(
                dynamo.command(port=port, threads=threads), stdout=output, stderr=output
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
