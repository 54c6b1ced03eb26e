"""Upgrades from an older Reprise, and back: `python -m devtools.upgrades FROM [options of pytest]`.

FROM says which one:

    a revision          what git calls a commit; it is built and installed with its own constraints
    a file              its wheel, which is installed with ours
    a directory         an environment that has it

What is installed goes to `.make/older/NAME`, and is found there the next time. Then the tests of
upgrades run with it in place of this Reprise, where they speak of the older one.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

VARIABLE: Final = "REPRISE_TEST_OLDER"
"""Names the `reprise` of an older environment to the tests."""

ROOT: Final = Path(__file__).parents[1]
TESTS: Final = "tests/integration/test_upgrades.py"
_KEPT: Final = ROOT / ".make" / "older"


class UpgradesError(Exception):
    """The older one cannot be had."""


def older_program(given: str) -> Path:
    """The `reprise` of the older one, installed where it was not.

    Args:
        given: a revision, or the path of a wheel or of an environment.

    Raises:
        UpgradesError: it is none of them, or cannot be installed.
    """
    path = Path(given)
    if path.is_dir():
        return _program_in(path.resolve())
    if path.is_file():
        # Wheels of one version have one name, whatever is in them.
        kept = _KEPT / f"wheel-{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
        if not (kept / "bin" / "reprise").exists():
            _install(kept, [str(path.resolve())], ROOT / "constraints.txt")
        return _program_in(kept)
    commit = _commit(given)
    kept = _KEPT / commit[:12]
    if not (kept / "bin" / "reprise").exists():
        with tempfile.TemporaryDirectory() as directory:
            source = Path(directory)
            _extract(commit, source)
            _install(kept, ["--no-build-isolation", str(source)], source / "constraints.txt")
    return _program_in(kept)


def _program_in(environment: Path) -> Path:
    program = environment / "bin" / "reprise"
    if not program.exists():
        raise UpgradesError(f"Expected an environment with Reprise, found no {program}")
    return program


def _commit(revision: str) -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", revision + "^{commit}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode or not re.fullmatch(r"[0-9a-f]{40,}", done.stdout.strip()):
        raise UpgradesError(
            f"Expected a revision, or the path of a wheel or of an environment, got: {revision!r}."
            " A shallow clone has no older ones: `git fetch --unshallow`"
        )
    return done.stdout.strip()


def _extract(commit: str, directory: Path) -> None:
    with subprocess.Popen(
        ["git", "archive", "--format=tar", commit], cwd=ROOT, stdout=subprocess.PIPE
    ) as git:
        assert git.stdout is not None
        with tarfile.open(fileobj=git.stdout, mode="r|") as archive:
            archive.extractall(directory, filter="data")
    if git.returncode:
        raise UpgradesError(f"git archive has failed with {git.returncode}: {commit}")


def _install(kept: Path, what: Sequence[str], constraints: Path) -> None:
    """Makes the environment; half of one is never found in its place."""
    print(f"==> installing the older Reprise into {kept.relative_to(ROOT)}", flush=True)
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    try:
        _run([sys.executable, "-m", "venv", str(kept)])
        pip = [str(kept / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        pip += ["--disable-pip-version-check", "--constraint", str(constraints)]
        _run([*pip, "setuptools", "setuptools-rust"])
        _run([*pip, *what])
    except BaseException:
        shutil.rmtree(kept, ignore_errors=True)
        raise


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT / ".make", check=False)
    if done.returncode:
        raise UpgradesError(f"Failed with {done.returncode}: {' '.join(command)}")


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    if not arguments or not arguments[0]:
        sys.stderr.write(
            "Expected what to upgrade from, got nothing: make upgrades FROM=REVISION, or the path"
            " of a wheel or of an environment\n"
        )
        return 2
    try:
        program = older_program(arguments[0])
    except UpgradesError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    environment = os.environ | {VARIABLE: str(program)}
    tests = [sys.executable, "-m", "pytest", TESTS, "--durations", "0", *arguments[1:]]
    return subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
