"""How much is sent: see `--fuzz-scale`."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes import Service


@pytest.fixture
def scaled(request: pytest.FixtureRequest) -> Callable[[int], int]:
    """How many of so many are sent in this run."""
    scale: float = request.config.getoption("--fuzz-scale")
    return lambda count: max(round(count * scale), 100)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data") as running:
        yield running
