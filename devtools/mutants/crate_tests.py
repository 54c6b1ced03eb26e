"""A crate's own tests, which run in a program that has all the mutants: see `combined`."""

import itertools
import resource
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from devtools.mutants.combined import CHOSEN, REACHED
from devtools.mutants.kernel_copy import KILLED, run_bounded

_SLOWER: Final = 8.0
_AT_LEAST_S: Final = 2.0
"""Tests that compute this much longer than without a mutant are ended."""
_WAITS_S: Final = 60.0
"""As long may they wait, for what never comes or for the processor."""
_TOGETHER_S: Final = 0.2
"""Tests that compute no longer are tried together, the others one by one."""
_QUICK_S: Final = 2.0
"""A test that computes no longer is quick: tried before the tests in Python, the others behind
them."""


class NotBuiltError(Exception):
    """The mutants cannot be tried together: each is to be tried alone."""


class _Test(NamedTuple):
    name: str
    cpu_s: float
    reached: frozenset[int]


class CrateTests:
    """See the module.

    Args:
        program: that has the tests; None: there are none.
        directory: in which it runs.
        environment: in which it runs.
        jobs: processes at a time.
        quick_s: what a quick test computes at most, in seconds.

    Raises:
        NotBuiltError: a test fails without a mutant.
    """

    def __init__(
        self,
        program: Path | None,
        directory: Path,
        environment: Mapping[str, str],
        jobs: int,
        *,
        quick_s: float = _QUICK_S,
    ) -> None:
        self._program = str(program)
        self._directory = directory
        self._environment = environment
        self._jobs = jobs
        self._quick_s = quick_s
        self._tests = [] if program is None else sorted(self._without(), key=lambda one: one.cpu_s)

    def survivors(
        self, numbers: Sequence[int], note: Callable[[int, str], None], *, quick: bool
    ) -> list[int]:
        """Those of the mutants that survive the quick tests, or the others; tells of the killed."""

        def killed(number: int) -> bool:
            tests = [
                one
                for one in self._tests
                if number in one.reached and (one.cpu_s <= self._quick_s) == quick
            ]
            together = [one for one in tests if one.cpu_s <= _TOGETHER_S]
            groups = [together, *([one] for one in tests[len(together) :])]
            return any(not self._pass(number, group) for group in groups if group)

        rest = []
        with ThreadPoolExecutor(self._jobs) as pool:
            for number, is_killed in zip(numbers, pool.map(killed, numbers), strict=True):
                if is_killed:
                    note(number, KILLED)
                else:
                    rest.append(number)
        return rest

    def _pass(self, number: int, tests: Sequence[_Test]) -> bool:
        cpu_s = _AT_LEAST_S + _SLOWER * sum(one.cpu_s for one in tests)
        took_s = run_bounded(
            [self._program, "--exact", *(one.name for one in tests)],
            self._directory,
            {**self._environment, CHOSEN: str(number)},
            _WAITS_S + 10 * cpu_s,
            cpu_s=cpu_s,
        )
        return took_s is not None

    def _without(self) -> Iterator[_Test]:
        """Each test without a mutant: what it takes and reaches."""
        listed = subprocess.run(
            [self._program, "--list", "--format", "terse"],
            cwd=self._directory,
            capture_output=True,
            text=True,
            check=True,
        )
        with tempfile.TemporaryDirectory(prefix="reprise-mutants-") as directory:
            for number, line in zip(itertools.count(), listed.stdout.splitlines(), strict=False):
                name, _, kind = line.rpartition(": ")
                if kind != "test":
                    continue
                file = Path(directory, str(number))
                environment = {**self._environment, REACHED: str(file)}
                command = [self._program, "--exact", name]
                before = _children_s()
                if run_bounded(command, self._directory, environment, 600.0) is None:
                    raise NotBuiltError(f"a test of the crate fails without a mutant: {name}")
                reached = file.read_text().split() if file.exists() else []
                yield _Test(name, _children_s() - before, frozenset(map(int, reached)))


def _children_s() -> float:
    """The CPU of all processes that this one has waited for, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
