"""What the largest things that one publisher can ask for in a message cost another one.

A neighbour is watched as in `fairness`, while a publisher that holds many blocks clears its cache;
while it removes half of them in large messages, after which its rows are written anew; and while
one batch of it moves blocks to another tier.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from lab.benchmarks.embedded.marker import MARK_S, Marker
from lab.benchmarks.embedded.service import Service
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, Sizes
from lab.engines.wire import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineEvent,
    EventEncoder,
)
from lab.traffic.event_load import Load, LoadPlan, LoadPublisher, encode_load, plan_events

PER_MESSAGE: Final = 65_536
WATCHED_S: Final = 2.0
BEFORE_S: Final = 0.3
INSTANCE: Final = "i0"


class _Step(NamedTuple):
    """Batches that are sent at once, of a publisher whose blocks these are, and how many blocks
    they name.
    """

    name: str
    blocks: Callable[[int], int]
    batches: Callable[[Sequence[int]], list[list[EngineEvent]]]


def _removed(hashes: Sequence[int]) -> list[list[EngineEvent]]:
    half = hashes[: len(hashes) // 2]
    return [
        [BlockRemoved(block_hashes=half[at : at + PER_MESSAGE], medium="GPU")]
        for at in range(0, len(half), PER_MESSAGE)
    ]


def _moved(hashes: Sequence[int]) -> list[list[EngineEvent]]:
    moved = hashes[: len(hashes) // 4]
    stored = BlockStored(block_hashes=moved, block_size=BLOCK_SIZE, medium="CPU")
    return [[BlockRemoved(block_hashes=moved, medium="GPU"), stored]]


STEPS: Final = (
    _Step("a clear of {:,} blocks", lambda held: held, lambda _: [[AllBlocksCleared()]]),
    _Step("{:,} blocks removed, and the rest written anew", lambda held: held // 2, _removed),
    _Step("one batch that moves {:,} blocks to the CPU", lambda held: held // 4, _moved),
)


def measure(sizes: Sizes) -> list[Figure]:
    held = sizes.resident_blocks // 64 * 64
    plan = LoadPlan(blocks=held, blocks_per_event=64, block_size=BLOCK_SIZE, seed=SEED)
    load = encode_load(plan)
    stored = (event for event in plan_events(plan) if isinstance(event, BlockStored))
    hashes = [int(one) for event in stored for one in event.block_hashes]
    figures: list[Figure] = []
    for step in STEPS:
        batches = step.batches(hashes)
        worst = max(_run_once(load, _load(batches)))
        name = step.name.format(step.blocks(held))
        figures.append(Figure(name=f"{name}: worst", unit="ms", runs=[worst]))
    return figures


def _run_once(stored: Load, sent: Load) -> list[float]:
    """The milliseconds until each of the neighbour's events was visible, from shortly before the
    step on.
    """
    publisher = LoadPublisher()
    try:
        with Service() as service, Marker(round(WATCHED_S / MARK_S)) as marker:
            service.register(publisher.endpoint, INSTANCE)
            if not publisher.wait_for_subscriber(60):
                raise TimeoutError("Expected a subscriber within 60 s")
            publisher.send(stored)
            last = len(stored.payloads) - 1
            service.wait_folded(last, INSTANCE)
            service.wait_flushed()
            marker.connect(service)
            timer = threading.Timer(BEFORE_S, publisher.send, (sent,))
            timer.start()
            waits_ms = marker.watch()
            service.wait_folded(last + len(sent.payloads), INSTANCE)
            timer.join()
            return waits_ms
    finally:
        publisher.close(0)


def _load(batches: Sequence[list[EngineEvent]]) -> Load:
    encoder = EventEncoder()
    payloads = [
        encoder.encode(events, timestamp_s=1_700_000_000.0 + number / 1000, dp_rank=0)
        for number, events in enumerate(batches)
    ]
    return Load(payloads=payloads, events=len(batches), stored_blocks=0, removed_blocks=0)
