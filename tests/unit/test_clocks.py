"""The clock and the random source are handed in: no part takes them from their modules, but for
those that compose processes, and what is no part of the service.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
ROOMS: Final = (
    *(
        "bridge",
        "brokers",
        "console",
        "doctor",
        "gateway",
        "logs",
        "page",
        "query_api",
        "replay",
    ),
    *("routing", "schemas", "storage", "streams", "tokens"),
)

CLOCK: Final = "schemas/clock.py"
_FORBIDDEN: Final = ("random", "time")


def _takes(source: str) -> Iterator[str]:
    """The modules of clocks and chance that a module imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in _FORBIDDEN)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module in _FORBIDDEN:
            yield node.module


def _found() -> dict[str, list[str]]:
    """By path, what each module of the service takes itself."""
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    found = {path.relative_to(ROOT).as_posix(): list(_takes(path.read_text())) for path in paths}
    return {path: taken for path, taken in found.items() if taken and path != CLOCK}


def test_clock_and_chance_are_handed_in() -> None:
    wrong = _found()
    assert not wrong, f"Take the clock from `schemas.clock` by an argument: {wrong}"


@pytest.mark.parametrize(
    "source",
    ["import time", "import os, time", "from time import monotonic as now", "import random as r"],
)
def test_every_way_to_take_them_is_seen(source: str) -> None:
    assert list(_takes(source))


def test_what_is_named_alike_is_no_clock() -> None:
    assert not list(_takes("from routing.policies.load import random\nfrom .time import time"))
