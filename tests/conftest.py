"""Fixtures that several suites share, and the settings under which properties are tried."""

import gc
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from logs.embedded import EmbeddedLog
from streams.kernel import native_available, open_kernel
from streams.table.fold import Fold

pytest_plugins = [  # each before those that import it
    "tests.hang_watch",
    "tests.lanes",
    "tests.forms",
    "tests.workers",
    "tests.zygote",
    "tests.kafka_fixtures",
    "tests.deployment",
    "tests.page_fixtures",
]

settings.register_profile(
    "reprise",
    deadline=None,  # the machines are shared: time says nothing about correctness
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("reprise")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects no garbage while modules and tests are collected: to look at ever more of them again
    and again is half of the CPU that collection takes.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        _set_apart()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Sets apart what a module of tests has left, before the next one begins."""
    if nextitem is not None and nextitem.path != item.path:
        _set_apart()


def _set_apart() -> None:
    """What there is now is not looked at again.

    Each log and table that is closed collects garbage. Among all that pytest keeps and modules have
    left, that took up to a second: a test that closes ten took ten seconds in a whole run, and 0.1
    alone.
    """
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Of the simulated worlds and of hostile bytes: see tests/simulation and tests/fuzz."""
    group = parser.getgroup("seeded tests")
    group.addoption("--seeds", type=int, default=1000, help="of which each world has its share")
    group.addoption("--seed", type=int, default=None, help="only what follows from this seed")
    group.addoption("--fuzz-scale", type=float, default=0.1, help="of what `make soak` sends")


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
    """Of each kernel, for what looks at one: what it holds, loads and hands out."""
    return lambda: Fold(open_kernel(1337, name=kernel_name))


@pytest.fixture
def any_fold() -> Callable[[], Fold]:
    """For what does not look at the kernel: the one that runs in production, where it is built."""
    return lambda: Fold(open_kernel(1337))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    opened = EmbeddedLog(tmp_path / "log")
    yield opened
    opened.close()


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Of whatever a test does at random; `--seed` or REPRISE_TEST_SEED repeats a failure's."""
    given: int | None = request.config.getoption("--seed")
    if given is not None:
        return given
    return int(os.environ.get("REPRISE_TEST_SEED", random.SystemRandom().randrange(2**32)))
