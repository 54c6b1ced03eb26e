"""A Reprise as its contract has it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__)
PATHS = [str(HERE.parents[1]), str(HERE.parents[2]), str(HERE.parents[2] / "reprise-client")]
sys.path[:0] = PATHS
# Of the processes that Ray starts, too.
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
os.environ["RAY_raylet_start_wait_time_s"] = "180"  # noqa: SIM112 # Ray's own name; 30 by default

from fake_services import FakeReprise, closed_behind  # noqa: E402 # behind its path


@pytest.fixture
def reprise() -> Iterator[FakeReprise]:
    with closed_behind(FakeReprise()) as server:
        yield server
