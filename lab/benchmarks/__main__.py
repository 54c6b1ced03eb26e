"""`python -m benchmarks`: runs the measurements one after the other and prints the report."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final

import click
import msgspec

from devtools import dynamo, routers
from devtools.kafka_jars import (
    BrokerUnavailableError,
    find_java,
    have_jars,
    jars_directory,
)
from devtools.leftovers import Leftovers
from lab.benchmarks.peers.dynamo import missing as missing_dynamo
from lab.benchmarks.report.aims import DYNAMO
from lab.benchmarks.report.document import BenchmarkReport, Result, head_lines, section_lines
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.report.machine import describe_machine
from lab.benchmarks.report.table import rows_of, table_lines, unknown_of
from lab.benchmarks.sizes import KERNELS, KernelName
from lab.benchmarks.worker import MODULES
from streams.kernel import native_available

DISTRIBUTED: Final = ("pipeline", "latency", "partition", "cold", "table-topic", "audit-replica")
"""Those that need a Kafka broker; `distributed` names all of them."""

BOTH_KERNELS: Final = ("ingest", "query", "memory", "recovery", "kernel")
"""Those whose reference column says something; the others are made with one kernel."""

NEED_DYNAMO: Final = ("peers", "peers-memory")
"""Those that are nothing without it; others leave out its figures."""

NEED_ROUTERS: Final = ("routers",)
"""Those that are nothing without another router."""

NEED_RUST: Final = ("cores",)

MEASUREMENT_S: Final = 420.0
DISTRIBUTED_S: Final = 1200.0
LONG_S: Final = {"policies": 2400.0, "routers": 1500.0}
"""Of those that cannot be quicker: requests come in real time."""

END_S: Final = 20.0
MINUTES: Final = 50.0


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
    help=f"Only these measurements, of {', '.join(MODULES)}; `distributed` for those with Kafka.",
)
@click.option("--quick", is_flag=True, help="Small sizes, one run each: whether it works at all.")
@click.option(
    "--minutes",
    type=float,
    default=MINUTES,
    show_default=True,
    help="What has not begun by then is left out, where --only names nothing.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write all runs of all figures to this file, after each measurement.",
)
def main(
    kernel: str, only: str | None, quick: bool, minutes: float, json_path: Path | None
) -> None:
    """Measures the service, the kernel alone and the distributed form, beside the peers that are
    installed, and says which aims are reached.
    """
    names = _chosen(only)
    report = BenchmarkReport(machine=describe_machine(), quick=quick, results=[])
    _look_for_peers(report)
    kernels = _kernels(kernel)
    report.skipped.update(_skipped(names, kernels, report, everything=only is None))
    _say(head_lines(report))
    end = time.monotonic() + 60 * minutes
    for name in names:
        if name in report.skipped:
            continue
        if only is None and time.monotonic() > end:
            report.skipped[name] = f"left out, the {minutes:g} minutes of --minutes were over"
            continue
        columns = kernels if name in BOTH_KERNELS else kernels[:1]
        measured = [run_worker(name, one, quick=quick) for one in columns]
        _say(section_lines(import_module(f"lab.benchmarks.{MODULES[name]}"), measured))
        report.results.extend(measured)
        _write(report, json_path)
    for name, why in report.skipped.items():
        click.echo(f"\n== {name}: skipped. {why}")
    _say(table_lines(report))
    _say(_time_lines(report.results))
    _write(report, json_path)
    unknown = unknown_of(rows_of(report))
    if unknown or any(result.error for result in report.results):
        sys.exit(1)


def _time_lines(results: list[Result]) -> Iterable[str]:
    seconds: dict[str, float] = {}
    for result in results:
        seconds[result.measurement] = seconds.get(result.measurement, 0.0) + result.seconds
    yield ""
    yield f"{sum(seconds.values()):.0f} s in all"
    if len(seconds) > 1:
        yield "  " + ", ".join(f"{name} {took:.0f}" for name, took in seconds.items())


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


def _kernels(wanted: str) -> list[KernelName]:
    kernels = [one for one in KERNELS if wanted in (one, "both")]
    if "rust" in kernels and not native_available():
        if wanted == "rust":
            raise click.ClickException("Expected the Rust kernel, but it is not built: make run")
        kernels.remove("rust")
    return kernels


def _look_for_peers(report: BenchmarkReport) -> None:
    missing = missing_dynamo()
    if missing:
        report.missing_peers[DYNAMO] = missing
    else:
        report.peers[DYNAMO] = f"{dynamo.PACKAGE} {dynamo.version()}"
    installed = routers.routers()
    for package in routers.PACKAGES:
        missing = installed.missing(package)
        if missing:
            report.missing_peers[package] = missing
        else:
            report.peers[package] = f"{package} {installed.version(package)}"


def _skipped(
    names: list[str], kernels: list[KernelName], report: BenchmarkReport, *, everything: bool
) -> dict[str, str]:
    """Why some of the measurements cannot be made here, by name."""
    skipped: dict[str, str] = {}
    # Who asks for those that need a broker by name has it fetched.
    broker = _missing_broker() if everything else ""
    for name in names:
        if name in DISTRIBUTED and broker:
            skipped[name] = broker
        elif name in NEED_DYNAMO and DYNAMO in report.missing_peers:
            skipped[name] = report.missing_peers[DYNAMO]
        elif name in NEED_ROUTERS and routers.routers().all_missing:
            skipped[name] = routers.routers().all_missing
        elif name in NEED_RUST and "rust" not in kernels:
            skipped[name] = "it is a part of the Rust kernel, which is not built or not asked for"
    return skipped


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
    """One measurement in its own process, which is ended if it takes too long. Whatever becomes of
    it, there is a result.
    """
    command = [sys.executable, "-m", "lab.benchmarks.worker", name, kernel]
    limit_s = LONG_S.get(name, DISTRIBUTED_S if name in DISTRIBUTED else MEASUREMENT_S)
    started = time.monotonic()
    with subprocess.Popen(
        [*command, "quick"] if quick else command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that what it leaves behind can be ended with it
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit_s)
            figures, problem = _figures_of(output, errors, process.returncode)
        except subprocess.TimeoutExpired:
            figures, problem = [], f"took longer than {limit_s:.0f} s"
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=END_S)
        except BaseException:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            raise
        finally:
            with suppress(ProcessLookupError, PermissionError):  # there is none left
                os.killpg(process.pid, signal.SIGKILL)
    seconds = time.monotonic() - started
    return Result(measurement=name, kernel=kernel, seconds=seconds, figures=figures, error=problem)


def _figures_of(output: str, errors: str, status: int) -> tuple[list[Figure], str]:
    """What a worker printed, and why it printed nothing of use, or ""."""
    if status:
        said = errors.strip().splitlines()[-1:]
        return [], said[0] if said else f"ended with status {status}, and said nothing"
    try:
        return msgspec.json.decode(output, type=list[Figure]), ""
    except msgspec.DecodeError as error:
        return [], f"Expected its figures, got {output[-200:]!r}: {error}"


def _write(report: BenchmarkReport, path: Path | None) -> None:
    if path is not None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
    sys.stdout.flush()


if __name__ == "__main__":
    with Leftovers():  # what the measurements start ends with this process, also by SIGTERM
        main()
