"""Tries mutants of a package of the Rust kernel that are built as one: see `combined`."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from devtools.mutants.combined import RUNTIME, CombinedSource, combined
from devtools.mutants.crate_tests import CrateTests, NotBuiltError
from devtools.mutants.kernel_copy import (
    KILLED,
    NATIVE,
    SURVIVED,
    UNUSABLE,
    KernelCopy,
)

_ROUNDS: Final = 12
"""After so many, what still does not compile is left: each stage of the compiler finds its own."""

_OF_TYPES: Final = ("E0277", "E0308", "E0368", "E0369", "E0600")
"""Errors about the types of what stands there, whatever is built with it."""

Note = Callable[[int, str], None]


class KernelPackage(NamedTuple):
    """A package of the kernel, and the tests in Python that specify it."""

    package: str
    tests: Sequence[str]


Mutants = Mapping[int, Mapping[str, Any]]
"""By number, as they are listed."""


def try_together(
    copy: KernelCopy,
    mutants: Mapping[str, Mutants],
    specified: KernelPackage,
    jobs: int,
    note: Note,
) -> None:
    """Tells what became of the mutants that could be tried so; the others are not told of.

    Args:
        copy: in which they are built; it is as it was when this returns.
        mutants: of files, which are named from the root; no two have the same number.
        specified: the package that has the files.
        jobs: forks at a time.
        note: is told of each when it is found.

    Raises:
        NotBuiltError: see there.
    """
    files = {copy.tree / module: dict(of_file) for module, of_file in mutants.items() if of_file}
    library = next(iter(files)).with_name("lib.rs")
    kept = {path: path.read_text() for path in {*files, library}}
    try:
        numbers = _put(copy, files, library, kept, specified.package, note)
        program = _build(copy, specified.package)
        crate = CrateTests(program, library.parents[1], copy.environment, jobs)
        numbers = crate.survivors(numbers, note, quick=True)
        if numbers:

            def survived(number: int) -> None:
                """Python's tests; the slow ones are left. Told at once, as a run may be ended."""
                if crate.survivors([number], note, quick=False):
                    note(number, SURVIVED)

            _try_python(copy, numbers, specified.tests, jobs, note, survived)
    finally:
        for path, text in kept.items():
            path.write_text(text)


def _put(
    copy: KernelCopy,
    files: Mapping[Path, Mutants],
    library: Path,
    kept: Mapping[Path, str],
    package: str,
    note: Note,
) -> list[int]:
    """Writes sources that compile; gives the numbers of their mutants."""
    left = dict(files)
    for _ in range(_ROUNDS):
        wholes = {file: combined(kept[file], of_file) for file, of_file in left.items()}
        texts = {**kept, **{file: whole.source for file, whole in wholes.items()}}
        texts[library] += RUNTIME.read_text()
        for path, text in texts.items():
            if path.read_text() != text:
                path.write_text(text)
        numbers = {number for whole in wholes.values() for number in whole.numbers}
        bad, alone_too = _uncompilable(copy, wholes, package)
        if not bad:
            return sorted(numbers)
        for number in sorted(alone_too):
            note(number, UNUSABLE)
        left = {
            file: {number: of_file[number] for number in of_file if number in numbers - bad}
            for file, of_file in left.items()
        }
    raise NotBuiltError(f"{package} did not compile in {_ROUNDS} rounds")


def _uncompilable(
    copy: KernelCopy, wholes: Mapping[Path, CombinedSource], package: str
) -> tuple[set[int], set[int]]:
    """The mutants that the compiler's errors are about, and which of them it would refuse alone."""
    done = _cargo(copy, "check", "--package", package)
    bad: set[int] = set()
    alone_too: set[int] = set()
    if not done.returncode:
        return bad, alone_too
    of_names = {str(file.relative_to(copy.tree / NATIVE)): one for file, one in wholes.items()}
    for message in (one["message"] for one in _messages(done.stdout, "compiler-message")):
        if message["level"] != "error":
            continue
        spans = sorted(message["spans"], key=lambda one: not one["is_primary"])
        for name in {one["file_name"] for one in spans}.intersection(of_names):
            places = [one["byte_start"] for one in spans if one["file_name"] == name]
            bad |= of_names[name].blamed(places)
            if message["code"] and message["code"]["code"] in _OF_TYPES and spans[0]["is_primary"]:
                alone_too |= of_names[name].within(places[0])
    if not bad:
        raise NotBuiltError(
            f"{package} does not compile, for no mutant's sake: {done.stderr[-500:]}"
        )
    return bad, alone_too & bad


def _build(copy: KernelCopy, package: str) -> Path | None:
    """Builds the extension, and the program of the crate's tests, where it has some."""
    program = None
    # An extension module has no test program of its own.
    if package != "reprise-kernel":
        done = _cargo(copy, "test", "--no-run", "--lib", "--package", package)
        built = [one["executable"] for one in _messages(done.stdout, "compiler-artifact")]
        program = Path([one for one in built if one][-1])
    if _cargo(copy, "build").returncode:
        raise NotBuiltError("the extension could not be built")
    copy.put_library()
    return program


def _cargo(copy: KernelCopy, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["cargo", command[0], "--quiet", "--message-format", "json", *command[1:]],
        cwd=copy.tree / NATIVE,
        env=copy.environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _messages(lines: str, reason: str) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    return [one for one in read if one["reason"] == reason]


def _try_python(
    copy: KernelCopy,
    numbers: Sequence[int],
    tests: Sequence[str],
    jobs: int,
    note: Note,
    survived: Callable[[int], None],
) -> None:
    """Tells of each that is killed, and of each that is not."""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "devtools.mutants.kernel_trial", f"--jobs={jobs}"]
    command += [f"--out=/dev/fd/{writer}", f"--mutants={','.join(map(str, numbers))}"]
    failed: list[str] = []
    with (
        open(reader) as found,
        subprocess.Popen(
            [*command, "--", *tests],
            cwd=copy.tree,
            env=copy.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[writer],
        ) as process,
    ):
        os.close(writer)
        for line in found:
            what, of = json.loads(line)
            if what == "failed":
                failed.append(of)
            elif of == SURVIVED:
                survived(what)
            else:
                note(what, KILLED)
        output, _ = process.communicate()
    if failed or process.returncode:
        raise NotBuiltError(
            f"the tests fail without a mutant: {failed or output.decode(errors='replace')[-2000:]}"
        )
