"""What one publisher's flood costs another one: how late its events are in the answers.

A neighbour sends a single-block event every 10 ms; each answer of `/services`, asked every 2 ms,
makes all sequences up to its last one visible then. Beside it another publisher sends as fast as
ZeroMQ takes it, more than the service folds, so most of it waits in the inbox: in 64-block events,
alone in a message or several together; as many events as a message may have; or removals of what it
has stored.
"""

import threading
import time
from collections.abc import Sequence
from typing import Final

from benchmarks.embedded.marker import Marker
from benchmarks.embedded.publisher import Publisher
from benchmarks.embedded.service import Service
from benchmarks.report.figures import Aim, Figure, percentile
from benchmarks.sizes import BLOCK_SIZE, SEED, KernelName, Sizes
from schemas.limits import BATCH_EVENTS_MAX
from simulation.traffic.load import LoadPlan, Pattern

MARKER: Final = "marker"
FLOOD: Final = "i0"
MARK_S: Final = 0.01
POLL_S: Final = 0.002
BEFORE_S: Final = 0.2
AIM: Final = Aim(at_most=50.0)
"""Milliseconds by which no publisher delays another."""


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    blocks, events = sizes.wide_blocks, BATCH_EVENTS_MAX
    floods = {
        "alone": None,
        "beside a flood of 64-block events": _flood(blocks, per_event=64, per_batch=1),
        "beside messages of 20 of them": _flood(blocks, per_event=64, per_batch=20),
        f"beside messages of {events:,} events": _flood(blocks, per_event=1, per_batch=events),
        "beside a flood of removals": _flood(blocks, per_event=64, per_batch=1, pattern="removed"),
    }
    figures: list[Figure] = []
    alone_ms = 0.0
    for name, plan in floods.items():
        passes = [run_once(kernel, plan) for _ in range(sizes.runs)]
        figures += _figures(name, passes)
        if plan is None:
            alone_ms = figures[-1].value
        else:
            figures.append(_added(name, passes, alone_ms))
    return figures


def _flood(blocks: int, *, per_event: int, per_batch: int, pattern: Pattern = "stored") -> LoadPlan:
    step = per_event * per_batch
    return LoadPlan(
        blocks=max(1, blocks // step) * step,
        blocks_per_event=per_event,
        events_per_batch=per_batch,
        block_size=BLOCK_SIZE,
        pattern=pattern,
        seed=SEED,
    )


def _figures(name: str, passes: Sequence[list[float]]) -> list[Figure]:
    note = f"{len(passes[0]):,} events watched"
    p50s, p99s = ([percentile(one, percent) for one in passes] for percent in (50, 99))
    return [
        Figure(name=f"{name}: p50", unit="ms", runs=p50s, note=note),
        Figure(name=f"{name}: p99", unit="ms", runs=p99s),
        Figure(name=f"{name}: worst", unit="ms", runs=[max(one) for one in passes]),
    ]


def _added(name: str, passes: Sequence[list[float]], alone_ms: float) -> Figure:
    return Figure(
        name=f"{name}: worst, beyond the worst alone",
        unit="ms",
        runs=[max(0.0, max(one) - alone_ms) for one in passes],
        aim=AIM,
    )


def run_once(kernel: KernelName, flood: LoadPlan | None) -> list[float]:
    """The milliseconds until each of the neighbour's events was visible, sent while the flood was
    taken.
    """
    with Service(kernel) as service:
        if flood is None:
            return _watch(service, seconds=2.0)
        with Publisher(flood) as publisher:
            publisher.connect(service)
            last = flood.blocks // flood.blocks_per_event // flood.events_per_batch - 1
            if flood.pattern == "removed":
                publisher.send()  # all that is removed then
                service.wait_folded(FLOOD, last)
                service.wait_flushed()
                last += last + 1
            sending = threading.Thread(target=publisher.send, daemon=True)
            waits_ms = _watch(service, seconds=flood.blocks / 500_000, then=sending)
            sending.join()
            service.wait_folded(FLOOD, last)
            return waits_ms


def _watch(
    service: Service, *, seconds: float, then: threading.Thread | None = None
) -> list[float]:
    marker = Marker(round(seconds / MARK_S), every_s=MARK_S)
    try:
        service.register(marker.endpoint, MARKER)
        marker.wait_for_subscriber()
        time.sleep(BEFORE_S)
        if then is not None:
            then.start()
        return marker.watch(lambda: service.sequences()[MARKER], poll_s=POLL_S)
    finally:
        marker.close()
