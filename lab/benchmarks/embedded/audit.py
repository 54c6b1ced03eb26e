"""What `--audit 1` costs `POST /query`: two services of the same table, one of which keeps every
answer, asked in turns as in `lab.benchmarks.embedded.query`.

CPU is that of all threads of the process, the one that writes the log of answers and RocksDB's
included, over so many requests that RocksDB's data files are written, too.
"""

from itertools import cycle, islice
from typing import Final

from lab.benchmarks.embedded.publisher import Publisher
from lab.benchmarks.embedded.query import INSTANCES, Server, plan_of, prompts_of, request_of
from lab.benchmarks.embedded.service import Service, until
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import KernelName, Sizes

TOKENS_MAX: Final = 8192
REQUESTS: Final = {"rust": 4000, "reference": 40}
PASSES: Final = 7
"""Behind a first one, in which the log of answers is new."""


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    plan = plan_of(sizes)
    prompts = prompts_of(plan)
    with Service(kernel) as plain, Service(kernel, "--set", "audit.rate=1") as audited:
        for service in (plain, audited):
            with Publisher(plan, publishers=INSTANCES) as publisher:
                publisher.connect(service)
                _wait(service, publisher.send().last_sequence)
        servers = [Server(service.address, service.pid) for service in (plain, audited)]
        return compared(servers, prompts, kernel, sizes) + counts_of(audited.metrics())


def compared(
    servers: list[Server], prompts: list[list[int]], kernel: KernelName, sizes: Sizes
) -> list[Figure]:
    """Both servers asked in turns, the one that keeps its answers second."""
    figures = []
    for tokens in (count for count in sizes.prompt_tokens if count <= TOKENS_MAX):
        requests = [request_of("octets", prompt[:tokens]) for prompt in prompts]
        rotating = list(islice(cycle(requests), max(REQUESTS[kernel], len(requests))))
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


def _wait(service: Service, sequence: int) -> None:
    until(lambda: service.folded_sequence() >= sequence, poll_s=0.05)
    service.wait_flushed()


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
