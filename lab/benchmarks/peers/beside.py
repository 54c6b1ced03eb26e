"""`POST /query` while events come in: how long an answer takes beside 200,000 blocks a second that
are stored, and as many that are removed; of us and, where it is installed, of Dynamo's indexer.

One client asks every 2 ms over one connection, first with nothing else to do, then beside a
publisher of another instance that keeps that rate, which only the indexer that is asked follows.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import Final, NamedTuple

from lab.benchmarks.embedded.http_client import INSTANCES, Server, plan_of, prompts_of
from lab.benchmarks.embedded.publishers import Publishers
from lab.benchmarks.embedded.publishers_process import SentPhase
from lab.benchmarks.peers.indexers import DynamoIndexer, Indexer, kinds
from lab.benchmarks.report.figures import Figure, percentile, times
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, Sizes
from lab.traffic.event_load import LoadPlan

ROW: Final = "JSON, 8K tokens"
TOKENS: Final = 8192
ASK_S: Final = 0.002
RATE: Final = 200_000
"""Blocks stored a second, and removed."""

LIVE_BLOCKS: Final = 100_000
RATE_SLACK: Final = 1.05
"""By how much longer a publisher may take than its rate says, before the run is marked."""


class BesidePass(NamedTuple):
    """The milliseconds of each answer, with nothing else to do and beside events; and whether the
    publisher kept its rate.
    """

    alone: list[float]
    beside: list[float]
    sustained: bool


def measure(sizes: Sizes) -> list[Figure]:
    plan = plan_of(TOKENS, sizes.query_bodies)
    prompts = prompts_of(plan)
    passes: dict[str, list[BesidePass]] = {}
    for _ in range(sizes.runs):
        for kind in kinds():
            with kind() as indexer, Publishers(plan, publishers=INSTANCES) as holding:
                holding.connect(indexer)
                holding.send()
                indexer.wait_held(prompts, INSTANCES)
                one = _pass(indexer, prompts, sizes.beside_s)
            passes.setdefault(kind.prefix, []).append(one)
    return figures_of(passes)


def _pass(indexer: Indexer, prompts: list[list[int]], seconds: float) -> BesidePass:
    requests = [indexer.request(prompt) for prompt in prompts]
    load = LoadPlan(
        blocks=round(seconds * RATE) + LIVE_BLOCKS,
        block_size=BLOCK_SIZE,
        pattern="mixed",
        live_blocks=LIVE_BLOCKS,
        seed=SEED + 1,
    )
    with Publishers(load, blocks_per_s=2.0 * RATE, first=INSTANCES) as busy:
        busy.connect(indexer)
        alone = ask(indexer.server, requests, seconds, lambda: True)
        began = time.monotonic()
        busy.begin()
        time.sleep(LIVE_BLOCKS / RATE / 2)  # until it removes, too
        whole_s = (2 * load.blocks - LIVE_BLOCKS) / 2 / RATE
        goes_on = began + whole_s
        beside = ask(indexer.server, requests, seconds, lambda: time.monotonic() < goes_on)
        return BesidePass(alone, beside, sustained(busy.finish(), 2 * RATE))


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


def figures_of(passes: Mapping[str, Sequence[BesidePass]]) -> list[Figure]:
    """Of all passes, by indexer."""
    figures = []
    p99s = {}
    for prefix, of_one in passes.items():
        row = f"{prefix}{ROW}"
        note = f"{len(of_one[0].beside):,} answers a run"
        late = sum(not one.sustained for one in of_one)
        alone, beside = (
            [percentile(waits, 99) for waits in of_all]
            for of_all in ([one.alone for one in of_one], [one.beside for one in of_one])
        )
        p99s[prefix] = beside
        figures += [
            Figure(name=f"{row}, alone: p99", unit="ms", runs=alone, note=note),
            Figure(name=f"{row}, beside events: p99", unit="ms", runs=beside, limited=late),
            times(f"{row}: p99, times alone", beside, alone, late),
        ]
    if DynamoIndexer.prefix in p99s:
        name = f"{ROW}, beside events: p99, times Dynamo's"
        figures.append(times(name, p99s[""], p99s[DynamoIndexer.prefix]))
    return figures
