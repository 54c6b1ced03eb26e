"""What more cores are worth to queries: the kernel's listener with one, two and four threads.

CPU of a request is that of the listener's process, while eight connections ask for 8K tokens in
JSON. "By CPU" is how many requests/s the threads would answer with a core of their own each: so
many threads over the CPU of a request. Threads that take lines of memory from each other, or spin,
make that dearer. What it cannot show is time without CPU: a lock that threads sleep on, or memory
that is too slow for all of them. The rate beside it is that of this machine, whose cores the load
generator shares.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from typing import Final, NamedTuple

from lab.benchmarks.embedded.http_client import INSTANCES, Server, instances_of, request_of
from lab.benchmarks.embedded.service import thread_cpu_seconds
from lab.benchmarks.index.blocks import chains
from lab.benchmarks.job_process import ChildProcess
from lab.benchmarks.peers import load_generator
from lab.benchmarks.report.figures import Figure, times
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, Sizes

THREADS: Final = (1, 2, 4)
TOKENS: Final = 8192
FORM: Final = "JSON"
REQUESTS: Final = 4000


class _Pass(NamedTuple):
    """CPU of a request, microseconds; requests/s, and whether the client kept them down."""

    cpu: float
    rate: float
    limited: bool


def measure(sizes: Sizes) -> list[Figure]:
    chain_blocks = TOKENS // BLOCK_SIZE
    made = chains(sizes.query_bodies * chain_blocks, SEED, chain_blocks)
    prompts = [memoryview(chain.tokens).cast("I").tolist() for chain in made]
    requests = [request_of(FORM, prompt) for prompt in prompts]
    passes: dict[int, list[_Pass]] = {threads: [] for threads in THREADS}
    with ExitStack() as stack:
        servers = {
            threads: stack.enter_context(_listener(threads, chain_blocks, sizes.query_bodies))
            for threads in THREADS
        }
        for server in servers.values():
            _check(server, requests[0])
        for _ in range(sizes.runs):
            for threads, server in servers.items():
                passes[threads].append(_measure_pass(server, requests, sizes.rate_s))
    return _figures(passes)


@contextmanager
def _listener(threads: int, chain_blocks: int, count: int) -> Iterator[Server]:
    module = "lab.benchmarks.index.listener_process"
    sizes = map(str, (threads, chain_blocks, count))
    with ChildProcess([sys.executable, "-m", module, *sizes]) as process:
        yield Server(("127.0.0.1", process.hear(int)), process.pid)


def _check(server: Server, request: bytes) -> None:
    answer = instances_of(FORM, server.ask(request))
    longest = [one["longest_matched"] for one in answer.values()]
    if longest != [TOKENS] * INSTANCES:
        raise RuntimeError(f"Expected {INSTANCES} whole matches of {TOKENS} tokens, got: {longest}")


def _measure_pass(server: Server, requests: list[bytes], seconds: float) -> _Pass:
    if not load_generator.installed():
        return _Pass(server.busy(list(islice(cycle(requests), REQUESTS))), 0.0, True)
    before = thread_cpu_seconds(server.pid)
    asked = load_generator.ask(server.address, requests, seconds=seconds)
    cpu_s = thread_cpu_seconds(server.pid) - before
    return _Pass(1e6 * cpu_s / asked.answered, asked.rate, asked.is_limit)


def _figures(passes: dict[int, list[_Pass]]) -> list[Figure]:
    cores = os.cpu_count() or 1
    client = "wrk" if load_generator.installed() else "a client in Python"
    note = f"asked by {client}, on {cores} cores that it shares"
    figures = []
    alone = passes[THREADS[0]]
    for threads, measured in passes.items():
        name = f"{threads} thread{'s' if threads > 1 else ''}"
        by_cpu = [threads * 1e6 / one.cpu for one in measured]
        figures += [
            Figure(
                name=f"{name}: CPU of a request",
                unit="us",
                runs=[one.cpu for one in measured],
                note=note,
            ),
            Figure(name=f"{name}, by CPU: requests/s", unit="requests/s", runs=by_cpu),
        ]
        note = ""
        if load_generator.installed():
            figures.append(
                Figure(
                    name=f"{name}: requests/s on this machine",
                    unit="requests/s",
                    runs=[one.rate for one in measured],
                    limited=sum(one.limited for one in measured),
                )
            )
        if threads > 1:
            ratio = f"{name}, by CPU: requests/s, times those of one"
            figures.append(times(ratio, by_cpu, [1e6 / one.cpu for one in alone]))
    return figures
