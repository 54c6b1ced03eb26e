"""The indexers that are compared, ours and NVIDIA Dynamo's, each as a process that is started,
told whom to follow, and asked. `devtools.dynamo` says where Dynamo's is installed.
"""

import json
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import msgspec

from devtools import dynamo
from devtools.broker import free_ports
from lab.benchmarks.embedded.http_client import Server, instances_of, post_of, request_of
from lab.benchmarks.embedded.service import MODEL, Service, cpu_seconds, until
from lab.benchmarks.peers.network import exposure
from lab.benchmarks.sizes import BLOCK_SIZE
from lab.engines.wire import BlockStored
from lab.traffic.event_load import LoadPlan, plan_events
from lab.traffic.http_json import JsonConnection

THREADS: Final = 4
CHECKED: Final = 16
"""Prompts whose answers are looked at, beside the last one's."""


def missing() -> str:
    """Why Dynamo's cannot be measured here, and how to have it; or ""."""
    if dynamo.interpreter():
        return ""
    return (
        f"no {dynamo.PACKAGE}: `make peers` installs it, or {dynamo.VARIABLE} may name a Python"
        " that has it"
    )


def describe() -> str:
    """Which one it is, and who could reach it."""
    return f"{dynamo.PACKAGE} {dynamo.version()}, {THREADS} threads, {exposure()}"


class Indexer(ABC):
    """One of them, as long as the block runs.

    Attributes:
        prefix: of the names of its figures.
    """

    prefix: str

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @property
    @abstractmethod
    def server(self) -> Server:
        """Its process, and where it answers."""

    @abstractmethod
    def register(self, endpoint: str, instance_id: str, replay_endpoint: str = "") -> None:
        """Follows one publisher, as the instance `i` with a number."""

    @abstractmethod
    def request(self, tokens: list[int]) -> bytes:
        """The bytes of one query, in JSON."""

    @abstractmethod
    def longest(self, answer: bytes) -> list[int]:
        """The matches of an answer, one for each instance."""

    @abstractmethod
    def settle(self) -> None:
        """Returns once all that it was sent is done with."""

    @property
    def cpu_s(self) -> float:
        """See `cpu_seconds`."""
        return cpu_seconds(self.server.pid)

    def held(self, prompt: list[int]) -> int:
        """How many instances hold all of it."""
        return self.longest(self.server.ask(self.request(prompt))).count(len(prompt))

    def wait_held(
        self, prompts: Sequence[list[int]], instances: int, *, poll_s: float = 0.1
    ) -> None:
        """Until so many hold each of the prompts whole, the last one first."""

        def shown() -> bool:
            return all(self.held(prompt) == instances for prompt in reversed(prompts))

        until(shown, poll_s=poll_s)


class OurIndexer(Indexer):
    """`reprise up`."""

    prefix = ""

    def __init__(self) -> None:
        self.service = Service()

    def __enter__(self) -> Self:
        self.service.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.service.__exit__()

    @property
    def server(self) -> Server:
        """See `Indexer`."""
        return Server(self.service.address, self.service.pid)

    def register(self, endpoint: str, instance_id: str, replay_endpoint: str = "") -> None:
        """See `Indexer`."""
        self.service.register(endpoint, instance_id, replay_endpoint)

    def request(self, tokens: list[int]) -> bytes:
        """See `Indexer`."""
        return request_of("JSON", tokens)

    def longest(self, answer: bytes) -> list[int]:
        """See `Indexer`."""
        return longest_of("JSON", answer)

    def settle(self) -> None:
        """See `Indexer`."""
        self.service.wait_flushed()


def longest_of(form: str, answer: bytes) -> list[int]:
    """The matches of an answer of ours."""
    return [one["longest_matched"] for one in instances_of(form, answer).values()]


class DynamoIndexer(Indexer):
    """`python -m dynamo.indexer`."""

    prefix = "Dynamo, "

    def __init__(self) -> None:
        [port] = free_ports(1)
        self._address = ("127.0.0.1", port)
        self._connection = JsonConnection(f"http://127.0.0.1:{port}")
        self._directory = tempfile.TemporaryDirectory(prefix="reprise-bench-")
        self._log = Path(self._directory.name) / "log"

    def __enter__(self) -> Self:
        command = dynamo.command(port=self._address[1], threads=THREADS)
        with self._log.open("w") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            until(self._answers, poll_s=0.05)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait(30)
        self._directory.cleanup()

    @property
    def server(self) -> Server:
        """See `Indexer`."""
        return Server(self._address, self._process.pid)

    def register(self, endpoint: str, instance_id: str, replay_endpoint: str = "") -> None:
        """See `Indexer`."""
        fields = {
            "instance_id": int(instance_id[1:]),
            "endpoint": endpoint,
            "model_name": MODEL,
            "block_size": BLOCK_SIZE,
        }
        answer = self._connection.request("POST", "/register", fields)
        if answer.status >= 300:
            raise RuntimeError(f"Expected a registration, got: {answer}")

    def request(self, tokens: list[int]) -> bytes:
        """See `Indexer`."""
        return post_of(b"/query", msgspec.json.encode({"model_name": MODEL, "token_ids": tokens}))

    def longest(self, answer: bytes) -> list[int]:
        """See `Indexer`."""
        return [max(ranks.values()) for ranks in json.loads(answer)["scores"].values()]

    def settle(self) -> None:
        """See `Indexer`: what its answers show is all that it does."""

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"Expected the indexer to start: {self._log.read_text()[-2000:]}")
        try:
            return self._connection.request("GET", "/health").status == 200
        except OSError:
            return False


def kinds() -> list[type[OurIndexer] | type[DynamoIndexer]]:
    """Ours, and Dynamo's where that is installed."""
    return [OurIndexer] if missing() else [OurIndexer, DynamoIndexer]


def checked_prompts(plan: LoadPlan) -> list[list[int]]:
    """Some whole prompts of the plan, the last one last."""
    chains = -(-plan.blocks // (plan.blocks_per_event * plan.chain_events))
    wanted = {number * chains // CHECKED for number in range(CHECKED)} | {chains - 1}
    prompts: dict[int, list[int]] = {}
    stored = (event for event in plan_events(plan) if isinstance(event, BlockStored))
    for number, event in enumerate(stored):
        if number // plan.chain_events in wanted:
            prompts.setdefault(number // plan.chain_events, []).extend(event.token_ids)
    return [prompts[number] for number in sorted(prompts)]
