"""A module that is run as a process with one job; both tell each other lines of JSON."""

import subprocess
import sys
from typing import IO, Any, ClassVar, Self, TypeVar

import msgspec

T = TypeVar("T")


class JobProcess:
    """The handle of one, which ends with the block.

    Args:
        job: its argument, as JSON.

    Attributes:
        module: that is run.
    """

    module: ClassVar[str]

    def __init__(self, job: Any) -> None:
        self.job = job

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.module, msgspec.json.encode(self.job).decode()],
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

    @property
    def lines(self) -> IO[bytes]:
        """What it says."""
        assert self._process.stdout is not None
        return self._process.stdout

    def hear(self, kind: type[T]) -> T:
        """Its next line."""
        line = self.lines.readline()
        if not line:
            raise RuntimeError(f"Expected a line of {self.module}, but the process has ended")
        return msgspec.json.decode(line, type=kind)

    def tell(self, value: object = None) -> None:
        """Tells it to go on; `value` is how, where that is asked for."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(value) + b"\n")
        self._process.stdin.flush()
