"""What one publisher's flood costs another one: how late its events are in the answers.

A neighbour sends a single-block event every 10 ms; each answer of `/services`, asked every 2 ms,
makes all sequences up to its last one visible then. Beside it another publisher sends as fast as
ZeroMQ takes it, more than the service folds, so most of it waits in the inbox: in 64-block events,
alone in a message or several together; as many events as a message may have; removals of what it
has stored; messages with a gap before each; and blocks of as many LoRA adapters as it may name,
with clears among them, or clears alone.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

from msgspec.structs import replace

from lab.benchmarks.embedded.marker import MARK_S, POLL_S, Marker
from lab.benchmarks.embedded.publishers import Publishers
from lab.benchmarks.embedded.service import Service
from lab.benchmarks.report.figures import Figure, percentile
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, Sizes
from lab.traffic.event_load import LoadPlan
from schemas.limits import BATCH_EVENTS_MAX, LORA_NAMES_MAX

FLOOD: Final = "i0"
BEFORE_S: Final = 0.2
ALONE_S: Final = 2.0
ALONE_MAX_MS: Final = 50.0


class Flood(NamedTuple):
    """What the other one sends, and for how long the neighbour is watched."""

    plan: LoadPlan
    seconds: float


def measure(sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    alone_ms = 0.0
    for name, flood in floods(sizes).items():
        passes = [run_once(flood)]
        figures += figures_of(name, passes)
        if flood is None:
            alone_ms = figures[-1].value
        else:
            figures.append(added(name, passes, alone_ms))
    return figures


def floods(sizes: Sizes) -> dict[str, Flood | None]:
    """By what a figure of it is called; None for no flood."""
    blocks, events, adapters = sizes.flood_blocks, BATCH_EVENTS_MAX, LORA_NAMES_MAX
    single = _plan(blocks // 40, per_event=1)
    named = replace(single, lora_names=adapters, chain_events=1)
    found: dict[str, Flood | None] = {
        "alone": None,
        "64-block events": _blocks(_plan(blocks, per_event=64)),
        "20 of them in a message": _blocks(_plan(blocks, per_event=64, per_batch=20)),
        f"{events:,} events in a message": _blocks(_plan(blocks, per_event=1, per_batch=events)),
        "removals": _blocks(replace(_plan(blocks, per_event=64), pattern="removed")),
        "gaps": _singles(replace(single, sequence_step=2)),
        f"{adapters:,} adapters": _singles(named),
        f"{adapters:,} adapters, and a clear after half of them": _singles(
            replace(named, clear_every=adapters // 2)
        ),
        f"clears with {adapters:,} adapters": _singles(replace(named, pattern="cleared")),
    }
    return {name if flood is None else f"beside {name}": flood for name, flood in found.items()}


def _blocks(plan: LoadPlan) -> Flood:
    return Flood(plan, plan.blocks / 500_000)


def _singles(plan: LoadPlan) -> Flood:
    return Flood(plan, plan.blocks / 25_000)


def _plan(blocks: int, *, per_event: int, per_batch: int = 1) -> LoadPlan:
    step = per_event * per_batch
    return LoadPlan(
        blocks=max(1, blocks // step) * step,
        blocks_per_event=per_event,
        events_per_batch=per_batch,
        block_size=BLOCK_SIZE,
        seed=SEED,
    )


def figures_of(name: str, passes: Sequence[list[float]]) -> list[Figure]:
    """Of the milliseconds of each pass: median, p99 and worst."""
    note = f"{len(passes[0]):,} events watched"
    p50s, p99s = ([percentile(one, percent) for one in passes] for percent in (50, 99))
    return [
        Figure(name=f"{name}: p50", unit="ms", runs=p50s, note=note),
        Figure(name=f"{name}: p99", unit="ms", runs=p99s),
        Figure(name=f"{name}: worst", unit="ms", runs=[max(one) for one in passes]),
    ]


def added(name: str, passes: Sequence[list[float]], alone_ms: float) -> Figure:
    """What the flood adds to the worst. Where that is late with nothing beside it, too, no more
    than ALONE_MAX_MS of it are taken off: a machine that is too busy to tell is not a good figure.
    """
    return Figure(
        name=f"{name}: worst, beyond the worst alone",
        unit="ms",
        runs=[max(0.0, max(one) - min(alone_ms, ALONE_MAX_MS)) for one in passes],
        note=f"the worst alone was {alone_ms:.1f} ms",
    )


def run_once(flood: Flood | None) -> list[float]:
    """The milliseconds until each of the neighbour's events was visible, sent while the flood was
    taken.
    """
    with Service() as service:
        return watch(service, flood)


def watch(service: Service, flood: Flood | None, *, poll_s: float = POLL_S) -> list[float]:
    """As `run_once`; returns once all of the flood is folded."""
    with ExitStack() as stack:
        marker = stack.enter_context(
            Marker(round((ALONE_S if flood is None else flood.seconds) / MARK_S))
        )
        publishers = None
        if flood is not None:
            publishers = stack.enter_context(Publishers(flood.plan))
            publishers.connect(service)
            if flood.plan.pattern != "stored":
                stored = publishers.send()  # all that is removed or cleared then
                service.wait_folded(stored.last_sequence, FLOOD)
                service.wait_flushed()
        marker.connect(service)
        time.sleep(BEFORE_S)
        if publishers is None:
            return marker.watch(poll_s=poll_s)
        publishers.begin()
        waits_ms = marker.watch(poll_s=poll_s)
        service.wait_folded(publishers.finish().last_sequence, FLOOD)
        return waits_ms
