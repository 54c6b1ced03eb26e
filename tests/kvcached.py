"""kvcached's released Python code as a process, where it is there.

Its package cannot be installed without torch and a compiler for the GPU, but the code that writes a
segment needs neither: numpy, posix_ipc, and that something is called torch. So:

    REPRISE_KVCACHED_SOURCE=kvcached-0.1.6     its unpacked source, where it is not installed
    REPRISE_KVCACHED_PYTHON=venv/bin/python    an interpreter with numpy and posix_ipc
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

DIRECTORY: Final = Path("/dev/shm")
"""Its code knows no other."""

MISSING: Final = (
    "kvcached is not there: set REPRISE_KVCACHED_SOURCE to its unpacked source, and"
    " REPRISE_KVCACHED_PYTHON to an interpreter with numpy and posix_ipc"
)
_TRACKER: Final = """
import sys
from kvcached.mem_info_tracker import MemInfoTracker
tracker = MemInfoTracker(int(sys.argv[1]))
print(tracker.ipc_name, flush=True)
for line in sys.stdin:
    tracker.update_memory_usage(*map(int, line.split()))
    print("written", flush=True)
"""


@cache
def interpreter() -> str:
    """The interpreter that can run it, or ""."""
    python = os.environ.get("REPRISE_KVCACHED_PYTHON", "") or sys.executable
    code = (
        "import importlib.util as u, sys;"
        "sys.exit(not all(map(u.find_spec, ('kvcached', 'numpy', 'posix_ipc'))))"
    )
    try:
        done = subprocess.run([python, "-c", code], env=_environment(), capture_output=True)
    except OSError:
        return ""
    return python if done.returncode == 0 else ""


def _environment(stub: Path | None = None) -> dict[str, str]:
    """With the source, and with something that is called torch where that is missing."""
    paths = [os.environ.get("REPRISE_KVCACHED_SOURCE", "")]
    if stub is not None:
        package = stub / "stub" / "torch"
        package.mkdir(parents=True, exist_ok=True)
        (package / "__init__.py").write_text("class version: hip = None\n")
        paths.append(str(package.parent))
    kept = {name: value for name, value in os.environ.items() if name != "KVCACHED_IPC_NAME"}
    return kept | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _run(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [interpreter(), *arguments],
        env=_environment(directory),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Tracker:
    """A process that has its `MemInfoTracker`, as an engine has."""

    def __init__(self, directory: Path, total: int) -> None:
        self._process = subprocess.Popen(
            [interpreter(), "-c", _TRACKER, str(total)],
            env=_environment(directory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.name = self._answer()

    def use(self, used: int, preallocated: int) -> None:
        """Returns when it is written."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{used} {preallocated}\n")
        self._process.stdin.flush()
        assert self._answer() == "written"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        assert answer, "it has ended"
        return answer

    def end(self) -> None:
        """It ends in order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._wait()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._wait()

    def _wait(self) -> None:
        self._process.wait(30)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()


def listed(directory: Path, name: str) -> dict[str, int]:
    """What `kvctl list --json` says of a segment."""
    [found] = [
        one
        for one in json.loads(_run(directory, "-m", "kvcached.cli.kvctl", "list", name, "--json"))
        if one["ipc"] == name
    ]
    return {field: found[field] for field in ("limit_bytes", "used_bytes")}


def limit(directory: Path, name: str, size: str) -> None:
    """`kvctl limit`."""
    _run(directory, "-m", "kvcached.cli.kvctl", "limit", name, size)
