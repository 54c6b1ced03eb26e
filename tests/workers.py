"""Tests side by side (`pytest -n 4`, by pytest-xdist): what stays together, and what comes first.

Unit tests of a file run in one worker, one after the other, and so do those of a file whose tests
share what is costly to start. Each other test is handed out by itself, the longest first: a file of
them would still run when all others have ended. Files that would disturb each other are a group.
"""

from typing import TYPE_CHECKING, Final

import pytest

from devtools import broker
from devtools.leftovers import Leftovers

if TYPE_CHECKING:
    from xdist.remote import Producer  # type: ignore[import-untyped]
    from xdist.scheduler import Scheduling  # type: ignore[import-untyped]

GROUPS: Final = {
    # Both look for many free ports in a row.
    "demo": ("tests/integration/test_demo.py", "tests/unit/lab/demo/"),
}
TOGETHER: Final = (
    "tests/unit/",
    "tests/contract/test_kernel_",
    "tests/contract/test_lmcache_",
    "tests/integration/test_discovery.py",
    "tests/integration/test_documented_commands.py",
    "tests/integration/test_dynamo_indexer.py",
    "tests/integration/test_grpc.py",
    "tests/integration/test_hostile_engine_http.py",
    "tests/integration/test_kafka_security.py",
    "tests/integration/test_lmcache_",
    "tests/integration/test_page.py",
    "tests/integration/test_page_shown.py",
    "tests/integration/test_real_engines.py",
    "tests/integration/test_released_publishers.py",
)
"""Files whose tests run one after the other: they share a fixture, or each is short."""

FIRST: Final = (
    "tests/integration/test_faults_",
    "tests/contract/test_lossy_links.py",
    "tests/fuzz/test_http.py",
    "tests/integration/test_lmcache_commands.py",
    "tests/integration/test_audit_kafka.py",
    "tests/integration/test_history_kafka.py",
    "tests/integration/test_hostile_engine_http.py",
    "tests/property/test_as_of_equals_fresh_fold.py",
    "tests/property/test_audited_answers_verify.py",
)
"""What takes longest; all else is run beside it."""


def group_of(nodeid: str) -> str:
    """The name of the group that a test belongs to: one of GROUPS, its file, or itself."""
    path = nodeid.partition("::")[0]
    own = path if path.startswith(TOGETHER) else nodeid
    return next((name for name, begins in GROUPS.items() if path.startswith(begins)), own)


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
    """Puts the tests that take longest first, and refuses to part tests that share a fixture."""
    for item in items:
        info = getattr(item, "_fixtureinfo", None)
        shared = [
            name
            for name, made in (info.name2fixturedefs.items() if info is not None else ())
            if made[-1].scope == "module" and group_of(item.nodeid) == item.nodeid
        ]
        if shared:
            raise pytest.UsageError(
                f"Expected the file of {item.nodeid} in TOGETHER of tests/workers.py, since its"
                f" tests share {', '.join(shared)}"
            )
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "Scheduling":
    """One worker takes one group at a time, in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False  # it would run groups of few tests last: the longest
    return Groups(config, log)
