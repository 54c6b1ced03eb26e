"""Which lane a test is in, and `--lane`, which runs one of them, for up to `--minutes`.

    test     what decides without a process of its own, by seeds and by contracts of the embedded
             form; and one test of each fault with real processes and a real broker
    faults   all else of real processes: kills, cuts, outages, upgrades, hostile bytes, pages
    soak     what is seeded, in full: `make soak`

The folder decides; a marker (`smoke`, `faults`) moves a test into the lane that it names. A test
that is in no lane, or in two, is an error of every run, and so of `make check`, which collects all.
"""

import time
from collections import Counter
from typing import Final

import pytest

LANES: Final = ("test", "faults", "soak")

FOLDERS: Final = {
    "unit": "test",
    "property": "test",
    "simulation": "test",
    "contract": "test",
    "integration": "faults",
    "fuzz": "faults",
}
MARKERS: Final = {"smoke": "test", "faults": "faults"}

_BEGUN_AT: Final = pytest.StashKey[float]()

SEEDED: Final = ("simulation", "fuzz")
"""Folders whose tests try as many seeds as they are given: those of the lane `soak`."""


def folder_of(nodeid: str) -> str:
    """The one below `tests/` that a test is in; "" for none."""
    parts = nodeid.partition("::")[0].split("/")
    return parts[1] if parts[0] == "tests" and len(parts) > 2 else ""


def lane_of(nodeid: str, markers: set[str]) -> str:
    """Of a test with these markers.

    Raises:
        ValueError: it is in none, or in two.
    """
    moved = [MARKERS[name] for name in MARKERS if name in markers]
    lanes = moved or [FOLDERS.get(folder_of(nodeid), "")]
    if len(lanes) != 1 or not lanes[0]:
        raise ValueError(
            f"Expected {nodeid} in one folder of {', '.join(FOLDERS)}, with at most one marker of"
            f" {', '.join(MARKERS)}, got {len(moved)} markers: see tests/lanes.py"
        )
    return lanes[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """See the module."""
    parser.addoption("--lane", choices=LANES, default=None, help="run the tests of this lane only")
    told = "skip what has not begun after so many minutes; what is seeded takes turns until then"
    parser.addoption("--minutes", type=float, default=None, help=told)


def pytest_configure(config: pytest.Config) -> None:
    """The markers are part of what decides."""
    config.stash[_BEGUN_AT] = time.monotonic()
    for name, lane in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: in the lane `{lane}`, see tests/lanes.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps those of the wanted lane."""
    wanted: str | None = config.getoption("--lane")
    kept: list[pytest.Item] = []
    others: list[pytest.Item] = []
    for item in items:
        try:
            lane = lane_of(item.nodeid, {marker.name for marker in item.iter_markers()})
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        is_seeded = folder_of(item.nodeid) in SEEDED
        is_kept = is_seeded if wanted == "soak" else wanted in (None, lane)
        (kept if is_kept else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = kept
    if config.getoption("--minutes") is not None:
        items[:] = in_turns(items)


def in_turns(items: list[pytest.Item]) -> list[pytest.Item]:
    """The first seeds of each test before the second ones of any."""
    turns: Counter[str] = Counter()
    found: list[tuple[int, pytest.Item]] = []
    for item in items:
        name = item.nodeid.partition("[")[0]
        found.append((turns[name], item))
        turns[name] += 1
    return [item for _, item in sorted(found, key=lambda one: one[0])]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begins nothing once the time is over."""
    minutes: float | None = item.config.getoption("--minutes")
    if minutes is not None and time.monotonic() - item.config.stash[_BEGUN_AT] >= 60 * minutes:
        pytest.skip(f"the {minutes:g} minutes are over")
