"""Mutation testing of what decides correctness.

    make mutants                                                      every Python module
    make mutants ARGS="streams/table/fold.py --function Fold.apply"
    make mutants ARGS="streams/kernel/native/index/src/slots.rs"      a file of the Rust kernel
    make mutants ARGS="--rust --every 10"                             one in ten of all its files
    make mutants ARGS="--rust --resume found.jsonl"                   go on where a run was ended

It fails on a survivor that `survivors.toml` does not explain, and on an explanation of a mutant
that no longer exists.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from devtools.mutants.combined_trial import KernelPackage
from devtools.mutants.findings import Findings, key_of, state_of
from devtools.mutants.kernel_copy import KernelCopy
from devtools.mutants.rust import MutantSelection, NotTriedError, try_files
from devtools.mutants.survivors import SURVIVORS, Survivor, as_entries, read_kept
from devtools.mutants.targets import ONLY, RUST, TESTS

ROOT = Path(__file__).parents[2]


class Result(NamedTuple):
    """What `trial` wrote of a module: function, line's number and text, and change of each mutant;
    what became of each; the tests that fail without a mutant.
    """

    mutants: list[tuple[str, int, str, str]]
    outcomes: list[str]
    failed: list[str]


class Judgement(NamedTuple):
    """A module's mutants by what became of them. `new` and `gone` are faults."""

    new: dict[Survivor, int]
    gone: list[Survivor]
    explained: int
    killed: int
    unusable: int
    killed_now: list[Survivor]


def judge(module: str, result: Result, kept: Mapping[Survivor, str], *, whole: bool) -> Judgement:
    """Holds a module's mutants against the survivors that are kept.

    Args:
        module: from the root of the tree.
        result: of the module's trial.
        kept: all that are kept, of this module and of others.
        whole: whether all of the module's were tried, so that one that is missing is gone.
    """
    tried: dict[Survivor, str] = {}
    at: dict[Survivor, int] = {}
    for (function, number, line, change), outcome in zip(
        result.mutants, result.outcomes, strict=True
    ):
        name = Survivor(module, function, line, change)
        tried[name], at[name] = outcome, number
    survived = [one for one, outcome in tried.items() if outcome == "survived"]
    return Judgement(
        new={one: at[one] for one in survived if one not in kept},
        gone=[one for one in kept if whole and one.module == module and one not in tried],
        explained=sum(one in kept for one in survived),
        killed=sum(outcome == "killed" for outcome in tried.values()),
        unusable=sum(outcome == "unusable" for outcome in tried.values()),
        killed_now=[one for one in kept if tried.get(one) == "killed"],
    )


def _try_rust(
    modules: Sequence[str], arguments: argparse.Namespace, findings: Findings
) -> Iterator[tuple[str, Result]]:
    """Package by package, as a package's mutants are built as one."""
    wanted = MutantSelection(arguments.function or (), arguments.every, arguments.jobs)
    with tempfile.TemporaryDirectory(prefix="reprise-mutants-") as directory:
        copy = KernelCopy(ROOT, arguments.built or Path(directory))
        for folder, of_folder in groupby(modules, lambda module: str(Path(module).parent)):
            try:
                tried = try_files(
                    copy, list(of_folder), wanted, KernelPackage(*RUST[folder]), findings
                )
            except NotTriedError as error:
                sys.exit(str(error))
            for module, (mutants, outcomes) in tried.items():
                yield module, Result(mutants, outcomes, [])


def _try(
    module: str, functions: Sequence[str], arguments: argparse.Namespace, findings: Findings
) -> Result:
    # The tests of a module call what they like, so that all files count.
    packages = [path.parent.name for path in ROOT.glob("*/__init__.py")]
    settings = (arguments.every, arguments.seeds, arguments.quick)
    key = key_of("python", module, *functions, *map(str, settings), state_of(ROOT, packages))
    read = findings.find(key)
    if read is None:
        read = _tried(module, functions, arguments)
        findings.note(key, read, of=module)
    return Result([tuple(one) for one in read["mutants"]], read["outcomes"], read["failed"])


def _tried(module: str, functions: Sequence[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """What `trial` writes."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "result.json"
        options = [f"--out={out}", f"--jobs={arguments.jobs}", f"--every={arguments.every}"]
        options += [f"--function={function}" for function in functions]
        command = [sys.executable, "-m", "devtools.mutants.trial", module, *options, "--"]
        tests = [
            one for one in TESTS[module] if one.startswith("tests/unit") or not arguments.quick
        ]
        done = subprocess.run(
            [*command, f"--seeds={arguments.seeds}", *tests],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode or not out.exists():
            sys.exit(
                f"Expected the mutants of {module} to be tried, got exit {done.returncode}; run its"
                f" tests with pytest first. Its output:\n{done.stdout[-4000:]}"
            )
        read: dict[str, Any] = json.loads(out.read_text())
    return read


def _print(module: str, judged: Judgement, result: Result) -> None:
    print(
        f"{module}: {len(result.mutants)} mutants, {judged.killed} killed,"
        f" {judged.explained} survivors explained, {len(judged.new)} not,"
        f" {judged.unusable} could not be tried"
    )
    for test in result.failed:
        print(f"  left out, as it fails without a mutant: {test}")
    for one, number in judged.new.items():
        print(f"  survived: {module}:{number} {one.function}: {one.line}\n            {one.change}")
    for one in judged.gone:
        print(f"  no longer exists: {one.function}: {one.line}: {one.change}")
    for one in judged.killed_now:
        print(f"  explained, but a test kills it now: {one.function}: {one.line}: {one.change}")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="devtools.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE.py", help="default: all")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (default: 2)")
    parser.add_argument("--seeds", type=int, default=40, help="simulated histories (default: 40)")
    parser.add_argument("--function", action="append", help="only its mutants, as Class.method")
    parser.add_argument("--every", type=int, default=1, help="one mutant in so many (default: 1)")
    parser.add_argument("--quick", action="store_true", help="unit tests only; leaves more over")
    parser.add_argument("--rust", action="store_true", help="all files of the Rust kernel")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="keep what is found there, and go on from it"
    )
    parser.add_argument(
        "--built", type=Path, metavar="FOLDER", help="keep there what is built of the Rust kernel"
    )
    parser.add_argument("--entries", action="store_true", help="print new ones as entries to keep")
    arguments = parser.parse_args()
    rust = _rust_files()
    for module in arguments.modules:
        if module not in TESTS and module not in rust:
            parser.error(f"expected one of {', '.join([*TESTS, *rust])}; got {module}")
    if not arguments.modules:
        arguments.modules = rust if arguments.rust else list(TESTS)
    return arguments


def _rust_files() -> list[str]:
    return sorted(
        str(path.relative_to(ROOT)) for folder in RUST for path in (ROOT / folder).glob("*.rs")
    )


def _results(arguments: argparse.Namespace, findings: Findings) -> Iterator[tuple[str, Result]]:
    rust = [module for module in arguments.modules if module.endswith(".rs")]
    for module in arguments.modules:
        if module not in rust:
            functions = arguments.function or ONLY.get(module, ())
            yield module, _try(module, functions, arguments, findings)
    yield from _try_rust(rust, arguments, findings)


def main() -> int:
    """Tries the mutants; 1 where there is a new survivor, or an explanation of none."""
    arguments = _arguments()
    kept = read_kept()
    try:
        findings = Findings(arguments.resume)
    except OSError as error:
        sys.exit(f"Expected a file of findings that can be written: {error}")
    stray = sorted({one.module for one in kept} - {*TESTS, *_rust_files()})
    for module in stray:
        print(f"{SURVIVORS.name} names a module that has no mutants: {module}")
    new: list[Survivor] = []
    faults = len(stray)
    whole = not arguments.function and arguments.every == 1
    with findings:
        for module, result in _results(arguments, findings):
            judged = judge(module, result, kept, whole=whole)
            _print(module, judged, result)
            new += judged.new
            faults += len(judged.new) + len(judged.gone)
    if arguments.entries:
        print(as_entries(new))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
