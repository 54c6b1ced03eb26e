"""What a lane runs when its time is bounded."""

import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest

from tests.lanes import in_turns

SOAK = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--lane", "soak"]
ONE_CHUNK = ["tests/simulation/test_losses.py", "--fuzz-scale", "0.002", "-k", "embedded"]


def names(*ids: str) -> list[str]:
    found = in_turns([cast("pytest.Item", SimpleNamespace(nodeid=one)) for one in ids])
    return [one.nodeid for one in found]


def test_each_world_has_its_first_seeds_before_any_has_its_second() -> None:
    assert names("a[0]", "a[1]", "a[2]", "b[0]", "b[1]", "c") == [
        *("a[0]", "b[0]", "c"),
        *("a[1]", "b[1]"),
        "a[2]",
    ]


@pytest.mark.parametrize(
    ("minutes", "said"), [("0", "1 skipped"), ("60", "1 passed")], ids=["over", "not over"]
)
def test_what_has_not_begun_when_the_time_is_over_is_skipped(minutes: str, said: str) -> None:
    run = [*SOAK, "--minutes", minutes, *ONE_CHUNK]
    told = subprocess.run(run, capture_output=True, text=True, check=True)
    assert said in told.stdout
