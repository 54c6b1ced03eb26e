"""The handle of `fleet_process`."""

import subprocess
import sys
from collections.abc import Callable
from typing import Self, TypeVar

import msgspec

from lab.benchmarks.distributed.fleet_process import FleetJob, FleetSent

T = TypeVar("T")


class Fleet:
    """Publishers in a process that ends with the block."""

    def __init__(self, job: FleetJob, *, name: str) -> None:
        """Args:
        name: what the instances' names begin with.
        """
        self._job = job
        self._name = name
        self.instances = [f"{name}{number}" for number in range(job.publishers)]

    def __enter__(self) -> Self:
        job = msgspec.json.encode(self._job).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lab.benchmarks.distributed.fleet_process", job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
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

    def connect(self, register: Callable[[str, str], None]) -> None:
        """Registers each (endpoint, instance); returns once all of them have a subscriber."""
        for endpoint, instance in zip(self._hear(list[str]), self.instances, strict=True):
            register(endpoint, instance)
        self._hear(str)

    def begin(self) -> None:
        """Has it send everything; `finish` waits for the end of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def finish(self) -> FleetSent:
        """Returns when ZeroMQ has all of it."""
        return self._hear(FleetSent)
