"""Which older Reprise is meant; what is installed is tried by `make upgrades` itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from devtools.upgrades import ROOT, UpgradesError, older_program


def test_an_environment_is_taken_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "reprise"
    program.parent.mkdir()
    program.touch()
    assert older_program(str(tmp_path)) == program


def test_a_directory_without_it_is_none(tmp_path: Path) -> None:
    with pytest.raises(UpgradesError, match=f"found no {tmp_path}/bin/reprise"):
        older_program(str(tmp_path))


@pytest.mark.parametrize("given", ["no-such-revision", "--all", "HEAD:README.md"])
def test_what_is_no_revision_is_named(given: str) -> None:
    with pytest.raises(UpgradesError, match=f"Expected a revision, .* got: '{given}'"):
        older_program(given)


def test_nothing_is_refused_before_any_test_runs() -> None:
    command = [sys.executable, "-m", "devtools.upgrades", ""]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "make upgrades FROM=REVISION" in done.stderr
