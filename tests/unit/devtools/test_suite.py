"""Which failures a second run of the suite may decide."""

import subprocess
import sys
from pathlib import Path

import pytest

from devtools.suite import AGAIN_MAX, may_run_again

ROOT = Path(__file__).parents[3]
FAILED = pytest.ExitCode.TESTS_FAILED
PROCESSES = [f"tests/integration/test_one.py::test_{number}" for number in range(AGAIN_MAX + 1)]


@pytest.mark.parametrize(
    ("code", "failed", "expected"),
    [
        (FAILED, PROCESSES[:1], True),
        (FAILED, PROCESSES[:AGAIN_MAX], True),
        (FAILED, PROCESSES, False),
        (FAILED, [*PROCESSES[:1], "tests/unit/test_two.py::test_it"], False),
        (FAILED, [], False),
        (pytest.ExitCode.OK, [], False),
        (pytest.ExitCode.INTERRUPTED, PROCESSES[:1], False),
    ],
)
def test_few_tests_of_processes_alone_are_run_again(
    code: int, failed: list[str], expected: bool
) -> None:
    assert may_run_again(code, failed) is expected


def run(directory: Path, body: str) -> subprocess.CompletedProcess[str]:
    """The suite, of one test of processes."""
    tests = directory / "tests" / "integration"
    tests.mkdir(parents=True)
    (directory / "pytest.ini").write_text("[pytest]\n")
    (tests / "test_it.py").write_text(body)
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import devtools.suite as s;"
    program += "sys.exit(s.main(['-p', 'no:cacheprovider', 'tests']))"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=directory, capture_output=True, text=True, check=False
    )


def test_one_that_passes_alone_is_named(tmp_path: Path) -> None:
    body = "import pathlib\n\ndef test_it():\n    flag = pathlib.Path('flag')\n"
    body += "    was = flag.exists()\n    flag.touch()\n    assert was\n"
    ended = run(tmp_path, body)
    assert ended.returncode == 0, ended.stdout
    last = ended.stdout.rpartition("==> passed alone, after they had failed above:")[2]
    assert last.strip() == "tests/integration/test_it.py::test_it"


def test_one_that_fails_alone_too_has_failed(tmp_path: Path) -> None:
    ended = run(tmp_path, "def test_it():\n    assert False\n")
    assert ended.returncode == 1, ended.stdout
    assert "==> not all passed alone:" in ended.stdout
