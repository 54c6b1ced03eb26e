"""Tries mutants that are all in one extension with tests in Python: one pytest process that has
collected the tests, and a fork of it for each test without a mutant, then for each mutant.

    python -m devtools.mutants.kernel_trial --out FOUND --mutants 3,4,9 -- TESTS...

A test's fork notes which mutants it reaches and what it takes: a mutant is tried with the tests
that reach it, the fastest first, until one fails. FOUND gets a line of JSON for each test that
fails without a mutant, `["failed", name]`, and for each mutant `[number, outcome]`, when it is
found.
"""

import argparse
import faulthandler
import functools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from devtools.mutants.combined import CHOSEN, REACHED
from devtools.mutants.forks import KILLED, SURVIVED, Forks, passes

_SLOWER = 8.0
"""A test that computes this many times as long as without the mutant is ended, which kills it. Not
its time but its CPU: on a busy machine it may have to wait."""
_AT_LEAST_S = 3.0
_WAITS_S = 60.0
"""As long may a test wait, for what never comes."""


class Baseline(NamedTuple):
    """What a test does without a mutant."""

    name: str
    passed: bool
    cpu_s: float
    reached: frozenset[int]


class KernelTrial:
    """The pytest plugin; it takes the place of running the tests."""

    def __init__(self, mutants: list[int], jobs: int, out: Path) -> None:
        self._mutants = mutants
        self._jobs = jobs
        self._out = out

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the tests without a mutant, then the mutants, where all pass."""
        items = {item.nodeid: item for item in session.items}
        with tempfile.TemporaryDirectory(prefix="reprise-mutants-") as directory:
            baseline = self._without(session, items, Path(directory))
        failed = [one.name for one in baseline if not one.passed]
        for name in failed:
            self._note("failed", name)
        if failed:
            return True
        baseline.sort(key=lambda one: one.cpu_s)
        calls = [
            functools.partial(_attempt, session, items, baseline, number)
            for number in self._mutants
        ]
        outcomes = {SURVIVED: "survived"}
        Forks(self._jobs).run(
            calls,
            # Whatever else ends a process, a signal or a limit, is a failure too.
            lambda index, status: self._note(self._mutants[index], outcomes.get(status, "killed")),
        )
        return True

    def _without(
        self, session: pytest.Session, items: dict[str, pytest.Item], directory: Path
    ) -> list[Baseline]:
        def call(index: int, item: pytest.Item) -> int:
            os.environ[REACHED] = str(directory / f"{index}.reached")
            began = time.process_time()
            passed = passes(session, item)
            (directory / f"{index}.took").write_text(str(time.process_time() - began))
            return SURVIVED if passed else KILLED

        calls: list[Callable[[], int]] = [
            functools.partial(call, index, item) for index, item in enumerate(items.values())
        ]
        found = []
        for index, status in enumerate(Forks(self._jobs).run(calls)):
            took, reached = (directory / f"{index}.{what}" for what in ("took", "reached"))
            numbers = reached.read_text().split() if reached.exists() else []
            found.append(
                Baseline(
                    list(items)[index],
                    status == SURVIVED,
                    float(took.read_text()) if took.exists() else 0.0,
                    frozenset(map(int, numbers)),
                )
            )
        return found

    def _note(self, *found: object) -> None:
        with self._out.open("a") as file:
            file.write(json.dumps(found) + "\n")


def _attempt(
    session: pytest.Session, items: dict[str, pytest.Item], baseline: list[Baseline], number: int
) -> int:
    os.environ[CHOSEN] = str(number)
    for test in baseline:
        if number in test.reached:
            limit_s = _AT_LEAST_S + _SLOWER * test.cpu_s
            signal.setitimer(signal.ITIMER_PROF, limit_s)
            faulthandler.dump_traceback_later(_WAITS_S + limit_s, exit=True, file=2)
            if not passes(session, items[test.name]):
                return KILLED
    return SURVIVED


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mutants", required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("tests", nargs="+")
    return parser.parse_args()


def main() -> int:
    """What pytest says of its collection."""
    arguments = _arguments()
    numbers = [int(number) for number in arguments.mutants.split(",")]
    trial = KernelTrial(numbers, arguments.jobs, arguments.out)
    # The time of a test is no matter here, but its CPU.
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=0"]
    options += ["-p", "devtools.mutants.profile", "-k", "not reference"]
    return int(pytest.main([*options, *arguments.tests], plugins=[trial]))


if __name__ == "__main__":
    sys.exit(main())
