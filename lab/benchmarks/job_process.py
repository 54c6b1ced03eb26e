"""Processes that a measurement starts, and that tell and are told lines of JSON."""

import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Any, ClassVar, Self, TypeVar

import msgspec

T = TypeVar("T")


class ChildProcess:
    """The handle of one, which ends with the block.

    Args:
        command: that is run.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def pid(self) -> int:
        """Of it."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """As `kill -9` does."""
        self._process.kill()
        self._process.wait()

    @property
    def lines(self) -> IO[bytes]:
        """What it says."""
        assert self._process.stdout is not None
        return self._process.stdout

    def hear(self, kind: type[T]) -> T:
        """Its next line."""
        line = self.lines.readline()
        if not line:
            raise RuntimeError(f"Expected a line of {self._command}, but the process has ended")
        return msgspec.json.decode(line, type=kind)

    def tell(self, value: object = None) -> None:
        """Tells it to go on; `value` is how, where that is asked for."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(value) + b"\n")
        self._process.stdin.flush()

    def end_input(self) -> None:
        """Nothing more is told."""
        assert self._process.stdin is not None
        self._process.stdin.close()


class JobProcess(ChildProcess):
    """A module that is run with one job.

    Attributes:
        module: that is run.
    """

    module: ClassVar[str]

    def __init__(self, job: Any) -> None:
        """`job`: its argument, as JSON."""
        super().__init__([sys.executable, "-m", self.module, msgspec.json.encode(job).decode()])
