"""Mutants of the Rust kernel, with a list and commands of the tests' own; the time is theirs."""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from devtools.mutants.combined_trial import KernelPackage, Mutants, Note
from devtools.mutants.crate_tests import NotBuiltError
from devtools.mutants.findings import Findings
from devtools.mutants.kernel_copy import NATIVE, KernelCopy, run_bounded
from devtools.mutants.rust import (
    CombinedTrial,
    MutantSelection,
    NotTriedError,
    list_mutants,
    mutated,
    named,
    try_files,
)

ROOT = Path(__file__).parents[4]
MODULE = f"{NATIVE}/index/src/sets.rs"
SOURCE = """\
fn least(a: u64, b: u64) -> u64 {
    if a < b { a } else { b }
}

fn sum(a: u64, b: u64) -> u64 {
    // ä stands before it
    let ä = a + b; ä
}

#[cfg(test)]
mod tests {
}
"""


def mutant(
    change: str,
    replacement: str,
    start: tuple[int, int],
    end: tuple[int, int],
    function: str | None = "least",
) -> dict[str, Any]:
    """As cargo-mutants lists it."""
    (line, column), (last, behind) = start, end
    return {
        "name": f"index/src/sets.rs:{line}:{column}: {change}",
        "function": None if function is None else {"function_name": function},
        "replacement": replacement,
        "span": {
            "start": {"line": line, "column": column},
            "end": {"line": last, "column": behind},
        },
    }


BODY = mutant("replace least -> u64 with 0", "0", (2, 5), (2, 30))
LESS = mutant("replace < with ==", "==", (2, 10), (2, 11))
SUM = mutant("replace + with -", "-", (7, 15), (7, 16), "sum")
ALL = [BODY, LESS, SUM]


def test_a_mutant_stands_in_the_place_of_its_span() -> None:
    assert mutated(SOURCE, LESS) == SOURCE.replace("a < b", "a == b")
    assert mutated(SOURCE, BODY) == SOURCE.replace("if a < b { a } else { b }", "0")
    assert mutated(SOURCE, SUM) == SOURCE.replace("a + b", "a - b"), "columns are characters"
    over_lines = mutant("replace", "x", (1, 33), (3, 2))
    assert mutated(SOURCE, over_lines) == (
        "fn least(a: u64, b: u64) -> u64 x" + SOURCE[SOURCE.index("\n\nfn sum") :]
    )


def test_a_name_is_the_same_wherever_it_stands() -> None:
    assert named([LESS, SUM], SOURCE) == [
        ("least", 2, "if a < b { a } else { b }", "replace < with =="),
        ("sum", 7, "let ä = a + b; ä", "replace + with -"),
    ]
    moved = mutant("replace < with ==", "==", (3, 10), (3, 11))
    [(function, at, line, change)] = named([moved], "\n" + SOURCE)
    assert (function, at, line, change) == (
        *("least", 3, "if a < b { a } else { b }"),
        "replace < with ==",
    )


def test_of_several_like_it_each_has_a_number_and_without_a_function_none() -> None:
    found = named([LESS, LESS, mutant("drop", "", (1, 1), (1, 2), None)], SOURCE)
    assert [(function, change) for function, _, _, change in found] == [
        ("least", "replace < with =="),
        ("least", "replace < with == (#2)"),
        ("", "drop"),
    ]


class Machine:
    """Runs no command: says how long each would have taken, by what stands in the tree.

    Attributes:
        seconds: of the steps without a mutant: tests built, crate's tests, build, tests in Python.
        of_mutants: the same of a mutant, by what stands in the file; None: the step fails.
        ran: what stood there and which steps were run; 0 for the source as it is.
        limits: of each step that was run.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.seconds: list[float | None] = [100.0, 2.0, 200.0, 50.0]
        self.of_mutants: dict[str, list[float | None]] = {}
        self.ran: list[tuple[str, int]] = []
        self.limits: list[float] = []
        self.environment: Mapping[str, str] = {}

    def __call__(
        self,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        limit_s: float,
    ) -> float | None:
        if "pytest" in command:
            step, tree = 3, directory
        else:
            tree = directory.parents[len(NATIVE.parts) - 1]
            step = 2 if "build" in command else 0 if "--no-run" in command else 1
        if step == 2:
            built = Path(environment["CARGO_TARGET_DIR"]) / "debug"
            built.mkdir(parents=True, exist_ok=True)
            (built / "lib_native.so").write_text((tree / MODULE).read_text())
        if step == 3:
            assert (tree / "streams/kernel/_native.abi3.so").read_text() == (
                tree / MODULE
            ).read_text(), "the extension that was built is the one that is tried"
        assert not tree.is_relative_to(self._root), "the tree itself is left alone"
        stands = (tree / MODULE).read_text()
        original = (self._root / MODULE).read_text()
        which = "" if stands == original else stands
        self.ran.append((which, step))
        self.limits.append(limit_s)
        self.environment = environment
        took = (self.of_mutants.get(which, self.seconds) if which else self.seconds)[step]
        return None if took is None or took > limit_s else took


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tree" / MODULE).parent.mkdir(parents=True)
    (tmp_path / "tree" / MODULE).write_text(SOURCE)
    (tmp_path / "tree/tests").mkdir()
    (tmp_path / "tree/tests/test_it.py").write_text("")
    return tmp_path / "tree"


@pytest.fixture
def machine(root: Path) -> Machine:
    return Machine(root)


def none_together(*_: object) -> None:
    raise NotBuiltError("these tests say so")


def tried(
    root: Path,
    machine: Machine,
    *functions: str,
    every: int = 1,
    findings: Findings | None = None,
    listed: Sequence[dict[str, Any]] = ALL,
    together: CombinedTrial = none_together,
) -> list[tuple[str, str]]:
    """Changes and outcomes."""
    with tempfile.TemporaryDirectory() as directory:
        tried_files = try_files(
            KernelCopy(root, Path(directory), machine),
            [MODULE],
            MutantSelection(functions, every),
            KernelPackage("prefix-index", ("tests/test_it.py",)),
            findings or Findings(),
            listing=lambda *_: list(listed),
            together=together,
        )
    names, outcomes = tried_files[MODULE]
    return [(name[3], outcome) for name, outcome in zip(names, outcomes, strict=True)]


def test_what_becomes_of_a_mutant(root: Path, machine: Machine) -> None:
    body, less, plus = (mutated(SOURCE, one) for one in ALL)
    machine.of_mutants = {
        body: [None, 0, 0, 0],  # it does not compile
        less: [5.0, None, 0, 0],  # a test of the crate fails
        plus: [5.0, 2.0, 5.0, None],  # a test in Python fails
    }
    assert tried(root, machine) == [
        ("replace least -> u64 with 0", "unusable"),
        ("replace < with ==", "killed"),
        ("replace + with -", "killed"),
    ]
    ran = [("", 0), ("", 1), ("", 2), ("", 3), (body, 0), (less, 0), (less, 1)]
    assert machine.ran == [*ran, (plus, 0), (plus, 1), (plus, 2), (plus, 3)]
    assert (root / MODULE).read_text() == SOURCE


def test_what_no_test_fails_on_survives(root: Path, machine: Machine) -> None:
    assert {outcome for _, outcome in tried(root, machine)} == {"survived"}


@pytest.mark.parametrize("step", [1, 3])
def test_a_test_that_does_not_end_in_time_kills_it(root: Path, machine: Machine, step: int) -> None:
    """In eight times what it takes without a mutant, and half a minute."""
    in_time = list(machine.seconds)
    in_time[step] = 30 + 8 * (machine.seconds[step] or 0)
    machine.of_mutants[mutated(SOURCE, LESS)] = in_time
    assert tried(root, machine, listed=[LESS]) == [("replace < with ==", "survived")]
    in_time[step] = 31 + 8 * (machine.seconds[step] or 0)
    assert tried(root, machine, listed=[LESS]) == [("replace < with ==", "killed")]


@pytest.mark.parametrize("step", [0, 2])
def test_a_build_that_does_not_end_in_time_says_nothing(
    root: Path, machine: Machine, step: int
) -> None:
    late = list(machine.seconds)
    late[step] = 31 + 8 * (machine.seconds[step] or 0)
    machine.of_mutants[mutated(SOURCE, LESS)] = late
    assert tried(root, machine, listed=[LESS]) == [("replace < with ==", "unusable")]


def test_a_slow_mutant_makes_the_next_ones_limit_no_longer(root: Path, machine: Machine) -> None:
    machine.of_mutants[mutated(SOURCE, BODY)] = [100.0, 40.0, 200.0, 400.0]
    tried(root, machine)
    assert machine.limits[4:8] == machine.limits[8:12] == [830.0, 46.0, 1630.0, 430.0]


def test_functions_and_one_in_so_many(root: Path, machine: Machine) -> None:
    assert tried(root, machine, "sum") == [("replace + with -", "survived")]
    assert [change for change, _ in tried(root, machine, every=2)] == [
        "replace least -> u64 with 0",
        "replace + with -",
    ]


@pytest.mark.parametrize("step", range(4))
def test_without_a_mutant_all_must_pass(root: Path, machine: Machine, step: int) -> None:
    machine.seconds[step] = None
    with pytest.raises(NotTriedError, match=r"sets\.rs to pass without a mutant"):
        tried(root, machine)


def test_where_there_are_none_nothing_is_built(root: Path, machine: Machine) -> None:
    assert tried(root, machine, "no such function") == []
    assert machine.ran == []


def test_what_was_found_is_not_tried_again(root: Path, machine: Machine, tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    machine.of_mutants = {mutated(SOURCE, LESS): [5.0, None, 0, 0]}

    def again(listed: Sequence[dict[str, Any]] = ALL) -> tuple[list[str], int]:
        machine.ran.clear()
        with Findings(found) as findings:
            outcomes = [one for _, one in tried(root, machine, findings=findings, listed=listed)]
        return outcomes, len({which for which, _ in machine.ran if which})

    assert again([BODY, LESS]) == (["survived", "killed"], 2)  # and here it was ended
    assert again() == (["survived", "killed", "survived"], 1)
    assert again() == (["survived", "killed", "survived"], 0)
    assert machine.ran == [], "nothing is built for nothing"
    (root / MODULE).write_text(SOURCE.replace("mod tests {", "mod tests {\n    // one more"))
    machine.of_mutants = {}
    assert again() == (["survived", "killed", "survived"], 2), "another test: survivors meet it"
    (root / "tests/test_it.py").write_text("# one more")
    assert again() == (["survived", "killed", "survived"], 2)
    (root / MODULE).write_text(SOURCE.replace("a } else", "a  } else"))
    assert again() == (["survived", "survived", "survived"], 3), "other code"


def test_what_could_be_tried_together_is_not_tried_alone(root: Path, machine: Machine) -> None:
    asked: list[list[int]] = []

    def together(
        copy: KernelCopy,
        mutants: Mapping[str, Mutants],
        specified: KernelPackage,
        jobs: int,
        note: Note,
    ) -> None:
        assert (copy.tree / MODULE).read_text() == SOURCE
        asked.append(sorted(mutants[MODULE]))
        note(1, "killed")

    assert tried(root, machine, together=together) == [
        ("replace least -> u64 with 0", "survived"),
        ("replace < with ==", "killed"),
        ("replace + with -", "survived"),
    ]
    assert asked == [[0, 1, 2]]
    assert {which for which, _ in machine.ran} == {"", mutated(SOURCE, BODY), mutated(SOURCE, SUM)}


def test_one_copy_serves_several_files_each_as_it_is(
    root: Path, machine: Machine, tmp_path: Path
) -> None:
    copy = KernelCopy(root, tmp_path / "of it", machine)
    for _ in range(2):
        try_files(
            copy,
            [MODULE],
            MutantSelection(),
            KernelPackage("prefix-index", ("tests/test_it.py",)),
            Findings(),
            listing=lambda *_: [LESS],
        )
        assert (copy.tree / MODULE).read_text() == SOURCE
    without = [step for which, step in machine.ran if not which]
    assert without == [0, 1, 2, 3], "the tests of a package run once without a mutant"


def test_a_copy_of_before_is_written_only_where_it_differs(root: Path, tmp_path: Path) -> None:
    other = "tests/test_it.py"
    before = KernelCopy(root, tmp_path / "of it").tree
    (before / MODULE).write_text("a mutant whose run was ended")
    written = (before / other).stat().st_mtime_ns
    os.utime(before / other, ns=(written, written - 10**9))
    after = KernelCopy(root, tmp_path / "of it").tree
    assert (after / MODULE).read_text() == SOURCE
    assert (after / other).stat().st_mtime_ns == written - 10**9


# Commands


def test_a_command_takes_its_time_fails_or_is_ended(tmp_path: Path) -> None:
    def run(code: str, limit_s: float, cpu_s: float | None = None) -> float | None:
        return run_bounded([sys.executable, "-c", code], tmp_path, {}, limit_s, cpu_s=cpu_s)

    took_s = run("pass", 60)
    assert took_s is not None
    assert 0 < took_s < 60
    assert run("raise SystemExit(1)", 60) is None
    assert run("import time; time.sleep(60)", 0.1) is None
    assert run("while True: pass", 60, cpu_s=0.1) is None, "a second, not the minute"
    assert run("x = bytearray(2**33)", 60) is None, "its memory is bounded"


def test_what_a_command_has_started_ends_with_it(tmp_path: Path) -> None:
    pipe, is_open = tmp_path / "pipe", tmp_path / "open"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    script = f"{{ : > {is_open}; exec sleep 600; }} > {pipe} & until [ -e {is_open} ]; do :; done"
    assert run_bounded(["sh", "-c", script], tmp_path, {"PATH": os.environ["PATH"]}, 60) is not None
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b"", "it has no writer any more"
    os.close(reader)


@pytest.mark.skipif(shutil.which("cargo-mutants") is None, reason="cargo-mutants is not installed")
def test_cargo_mutants_lists_what_can_be_put_into_the_file() -> None:
    listed = list_mutants(ROOT, MODULE, "prefix-index")
    source = (ROOT / MODULE).read_text()
    assert len(listed) > 10
    assert all(mutated(source, one) != source for one in listed)
    assert len(set(named(listed, source))) == len(listed)


def test_without_a_list_it_is_said_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NATIVE).mkdir(parents=True)
    (tmp_path / "cargo").write_text("#!/bin/sh\necho no such command >&2\nexit 101\n")
    (tmp_path / "cargo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(NotTriedError, match=r"got exit 101: no such command\. .*cargo install"):
        list_mutants(tmp_path, MODULE, "prefix-index")
