"""Resident memory of whole services for each block that an instance holds: of us and of Dynamo's
indexer, by the same publishers.

It is read before the first block and once all of them are visible and nothing is under way. Ours
has the log and its inbox in it; `memory` has the index alone, of a larger table.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, NamedTuple

from lab.benchmarks.embedded.publisher import Publisher
from lab.benchmarks.embedded.query import Server
from lab.benchmarks.embedded.service import MODEL, Service, resident_bytes, until
from lab.benchmarks.peers.dynamo import DynamoIndexer, describe, missing
from lab.benchmarks.peers.ingest import checked_prompts
from lab.benchmarks.peers.queries import Contender, dynamo_contender, our_contender
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, KernelName, Sizes
from lab.traffic.event_load import LoadPlan

HOLDERS: Final = {1: "one instance", 8: "8 instances share the blocks"}
PAIRS_MAX: Final = 2_000_000
RATE: Final = 400_000
"""Blocks a second: what waits to be folded would be measured, too."""

SETTLE_S: Final = 3.0
VISIBLE_S: Final = 120.0


class _WatchedServer(NamedTuple):
    contender: Contender
    follow: Callable[[Publisher], None]
    pid: int


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    reason = missing()
    if reason:
        raise RuntimeError(reason)
    figures: list[Figure] = []
    for holders, case in HOLDERS.items():
        blocks = min(PAIRS_MAX, sizes.memory_pairs) // holders // 512 * 512
        plan = LoadPlan(blocks=blocks, block_size=BLOCK_SIZE, seed=SEED)
        prompts = checked_prompts(plan)
        for name, open_server in (("Reprise", _ours), ("Dynamo", _dynamo)):
            with ExitStack() as stack:
                watched = open_server(kernel, stack)
                resident = _run_once(watched, plan, holders, prompts)
            pairs = f"{blocks:,} blocks, {blocks * holders:,} pairs"
            note = pairs if name == "Reprise" else describe()
            figures.append(
                Figure(name=f"{name}, {case}: resident", unit="B/pair", runs=[resident], note=note)
            )
    return figures


def _ours(kernel: KernelName, stack: ExitStack) -> _WatchedServer:
    service = stack.enter_context(Service(kernel))
    contender = our_contender("JSON", Server(service.address, service.pid))
    return _WatchedServer(contender, lambda publisher: publisher.connect(service), service.pid)


def _dynamo(kernel: KernelName, stack: ExitStack) -> _WatchedServer:
    dynamo = stack.enter_context(DynamoIndexer())

    def follow(publisher: Publisher) -> None:
        publisher.when_encoded()
        dynamo.follow_all(MODEL, publisher.endpoints, BLOCK_SIZE)
        publisher.when_subscribed()

    contender = dynamo_contender(Server(dynamo.address, dynamo.pid))
    return _WatchedServer(contender, follow, dynamo.pid)


def _run_once(
    watched: _WatchedServer, plan: LoadPlan, holders: int, prompts: list[list[int]]
) -> float:
    """Bytes for each (block, instance)."""
    one = watched.contender

    def is_held(prompt: list[int]) -> bool:
        return one.longest(one.server.ask(one.request(prompt))) == [len(prompt)] * holders

    with Publisher(plan, publishers=holders, blocks_per_s=RATE) as publisher:
        watched.follow(publisher)
        time.sleep(SETTLE_S)
        before = resident_bytes(watched.pid)
        publisher.send()
        until(lambda: all(map(is_held, prompts)), poll_s=0.2, timeout_s=VISIBLE_S)
        time.sleep(SETTLE_S)
        return (resident_bytes(watched.pid) - before) / (plan.blocks * holders)
