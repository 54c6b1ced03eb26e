"""`POST /query` and `/query_by_hash` of us and, where it is installed, of NVIDIA Dynamo's indexer,
side by side: the same content, in turn.

Eight publishers send the same prompts to both over their own sockets. The answers must agree
before anything is timed. Then each is asked in turn, the same number of times, over raw connections
that are kept alive: CPU is that of the server's process for each request with eight connections,
or with one and one request at a time. Requests/s are those of `wrk` over eight connections, where
it is installed; else of this one client, which is a lower bound. A ratio is of one pass. One
request at a time is also asked on one core and on two, beside sockets alone (`alone`).
"""

import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from typing import Final, NamedTuple

import msgspec

from lab.benchmarks.embedded.http_client import (
    FORMS,
    INSTANCES,
    OCTETS_URL,
    Server,
    plan_of,
    post_of,
    prompts_of,
    request_of,
)
from lab.benchmarks.embedded.publishers import Publishers
from lab.benchmarks.embedded.service import MODEL, until
from lab.benchmarks.index.hashing import block_hashes, prefix_hashes
from lab.benchmarks.peers import alone, load_generator
from lab.benchmarks.peers.indexers import DynamoIndexer, Indexer, describe, kinds, longest_of
from lab.benchmarks.report.figures import Figure, percentile, times
from lab.benchmarks.sizes import Sizes

BY_HASH: Final = "octets by hash"
THEIRS: Final = "Dynamo, JSON"
THEIRS_BY_HASH: Final = "Dynamo, JSON by hash"
REQUESTS_MIN: Final = 20
ALONE: Final = 4000
"""Requests of a run of `alone`."""

BINARY_TOKENS: Final = 32_768
"""From here on binary forms are asked for, and at the longest prompts hashes: a binary request is
for long prompts."""


class Contender(NamedTuple):
    """One way to ask one server.

    Attributes:
        name: of the row.
        peer: of the row that it is compared with; "" of those that others are compared with.
        request: the bytes of one request.
        longest: the matches of an answer, one for each instance.
    """

    name: str
    peer: str
    server: Server
    request: Callable[[list[int]], bytes]
    longest: Callable[[bytes], list[int]]

    def check(self, prompt: list[int]) -> bool:
        """Whether all instances hold it by this way of asking."""
        answer = self.server.ask(self.request(prompt))
        return self.longest(answer) == [len(prompt)] * INSTANCES


class QueryPass(NamedTuple):
    """CPU of the server for each request, microseconds, and of one that comes alone; requests/s;
    p50 and p99 of one connection, microseconds; whether the client kept the requests/s down.
    """

    cpu: float
    single_cpu: float
    rate: float
    p50: float
    p99: float
    limited: bool


def measure(sizes: Sizes) -> list[Figure]:
    longest = max(sizes.prompt_tokens)
    plan = plan_of(longest, sizes.query_bodies)
    figures: list[Figure] = []
    with ExitStack() as open_ones:
        indexers = [open_ones.enter_context(kind()) for kind in kinds()]
        publishers = open_ones.enter_context(
            Publishers(plan, publishers=INSTANCES, subscribers=len(indexers))
        )
        publishers.connect(*indexers)
        publishers.send()
        prompts = prompts_of(plan)
        for indexer in indexers:
            indexer.wait_held(prompts[-1:], INSTANCES, poll_s=0.2)
            indexer.settle()
        contenders = [one for indexer in indexers for one in _contenders(indexer)]
        until(lambda: all(one.check(prompts[-1]) for one in contenders), poll_s=0.2)
        for tokens in sizes.prompt_tokens:
            asked = [
                one
                for one in contenders
                if one.name in ("JSON", THEIRS)
                or (tokens == longest if "hash" in one.name else tokens >= BINARY_TOKENS)
            ]
            cut = [prompt[:tokens] for prompt in prompts]
            figures += _measure_length(asked, cut, sizes)
            if tokens == min(sizes.prompt_tokens) and len(indexers) > 1:
                figures += _measure_alone(asked, cut, sizes)
    client = "wrk" if load_generator.installed() else "a client in Python"
    peers = f"{describe()}; " if len(indexers) > 1 else ""
    note = f"{peers}{len(prompts)} bodies rotate; requests/s asked by {client}"
    return [msgspec.structs.replace(figures[0], note=note), *figures[1:]]


def _contenders(indexer: Indexer) -> list[Contender]:
    server = indexer.server
    if isinstance(indexer, DynamoIndexer):
        return [
            Contender(THEIRS, "", server, indexer.request, indexer.longest),
            Contender(THEIRS_BY_HASH, "", server, _dynamo_request_by_hash, indexer.longest),
        ]

    def ours(form: str) -> Contender:
        return Contender(
            form,
            THEIRS,
            server,
            lambda tokens: request_of(form, tokens),
            lambda answer: longest_of(form, answer),
        )

    by_hash = Contender(BY_HASH, THEIRS_BY_HASH, server, _our_request_by_hash, indexer.longest)
    return [*map(ours, FORMS), by_hash]


def _our_request_by_hash(tokens: list[int]) -> bytes:
    body = prefix_hashes(array("i", tokens).tobytes())
    return post_of(b"/query_by_hash" + OCTETS_URL, body, FORMS["octets"])


def _dynamo_request_by_hash(tokens: list[int]) -> bytes:
    # They are taken as the 64 bits of a signed number.
    hashes = [one - (one >> 63 << 64) for one in block_hashes(array("i", tokens).tobytes())]
    body = msgspec.json.encode({"model_name": MODEL, "block_hashes": hashes})
    return post_of(b"/query_by_hash", body)


def _measure_length(
    contenders: Sequence[Contender], prompts: list[list[int]], sizes: Sizes
) -> list[Figure]:
    for one in contenders:
        if not one.check(prompts[0]):
            raise RuntimeError(f"Expected {INSTANCES} whole matches of {one.name}, got others")
    requests = {one.name: [one.request(prompt) for prompt in prompts] for one in contenders}
    slowest = contenders[-1]
    _, trial = slowest.server.single(requests[slowest.name])
    count = max(REQUESTS_MIN, len(prompts), int(sizes.query_cpu_s / percentile(trial, 50)))
    passes: dict[str, list[QueryPass]] = {one.name: [] for one in contenders}
    for _ in range(sizes.runs):
        for one in contenders:
            rotating = list(islice(cycle(requests[one.name]), count))
            passes[one.name].append(_measure_pass(one.server, rotating, sizes.rate_s))
    peers = {one.name: one.peer for one in contenders}
    return figures_of(len(prompts[0]), passes, peers)


def _measure_alone(
    contenders: Sequence[Contender], prompts: list[list[int]], sizes: Sizes
) -> list[Figure]:
    """By JSON alone, and beside sockets alone."""
    ours, theirs = (
        alone.AskedServer(one.name, one.server, [*islice(cycle(map(one.request, prompts)), ALONE)])
        for one in contenders
        if one.name in ("JSON", THEIRS)
    )
    with alone.bare_sockets(ours) as bare:
        return alone.measure(len(prompts[0]), [theirs, ours, bare], sizes.runs)


def _measure_pass(server: Server, requests: list[bytes], rate_s: float) -> QueryPass:
    started = time.perf_counter()
    cpu = server.busy(requests)
    rate = len(requests) / (time.perf_counter() - started)
    limited = True  # a client in Python takes more CPU for a short request than the server does
    if load_generator.installed():
        bodies = list(dict.fromkeys(requests))
        asked = load_generator.ask(server.address, bodies, seconds=rate_s)
        rate, limited = asked.rate, asked.is_limit
    single_cpu, seconds = server.single(requests)
    p50, p99 = (1e6 * percentile(seconds, percent) for percent in (50, 99))
    return QueryPass(cpu, single_cpu, rate, p50, p99, limited)


def figures_of(
    tokens: int, passes: dict[str, list[QueryPass]], peers: dict[str, str]
) -> list[Figure]:
    """Of one length; `peers`: which row each is compared with."""
    figures = []
    for name, ours in passes.items():
        limited = sum(one.limited for one in ours)
        row = f"{name}, {tokens // 1024}K tokens"
        cpu, single = [one.cpu for one in ours], [one.single_cpu for one in ours]
        rates = [one.rate for one in ours]
        figures += [
            Figure(name=f"{row}: CPU", unit="us", runs=cpu),
            Figure(name=f"{row}: rate", unit="requests/s", runs=rates, limited=limited),
            Figure(name=f"{row}: p50", unit="us", runs=[one.p50 for one in ours]),
            Figure(name=f"{row}: p99", unit="us", runs=[one.p99 for one in ours]),
            Figure(name=f"{row}, one at a time: CPU", unit="us", runs=single),
        ]
        if peers[name] in passes:
            theirs = passes[peers[name]]
            less = "CPU, times less than Dynamo"
            figures += [
                times(f"{row}: {less}", [one.cpu for one in theirs], cpu),
                times(f"{row}: rate, times Dynamo's", rates, [one.rate for one in theirs], limited),
                times(f"{row}, one at a time: {less}", [one.single_cpu for one in theirs], single),
            ]
    return figures
