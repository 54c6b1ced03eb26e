"""A copy of the tree in which mutants of the Rust kernel are built and tried."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

NATIVE: Final = Path("streams/kernel/native")
SURVIVED, KILLED, UNUSABLE = "survived", "killed", "unusable"

_FIRST_S: Final = 1800.0
"""For what is done for the first time, without a mutant."""
_SLOWER: Final = 8.0
"""What takes this many times as long as without a mutant is ended."""
_AT_LEAST_S: Final = 30.0
_MEMORY_BYTES: Final = 6 * 2**30
"""Of one process: a mutant may never end to grow a table."""
_IGNORED: Final = shutil.ignore_patterns(
    ".git", ".venv", "target", "data", "__pycache__", ".*_cache", "*.so"
)

# As a release computes, but built in seconds rather than a minute.
_PROFILE: Final = {
    "CARGO_PROFILE_DEV_OPT_LEVEL": "1",
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_PROFILE_DEV_DEBUG_ASSERTIONS": "false",
    "CARGO_PROFILE_DEV_OVERFLOW_CHECKS": "false",
}


class Run(Protocol):
    """Runs a command: `run_bounded`, or a test's own."""

    def __call__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        limit_s: float,
    ) -> float | None:
        """The seconds that it took; None where it failed, or took longer than the limit."""
        ...


def run_bounded(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], limit_s: float
) -> float | None:
    """See `Run`. Whatever it has started ends with it."""
    began = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_bound_memory,
        start_new_session=True,
    ) as process:
        try:
            passed = process.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            passed = False
        finally:
            # The tests that cargo has started, too: they may never end.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return time.monotonic() - began if passed else None


def _bound_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


class KernelCopy:
    """See the module.

    Each step has as long as it took when it passed first, which is without a mutant, eight times
    over: so what a mutant keeps from ending is ended soon, on any machine.

    Args:
        root: of the tree; nothing in it is changed.
        directory: an empty one, for the copy and what is built.
        package: that has the mutants.
        tests: in Python, which specify it.
        run: runs a command.
    """

    def __init__(
        self,
        root: Path,
        directory: Path,
        package: str,
        tests: Sequence[str],
        run: Run = run_bounded,
    ) -> None:
        self.tree = directory / "tree"
        shutil.copytree(root, self.tree, ignore=_IGNORED)
        self._tests = tests
        self._run = run
        self._limits_s: dict[str, float] = {}
        self._cargo_test = ["cargo", "test", "--quiet", "--package", package]
        self._environment = {
            **os.environ,
            **_PROFILE,
            "CARGO_TARGET_DIR": str(directory / "target"),
            "PYO3_PYTHON": sys.executable,
            "PYTHONPATH": str(self.tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DEBUG_TEMPROOT": str(directory),
        }
        self._built = directory / "target/debug"

    def outcome(self) -> str:
        """What becomes of what stands in the tree; the first time that is to be no mutant.

        A mutant that a step of the compiler does not end with is unusable, like one that does not
        compile; one that a test does not end with is killed.
        """
        if not self._step("build of the tests", [*self._cargo_test, "--no-run"], NATIVE):
            return UNUSABLE
        if not self._step("tests of the crate", self._cargo_test, NATIVE):
            return KILLED
        if not self._step("build", ["cargo", "build", "--quiet"], NATIVE):
            return UNUSABLE
        self._put_library()
        python = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        python += ["-p", "no:xdist", "-p", "devtools.mutants.profile", "-k", "not reference"]
        if not self._step("tests in Python", [*python, *self._tests], Path()):
            return KILLED
        return SURVIVED

    def _step(self, name: str, command: Sequence[str], directory: Path) -> bool:
        limit_s = self._limits_s.get(name, _FIRST_S)
        took_s = self._run(command, self.tree / directory, self._environment, limit_s)
        if took_s is None:
            return False
        self._limits_s.setdefault(name, _AT_LEAST_S + _SLOWER * took_s)
        return True

    def _put_library(self) -> None:
        """Puts the extension where Python finds it."""
        library = next(
            file
            for file in self._built.iterdir()
            if file.name in ("lib_native.so", "lib_native.dylib")
        )
        shutil.copy(library, self.tree / "streams/kernel/_native.abi3.so")
