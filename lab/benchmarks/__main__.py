"""`python -m lab.benchmarks`: runs the measurements one after the other and prints the report."""

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
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
from lab.benchmarks.peers.indexers import missing as missing_dynamo
from lab.benchmarks.report.aims import DYNAMO
from lab.benchmarks.report.document import BenchmarkReport, Result, head_lines, section_lines
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.report.machine import describe_machine
from lab.benchmarks.report.table import rows_of, table_lines, unknown_of
from lab.benchmarks.worker import MODULES
from streams.kernel import native_available

DISTRIBUTED: Final = ("pipeline", "latency", "partition", "cold", "table-topic", "audit-replica")
"""Those that need a Kafka broker; `distributed` names all of them."""

_TEXT: Final = ("tokenizers", "pip install -e '.[text]'")
EXTRAS: Final = {
    "routers": _TEXT,
    "text": _TEXT,
    "tracing": ("opentelemetry.sdk", "pip install -e '.[otel]'"),
}
"""What a measurement imports that is not always installed, and how it is."""

NEED_RIVALS: Final = {"peers-memory": DYNAMO}
"""Those that say nothing without a peer; others leave out its figures."""

MEASUREMENT_S: Final = 420.0
LONG_S: Final = 900.0
"""Of those that cannot be quicker: requests come in real time."""

IN_REAL_TIME: Final = ("policies", "routers", "conversations")
SECONDS: Final = {
    "ingest": 60,
    "route": 70,
    "peers": 80,
    "removing": 90,
    "pipeline": 50,
    "partition": 50,
    "silent": 100,
    "instances": 50,
    "recovery": 60,
    "routers": 240,
    "gateway": 30,
    "beside": 60,
    "fairness": 40,
    "memory": 25,
    "peers-memory": 45,
    "growth": 40,
    "cores": 8,
    "large": 20,
    "audit": 10,
    "as-of": 35,
    "simulate": 10,
    "tracing": 5,
    "text": 3,
    "latency": 40,
    "cold": 55,
    "table-topic": 45,
    "audit-replica": 15,
    "conversations": 45,
    "policies": 115,
}
"""How long each takes on two cores that nothing else uses, estimated from its CPU and its pauses on
busy ones: none begins that would end too late.
"""

END_S: Final = 20.0
MINUTES: Final = 25.0


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
    help="What would end later is left out, where --only names nothing.",
)
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write all runs of all figures to this file, after each measurement.",
)
def main(only: str | None, quick: bool, minutes: float, json_path: Path | None) -> None:
    """Measures the service, the kernel alone and the distributed form, beside the peers that are
    installed, and says which aims are reached.
    """
    if not native_available():
        raise click.ClickException("the Rust kernel is not built: run `make install` with Rust")
    names = _chosen(only)
    report = BenchmarkReport(machine=describe_machine(), quick=quick, results=[])
    _look_for_peers(report)
    report.skipped.update(_skipped(names, report, everything=only is None))
    _say(head_lines(report))
    end = time.monotonic() + 60 * minutes
    for name in names:
        if name in report.skipped:
            continue
        if only is None and time.monotonic() + (0 if quick else SECONDS[name]) > end:
            report.skipped[name] = f"left out, the {minutes:g} minutes of --minutes were over"
            continue
        result = run_worker(name, quick=quick)
        _say(section_lines(_title_of(name), result))
        report.results.append(result)
        _write(report, json_path)
    for name, why in report.skipped.items():
        click.echo(f"\n== {name}: skipped. {why}")
    _say(table_lines(report))
    _say(_time_lines(report.results))
    _write(report, json_path)
    unknown = unknown_of(rows_of(report))
    if unknown or any(result.error for result in report.results):
        sys.exit(1)


def _title_of(name: str) -> str:
    """The first sentence of the module, which may need what is not installed."""
    path = Path(__file__).parent / (MODULES[name].replace(".", "/") + ".py")
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    return said.replace("\n", " ").partition(". ")[0].rstrip(".")


def _time_lines(results: list[Result]) -> Iterable[str]:
    yield ""
    yield f"{sum(result.seconds for result in results):.0f} s in all"
    if len(results) > 1:
        yield "  " + ", ".join(f"{one.measurement} {one.seconds:.0f}" for one in results)


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


def _skipped(names: list[str], report: BenchmarkReport, *, everything: bool) -> dict[str, str]:
    """Why some of the measurements cannot be made here, by name."""
    skipped: dict[str, str] = {}
    # Who asks for those that need a broker by name has it fetched.
    broker = _missing_broker() if everything else ""
    for name in names:
        module, remedy = EXTRAS.get(name, ("", ""))
        if name in DISTRIBUTED and broker:
            skipped[name] = broker
        elif NEED_RIVALS.get(name) in report.missing_peers:
            skipped[name] = report.missing_peers[NEED_RIVALS[name]]
        elif module and not _is_installed(module):
            skipped[name] = f"no {module}: {remedy}"
    return skipped


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package that it is in
        return False


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


def run_worker(name: str, *, quick: bool) -> Result:
    """One measurement in its own process, which is ended if it takes too long. Whatever becomes of
    it, there is a result.
    """
    command = [sys.executable, "-m", "lab.benchmarks.worker", name]
    limit_s = LONG_S if name in IN_REAL_TIME else MEASUREMENT_S
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
    return Result(measurement=name, seconds=seconds, figures=figures, error=problem)


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
