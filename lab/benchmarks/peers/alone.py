"""One client, one request at a time: of us, of Dynamo's indexer, and of sockets alone.

Then each request wakes a thread of the server up, and each answer the client. What that costs
depends on where both run: on one core they take turns, on two each wakes the other core up. So both
are measured, with client and servers bound to them; unbound, the system places them. Sockets alone
are the floor of a server that sleeps between requests (`bare_sockets`).
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from lab.benchmarks.embedded.http_client import Server
from lab.benchmarks.job_process import ChildProcess
from lab.benchmarks.report.figures import Figure, times

BARE: Final = "bare sockets"


class AskedServer(NamedTuple):
    """One server, and whole requests that are sent to it in turn.

    Attributes:
        name: of its rows.
    """

    name: str
    server: Server
    requests: list[bytes]


@contextmanager
def bare_sockets(like: AskedServer) -> Iterator[AskedServer]:
    """A server that answers as many bytes with as many, and looks at none."""
    size = max(map(len, like.requests))
    answer_bytes = len(like.server.ask(like.requests[0]))
    command = [sys.executable, "-m", "lab.benchmarks.peers.bare_sockets", str(size)]
    with ChildProcess([*command, str(answer_bytes)]) as process:
        server = Server(("127.0.0.1", process.hear(int)), process.pid)
        yield AskedServer(BARE, server, [one.ljust(size) for one in like.requests])


def measure(tokens: int, asked: Sequence[AskedServer], runs: int) -> list[Figure]:
    """Of requests of so many tokens; nothing where there are no two cores."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return []
    places = {"on one core": cores[0], "on two cores": cores[1]}
    taken: dict[tuple[str, str], list[float]] = {}
    for _ in range(runs):
        for place, core in places.items():
            for name, server, requests in asked:
                with _bound(os.getpid(), cores[0]), _bound(server.pid, core):
                    cpu, _ = server.single(requests)
                taken.setdefault((name, place), []).append(cpu)
    return figures_of(tokens, taken, asked[0].name)


def figures_of(tokens: int, taken: dict[tuple[str, str], list[float]], theirs: str) -> list[Figure]:
    """`taken`: microseconds of each run, by server and place; `theirs`: whom others are beside."""
    figures = []
    for (name, place), runs in taken.items():
        row = f"{name}, {tokens // 1024}K tokens, one at a time, {place}: CPU"
        figures.append(Figure(name=row, unit="us", runs=runs))
        if name != theirs:
            figures.append(times(f"{row}, times less than Dynamo", taken[theirs, place], runs))
    return figures


@contextmanager
def _bound(pid: int, core: int) -> Iterator[None]:
    """All threads of a process run on one core."""
    before = os.sched_getaffinity(pid)
    _bind(pid, {core})
    try:
        yield
    finally:
        _bind(pid, before)


def _bind(pid: int, cores: set[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # the thread has ended meanwhile
            os.sched_setaffinity(int(task.name), cores)
