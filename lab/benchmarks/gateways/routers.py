"""The routers that are compared, each as a process that OpenAI's clients talk to."""

import http.client
import json
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import Final, Self

from devtools.broker import free_ports
from devtools.routers import SMG, VLLM_ROUTER, InstalledRouters
from lab.benchmarks.embedded.service import Service, cpu_seconds, until
from lab.benchmarks.gateways.engines import RouterTarget

SETTLED_S: Final = 1.0
"""Behind `ready`: a subscription takes some time, and not every router says when it is there."""

_POLL_S: Final = 0.1


class Router(ABC):
    """One of them, at a port that it has all its life. `with` it, it serves.

    Args:
        model: that the engines serve; its files are in `folder`.
        block_size: of the engines.
    """

    name: str

    def __init__(
        self, targets: Sequence[RouterTarget], model: str, folder: Path, block_size: int
    ) -> None:
        [self.port] = free_ports(1)
        self._targets = targets
        self._model = model
        self._folder = folder
        self._block_size = block_size

    def __enter__(self) -> Self:
        try:
            self.start()
            until(self._is_ready, poll_s=_POLL_S)
            sleep(SETTLED_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """Of it."""
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def start(self) -> None:
        """Starts the process; it may not serve yet."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the process, as `kill -9` does."""

    @abstractmethod
    def cpu_s(self) -> float:
        """Of the process so far."""

    @abstractmethod
    def _is_ready(self) -> bool: ...

    def _answers(self, path: str, port: int = 0) -> bytes:
        """The body of an answer of 200, else nothing."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            content = answer.read()
        except OSError:
            return b""
        finally:
            connection.close()
        return content or b"{}" if answer.status == 200 else b""


class ReleasedRouter(Router):
    """One that is installed as a command.

    Args:
        routers: where it is installed.
    """

    def __init__(
        self,
        targets: Sequence[RouterTarget],
        model: str,
        folder: Path,
        block_size: int,
        routers: InstalledRouters,
    ) -> None:
        super().__init__(targets, model, folder, block_size)
        self._routers = routers
        self._directory = tempfile.mkdtemp(prefix="reprise-bench-")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """See `Router`."""
        with (Path(self._directory) / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdout=log, stderr=log)

    def kill(self) -> None:
        """See `Router`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def cpu_s(self) -> float:
        """See `Router`."""
        assert self._process is not None
        return cpu_seconds(self._process.pid)

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            log = (Path(self._directory) / "log").read_text(errors="replace")
            raise RuntimeError(f"Expected {self.name} to start: {log[-2000:]}")
        return bool(self._answers("/readiness"))

    def _addresses(self) -> Sequence[str]:
        """The flags that both have: where it listens, and its engines."""
        [metrics] = free_ports(1)
        return [
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--prometheus-port", str(metrics)),
            *("--worker-urls", *(one.url for one in self._targets)),
        ]

    @abstractmethod
    def _command(self) -> Sequence[str]: ...


class RoundRobin(ReleasedRouter):
    """vLLM's router, in turn."""

    name = "round robin"
    policy = "round_robin"

    def _command(self) -> Sequence[str]:
        return [
            *(str(self._routers.program(VLLM_ROUTER)), *self._addresses()),
            *("--policy", self.policy, "--log-level", "warning"),
            *("--worker-startup-check-interval", "1"),
        ]


class KvAware(RoundRobin):
    """vLLM's router, by the engines' events."""

    name = "vllm-router"
    policy = "kv_aware"

    def _command(self) -> Sequence[str]:
        sources = []
        for one in self._targets:
            sources += ["--kv-event-source", f"{one.url}={one.events}"]
            sources += ["--kv-event-replay-source", f"{one.url}={one.replay}"]
        block_size = str(self._block_size)
        described = ["--kv-event-block-size", block_size, "--kv-event-model", self._model]
        return [*super()._command(), *sources, *described]


class ShepherdGateway(ReleasedRouter):
    """SMG, by the events of engines that speak gRPC."""

    name = "SMG"

    def _command(self) -> Sequence[str]:
        return [
            *(str(self._routers.program(SMG)), "launch", *self._addresses()),
            *("--policy", "cache_aware", "--backend", "vllm", "--log-level", "warn"),
            *("--model-path", str(self._folder)),
        ]


class Reprise(Router):
    """`reprise up --engine ... --gateway`, and where the model's files are."""

    name = "Reprise"

    def __init__(
        self,
        targets: Sequence[RouterTarget],
        model: str,
        folder: Path,
        block_size: int,
    ) -> None:
        super().__init__(targets, model, folder, block_size)
        named = [part for one in targets for part in ("--engine", one.url)]
        files = ("--set", f"tokens={model}={folder}")
        self._service = Service("--gateway", str(self.port), *named, *files)

    def start(self) -> None:
        """See `Router`."""
        self._service.start()

    def kill(self) -> None:
        """See `Router`."""
        self._service.kill()

    def __exit__(self, *_: object) -> None:
        self._service.__exit__()

    def cpu_s(self) -> float:
        """See `Router`."""
        return self._service.cpu_s()

    def _is_ready(self) -> bool:
        states = [one["state"] for one in json.loads(self._service.get("/gateway"))["engines"]]
        return bool(self._answers("/health")) and set(states) == {"followed"}
