"""Simulated engines as processes, which speak HTTP as vLLM does or gRPC as SMG's servicer does."""

import json
import sys
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec

from devtools.routers import InstalledRouters
from lab.benchmarks.embedded.conversations import CACHE, COSTS, ENGINES
from lab.benchmarks.embedded.service import cpu_seconds
from lab.benchmarks.gateways.chats import MODEL
from lab.benchmarks.job_process import ChildProcess

ASKED_S: Final = 10.0


class RouterTarget(NamedTuple):
    """An engine, as a router is told of it.

    Attributes:
        events, replay: its sockets; "" of one that speaks gRPC.
    """

    url: str
    events: str = ""
    replay: str = ""


class SimulatedEngines(ABC):
    """As many as the conversations are for. `with` them, they serve.

    Args:
        folder: with the model's files.
    """

    def __init__(self, folder: Path) -> None:
        self.targets: list[RouterTarget] = []
        self._folder = folder
        self._processes: list[ChildProcess] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            for number in range(ENGINES):
                self._processes.append(stack.enter_context(ChildProcess(self._command(number))))
            for process in self._processes:
                self.targets.append(self._target(process.hear(int)))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill(self, number: int) -> None:
        """Ends one, as `kill -9` does."""
        self._processes[number].kill()

    def cpu_s(self) -> float:
        """Of all of them that live."""
        living = [one for one in self._processes if one.is_alive]
        return sum(cpu_seconds(one.pid) for one in living)

    def ttft_s(self) -> list[float]:
        """Of all prompts, by the engines' clock; to be asked for once, at the end."""
        return [one[2] for number in range(ENGINES) for one in self._computed(number)]

    @abstractmethod
    def _command(self, number: int) -> Sequence[str]: ...

    @abstractmethod
    def _target(self, port: int) -> RouterTarget: ...

    @abstractmethod
    def _computed(self, number: int) -> list[list[float]]:
        """Prompt, cached tokens and time to the first token of each prompt."""


class HttpEngines(SimulatedEngines):
    """Those that speak HTTP, and publish events over ZeroMQ."""

    def _command(self, number: int) -> Sequence[str]:
        return [
            *(sys.executable, "-m", "lab.engines.openai_engine", "0", f"e{number}"),
            *("--model", MODEL, "--events", "--gpu-blocks", str(CACHE.gpu_blocks)),
            *("--costs", msgspec.json.encode(COSTS).decode()),
        ]

    def _target(self, port: int) -> RouterTarget:
        return http_target(f"http://127.0.0.1:{port}")

    def _computed(self, number: int) -> list[list[float]]:
        found: list[list[float]] = _asked(f"{self.targets[number].url}/computed")
        return found


class GrpcEngines(SimulatedEngines):
    """Those that speak gRPC, events included.

    Args:
        routers: whose Python has SMG's messages.
    """

    def __init__(self, folder: Path, routers: InstalledRouters) -> None:
        super().__init__(folder)
        self._routers = routers

    def _command(self, number: int) -> Sequence[str]:
        job = {"model": MODEL, "folder": str(self._folder), "sizes": CACHE, "costs": COSTS}
        module = "lab.benchmarks.gateways.smg_engine"
        return [str(self._routers.python), "-m", module, msgspec.json.encode(job).decode()]

    def _target(self, port: int) -> RouterTarget:
        return RouterTarget(f"grpc://127.0.0.1:{port}")

    def _computed(self, number: int) -> list[list[float]]:
        self._processes[number].end_input()
        return self._processes[number].hear(list[list[float]])


def http_target(url: str) -> RouterTarget:
    """Of an engine that says where it publishes, as vLLM does."""
    said = _asked(f"{url}/kv_event_sources")["0"]
    events, replay = (
        said[key].replace("*", "127.0.0.1") for key in ("endpoint", "replay_endpoint")
    )
    return RouterTarget(url, events, replay)


def _asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=ASKED_S) as answer:
        return json.loads(answer.read())
