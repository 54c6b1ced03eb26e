"""`POST /query` and `/query_by_hash` of us and of NVIDIA Dynamo's indexer, side by side: the same
content, in turn.

Eight publishers send the same prompts to both over their own sockets. The answers must agree
before anything is timed. Then each is asked in turn, the same number of times, over raw connections
that are kept alive: CPU is that of the server's process for each request with eight connections.
Requests/s are those of `wrk` over eight connections, where it is installed; else of this one
client, which is a lower bound. A ratio is of one pass: theirs over ours.
"""

import json
import time
from array import array
from collections.abc import Callable
from itertools import cycle, islice
from typing import Final, NamedTuple

import msgspec

from lab.benchmarks.embedded.publisher import Publisher
from lab.benchmarks.embedded.query import (
    FORMS,
    INSTANCES,
    OCTETS_URL,
    REQUESTS_MIN,
    Server,
    instances_of,
    plan_of,
    post_of,
    prompts_of,
    request_of,
)
from lab.benchmarks.embedded.service import MODEL, Service, until
from lab.benchmarks.index.hashing import block_hashes, prefix_hashes
from lab.benchmarks.peers import load_generator
from lab.benchmarks.peers.dynamo import DynamoIndexer, describe, missing
from lab.benchmarks.report.figures import Figure, percentile
from lab.benchmarks.sizes import BLOCK_SIZE, KernelName, Sizes

THEIRS: Final = "Dynamo, JSON"
BY_HASH: Final = "octets by hash"
THEIRS_BY_HASH: Final = "Dynamo, JSON by hash"


class Contender(NamedTuple):
    """One way to ask one server.

    Attributes:
        name: of the row.
        server: who is asked.
        request: the bytes of one request.
        longest: the matches of an answer, one for each instance.
    """

    name: str
    server: Server
    request: Callable[[list[int]], bytes]
    longest: Callable[[bytes], list[int]]


class Pass(NamedTuple):
    """CPU of the server for each request, microseconds; requests/s; p50 and p99 of one connection,
    microseconds; whether the client was what kept the requests/s down.
    """

    cpu: float
    rate: float
    p50: float
    p99: float
    limited: bool = False


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    reason = missing()
    if reason:
        raise RuntimeError(reason)
    plan = plan_of(sizes)
    figures: list[Figure] = []
    with (
        Service(kernel) as service,
        DynamoIndexer() as dynamo,
        Publisher(plan, publishers=INSTANCES, subscribers=2) as publisher,
    ):
        for number, endpoint in enumerate(publisher.endpoints):
            dynamo.follow(MODEL, number, endpoint, BLOCK_SIZE)
        publisher.connect(service)
        sent = publisher.send()
        until(lambda: service.folded_sequence() >= sent.last_sequence, poll_s=0.05)
        service.wait_flushed()
        prompts = prompts_of(plan)
        ours, theirs = Server(service.address, service.pid), Server(dynamo.address, dynamo.pid)
        contenders = [
            *(our_contender(form, ours) for form in FORMS),
            dynamo_contender(theirs),
        ]
        by_hash = [
            Contender(BY_HASH, ours, _our_request_by_hash, _our_longest("octets")),
            Contender(THEIRS_BY_HASH, theirs, _dynamo_request_by_hash, _dynamo_longest),
        ]
        _wait_until_all_agree([*contenders, *by_hash], prompts[-1])
        for tokens in sizes.prompt_tokens:
            figures += _measure_length(tokens, contenders, prompts, sizes)
            figures += _measure_length(tokens, by_hash, prompts, sizes)
    client = "wrk" if load_generator.installed() else "a client in Python"
    note = f"{describe()}; {len(prompts)} bodies rotate; requests/s asked by {client}"
    return [msgspec.structs.replace(figures[0], note=note), *figures[1:]]


def dynamo_contender(server: Server) -> Contender:
    return Contender(THEIRS, server, _dynamo_request, _dynamo_longest)


def our_contender(form: str, server: Server) -> Contender:
    return Contender(form, server, lambda tokens: request_of(form, tokens), _our_longest(form))


def _our_longest(form: str) -> Callable[[bytes], list[int]]:
    def longest(answer: bytes) -> list[int]:
        return [one["longest_matched"] for one in instances_of(form, answer).values()]

    return longest


def _our_request_by_hash(tokens: list[int]) -> bytes:
    body = prefix_hashes(array("i", tokens).tobytes())
    return post_of(b"/query_by_hash" + OCTETS_URL, body, FORMS["octets"])


def _dynamo_request_by_hash(tokens: list[int]) -> bytes:
    # They are taken as the 64 bits of a signed number.
    hashes = [one - (one >> 63 << 64) for one in block_hashes(array("i", tokens).tobytes())]
    body = msgspec.json.encode({"model_name": MODEL, "block_hashes": hashes})
    return post_of(b"/query_by_hash", body)


def _dynamo_request(tokens: list[int]) -> bytes:
    return post_of(b"/query", msgspec.json.encode({"model_name": MODEL, "token_ids": tokens}))


def _dynamo_longest(answer: bytes) -> list[int]:
    return [max(ranks.values()) for ranks in json.loads(answer)["scores"].values()]


def _wait_until_all_agree(contenders: list[Contender], prompt: list[int]) -> None:
    def agree() -> bool:
        return all(
            one.longest(one.server.ask(one.request(prompt))) == [len(prompt)] * INSTANCES
            for one in contenders
        )

    until(agree, poll_s=0.2)


def _measure_length(
    tokens: int, contenders: list[Contender], prompts: list[list[int]], sizes: Sizes
) -> list[Figure]:
    requests = {}
    for one in contenders:
        requests[one.name] = [one.request(prompt[:tokens]) for prompt in prompts]
        found = one.longest(one.server.ask(requests[one.name][0]))
        if found != [tokens] * INSTANCES:
            raise RuntimeError(f"Expected {INSTANCES} matches of {tokens} from {one.name}: {found}")
    peer = contenders[-1]
    _, trial = peer.server.single(requests[peer.name])
    count = max(REQUESTS_MIN, len(prompts), int(sizes.query_cpu_s / percentile(trial, 50)))
    passes: dict[str, list[Pass]] = {one.name: [] for one in contenders}
    for _ in range(sizes.runs):
        for one in contenders:
            rotating = list(islice(cycle(requests[one.name]), count))
            passes[one.name].append(_measure_pass(one.server, rotating, sizes.rate_s))
    return _figures(tokens, passes, peer.name)


def _measure_pass(server: Server, requests: list[bytes], rate_s: float) -> Pass:
    started = time.perf_counter()
    cpu = server.busy(requests)
    rate = len(requests) / (time.perf_counter() - started)
    limited = True  # a client in Python takes more CPU for a short request than the server does
    if load_generator.installed():
        bodies = list(dict.fromkeys(requests))
        asked = load_generator.ask(server.address, bodies, seconds=rate_s)
        rate, limited = asked.rate, asked.is_limit
    _, seconds = server.single(requests)
    p50, p99 = (1e6 * percentile(seconds, percent) for percent in (50, 99))
    return Pass(cpu, rate, p50, p99, limited)


def _figures(tokens: int, passes: dict[str, list[Pass]], peer: str) -> list[Figure]:
    length = f"{tokens // 1024}K tokens"
    theirs = passes[peer]
    figures = []
    for name, ours in passes.items():
        limited = sum(one.limited for one in ours)
        row = f"{name}, {length}"
        figures += [
            Figure(name=f"{row}: CPU", unit="us", runs=[one.cpu for one in ours]),
            Figure(
                name=f"{row}: rate",
                unit="requests/s",
                runs=[one.rate for one in ours],
                limited=limited,
            ),
            Figure(name=f"{row}: p50", unit="us", runs=[one.p50 for one in ours]),
            Figure(name=f"{row}: p99", unit="us", runs=[one.p99 for one in ours]),
        ]
        if name == peer:
            continue
        pairs = list(zip(ours, theirs, strict=True))
        figures += [
            Figure(
                name=f"{row}: CPU, times less than Dynamo",
                unit="x",
                runs=[their.cpu / our.cpu for our, their in pairs],
            ),
            Figure(
                name=f"{row}: rate, times Dynamo's",
                unit="x",
                runs=[our.rate / their.rate for our, their in pairs],
                limited=limited,
            ),
        ]
    return figures
