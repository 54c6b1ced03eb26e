"""Tries the mutants of one file of the Rust kernel, which cargo-mutants lists.

cargo-mutants would try them with `cargo test` alone, but what specifies this kernel are the tests
that it shares with the reference kernel. So only its list is used: each mutant is built in a copy
of the tree, and tried with the crate's own tests, which take seconds, and what survives those with
the shared ones, for which the whole extension is built.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from devtools.mutants.findings import Findings, key_of, state_of
from devtools.mutants.kernel_copy import NATIVE, SURVIVED, KernelCopy, Run, run_bounded

INSTALL = "cargo install cargo-mutants --version 27.1.0 --locked"

Mutants = list[dict[str, Any]]
"""As `cargo mutants --list --json` has them."""

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


def try_file(
    root: Path,
    module: str,
    functions: Sequence[str],
    every: int,
    *,
    package: str,
    tests: Sequence[str],
    findings: Findings,
    listing: Callable[[Path, str, str], Mutants] = list_mutants,
    run: Run = run_bounded,
) -> tuple[list[tuple[str, int, str, str]], list[str]]:
    """Function, line's number and text, and change of each mutant; and what became of each.

    Args:
        root: of the tree; nothing in it is changed.
        module: the file, from the root.
        functions: only their mutants; all where there are none.
        every: one in so many.
        package: that has the file.
        tests: in Python, which specify it.
        findings: of runs before, which are not made again, and of this one. What was killed stays
            killed while the file's code is the same; what survived, while the tests are, too.
        listing: gives the mutants.
        run: runs a command.

    Raises:
        NotTriedError: see there.
    """
    listed = [
        mutant
        for mutant in listing(root, module, package)
        if not functions or _function(mutant) in functions
    ][::every]
    source = (root / module).read_text()
    names = named(listed, source)
    code = source.partition(_TESTS)[0]
    state = state_of(root, _SPECIFIED_IN)
    outcomes: list[str] = []
    copy: KernelCopy | None = None
    with ExitStack() as stack:
        for number, (mutant, name) in enumerate(zip(listed, names, strict=True), start=1):
            function, _, line, change = name
            of_code = key_of("rust", module, code, function, line, change)
            of_all = key_of(of_code, state)
            outcome = findings.find(of_code) or findings.find(of_all)
            if outcome is None:
                if copy is None:
                    directory = stack.enter_context(
                        tempfile.TemporaryDirectory(prefix="reprise-mutants-")
                    )
                    copy = KernelCopy(root, Path(directory), package, tests, run)
                    _try_without(copy, module)
                (copy.tree / module).write_text(mutated(source, mutant))
                outcome = copy.outcome()
                key = of_all if outcome == SURVIVED else of_code
                findings.note(key, outcome, of=str(mutant["name"]))
                message = f"{number}/{len(listed)} {outcome}: {mutant['name']}"
                print(message, file=sys.stderr, flush=True)
            outcomes.append(outcome)
    return names, outcomes


def _try_without(copy: KernelCopy, module: str) -> None:
    outcome = copy.outcome()
    if outcome != SURVIVED:
        raise NotTriedError(
            f"Expected the tests of {module} to pass without a mutant, which is {outcome}: run them"
        )


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
