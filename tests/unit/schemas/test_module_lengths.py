"""A module has at most 700 lines; one that has more is named here, with the reason."""

from pathlib import Path

import pytest

import schemas

ROOT = Path(schemas.__file__).parents[1]
ROOMS = (
    *("schemas", "storage", "brokers", "bridge", "streams", "query_api", "replay", "reprise"),
    *("simulation", "benchmarks", "devtools"),
)
LINES_MAX = 700

LONGER = {
    "schemas/limits.py": "every bound of the product, so that each has one place",
    "bridge/publisher/publisher.py": "one object: its states, its doubts, and when it is asked",
    "streams/kernel/reference.py": "a specification: whoever doubts the kernel reads all of it",
}
"""By module, why it is not split."""


def lengths(*rooms: str) -> dict[str, int]:
    """The lines of each module of these rooms."""
    return {
        path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines())
        for room in rooms
        for path in sorted((ROOT / room).rglob("*.py"))
    }


@pytest.mark.parametrize("room", ROOMS)
def test_a_long_module_is_split_or_has_a_reason(room: str) -> None:
    long = {name: lines for name, lines in lengths(room).items() if lines > LINES_MAX}
    unexplained = {name: lines for name, lines in long.items() if name not in LONGER}
    assert not unexplained, f"split by noun, or say in LONGER why not: {unexplained}"


def test_a_reason_goes_when_its_module_is_short_again() -> None:
    found = lengths(*ROOMS)
    assert [name for name in LONGER if found.get(name, 0) <= LINES_MAX] == []


def test_every_room_is_looked_at() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"tests"} == set(ROOMS)
