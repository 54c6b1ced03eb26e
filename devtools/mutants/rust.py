"""Tries the mutants of one file of the Rust kernel, which cargo-mutants lists.

cargo-mutants would try them with `cargo test` alone, but what specifies this kernel are the tests
that it shares with the reference kernel. So only its list is used: mutants are built in a copy of
the tree, most of them as one (`together`), and tried with the crate's own tests, and what survives
those with the shared ones. What cannot be built with the others is built and tried alone.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from devtools.mutants.findings import Findings, key_of, state_of
from devtools.mutants.kernel_copy import NATIVE, SURVIVED, KernelCopy
from devtools.mutants.together import NotBuiltError, Note, Specified, try_together

INSTALL = "cargo install cargo-mutants --version 27.1.0 --locked"

Mutants = list[dict[str, Any]]
"""As `cargo mutants --list --json` has them."""

Together = Callable[[KernelCopy, str, Mapping[int, Mapping[str, Any]], Specified, int, Note], None]
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
    file = (root / module).relative_to(root / NATIVE)
    done = subprocess.run(
        ["cargo", "mutants", "--list", "--json", "--package", package, "--file", str(file)],
        cwd=root / NATIVE,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotTriedError(
            f"Expected cargo-mutants to list the mutants of {module}, got exit {done.returncode}:"
            f" {done.stderr[-500:].strip()}. Where it is not there: {INSTALL}"
        )
    listed: Mutants = json.loads(done.stdout)
    return listed


class Wanted(NamedTuple):
    """Which mutants of a file are tried: those of functions, all where none is named; one in so
    many; so many at a time.
    """

    functions: Sequence[str] = ()
    every: int = 1
    jobs: int = 2


def try_file(
    copy: KernelCopy,
    module: str,
    wanted: Wanted,
    tested: Specified,
    findings: Findings,
    *,
    listing: Callable[[Path, str, str], Mutants] = list_mutants,
    together: Together = try_together,
) -> tuple[list[tuple[str, int, str, str]], list[str]]:
    """Function, line's number and text, and change of each mutant; and what became of each.

    Args:
        copy: of the tree, in which they are tried.
        module: the file, from the root.
        wanted: see there.
        tested: the package that has the file.
        findings: of runs before, which are not made again, and of this one. What was killed stays
            killed while the file's code is the same; what survived, while the tests are, too.
        listing: gives the mutants.
        together: tries those that can be built as one.

    Raises:
        NotTriedError: see there.
    """
    listed = [
        mutant
        for mutant in listing(copy.root, module, tested.package)
        if not wanted.functions or _function(mutant) in wanted.functions
    ][:: wanted.every]
    source = (copy.root / module).read_text()
    names = named(listed, source)
    code = source.partition(_TESTS)[0]
    state = state_of(copy.root, _SPECIFIED_IN)
    outcomes: dict[int, str] = {}
    keys = {}
    for number, (function, _, line, change) in enumerate(names):
        of_code = key_of("rust", module, code, function, line, change)
        keys[number] = of_code, key_of(of_code, state)
        found = findings.find(of_code) or findings.find(keys[number][1])
        if found is not None:
            outcomes[number] = found

    def note(number: int, outcome: str) -> None:
        outcomes[number] = outcome
        name = str(listed[number]["name"])
        findings.note(keys[number][outcome == SURVIVED], outcome, of=name)
        _say(f"{len(outcomes)}/{len(listed)} {outcome}: {name}")

    def left() -> dict[int, dict[str, Any]]:
        return {number: one for number, one in enumerate(listed) if number not in outcomes}

    if len(left()) > 1:
        try:
            together(copy, module, left(), tested, wanted.jobs, note)
        except NotBuiltError as error:
            _say(f"each mutant is tried alone, as {error}")
    _try_alone(copy, module, left(), tested, note)
    return names, [outcomes[number] for number in range(len(listed))]


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _try_alone(
    copy: KernelCopy,
    module: str,
    mutants: Mapping[int, dict[str, Any]],
    tested: Specified,
    note: Callable[[int, str], None],
) -> None:
    if not mutants:
        return
    source = (copy.tree / module).read_text()
    if not copy.knows(tested.package):
        outcome = copy.outcome(*tested)
        if outcome != SURVIVED:
            raise NotTriedError(
                f"Expected the tests of {module} to pass without a mutant, which is {outcome}:"
                " run them"
            )
    for number, mutant in mutants.items():
        (copy.tree / module).write_text(mutated(source, mutant))
        note(number, copy.outcome(*tested))
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
