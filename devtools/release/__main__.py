"""`python -m devtools.release check`, and `wheels`."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from devtools.release.versions import problems, version_of
from devtools.release.wheels import ROOT, WheelError, attempt, build


def tags_of(root: Path) -> list[str]:
    """The tags of the commit that is checked out; none where there is no git."""
    try:
        done = subprocess.run(
            ["git", "tag", "--points-at", "HEAD"],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return []
    return done.stdout.split() if done.returncode == 0 else []


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m devtools.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="the version is the same everywhere")
    wheels = commands.add_parser("wheels", help="build the wheel, and try it")
    wheels.add_argument("--out", type=Path, default=ROOT / "dist")
    wheels.add_argument(
        "--python", action="append", default=[], help="try it there; once for each interpreter"
    )
    given = parser.parse_args(arguments)
    found = problems(ROOT, tags_of(ROOT))
    for problem in found:
        sys.stderr.write(f"{problem}\n")
    if found or given.command == "check":
        return int(bool(found))
    try:
        wheel = build(given.out)
        print(f"==> {wheel.relative_to(Path.cwd()) if wheel.is_relative_to(Path.cwd()) else wheel}")
        for python in given.python or [sys.executable]:
            said = attempt(wheel, python, ROOT / ".make" / "wheel-trial")
            if not said.endswith(version_of(ROOT)):
                raise WheelError(f"Expected version {version_of(ROOT)}, got: {said}")
            print(f"==> installs and answers: {python}")
    except WheelError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
