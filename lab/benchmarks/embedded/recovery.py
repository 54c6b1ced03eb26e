"""Start of a real service that holds a table: killed with -9, then started until `/ready`.

A start of an empty service is measured beside it: what remains is the recovery itself, and the
service tells that part too.
"""

import shutil
from typing import Final

from lab.benchmarks.embedded.ingest import POLL_S
from lab.benchmarks.embedded.publisher import Publisher
from lab.benchmarks.embedded.service import Service, until
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, KernelName, Sizes
from lab.traffic.event_load import LoadPlan

EVENT_BLOCKS: Final = 64
_PARTS: Final = ("until ready", "CPU until ready", "recovery itself")


RATE: Final = 600_000
"""Blocks published a second. Faster than the service takes them, what waits would be bounded."""


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    for blocks in sizes.recovery_blocks:
        figures += _measure_one(kernel, blocks, sizes.runs, with_empty=not figures)
    return figures


def _measure_one(kernel: KernelName, blocks: int, runs: int, *, with_empty: bool) -> list[Figure]:
    plan = LoadPlan(blocks=blocks, blocks_per_event=EVENT_BLOCKS, block_size=BLOCK_SIZE, seed=SEED)
    with Service(kernel) as service:
        empty = [_restart(service) for _ in range(runs)] if with_empty else []
        with Publisher(plan, blocks_per_s=RATE) as publisher:
            publisher.connect(service)
            sent = publisher.send()
            until(lambda: service.folded_sequence() >= sent.last_sequence, poll_s=POLL_S)
            service.wait_flushed()
        resumed = [_restart(service, entries=blocks) for _ in range(runs)]
        log_bytes, table_bytes = service.disk_bytes("log"), service.disk_bytes("table")
        rebuilt = [_restart(service, entries=blocks, without_table=True) for _ in range(runs)]
    held = f"{blocks:,} blocks"
    return [
        *(
            _figures("empty", empty, "nothing to recover: process start and imports")
            if empty
            else ()
        ),
        *_figures(f"{held}, from the table", resumed),
        *_figures(f"{held}, table deleted, whole log folded", rebuilt),
        Figure(name=f"{held}: log on disk", unit="B/block", runs=[log_bytes / blocks]),
        Figure(name=f"{held}: table on disk", unit="B/block", runs=[table_bytes / blocks]),
    ]


def _figures(name: str, runs: list[tuple[float, float, float]], note: str = "") -> list[Figure]:
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
