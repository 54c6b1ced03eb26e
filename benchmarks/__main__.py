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

from benchmarks.peers.queries import missing as missing_peers
from benchmarks.report.document import Report, Result, head_lines, section_lines
from benchmarks.report.figures import Figure
from benchmarks.report.machine import describe_machine
from benchmarks.sizes import KERNELS, KernelName
from devtools.kafka_jars import (
    BrokerUnavailableError,
    find_java,
    have_jars,
    jars_directory,
)
from streams.kernel import native_available

MODULES: Final = {
    "ingest": "embedded.ingest",
    "stages": "embedded.stages",
    "query": "embedded.query",
    "instances": "embedded.instances",
    "fairness": "embedded.fairness",
    "large": "embedded.large",
    "beside": "peers.beside",
    "peers": "peers.queries",
    "memory": "index.memory",
    "recovery": "embedded.recovery",
    "kernel": "index.kernels",
    "growth": "index.growth",
    "codec": "distributed.codecs",
    "pipeline": "distributed.pipeline",
    "latency": "distributed.latency",
    "partition": "distributed.fairness",
    "cold": "distributed.cold",
    "table-topic": "distributed.table_topic",
}
DISTRIBUTED: Final = ("pipeline", "latency", "partition", "cold", "table-topic")
"""Those that need a Kafka broker; `distributed` names all of them."""

PEERS: Final = "peers"

MEASUREMENT_S: Final = 300.0
DISTRIBUTED_S: Final = 1200.0
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
    "--only",
    metavar="NAME[,..]",
    help=f"Only these measurements, of {', '.join(MODULES)}; `distributed` for the last four.",
)
@click.option("--quick", is_flag=True, help="Small sizes, one run each: whether it works at all.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write all runs of all figures to this file.",
)
def main(kernel: str, only: str | None, quick: bool, json_path: Path | None) -> None:
    """Measures ingest, queries, memory and recovery of the service, the kernel alone, and the
    distributed form where a Kafka broker can be run.
    """
    names = _chosen(only)
    missing = _missing_broker() if only is None else ""
    if missing:
        names = [name for name in names if name not in DISTRIBUTED]
    peers = missing_peers()
    if peers:
        names = [name for name in names if name != PEERS]
    kernels = [one for one in KERNELS if kernel in (one, "both")]
    if "rust" in kernels and not native_available():
        if kernel == "rust":
            raise click.ClickException("Expected the Rust kernel, but it is not built: make run")
        kernels.remove("rust")
    machine = describe_machine()
    _say(head_lines(machine, quick=quick))
    results: list[Result] = []
    for name in names:
        columns = kernels[:1] if name in (*DISTRIBUTED, PEERS) else kernels
        measured = [run_worker(name, one, quick=quick) for one in columns]
        _say(section_lines(import_module(f"benchmarks.{MODULES[name]}"), measured))
        results += measured
    if missing:
        click.echo(f"\n== {', '.join(DISTRIBUTED)}: skipped. {missing}")
    if peers:
        click.echo(f"\n== {PEERS}: skipped. {peers}")
    click.echo(f"\n{sum(result.seconds for result in results):.0f} s in all")
    if json_path is not None:
        report = Report(machine=machine, quick=quick, results=results)
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    if any(result.error for result in results):
        sys.exit(1)


def _chosen(only: str | None) -> list[str]:
    if only is None:
        return list(MODULES)
    names: list[str] = []
    for name in only.split(","):
        names += DISTRIBUTED if name == "distributed" else [name]
    unknown = [name for name in names if name not in MODULES]
    if unknown:
        raise click.BadParameter(
            f"Expected some of {', '.join(MODULES)}, distributed, got: {unknown[0]}"
        )
    return names


def _missing_broker() -> str:
    """Why the distributed form is left out of a run of everything, and how to have it; or ""."""
    try:
        find_java()
    except BrokerUnavailableError as error:
        return str(error)
    if have_jars():
        return ""
    return (
        f"Expected the jars of Apache Kafka in {jars_directory()}, found none:"
        " `make kafka` fetches them once, and so does `--only distributed`"
    )


def run_worker(name: str, kernel: KernelName, *, quick: bool) -> Result:
    """One measurement in its own process, which is ended if it takes too long."""
    command = [sys.executable, "-m", "benchmarks.worker", name, kernel]
    limit_s = DISTRIBUTED_S if name in DISTRIBUTED else MEASUREMENT_S
    started = time.monotonic()
    with subprocess.Popen(
        [*command, "quick"] if quick else command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit_s)
            problem = errors.strip().splitlines()[-1:] if process.returncode else []
        except subprocess.TimeoutExpired:
            process.terminate()
            output, _ = process.communicate(timeout=END_S)
            problem = [f"took longer than {limit_s:.0f} s"]
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
