"""Start of a real service that holds a table: killed with -9, then started until `/ready`.

A start of an empty service is measured before it: what remains is the recovery itself, and the
service tells that part too.
"""

import shutil
from typing import Final

from lab.benchmarks.embedded.publishers import Publishers
from lab.benchmarks.embedded.service import Service
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, Sizes
from lab.traffic.event_load import LoadPlan

EVENT_BLOCKS: Final = 64
EMPTY_RUNS: Final = 5
_PARTS: Final = ("until ready", "CPU until ready", "recovery itself")
RATE: Final = 600_000.0
"""Blocks published a second. Faster than the service takes them, what waits would be bounded."""


def measure(sizes: Sizes) -> list[Figure]:
    blocks = sizes.recovery_blocks
    plan = LoadPlan(blocks=blocks, blocks_per_event=EVENT_BLOCKS, block_size=BLOCK_SIZE, seed=SEED)
    with Service() as service:
        empty = [_restart(service) for _ in range(EMPTY_RUNS)]
        with Publishers(plan, blocks_per_s=RATE) as publishers:
            publishers.connect(service)
            service.wait_folded(publishers.send().last_sequence)
            service.wait_flushed()
        resumed = [_restart(service, entries=blocks) for _ in range(sizes.real_time_runs)]
        rebuilt = [
            _restart(service, entries=blocks, without_table=True)
            for _ in range(sizes.real_time_runs)
        ]
    held = f"{blocks:,} blocks"
    return [
        *figures_of("empty", empty, "nothing to recover: process start and imports"),
        *figures_of(f"{held}, from the table", resumed),
        *figures_of(f"{held}, table deleted, whole log folded", rebuilt),
    ]


def figures_of(name: str, runs: list[tuple[float, float, float]], note: str = "") -> list[Figure]:
    """Of starts on the same data."""
    return [
        Figure(
            name=f"{name}: {part}",
            unit="s",
            runs=list(values),
            note=note if not place else "",
        )
        for place, (part, values) in enumerate(zip(_PARTS, zip(*runs, strict=True), strict=True))
    ]


def _restart(
    service: Service, *, entries: int = 0, without_table: bool = False
) -> tuple[float, float, float]:
    """Wall and CPU seconds until ready, and the seconds of recovery that the service tells."""
    service.kill()
    if without_table:
        shutil.rmtree(service.data / "table")
    seconds, cpu_s = service.start()
    found = service.entries()
    if found != entries:
        raise RuntimeError(f"Expected {entries} entries after recovery, got: {found}")
    recovery_s = service.metrics()["reprise_recovery_seconds"]
    if without_table:
        service.wait_flushed()
    return seconds, cpu_s, recovery_s
