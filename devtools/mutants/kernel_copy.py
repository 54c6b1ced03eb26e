"""A copy of the tree in which mutants of the Rust kernel are built and tried."""

import filecmp
import math
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


class CommandRunner(Protocol):
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
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    limit_s: float,
    *,
    cpu_s: float | None = None,
) -> float | None:
    """See `CommandRunner`. Whatever it has started ends with it.

    Args:
        command: see `CommandRunner`.
        directory: see `CommandRunner`.
        environment: see `CommandRunner`.
        limit_s: see `CommandRunner`.
        cpu_s: what one process of it may compute, which does not depend on who else does.
    """

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        if cpu_s is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(cpu_s), math.ceil(cpu_s)))

    began = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=bound,
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


def _copy_changed(source: str, to: str) -> None:
    if not os.path.exists(to) or not filecmp.cmp(source, to, shallow=False):
        shutil.copyfile(source, to)


class KernelCopy:
    """See the module.

    Each step has as long as it took when it passed first, which is without a mutant, eight times
    over: so what a mutant keeps from ending is ended soon, on any machine.

    Args:
        root: of the tree; nothing in it is changed.
        directory: for the copy and what is built: an empty one, or one of before.
        run: runs a command.

    Attributes:
        root: see above.
        tree: the copy, which is made when it is first asked for.
        environment: in which it is built and tried.
    """

    def __init__(self, root: Path, directory: Path, run: CommandRunner = run_bounded) -> None:
        self.root = root
        self._tree = directory / "tree"
        self._is_there = False
        self._run = run
        self._limits_s: dict[tuple[str, str], float] = {}
        self.environment = {
            **os.environ,
            **_PROFILE,
            "CARGO_TARGET_DIR": str(directory / "target"),
            "RUSTFLAGS": "-A warnings",
            "PYO3_PYTHON": sys.executable,
            "PYTHONPATH": str(self._tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DEBUG_TEMPROOT": str(directory),
        }
        self._built = directory / "target/debug"

    @property
    def tree(self) -> Path:
        """See the class."""
        if not self._is_there:
            # Only what differs is written: cargo goes by the time of writing.
            shutil.copytree(
                self.root,
                self._tree,
                ignore=_IGNORED,
                copy_function=_copy_changed,
                dirs_exist_ok=True,
            )
            self._is_there = True
        return self._tree

    def outcome(self, package: str, tests: Sequence[str]) -> str:
        """What becomes of what stands in the tree; of a package the first time is no mutant.

        A mutant that a step of the compiler does not end with is unusable, like one that does not
        compile; one that a test does not end with is killed.

        Args:
            package: that has the mutants.
            tests: in Python, which specify it.
        """
        cargo_test = ["cargo", "test", "--quiet", "--package", package]
        if not self._step(package, "build of the tests", [*cargo_test, "--no-run"], NATIVE):
            return UNUSABLE
        if not self._step(package, "tests of the crate", cargo_test, NATIVE):
            return KILLED
        if not self._step(package, "build", ["cargo", "build", "--quiet"], NATIVE):
            return UNUSABLE
        self.put_library()
        python = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        python += ["-p", "no:xdist", "-p", "devtools.mutants.profile", "-k", "not reference"]
        if not self._step(package, "tests in Python", [*python, *tests], Path()):
            return KILLED
        return SURVIVED

    def knows(self, package: str) -> bool:
        """Whether the package's tests have passed here, without a mutant."""
        return (package, "tests in Python") in self._limits_s

    def _step(self, package: str, name: str, command: Sequence[str], directory: Path) -> bool:
        limit_s = self._limits_s.get((package, name), _FIRST_S)
        took_s = self._run(command, self.tree / directory, self.environment, limit_s)
        if took_s is None:
            return False
        self._limits_s.setdefault((package, name), _AT_LEAST_S + _SLOWER * took_s)
        return True

    def put_library(self) -> None:
        """Puts the extension where Python finds it."""
        library = next(
            file
            for file in self._built.iterdir()
            if file.name in ("lib_native.so", "lib_native.dylib")
        )
        shutil.copy(library, self.tree / "streams/kernel/_native.abi3.so")
