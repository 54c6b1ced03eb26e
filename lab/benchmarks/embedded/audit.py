"""What `--audit 1` costs `POST /query`: two services of the same table, one of which keeps every
answer, asked in turns as in `lab.benchmarks.peers.queries`.

CPU is that of all threads of the process, the one that writes the log of answers and RocksDB's
included, over so many requests that RocksDB's data files are written, too.
"""

from itertools import cycle, islice
from typing import Final

from lab.benchmarks.embedded.http_client import INSTANCES, Server, plan_of, prompts_of, request_of
from lab.benchmarks.embedded.publishers import Publishers
from lab.benchmarks.embedded.service import Service
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import Sizes

TOKENS_MAX: Final = 8192
REQUESTS: Final = 4000
PASSES: Final = 7
"""Behind a first one, in which the log of answers is new."""


def measure(sizes: Sizes) -> list[Figure]:
    plan = plan_of(TOKENS_MAX, sizes.query_bodies)
    with Service() as plain, Service("--set", "audit.rate=1") as audited:
        with Publishers(plan, publishers=INSTANCES, subscribers=2) as publishers:
            publishers.connect(plain, audited)
            last = publishers.send().last_sequence
            for service in (plain, audited):
                service.wait_folded(last)
                service.wait_flushed()
        servers = [Server(service.address, service.pid) for service in (plain, audited)]
        return compared(servers, prompts_of(plan), sizes) + counts_of(audited.metrics())


def compared(servers: list[Server], prompts: list[list[int]], sizes: Sizes) -> list[Figure]:
    """Both servers asked in turns, the one that keeps its answers second."""
    figures = []
    for tokens in (count for count in sizes.prompt_tokens if count <= TOKENS_MAX):
        requests = [request_of("octets", prompt[:tokens]) for prompt in prompts]
        rotating = list(islice(cycle(requests), REQUESTS))
        passes = [[server.busy(rotating) for server in servers] for _ in range(1 + PASSES)][1:]
        figures += figures_of(tokens, passes, len(requests))
    return figures


def counts_of(metrics: dict[str, float]) -> list[Figure]:
    """What became of the answers."""
    return [
        Figure(
            name=f"answers {outcome}",
            unit="answers",
            runs=[metrics[f"reprise_audit_{outcome}_total"]],
        )
        for outcome in ("written", "dropped", "unsettled")
    ]


def figures_of(tokens: int, passes: list[list[float]], bodies: int) -> list[Figure]:
    """Of passes of both servers in turns, the one that keeps its answers second."""
    name = f"{tokens // 1024}K tokens"
    rows = {
        "CPU per request": [one[0] for one in passes],
        "CPU per request with --audit 1": [one[1] for one in passes],
        "CPU more with --audit 1": [one[1] - one[0] for one in passes],
    }
    first = next(iter(rows))
    return [
        Figure(
            name=f"{name}: {row}",
            unit="us",
            runs=runs,
            note=f"octets, {bodies} bodies rotate, {INSTANCES} instances hold each"
            if row == first
            else "",
        )
        for row, runs in rows.items()
    ]
