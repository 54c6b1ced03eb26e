"""`POST /query` while events come in: how long an answer takes beside 200,000 blocks a second that
are stored, and as many that are removed; of us and, where it is installed, of Dynamo's indexer.

One client asks every 2 ms over one connection, first with nothing else to do, then beside a
publisher of another instance that keeps that rate, which only the server that is asked follows.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import cycle
from typing import Final, NamedTuple

import msgspec

from lab.benchmarks.embedded.publisher import Publisher
from lab.benchmarks.embedded.publisher_process import SentPhase
from lab.benchmarks.embedded.query import INSTANCES, Server, plan_of, prompts_of
from lab.benchmarks.embedded.service import MODEL, Service, until
from lab.benchmarks.peers.dynamo import DynamoIndexer, describe, missing
from lab.benchmarks.peers.queries import THEIRS, Contender, dynamo_contender, our_contender
from lab.benchmarks.report.figures import Figure, percentile
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, KernelName, Sizes
from lab.traffic.event_load import LoadPlan

OURS: Final = "JSON"
TOKENS: Final = 8192
ASK_S: Final = 0.002
RATE: Final = 200_000
"""Blocks stored a second, and removed."""

LIVE_BLOCKS: Final = 100_000
RATE_SLACK: Final = 1.05
"""By how much longer a publisher may take than its rate says, before the run is marked."""


class Pass(NamedTuple):
    """The milliseconds of each answer, with nothing else to do and beside events; and whether the
    publisher kept its rate.
    """

    alone: list[float]
    beside: list[float]
    sustained: bool


class PeerServer(NamedTuple):
    """A server, and how it is told to follow the busy publisher."""

    contender: Contender
    follow: Callable[[Publisher], None]


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    passes: dict[str, list[Pass]] = {}
    for _ in range(sizes.runs):
        for name, one in _run_once(kernel, sizes).items():
            passes.setdefault(name, []).append(one)
    figures = [figure for name in passes for figure in _figures(name, passes[name])]
    if THEIRS in passes:
        figures[0] = msgspec.structs.replace(figures[0], note=describe())
        figures.append(_against(passes))
    return figures


def _run_once(kernel: KernelName, sizes: Sizes) -> dict[str, Pass]:
    plan = plan_of(sizes)
    prompts = prompts_of(plan)
    with ExitStack() as open_ones:
        service = open_ones.enter_context(Service(kernel))
        all_asked = [
            PeerServer(
                our_contender(OURS, Server(service.address, service.pid)),
                lambda publisher: publisher.connect(service, first=INSTANCES),
            )
        ]
        subscribers = 1 if missing() else 2
        holding = open_ones.enter_context(
            Publisher(plan, publishers=INSTANCES, subscribers=subscribers)
        )
        if subscribers == 2:
            dynamo = open_ones.enter_context(DynamoIndexer())
            dynamo.follow_all(MODEL, holding.endpoints, BLOCK_SIZE)

            def follow(publisher: Publisher) -> None:
                publisher.when_encoded()
                dynamo.follow_all(MODEL, publisher.endpoints, BLOCK_SIZE, first=INSTANCES)
                publisher.when_subscribed()

            contender = dynamo_contender(Server(dynamo.address, dynamo.pid))
            all_asked.append(PeerServer(contender, follow))
        holding.connect(service)
        sent = holding.send()
        until(lambda: service.folded_sequence() >= sent.last_sequence, poll_s=0.05)
        wait_until_held([asked.contender for asked in all_asked], prompts)
        seconds = max(2.0, 10 * sizes.query_cpu_s)
        return {asked.contender.name: _pass(asked, prompts, seconds) for asked in all_asked}


def wait_until_held(contenders: Sequence[Contender], prompts: list[list[int]]) -> None:
    last = prompts[-1][:TOKENS]
    until(
        lambda: all(
            one.longest(one.server.ask(one.request(last))) == [TOKENS] * INSTANCES
            for one in contenders
        ),
        poll_s=0.2,
    )


def _pass(asked: PeerServer, prompts: list[list[int]], seconds: float) -> Pass:
    one = asked.contender
    requests = [one.request(prompt[:TOKENS]) for prompt in prompts]
    alone = ask(one.server, requests, seconds, lambda: True)
    load = LoadPlan(
        blocks=round(seconds * RATE) + LIVE_BLOCKS,
        block_size=BLOCK_SIZE,
        pattern="mixed",
        live_blocks=LIVE_BLOCKS,
        seed=SEED + 1,
    )
    with Publisher(load, blocks_per_s=2 * RATE) as busy:
        asked.follow(busy)
        sent: list[SentPhase] = []
        sending = threading.Thread(target=lambda: sent.append(busy.send()), daemon=True)
        sending.start()
        time.sleep(LIVE_BLOCKS / RATE / 2)  # until it removes, too
        beside = ask(one.server, requests, seconds, sending.is_alive)
        sending.join()
    return Pass(alone, beside, sustained(sent[0], 2 * RATE))


def sustained(sent: SentPhase, blocks_per_s: float) -> bool:
    """Whether a phase took no longer than its rate says."""
    return sent.seconds <= RATE_SLACK * sent.blocks / blocks_per_s


def ask(
    server: Server, requests: list[bytes], seconds: float, goes_on: Callable[[], bool]
) -> list[float]:
    """The milliseconds of each answer."""
    waits_ms: list[float] = []
    end = time.perf_counter() + seconds
    with server.connected(1) as (client,):
        for request in cycle(requests):
            started = time.perf_counter()
            if started > end or not goes_on():
                break
            client.send(request)
            client.receive()
            waits_ms.append(1e3 * (time.perf_counter() - started))
            time.sleep(max(0.0, started + ASK_S - time.perf_counter()))
    return waits_ms


def _against(passes: dict[str, list[Pass]]) -> Figure:
    """Our p99 beside events over theirs, of one pass each."""
    ours, theirs = passes[OURS], passes[THEIRS]
    return Figure(
        name=f"{OURS}, {TOKENS // 1024}K tokens, beside events: p99, times Dynamo's",
        unit="x",
        runs=[
            percentile(our.beside, 99) / percentile(their.beside, 99)
            for our, their in zip(ours, theirs, strict=True)
        ],
        limited=sum(
            not (our.sustained and their.sustained) for our, their in zip(ours, theirs, strict=True)
        ),
    )


def _figures(name: str, passes: Sequence[Pass]) -> list[Figure]:
    row = f"{name}, {TOKENS // 1024}K tokens"
    note = f"{len(passes[0].beside):,} answers a run"
    late = sum(not one.sustained for one in passes)
    figures = [
        Figure(
            name=f"{row}, {when}: p{percent}",
            unit="ms",
            runs=[percentile(getattr(one, field), percent) for one in passes],
            note=note if percent == 50 and field == "beside" else "",
            limited=late if field == "beside" else 0,
        )
        for field, when in (("alone", "alone"), ("beside", "beside events"))
        for percent in (50, 99)
    ]
    ratios = [percentile(one.beside, 99) / percentile(one.alone, 99) for one in passes]
    figures.append(Figure(name=f"{row}: p99, times alone", unit="x", runs=ratios, limited=late))
    return figures
