"""Ends what a run has started with it, however the run ends: in order, by an error, by `kill -9`.

    run  --  starts  -->  processes, and theirs        all have the mark in their environment
     |
     `-- a pipe that nothing is written to  -->  this module as a process, in a session of its own

The pipe ends with the run. Then every process that has the mark is killed. What was started with an
environment that the run did not hand on has none; where there is no /proc, nothing is found.
"""

import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

MARK: Final = "REPRISE_RUN_"
END_S: Final = 10.0
"""So long it looks for what is left."""


class Leftovers:
    """Those of the body: all that this process starts in it is marked. Cost: one small process.

    Attributes:
        mark: the variable that all of them have.
    """

    def __init__(self) -> None:
        self.mark = f"{MARK}{secrets.token_hex(8).upper()}"

    def __enter__(self) -> Self:
        command = [sys.executable, "-I", "-S", __file__, self.mark]
        # Before the mark is set: it must not find itself.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
        os.environ[self.mark] = "1"
        return self

    def __exit__(self, *_: object) -> None:
        os.environ.pop(self.mark, None)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def marked(mark: str) -> list[int]:
    """The processes that have it in the environment that they were started with."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if any(one.startswith(mark.encode()) for one in path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


def main(mark: str) -> None:
    """Waits for the end of the run, and ends what has the mark, until nothing has."""
    sys.stdin.buffer.read()
    end = time.monotonic() + END_S
    while (left := marked(mark)) and time.monotonic() < end:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
