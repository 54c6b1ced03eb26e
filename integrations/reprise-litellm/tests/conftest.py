"""A Reprise, three engines, and LiteLLM's own Router before them."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__)
sys.path[:0] = [
    *(str(HERE.parents[1]), str(HERE.parents[2]), str(HERE.parents[2] / "reprise-client")),
]
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the internet at its import

from fake_services import FakeEngine, FakeReprise, closed_behind  # noqa: E402 # behind its path


@pytest.fixture
def reprise() -> Iterator[FakeReprise]:
    with closed_behind(FakeReprise()) as server:
        yield server


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    servers = [FakeEngine(f"engine-{index}") for index in range(3)]
    try:
        yield servers
    finally:
        for server in servers:
            server.close()
