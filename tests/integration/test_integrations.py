"""The tests of the packages under `integrations/`, each with the released library it plugs into.

Skipped where that is not installed: `make integrations`, or REPRISE_LITELLM_PYTHON and
REPRISE_RAY_PYTHON name a Python that has it. Measured with LiteLLM 1.110.2 and Ray 2.60.0.
"""

import os
import subprocess

import pytest

from devtools.integrations import PACKAGES, Package

DEADLINE_S = 800.0


@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("package", PACKAGES, ids=lambda one: one.library)
def test_its_own_tests_pass_with_the_released_library(package: Package) -> None:
    if not package.interpreter:
        pytest.skip(f"no {package.library}; {package.variable} may name a Python that has it")
    result = subprocess.run(
        [package.interpreter, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider"],
        cwd=package.folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )
    assert result.returncode == 0, result.stdout[-6000:]
    assert " passed" in result.stdout
