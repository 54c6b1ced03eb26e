"""Tries the mutants of one module: one pytest process that has collected the tests, and a fork of
it for each mutant.

    python -m devtools.mutants.trial MODULE.py --out RESULT.json -- TESTS...

A fork puts the mutant's code into the functions that are loaded, so nothing is written to the
source, imported or collected again. A first fork notes which tests call which function and how
long they take: a mutant is tried with the tests that call its function, the fastest first, until
one fails.
"""

import argparse
import builtins
import faulthandler
import functools
import gc
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

from devtools.mutants.forks import KILLED, SURVIVED, Forks, passes
from devtools.mutants.operators import Mutant, instrumented, mutants

_HOOK = "__mutants_called__"
_SLOWER = 8.0
"""A test that takes this many times as long as without the mutant is ended, which kills it."""
_AT_LEAST_S = 10.0

_UNUSABLE = 3


class Baseline(NamedTuple):
    """What the tests do without a mutant: seconds and called functions of each that passes, in the
    order of collection; and the names of those that do not pass.
    """

    seconds: dict[str, float]
    called: dict[str, list[str]]
    failed: list[str]


class Trial:
    """The pytest plugin; it takes the place of running the tests."""

    def __init__(self, module: Path, jobs: int, functions: list[str], every: int) -> None:
        self._module = module
        self._jobs = jobs
        self._functions = functions
        self._every = every
        self._items: dict[str, pytest.Item] = {}
        self.result: dict[str, Any] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the baseline, then the mutants."""
        self._items = {item.nodeid: item for item in session.items}
        source = self._module.read_text()
        functions = _loaded_functions(self._module)
        baseline = self._baseline(session, functions, instrumented(source, self._module, _HOOK))
        wanted = [
            mutant
            for mutant in mutants(source, self._module)
            if not self._functions or mutant.function in self._functions
        ][:: self._every]
        outcomes = self._try_all(session, functions, baseline, wanted)
        self.result = {
            "mutants": [(one.function, one.at, one.line, one.change) for one in wanted],
            "outcomes": outcomes,
            "failed": baseline.failed,
        }
        return True

    def _baseline(
        self,
        session: pytest.Session,
        functions: Mapping[tuple[str, int], list[FunctionType]],
        codes: Mapping[tuple[str, int], CodeType],
    ) -> Baseline:
        report = Path(tempfile.mkdtemp(prefix="reprise-mutants-")) / "baseline.json"

        def run() -> int:
            called: set[str] = set()
            setattr(builtins, _HOOK, called.add)
            for key, code in codes.items():
                _exchange(functions.get(key, []), code)
            baseline = Baseline({}, {}, [])
            for name, item in self._items.items():
                called.clear()
                began = time.monotonic()
                if passes(session, item):
                    baseline.seconds[name] = time.monotonic() - began
                    baseline.called[name] = sorted(called)
                else:
                    baseline.failed.append(name)
            report.write_text(json.dumps(baseline))
            return SURVIVED

        outcome = Forks(1).run([run])[0]
        if outcome != SURVIVED:
            raise RuntimeError(
                f"Expected the tests to run without a mutant, got exit {outcome} of the process"
                " that ran them: run the same tests with pytest"
            )
        baseline = Baseline(*json.loads(report.read_text()))
        shutil.rmtree(report.parent)
        return baseline

    def _try_all(
        self,
        session: pytest.Session,
        functions: Mapping[tuple[str, int], list[FunctionType]],
        baseline: Baseline,
        wanted: list[Mutant],
    ) -> list[str]:
        def attempt(mutant: Mutant) -> int:
            loaded = functions.get((mutant.function, mutant.code.co_firstlineno), [])
            if not loaded or not _exchange(loaded, mutant.code):
                return _UNUSABLE
            for name in sorted(baseline.seconds, key=baseline.seconds.__getitem__):
                if mutant.function in baseline.called[name]:
                    limit = _AT_LEAST_S + _SLOWER * baseline.seconds[name]
                    faulthandler.dump_traceback_later(limit, exit=True, file=2)
                    if not passes(session, self._items[name]):
                        return KILLED
            return SURVIVED

        names = {SURVIVED: "survived", _UNUSABLE: "unusable"}
        outcomes = Forks(self._jobs).run([functools.partial(attempt, one) for one in wanted])
        # Whatever else ends a process, a signal or the limit of time or memory, is a failure too.
        return [names.get(outcome, "killed") for outcome in outcomes]


def _loaded_functions(module: Path) -> dict[tuple[str, int], list[FunctionType]]:
    gc.unfreeze()  # the suite hides what it has imported from the collector
    found: dict[tuple[str, int], list[FunctionType]] = {}
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename == str(module):
            key = (one.__code__.co_qualname, one.__code__.co_firstlineno)
            found.setdefault(key, []).append(one)
    gc.freeze()  # and collections in a fork would copy it
    return found


def _exchange(functions: list[FunctionType], code: CodeType) -> bool:
    """Whether the functions could take the code: not with other free variables than theirs."""
    try:
        for one in functions:
            one.__code__ = code
    except ValueError:
        return False
    return True


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("module", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--function", action="append", default=[])
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("tests", nargs="+")
    return parser.parse_args()


def main() -> int:
    """Writes the result; its exit says whether that could be done."""
    arguments = _arguments()
    trial = Trial(arguments.module.resolve(), arguments.jobs, arguments.function, arguments.every)
    options = [
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "devtools.mutants.profile",
    ]
    status = pytest.main([*options, *arguments.tests], plugins=[trial])
    if status == pytest.ExitCode.OK and trial.result:
        arguments.out.write_text(json.dumps(trial.result))
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
