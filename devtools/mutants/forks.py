"""Forks of a pytest process that has collected the tests, and what runs in one."""

import contextlib
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

SURVIVED, KILLED = 0, 1
"""What a fork's call may return, beside codes of its own."""

_MEMORY_BYTES = 4 * 2**30
"""What a mutant may take more than its parent has."""


class Forks:
    """Calls functions in forks of this process, up to `jobs` at a time.

    A fork needs a parent without threads of its own: one that runs no test.
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._running: dict[int, int] = {}
        self._exits: dict[int, int] = {}

    def run(
        self,
        calls: Iterable[Callable[[], int]],
        ended: Callable[[int, int], None] = lambda index, status: None,
    ) -> list[int]:
        """What each has returned; what ended it, where it was a signal.

        Args:
            calls: see the class.
            ended: is told of each, when it ends: its index and what it returned.
        """
        sys.stdout.flush()
        count = 0
        for index, call in enumerate(calls):
            if len(self._running) >= self._jobs:
                self._wait(ended)
            process = os.fork()
            if process == 0:
                _run_and_exit(call)
            self._running[process] = index
            count += 1
        while self._running:
            self._wait(ended)
        return [self._exits[index] for index in range(count)]

    def _wait(self, ended: Callable[[int, int], None]) -> None:
        process, status = os.wait()
        if process in self._running:
            index = self._running.pop(process)
            self._exits[index] = os.waitstatus_to_exitcode(status)
            ended(index, self._exits[index])


def _run_and_exit(call: Callable[[], int]) -> None:
    """In a fork: never returns. What the tests print, and the files that they make, go nowhere."""
    status = 2
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        _limit_memory()
        with tempfile.TemporaryDirectory(prefix="reprise-mutants-") as directory:
            tempfile.tempdir = os.environ["PYTEST_DEBUG_TEMPROOT"] = directory
            status = call()
    finally:
        os._exit(status)


def _limit_memory() -> None:
    with contextlib.suppress(OSError, ValueError, IndexError):  # where there is no /proc
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + _MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def passes(session: pytest.Session, item: pytest.Item) -> bool:
    """Whether a test does, which is run here."""
    failed = session.testsfailed
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    return session.testsfailed == failed
