"""A table of blocks that eight instances hold each, while they are removed: how long an answer
takes, and what a removed block costs; of us and, where it is installed, of Dynamo's indexer.

One of the eight removes all of its blocks at 200,000 a second in 64-block events, while a client
asks for 8K tokens every 2 ms, of the same blocks. Then the others remove theirs as fast as they
can, and CPU is that of the server's process until nothing of them is left.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

import msgspec

from lab.benchmarks.embedded.publisher import Publisher
from lab.benchmarks.embedded.publisher_process import SentPhase
from lab.benchmarks.embedded.query import INSTANCES, Server
from lab.benchmarks.embedded.service import MODEL, Service, until
from lab.benchmarks.peers.beside import OURS, RATE, TOKENS, ask, sustained
from lab.benchmarks.peers.dynamo import DynamoIndexer, describe, missing
from lab.benchmarks.peers.ingest import checked_prompts
from lab.benchmarks.peers.queries import THEIRS, Contender, dynamo_contender, our_contender
from lab.benchmarks.report.figures import Figure, percentile
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, KernelName, Sizes
from lab.traffic.event_load import LoadPlan

EVENT_BLOCKS: Final = 64
POLL_S: Final = 0.02
ALONE_S: Final = 3.0


class Pass(NamedTuple):
    """The milliseconds of each answer, alone and beside removals; millions of blocks removed for
    each second of CPU; whether the publisher kept its rate.
    """

    alone: list[float]
    beside: list[float]
    removed: float
    sustained: bool


class _WatchedServer(NamedTuple):
    """A server: how it is asked, told to follow publishers from a number on, and its CPU."""

    contender: Contender
    follow: Callable[[Publisher, int], None]
    cpu_s: Callable[[], float]
    settle: Callable[[], None]


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    chain_blocks = TOKENS // BLOCK_SIZE
    plan = LoadPlan(
        blocks=max(1, sizes.resident_blocks // chain_blocks) * chain_blocks,
        blocks_per_event=EVENT_BLOCKS,
        block_size=BLOCK_SIZE,
        chain_events=chain_blocks // EVENT_BLOCKS,
        pattern="removed",
        seed=SEED,
    )
    prompts = checked_prompts(plan)
    servers = [_ours] if missing() else [_ours, _dynamo]
    passes: dict[str, list[Pass]] = {}
    for _ in range(sizes.runs):
        for open_server in servers:
            with ExitStack() as stack:
                watched = open_server(kernel, stack)
                passes.setdefault(watched.contender.name, []).append(
                    _run_once(watched, plan, prompts)
                )
    figures = [figure for name in passes for figure in _figures(name, passes[name], plan)]
    if THEIRS in passes:
        note = f"{figures[0].note}; {describe()}"
        figures[0] = msgspec.structs.replace(figures[0], note=note)
    return figures


def _ours(kernel: KernelName, stack: ExitStack) -> _WatchedServer:
    service = stack.enter_context(Service(kernel))
    return _WatchedServer(
        our_contender(OURS, Server(service.address, service.pid)),
        lambda publisher, first: publisher.connect(service, first=first),
        service.cpu_s,
        service.wait_flushed,
    )


def _dynamo(kernel: KernelName, stack: ExitStack) -> _WatchedServer:
    dynamo = stack.enter_context(DynamoIndexer())

    def follow(publisher: Publisher, first: int) -> None:
        publisher.when_encoded()
        dynamo.follow_all(MODEL, publisher.endpoints, BLOCK_SIZE, first=first)
        publisher.when_subscribed()

    contender = dynamo_contender(Server(dynamo.address, dynamo.pid))
    return _WatchedServer(contender, follow, dynamo.cpu_s, lambda: None)


def _run_once(watched: _WatchedServer, plan: LoadPlan, prompts: Sequence[list[int]]) -> Pass:
    one = watched.contender

    def held(prompt: list[int]) -> int:
        """How many instances hold all of it."""
        return one.longest(one.server.ask(one.request(prompt))).count(len(prompt))

    def wait(instances: int) -> None:
        until(lambda: all(held(prompt) == instances for prompt in prompts), poll_s=POLL_S)

    with (
        Publisher(plan, publishers=INSTANCES - 1) as others,
        Publisher(plan, blocks_per_s=RATE) as removing,
    ):
        watched.follow(others, 0)
        others.send()
        watched.follow(removing, INSTANCES - 1)
        removing.send()
        wait(INSTANCES)
        watched.settle()
        requests = [one.request(prompt) for prompt in prompts]
        alone = ask(one.server, requests, ALONE_S, lambda: True)
        sent: list[SentPhase] = []
        sending = threading.Thread(target=lambda: sent.append(removing.send()), daemon=True)
        sending.start()
        beside = ask(one.server, requests, plan.blocks / RATE, sending.is_alive)
        sending.join()
        wait(INSTANCES - 1)
        watched.settle()
        before = watched.cpu_s()
        removed = others.send()
        wait(0)
        watched.settle()
        rate = removed.blocks / (watched.cpu_s() - before) / 1e6
    return Pass(alone, beside, rate, sustained(sent[0], RATE))


def _figures(name: str, passes: Sequence[Pass], plan: LoadPlan) -> list[Figure]:
    row = f"{name}, {TOKENS // 1024}K tokens"
    late = sum(not one.sustained for one in passes)
    note = f"{plan.blocks:,} blocks, {INSTANCES} hold each"
    alone, beside = (
        [percentile(getattr(one, field), 99) for one in passes] for field in Pass._fields[:2]
    )
    peer = "Dynamo, " if name == THEIRS else ""
    return [
        Figure(name=f"{row}, alone: p99", unit="ms", runs=alone, note=note),
        Figure(name=f"{row}, beside removals: p99", unit="ms", runs=beside, limited=late),
        Figure(
            name=f"{row}, beside removals: p99, times alone",
            unit="x",
            runs=[one / other for one, other in zip(beside, alone, strict=True)],
            limited=late,
        ),
        Figure(
            name=f"{peer}removed, {EVENT_BLOCKS}-block events, of blocks held by {INSTANCES}:"
            " per CPU-second",
            unit="M blocks",
            runs=[one.removed for one in passes],
        ),
    ]
