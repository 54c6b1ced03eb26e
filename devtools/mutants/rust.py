"""Tries the mutants of one file of the Rust kernel, which cargo-mutants lists.

cargo-mutants would try them with `cargo test` alone, but what specifies this kernel are the tests
that it shares with the reference kernel. So only its list is used: each mutant is built in a copy
of the tree, and tried with the crate's own tests, which take seconds, and what survives those with
the shared ones, for which the whole extension is built.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

NATIVE = Path("streams/kernel/native")
INSTALL = "cargo install cargo-mutants --version 27.1.0 --locked"
_TESTS_S = 600.0
_BUILD_S = 600.0
_CRATE_TESTS_S = 120.0
_MEMORY_BYTES = 6 * 2**30
"""Of one process: a mutant may never end to grow a table."""
_IGNORED = shutil.ignore_patterns(
    ".git", ".venv", "target", "data", "__pycache__", ".*_cache", "*.so"
)

# As a release computes, but built in seconds rather than a minute.
_PROFILE = {
    "CARGO_PROFILE_DEV_OPT_LEVEL": "1",
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_PROFILE_DEV_DEBUG_ASSERTIONS": "false",
    "CARGO_PROFILE_DEV_OVERFLOW_CHECKS": "false",
}


class NotTriedError(Exception):
    """The mutants cannot be listed, or their tests fail without one."""


def try_file(
    root: Path,
    module: str,
    functions: Sequence[str],
    every: int,
    *,
    package: str,
    tests: Sequence[str],
) -> tuple[list[tuple[str, int, str, str]], list[str]]:
    """Function, line's number and text, and change of each mutant; and what became of each.

    Args:
        root: of the tree; nothing in it is changed.
        module: the file, from the root.
        functions: only their mutants; all where there are none.
        every: one in so many.
        package: that has the file.
        tests: in Python, which specify it.

    Raises:
        NotTriedError: see there.
    """
    listed = [
        mutant
        for mutant in _list(root, module, package)
        if not functions or _function(mutant) in functions
    ][::every]
    source = (root / module).read_text()
    named = _named(listed, source)
    with tempfile.TemporaryDirectory(prefix="reprise-mutants-") as directory:
        copy = _Copy(root, Path(directory), package, tests)
        if not copy.builds() or copy.outcome() != "survived":
            raise NotTriedError(
                f"Expected the tests of {module} to pass without a mutant: run them"
            )
        outcomes = []
        for number, mutant in enumerate(listed):
            (copy.tree / module).write_text(_mutated(source, mutant))
            outcomes.append(copy.outcome())
            print(
                f"{number + 1}/{len(listed)} {outcomes[-1]}: {mutant['name']}",
                file=sys.stderr,
                flush=True,
            )
    return named, outcomes


def _list(root: Path, module: str, package: str) -> list[dict[str, Any]]:
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
            f" {done.stderr[-500:]}. Where it is not there: {INSTALL}"
        )
    listed: list[dict[str, Any]] = json.loads(done.stdout)
    return listed


def _function(mutant: dict[str, Any]) -> str:
    function = mutant["function"]
    return str(function["function_name"]) if function else ""


def _named(listed: list[dict[str, Any]], source: str) -> list[tuple[str, int, str, str]]:
    lines = source.splitlines()
    seen: dict[tuple[str, str, str], int] = {}
    named = []
    for mutant in listed:
        at = mutant["span"]["start"]["line"]
        # "index/src/slots.rs:7:5: replace + with -"
        change = str(mutant["name"]).split(": ", 1)[1]
        key = (_function(mutant), lines[at - 1].strip(), change)
        seen[key] = seen.get(key, 0) + 1
        numbered = change if seen[key] == 1 else f"{change} (#{seen[key]})"
        named.append((key[0], at, key[1], numbered))
    return named


def _mutated(source: str, mutant: dict[str, Any]) -> str:
    """Columns count characters, from 1; the end is the first one after the span."""
    lines = source.splitlines(keepends=True)
    start, end = mutant["span"]["start"], mutant["span"]["end"]
    before = "".join(lines[: start["line"] - 1]) + lines[start["line"] - 1][: start["column"] - 1]
    after = lines[end["line"] - 1][end["column"] - 1 :] + "".join(lines[end["line"] :])
    return f"{before}{mutant['replacement']}{after}"


class _Copy:
    """A copy of the tree, its kernel built there."""

    def __init__(self, root: Path, directory: Path, package: str, tests: Sequence[str]) -> None:
        self.tree = directory / "tree"
        shutil.copytree(root, self.tree, ignore=_IGNORED)
        self._package = package
        self._tests = tests
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
        """What becomes of the mutant that stands in the tree."""
        cargo = ["cargo", "test", "--quiet", "--package", self._package]
        if not self._run([*cargo, "--no-run"], self.tree / NATIVE, _BUILD_S):
            return "unusable"
        if not self._run(cargo, self.tree / NATIVE, _CRATE_TESTS_S):
            return "killed"
        if not self.builds():
            return "unusable"
        return "survived" if self._passes() else "killed"

    def builds(self) -> bool:
        """Builds the extension, and puts it where Python finds it."""
        if not self._run(["cargo", "build", "--quiet"], self.tree / NATIVE, _BUILD_S):
            return False
        library = next(
            file
            for file in self._built.iterdir()
            if file.name in ("lib_native.so", "lib_native.dylib")
        )
        shutil.copy(library, self.tree / "streams/kernel/_native.abi3.so")
        return True

    def _passes(self) -> bool:
        python = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        python += ["-p", "no:xdist", "-p", "devtools.mutants.profile", "-k", "not reference"]
        return self._run([*python, *self._tests], self.tree, _TESTS_S)

    def _run(self, command: list[str], directory: Path, limit_s: float) -> bool:
        with subprocess.Popen(
            command,
            cwd=directory,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_bound_memory,
            start_new_session=True,
        ) as process:
            try:
                return process.wait(limit_s) == 0
            except subprocess.TimeoutExpired:
                return False
            finally:
                # The tests that cargo has started, too: they may never end.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _bound_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
