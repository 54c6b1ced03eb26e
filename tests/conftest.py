"""Fixtures that several suites share, and the settings under which properties are tried."""

import gc
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from devtools import broker
from streams.kernel import native_available, open_kernel
from streams.log.embedded import EmbeddedLog
from streams.table.fold import Fold

pytest_plugins = ["tests.deployment", "tests.kafka_fixtures"]

settings.register_profile(
    "reprise",
    deadline=None,  # the machines are shared: time says nothing about correctness
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("reprise")


GROUP = "xdist_group"
FIRST = "faults"
"""The group that takes longest: the others are run beside it."""


def pytest_configure(config: pytest.Config) -> None:
    """Gives each worker ports of its own: one must find nothing where another starts a broker."""
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        count = len(broker.PORTS) // int(worker["workercount"])
        first = int(worker["workerid"].removeprefix("gw")) * count
        broker.PORTS = broker.PORTS[first : first + count]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of a file stay together where several workers run, and so do those of a named group."""
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        if item.get_closest_marker(GROUP) is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))

    def is_later(item: pytest.Item) -> bool:
        group = item.get_closest_marker(GROUP)
        return group is None or group.args != (FIRST,)

    items.sort(key=is_later)


def pytest_collection_finish() -> None:
    """Takes the modules and the tests out of the collector's sight.

    Every log and table that is closed collects garbage; among all that pytest keeps, one collection
    takes a quarter of a second, which was most of the time of the properties that open hundreds.
    """
    gc.collect()
    gc.freeze()


KERNELS = [
    "reference",
    pytest.param(
        "rust",
        marks=pytest.mark.skipif(
            not native_available(),
            reason="the Rust kernel is not built: run `make install` with Rust",
        ),
    ),
]


@pytest.fixture(params=KERNELS)
def kernel_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make_fold(kernel_name: str) -> Callable[[], Fold]:
    return lambda: Fold(open_kernel(1337, name=kernel_name))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    opened = EmbeddedLog(tmp_path / "log")
    yield opened
    opened.close()


@pytest.fixture
def seed() -> int:
    """Of whatever a test of faults does at random; REPRISE_TEST_SEED repeats a failure's."""
    return int(os.environ.get("REPRISE_TEST_SEED", random.SystemRandom().randrange(2**32)))
