"""Tries the mutants of files of the Rust kernel, which cargo-mutants lists.

cargo-mutants would try them with `cargo test` alone, but what specifies this kernel are the tests
that it shares with the reference kernel. So only its list is used: mutants are built in a copy of
the tree, most of them as one (`together`), and tried with the crate's own tests, and what survives
those with the shared ones. What cannot be built with the others is built and tried alone.
"""

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from devtools.mutants.combined_trial import KernelPackage, Note, try_together
from devtools.mutants.combined_trial import Mutants as ByNumber
from devtools.mutants.crate_tests import NotBuiltError
from devtools.mutants.findings import Findings, key_of, state_of
from devtools.mutants.kernel_copy import NATIVE, SURVIVED, KernelCopy

INSTALL = "cargo install cargo-mutants --version 27.1.0 --locked"

Mutants = list[dict[str, Any]]
"""As `cargo mutants --list --json` has them."""

CombinedTrial = Callable[[KernelCopy, Mapping[str, ByNumber], KernelPackage, int, Note], None]
"""As `try_together`."""

_TESTS: Final = "\n#[cfg(test)]\nmod tests {"
"""What a file's own tests begin with, at its end."""
_SPECIFIED_IN: Final = ("streams/kernel", "tests", "devtools/mutants")


class NotTriedError(Exception):
    """The mutants cannot be listed, or their tests fail without one."""


def list_mutants(root: Path, module: str, package: str) -> Mutants:
    """The mutants of a file.

    Raises:
        NotTriedError: cargo-mutants is not there, or cannot read the file.
    """
    file = str((root / module).relative_to(root / NATIVE))
    return [mutant for mutant in _list_all(root, package) if mutant["file"] == file]


@functools.lru_cache
def _list_all(root: Path, package: str) -> Mutants:
    """Of a package: the list of one file takes as long."""
    done = subprocess.run(
        ["cargo", "mutants", "--list", "--json", "--package", package],
        cwd=root / NATIVE,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotTriedError(
            f"Expected cargo-mutants to list the mutants of {package}, got exit {done.returncode}:"
            f" {done.stderr[-500:].strip()}. Where it is not there: {INSTALL}"
        )
    listed: Mutants = json.loads(done.stdout)
    return listed


class MutantSelection(NamedTuple):
    """Which mutants of a file are tried: those of functions, all where none is named; one in so
    many; so many at a time.
    """

    functions: Sequence[str] = ()
    every: int = 1
    jobs: int = 2


TrialResult = tuple[list[tuple[str, int, str, str]], list[str]]
"""Function, line's number and text, and change of each mutant; and what became of each."""


class _File:
    """A file's mutants: their names, the keys of what is found of them, and that."""

    def __init__(
        self, root: Path, module: str, listed: Mutants, state: str, findings: Findings
    ) -> None:
        self.module = module
        self.listed = listed
        self.outcomes: dict[int, str] = {}
        self._findings = findings
        source = (root / module).read_text()
        self.names = named(listed, source)
        code = source.partition(_TESTS)[0]
        self._keys = []
        for number, (function, _, line, change) in enumerate(self.names):
            of_code = key_of("rust", module, code, function, line, change)
            self._keys.append((of_code, key_of(of_code, state)))
            found = findings.find(of_code) or findings.find(self._keys[number][1])
            if found is not None:
                self.outcomes[number] = found

    def left(self) -> dict[int, dict[str, Any]]:
        return {at: one for at, one in enumerate(self.listed) if at not in self.outcomes}

    def note(self, number: int, outcome: str) -> None:
        self.outcomes[number] = outcome
        name = str(self.listed[number]["name"])
        self._findings.note(self._keys[number][outcome == SURVIVED], outcome, of=name)
        _say(f"{len(self.outcomes)}/{len(self.listed)} {outcome}: {name}")


def try_files(
    copy: KernelCopy,
    modules: Sequence[str],
    wanted: MutantSelection,
    specified: KernelPackage,
    findings: Findings,
    *,
    listing: Callable[[Path, str, str], Mutants] = list_mutants,
    together: CombinedTrial = try_together,
) -> dict[str, TrialResult]:
    """What became of the mutants of each file.

    Args:
        copy: of the tree, in which they are tried.
        modules: the files, from the root, all of one package.
        wanted: see there.
        specified: the package that has the files.
        findings: of runs before, which are not made again, and of this one. What was killed stays
            killed while the file's code is the same; what survived, while the tests are, too.
        listing: gives the mutants of a file.
        together: tries those that can be built as one.

    Raises:
        NotTriedError: see there.
    """
    state = state_of(copy.root, _SPECIFIED_IN)
    files = []
    for module in modules:
        listed = [
            mutant
            for mutant in listing(copy.root, module, specified.package)
            if not wanted.functions or _function(mutant) in wanted.functions
        ][:: wanted.every]
        files.append(_File(copy.root, module, listed, state, findings))
    numbered = [(file, at) for file in files for at in file.left()]
    if len(numbered) > 1:
        by_file: dict[str, dict[int, dict[str, Any]]] = {file.module: {} for file in files}
        for number, (file, at) in enumerate(numbered):
            by_file[file.module][number] = file.listed[at]

        def note(number: int, outcome: str) -> None:
            file, at = numbered[number]
            file.note(at, outcome)

        try:
            together(copy, by_file, specified, wanted.jobs, note)
        except NotBuiltError as error:
            _say(f"each mutant is tried alone, as {error}")
    for file in files:
        _try_alone(copy, file.module, file.left(), specified, file.note)
    return {
        file.module: (file.names, [file.outcomes[at] for at in range(len(file.listed))])
        for file in files
    }


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _try_alone(
    copy: KernelCopy,
    module: str,
    mutants: Mapping[int, dict[str, Any]],
    specified: KernelPackage,
    note: Callable[[int, str], None],
) -> None:
    if not mutants:
        return
    source = (copy.tree / module).read_text()
    if not copy.knows(specified.package):
        outcome = copy.outcome(*specified)
        if outcome != SURVIVED:
            raise NotTriedError(
                f"Expected the tests of {module} to pass without a mutant, which is {outcome}:"
                " run them"
            )
    for number, mutant in mutants.items():
        (copy.tree / module).write_text(mutated(source, mutant))
        note(number, copy.outcome(*specified))
    (copy.tree / module).write_text(source)


def _function(mutant: dict[str, Any]) -> str:
    function = mutant["function"]
    return str(function["function_name"]) if function else ""


def named(listed: Mutants, source: str) -> list[tuple[str, int, str, str]]:
    """Function, line's number and text, and change of each: what is the same wherever it moves."""
    lines = source.splitlines()
    seen: dict[tuple[str, str, str], int] = {}
    names = []
    for mutant in listed:
        at = mutant["span"]["start"]["line"]
        # "index/src/slots.rs:7:5: replace + with -"
        change = str(mutant["name"]).split(": ", 1)[1]
        key = (_function(mutant), lines[at - 1].strip(), change)
        seen[key] = seen.get(key, 0) + 1
        numbered = change if seen[key] == 1 else f"{change} (#{seen[key]})"
        names.append((key[0], at, key[1], numbered))
    return names


def mutated(source: str, mutant: dict[str, Any]) -> str:
    """The source with the mutant in it.

    Columns count characters, from 1; the end is the first one after the span.
    """
    lines = source.splitlines(keepends=True)
    start, end = mutant["span"]["start"], mutant["span"]["end"]
    before = "".join(lines[: start["line"] - 1]) + lines[start["line"] - 1][: start["column"] - 1]
    after = lines[end["line"] - 1][end["column"] - 1 :] + "".join(lines[end["line"] :])
    return f"{before}{mutant['replacement']}{after}"
