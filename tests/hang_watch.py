"""Ends a test process that a test's own time limit has not ended, and says where it hangs.

pytest-timeout raises an error in the main thread. Code that swallows it (a callback of an event
loop, a finalizer), or that waits again while it is unwound (for a thread, a process, an executor),
goes on hanging, and with it the whole run, which then ends without the name of the test. So each
test has this second limit: all threads' tracebacks go to standard error, and the process exits;
pytest-xdist reports the test as the one that crashed its worker, and goes on with the others.
"""

import faulthandler
import os
import sys
from collections.abc import Iterator

import pytest

GRACE_S = 120.0
"""Beyond the test's own limit: for fixtures that end processes and brokers."""

_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the real standard error, which is captured while a test runs."""
    config.stash[_stderr] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)


def pytest_unconfigure(config: pytest.Config) -> None:
    faulthandler.cancel_dump_traceback_later()
    os.close(config.stash[_stderr])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    limit_s = limit_of(item)
    if limit_s:
        faulthandler.dump_traceback_later(
            limit_s + GRACE_S, exit=True, file=item.config.stash[_stderr]
        )
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def limit_of(item: pytest.Item) -> float:
    """The test's own limit in seconds; 0 for none."""
    marker = item.get_closest_marker("timeout")
    if marker is not None:
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    return float(item.config.getini("timeout") or 0)
