"""Compares the CPU of each operation with the one that was written down, on whatever machine: both
are told in passes of a calibration, which is measured beside them.

    python -m lab.benchmarks.guard              fails where something is dearer by LIMIT
    python -m lab.benchmarks.guard --write      writes down what is measured now

A change that makes something dearer on purpose writes the figures down anew, and its commit says
why. The figures are those of the Rust kernel.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Final

import click
import msgspec
import xxhash

from lab.benchmarks.guard.operation import Operation
from lab.benchmarks.guard.operations import operations
from streams.kernel import native_available

LIMIT: Final = 1.3
RUNS: Final = 7
CALIBRATION_BYTES: Final = 8 * 1024 * 1024
CALIBRATION_STEPS: Final = 100_000
BASELINE: Final = Path(__file__).with_name("baseline.json")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--write", is_flag=True, help=f"Write the figures to {BASELINE.name} instead.")
@click.option("--limit", type=float, default=LIMIT, show_default=True, help="What is too dear.")
def main(write: bool, limit: float) -> None:
    """Measures, compares, and ends with 1 where something has become too dear."""
    if not native_available():
        raise click.ClickException("the Rust kernel is not built: run `make install` with Rust")
    found = measure()
    if write:
        BASELINE.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
        click.echo(f"Wrote {len(found)} figures to {BASELINE}")
        return
    before = msgspec.json.decode(BASELINE.read_bytes(), type=dict[str, float])
    dear = [line for line in compare(found, before, limit) if line.is_dear]
    if dear:
        raise click.ClickException(
            f"{len(dear)} of {len(found)} operations take more than {limit} times what they took;"
            " run it again to be sure. If that is meant: `python -m lab.benchmarks.guard --write`,"
            " and say why in the commit"
        )


class Line(msgspec.Struct):
    """One operation, now and then; None where it was not written down."""

    name: str
    ratio: float | None
    is_dear: bool


def compare(found: dict[str, float], before: dict[str, float], limit: float) -> list[Line]:
    """Prints and returns what has become of each operation."""
    lines = []
    for name, value in found.items():
        ratio = value / before[name] if name in before else None
        line = Line(name, ratio, ratio is not None and ratio > limit)
        said = "not written down yet" if ratio is None else f"{ratio:.2f} x"
        click.echo(f"{name:<48} {said}{'  TOO DEAR' if line.is_dear else ''}")
        lines.append(line)
    for name in before.keys() - found.keys():
        click.echo(f"{name:<48} not measured any more")
    return lines


def measure() -> dict[str, float]:
    """By operation, the CPU of one in passes of the calibration, times 1,000."""
    found = {}
    for operation in operations():
        ratios = [_once(operation) for _ in range(RUNS)]
        found[operation.name] = round(1000 * median(ratios), 6)
    return found


def _once(operation: Operation) -> float:
    """Right after the calibration, so that both see the same machine."""
    work = operation.prepare()
    passes = _seconds(_calibrate)
    return _seconds(work) / operation.times / passes


def _seconds(work: Callable[[], object]) -> float:
    started = thread_time()
    work()
    return thread_time() - started


def _calibrate() -> None:
    """What the operations are made of: hashing, copying, looking up, and the interpreter."""
    content = bytes(CALIBRATION_BYTES)
    xxhash.xxh3_64_intdigest(content)
    bytearray(content).reverse()
    table: dict[int, int] = {}
    for step in range(CALIBRATION_STEPS):
        table[step * 2_654_435_761 % 1_048_576] = step


if __name__ == "__main__":
    sys.exit(main())
