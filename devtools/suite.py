"""The whole suite, as `make test` runs it.

Some tests start a dozen processes and wait for what these do with each other. Beside other tests on
a machine with few cores one of them now and then waits in vain. Where no more than a few of these
have failed, and nothing else has, they are run once more, one after the other, and that decides.
What has passed only then is named in the last lines: its failure stands above, and is to be read.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import pytest

AGAIN_MAX: Final = 3
"""So many may have failed beside others; more are no accident."""

OF_PROCESSES: Final = ("tests/integration/", "tests/contract/")
"""Where tests of real processes are; a test of anything else has failed when it fails."""


class _Failures:
    """A plugin that notes what has failed, by whichever worker."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """See pytest."""
        if report.failed and report.nodeid not in self.tests:
            self.tests.append(report.nodeid)


def may_run_again(code: int, failed: Sequence[str]) -> bool:
    """Whether a run that ended so is decided by what has failed, alone.

    Args:
        code: what pytest ended with.
        failed: node ids of the tests.
    """
    return (
        code == pytest.ExitCode.TESTS_FAILED
        and 0 < len(failed) <= AGAIN_MAX
        and all(test.startswith(OF_PROCESSES) for test in failed)
    )


def main(arguments: Sequence[str]) -> int:
    """Runs pytest with these arguments. Returns its exit code, or that of the second run."""
    failures = _Failures()
    code = int(pytest.main(list(arguments), plugins=[failures]))
    if not may_run_again(code, failures.tests):
        return code
    names = "".join(f"\n    {test}" for test in failures.tests)
    print(f"==> failed beside other tests, run once more alone:{names}", flush=True)
    again = subprocess.run(
        [sys.executable, "-m", "pytest", *failures.tests], check=False
    ).returncode
    outcome = "passed alone, after they had failed above" if again == 0 else "not all passed alone"
    print(f"==> {outcome}:{names}", flush=True)
    return again


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
