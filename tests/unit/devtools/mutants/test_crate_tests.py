"""Tests of a crate, whose program is a script that computes as long as it is told."""

import json
import sys
from pathlib import Path

import pytest

from devtools.mutants.combined import CHOSEN, REACHED
from devtools.mutants.crate_tests import CrateTests, NotBuiltError

SCRIPT = f"""\
#!{sys.executable}
import json, os, sys, time
tests = json.loads(open(os.path.join(os.path.dirname(sys.argv[0]), "tests.json")).read())
if sys.argv[1] == "--list":
    print("".join(f"{{name}}: test\\n" for name in tests) + "one: benchmark")
    sys.exit()
with open(os.path.join(os.path.dirname(sys.argv[0]), "ran"), "a") as ran:
    ran.write(json.dumps([os.environ.get("{CHOSEN}"), sys.argv[2:]]) + "\\n")
for name in sys.argv[2:]:
    computes_s, reached, killed = tests[name]
    while time.process_time() < computes_s:
        pass
    if "{REACHED}" in os.environ:
        with open(os.environ["{REACHED}"], "a") as file:
            file.write("".join(f"{{number}}\\n" for number in reached))
    if int(os.environ.get("{CHOSEN}", -1)) in killed:
        sys.exit(1)
"""
SLOW_S = 0.4

Tests = dict[str, tuple[float, list[int], list[int]]]
"""What each computes, in seconds; which mutants it reaches, and which it kills (-1: none)."""


def of(directory: Path, tests: Tests, *, quick_s: float = SLOW_S / 2) -> CrateTests:
    (directory / "program").write_text(SCRIPT)
    (directory / "program").chmod(0o755)
    (directory / "tests.json").write_text(json.dumps(tests))
    crate = CrateTests(directory / "program", directory, {}, 1, quick_s=quick_s)
    (directory / "ran").unlink()
    return crate


def ran(directory: Path) -> list[tuple[str, list[str]]]:
    lines = (directory / "ran").read_text().splitlines()
    return [(number, sorted(names)) for number, names in map(json.loads, lines)]


def test_quick_tests_are_run_at_once_and_only_those_that_reach_the_mutant(tmp_path: Path) -> None:
    crate = of(tmp_path, {"a": (0, [1, 2], [2]), "b": (0, [1], []), "c": (SLOW_S, [1, 2], [])})
    told: list[tuple[int, str]] = []
    assert crate.survivors([1, 2, 3], lambda *one: told.append(one), quick=True) == [1, 3]
    assert told == [(2, "killed")]
    assert ran(tmp_path) == [("1", ["a", "b"]), ("2", ["a"])]


def test_a_quick_test_that_takes_longer_than_others_is_run_behind_them(tmp_path: Path) -> None:
    tests = {"a": (SLOW_S, [1, 2], [1]), "b": (0, [1, 2], [2]), "c": (0, [1], [])}
    crate = of(tmp_path, tests, quick_s=3 * SLOW_S)
    assert crate.survivors([1, 2], lambda *_: None, quick=True) == []
    assert ran(tmp_path) == [("1", ["b", "c"]), ("1", ["a"]), ("2", ["b"])]


def test_slow_tests_are_run_one_by_one_until_one_kills(tmp_path: Path) -> None:
    crate = of(tmp_path, {"a": (2 * SLOW_S, [1], [1]), "b": (SLOW_S, [1], [1]), "c": (0, [1], [1])})
    assert crate.survivors([1], lambda *_: None, quick=False) == []
    assert ran(tmp_path) == [("1", ["b"])]


def test_a_test_that_fails_without_a_mutant_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotBuiltError, match="fails without a mutant: b"):
        of(tmp_path, {"a": (0, [], []), "b": (0, [], [-1])})


def test_without_a_program_all_survive() -> None:
    assert CrateTests(None, Path(), {}, 1).survivors([1, 2], lambda *_: None, quick=True) == [1, 2]
