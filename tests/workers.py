"""Tests side by side (`pytest -n 3`, by pytest-xdist): what stays together, and what is kept apart.

Tests of one file run in one worker, one after the other, since they share what is costly to start.
Files that would disturb each other are a group and share a worker too.
"""

from typing import TYPE_CHECKING, Final

import pytest

from devtools import broker
from devtools.leftovers import Leftovers

if TYPE_CHECKING:
    from xdist.remote import Producer  # type: ignore[import-untyped]
    from xdist.scheduler import Scheduling  # type: ignore[import-untyped]

GROUPS: Final = {
    # Seven processes of a deployment, each killed, held up or replaced: two of those at once are
    # too slow for their bounds on two cores.
    "faults": (
        "tests/integration/test_faults_",
        "tests/integration/test_outages.py",
        "tests/integration/test_upgrades.py",
    ),
    # Both look for many free ports in a row.
    "demo": ("tests/integration/test_demo.py", "tests/unit/simulation/demo/"),
}
FIRST: Final = "faults"
"""The group that takes longest: the others are run beside it."""


def group_of(nodeid: str) -> str:
    """The name of the group that a test belongs to; that of its file where it is in none."""
    path = nodeid.partition("::")[0]
    return next((name for name, begins in GROUPS.items() if path.startswith(begins)), path)


def pytest_configure(config: pytest.Config) -> None:
    """Gives each worker ports of its own: one must find nothing where another starts a broker. What
    tests leave running ends with the run.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        leftovers = Leftovers()  # of all workers: they are started with the mark
        leftovers.__enter__()
        config.add_cleanup(lambda: leftovers.__exit__())
    else:
        count = len(broker.PORTS) // int(worker["workercount"])
        first = int(worker["workerid"].removeprefix("gw")) * count
        broker.PORTS = broker.PORTS[first : first + count]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the tests that take longest first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: group_of(item.nodeid) != FIRST)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "Scheduling":
    """One worker takes one group at a time, in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False  # it would run groups of few tests last: the longest
    return Groups(config, log)
