"""The handle of `publisher_process`."""

import subprocess
import sys
from typing import Self, TypeVar

import msgspec

from lab.benchmarks.embedded.publisher_process import Job, SentPhase
from lab.benchmarks.embedded.service import WatchedService
from lab.traffic.event_load import LoadPlan

T = TypeVar("T")


class Publisher:
    """Publishers of one stream, in a process that ends with the block.

    Attributes:
        endpoints: of each.
    """

    def __init__(
        self,
        plan: LoadPlan,
        *,
        publishers: int = 1,
        subscribers: int = 1,
        blocks_per_s: float = 0.0,
    ) -> None:
        """`blocks_per_s`: of each, stored and removed; 0 for as fast as they can."""
        self._job = Job(
            plan=plan, publishers=publishers, subscribers=subscribers, blocks_per_s=blocks_per_s
        )
        self.endpoints: list[str] = []

    def __enter__(self) -> Self:
        job = msgspec.json.encode(self._job).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lab.benchmarks.embedded.publisher_process", job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.endpoints = self._hear(list[str])
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _hear(self, kind: type[T]) -> T:
        assert self._process.stdout is not None
        return msgspec.json.decode(self._process.stdout.readline(), type=kind)

    def connect(self, service: WatchedService, *, first: int = 0) -> None:
        """Has the service follow every publisher, as instances `i0`, `i1`... from the first number
        on; returns once it does.
        """
        self.when_encoded()
        for number, endpoint in enumerate(self.endpoints, first):
            service.register(endpoint, f"i{number}")
        self.when_subscribed()

    def when_encoded(self) -> None:
        """Returns once it waits for its subscribers."""
        self._hear(str)

    def when_subscribed(self) -> None:
        """Returns once all of them are there."""
        self._hear(str)

    def send(self) -> SentPhase:
        """Sends the next phase; returns when ZeroMQ has all of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return self._hear(SentPhase)
