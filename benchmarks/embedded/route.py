"""What a decision costs: `POST /route` beside `POST /query` for the same prompts.

The candidates stand in the request, so that none is away: engines that nobody has registered, which
hold what was sent to them. Each request is booked, and written into the routing log; the query
lists as many registered instances. CPU is that of the server's process.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from benchmarks.embedded.instances import register_away, wait_until_listed
from benchmarks.embedded.query import Server, post_of
from benchmarks.embedded.service import MODEL, Service
from benchmarks.report.figures import Figure
from benchmarks.sizes import BLOCK_SIZE, KernelName, Sizes

COUNTS: Final = (8, 64)
TOKENS: Final = (1024, 8192)
REQUESTS: Final = 1000
PROMPTS: Final = 50
PREFIX_TOKENS: Final = 512  # that all prompts share


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    for count in COUNTS:
        with Service(kernel) as service:
            register_away(service, count)
            server = Server(service.address, service.pid)
            wait_until_listed(server, count)
            for tokens in TOKENS:
                figures += _figures(server, count, tokens, sizes.runs)
    return figures


def _figures(server: Server, count: int, tokens: int, runs: int) -> list[Figure]:
    asked = {"/query": _requests(tokens, ()), "/route": _requests(tokens, _candidates(count))}
    cpu: dict[str, list[float]] = {
        path: [server.busy(requests) for _ in range(runs)] for path, requests in asked.items()
    }
    what = f"{count} candidates, {tokens:,} tokens"
    ratios = [one / other for one, other in zip(cpu["/route"], cpu["/query"], strict=True)]
    return [
        Figure(name=f"{what}: CPU of /query", unit="us", runs=cpu["/query"]),
        Figure(name=f"{what}: CPU of /route", unit="us", runs=cpu["/route"]),
        Figure(name=f"{what}: /route, times /query", unit="x", runs=ratios),
    ]


def _candidates(count: int) -> tuple[dict[str, str], ...]:
    return tuple({"instance_id": f"engine-{number}"} for number in range(count))


def _requests(tokens: int, candidates: Iterable[dict[str, str]]) -> list[bytes]:
    path = b"/route" if candidates else b"/query"
    shared = list(range(PREFIX_TOKENS))
    bodies = []
    for number in range(PROMPTS):
        own = [100_000 * (number + 1) + token for token in range(tokens - PREFIX_TOKENS)]
        fields = {"model": MODEL, "block_size": BLOCK_SIZE, "token_ids": shared + own}
        if candidates:
            fields["candidates"] = list(candidates)
        bodies.append(post_of(path, msgspec.json.encode(fields)))
    return [bodies[number % PROMPTS] for number in range(REQUESTS)]
