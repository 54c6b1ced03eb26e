"""`python -m benchmarks`: runs the measurements one after the other and prints the report."""

import subprocess
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Final

import click
import msgspec

from benchmarks.figures import Figure
from benchmarks.machine import describe_machine
from benchmarks.report import Report, Result, head_lines, section_lines
from benchmarks.sizes import KERNELS, KernelName
from streams.kernel import native_available

MODULES: Final = {
    "ingest": "ingest",
    "stages": "stages",
    "query": "query",
    "memory": "memory",
    "recovery": "recovery",
    "kernel": "kernels",
}
MEASUREMENT_S: Final = 300.0
END_S: Final = 20.0


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--kernel",
    type=click.Choice([*KERNELS, "both"]),
    default="both",
    show_default=True,
    help="Which index to measure; the Rust one is left out where it is not built.",
)
@click.option(
    "--only", metavar="NAME[,..]", help=f"Only these measurements, of {', '.join(MODULES)}."
)
@click.option("--quick", is_flag=True, help="Small sizes, one run each: whether it works at all.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write all runs of all figures to this file.",
)
def main(kernel: str, only: str | None, quick: bool, json_path: Path | None) -> None:
    """Measures ingest, queries, memory and recovery of the service, and the kernel alone."""
    names = list(MODULES) if only is None else only.split(",")
    unknown = [name for name in names if name not in MODULES]
    if unknown:
        raise click.BadParameter(f"Expected some of {', '.join(MODULES)}, got: {unknown[0]}")
    kernels = [one for one in KERNELS if kernel in (one, "both")]
    if "rust" in kernels and not native_available():
        if kernel == "rust":
            raise click.ClickException("Expected the Rust kernel, but it is not built: make run")
        kernels.remove("rust")
    machine = describe_machine()
    _say(head_lines(machine, quick=quick))
    results: list[Result] = []
    for name in names:
        measured = [run_worker(name, one, quick=quick) for one in kernels]
        _say(section_lines(import_module(f"benchmarks.{MODULES[name]}"), measured))
        results += measured
    click.echo(f"\n{sum(result.seconds for result in results):.0f} s in all")
    if json_path is not None:
        report = Report(machine=machine, quick=quick, results=results)
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    if any(result.error for result in results):
        sys.exit(1)


def run_worker(name: str, kernel: KernelName, *, quick: bool) -> Result:
    """One measurement in its own process, which is ended if it takes too long."""
    command = [sys.executable, "-m", "benchmarks.worker", name, kernel]
    started = time.monotonic()
    with subprocess.Popen(
        [*command, "quick"] if quick else command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=MEASUREMENT_S)
            problem = errors.strip().splitlines()[-1:] if process.returncode else []
        except subprocess.TimeoutExpired:
            process.terminate()
            output, _ = process.communicate(timeout=END_S)
            problem = [f"took longer than {MEASUREMENT_S:.0f} s"]
        except BaseException:
            process.terminate()
            raise
    return Result(
        measurement=name,
        kernel=kernel,
        seconds=time.monotonic() - started,
        figures=[] if problem else msgspec.json.decode(output, type=list[Figure]),
        error="".join(problem),
    )


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)


if __name__ == "__main__":
    main()
