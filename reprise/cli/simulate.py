"""`reprise simulate`."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
import msgspec

from console.output import check_folders
from console.param_types import Amount
from console.progress import progress_shown
from console.terminal import printable
from replay.traces.counts import counted
from schemas.causes import cause_of
from schemas.errors import ConfigurationError
from schemas.extras import need
from schemas.limits import APPROXIMATE_S, BLOCK_SIZE_MAX, WHATIF_NODES_MAX
from schemas.progress import Progress

if TYPE_CHECKING:
    from lab.whatif.report.document import Document, TraceFacts
    from lab.whatif.setup import Setup
    from lab.whatif.sweep import Job
    from lab.whatif.workload import Workload
    from replay.traces.reader import Trace

StructT = TypeVar("StructT", bound=msgspec.Struct)

_OUTPUT: Final = click.Path(path_type=Path, dir_okay=False)
_OVERWORK: Final = 10
"""Times what the nodes can compute from where on a trace's times are doubted."""


class Quantity(Amount):
    """An amount of which the error names the unit, and shows one."""

    def __init__(self, unit: str, example: str, **bounds: Any) -> None:
        super().__init__(**bounds)
        self._said = f"{unit}, as {example}"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """See `click.ParamType`."""
        try:
            float(str(value))
        except ValueError:
            self.fail(f"expected {self._said}, got: {value}", param, ctx)
        return super().convert(value, param, ctx)


_SECONDS: Final = Quantity("seconds", "0.005", min=0)


def _list_policies(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value:
        return
    from lab.whatif.policies.table import ALL_POLICIES
    from routing.policies.assignments import describe_fields

    for name, policy in ALL_POLICIES.items():
        click.echo(f"{name:16} {policy.summary}")
        for line in describe_fields(policy.parameters):
            click.echo(f"{'':16}   {line}")
    ctx.exit()


@click.command()
@click.argument(
    "traces",
    nargs=-1,
    required=True,
    metavar="TRACE...",
    type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True),
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME[:P=V,..]",
    help="As `weighted:alpha=0.5`; once for each that is compared. Five where none is named, the"
    " service's own among them.",
)
@click.option("--all", "every", is_flag=True, help="Compare all policies.")
@click.option(
    "--list-policies",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_list_policies,
    help="Print the policies with their parameters, and end.",
)
@click.option("--nodes", type=click.IntRange(1, WHATIF_NODES_MAX), default=10, show_default=True)
@click.option(
    "--capacity",
    default="3M",
    show_default=True,
    help="Of each node: tokens (`3M`), blocks (`5859blocks`), or `unbounded`.",
)
@click.option("--cpu-capacity", default="0", help="Of a CPU tier that takes what the GPU evicts.")
@click.option("--pool-capacity", default="0", help="Of one pool that all nodes read and write.")
@click.option(
    "--leases",
    metavar="P=V,..",
    help="The slowest tier evicts as Mooncake's store, as `lease_s=10,soft_pin_blocks=4`;"
    " `default` for its defaults.",
)
@click.option("--index-delay", type=_SECONDS, default=0.0, help="Seconds; default 0.")
@click.option(
    "--index-loss",
    type=Quantity("a share from 0 to 1", "0.2", min=0, max=1),
    default=0.0,
    help="Share of event batches, 0 to 1; default 0.",
)
@click.option(
    "--announce",
    type=click.Choice(["arrival", "finish"]),
    default="arrival",
    show_default=True,
    help="When a node publishes the blocks of a request.",
)
@click.option(
    "--index",
    type=click.Choice(["events", "decisions", "capacity", "nothing"]),
    default="events",
    show_default=True,
    help="What the router knows of the nodes' caches: what they publish; what it sent there, for a"
    " time; the same, by their capacity; nothing.",
)
@click.option(
    "--decisions",
    type=Amount(min=0, min_open=True),
    default=APPROXIMATE_S,
    help=f"Seconds that a node is taken to hold what was sent there; default {APPROXIMATE_S:g}.",
)
@click.option(
    "--sessions/--no-sessions",
    default=False,
    help="Whether the node of a session's last request is preferred, where it is nearly the best.",
)
@click.option(
    "--rate", type=Amount(min=0, min_open=True), default=1.0, help="Times the trace's; default 1."
)
@click.option(
    "--slo-ttft",
    type=Amount(min=0, min_open=True),
    help="Seconds; a request that no node would answer within it is refused.",
)
@click.option(
    "--refusal",
    type=click.Choice(["none", "now", "early", "predict"]),
    default="now",
    show_default=True,
    help="What is done of that: nothing; by decoding too when the prompt has been computed; at"
    " arrival by decoding as it is; as it will be.",
)
@click.option(
    "--load-age",
    type=_SECONDS,
    default=0.0,
    help="Seconds; the router is told the nodes' loads so seldom. Default 0: it knows them.",
)
@click.option(
    "--bookings/--no-bookings",
    default=True,
    help="Whether the router adds what it has given since it was told; default on.",
)
@click.option(
    "--estimate-error",
    type=Amount(min=0, max=5),
    default=0.0,
    help="Sigma of the logarithm of the router's estimates over what they are; default 0.",
)
@click.option(
    "--act",
    type=_SECONDS,
    default=0.0,
    metavar="SECONDS",
    help="How often advice is looked at and carried out, as by `reprise up` with acting.on;"
    " default never.",
)
@click.option(
    "--decoders",
    type=click.IntRange(0, WHATIF_NODES_MAX),
    default=0,
    show_default=True,
    help="Instances that decode, apart from the nodes; 0: nothing is decoded.",
)
@click.option("--decode-costs", default="", metavar="P=V,..", help="As `request_s=0.0002`.")
@click.option(
    "--slo-tbt",
    type=Amount(min=0, min_open=True),
    help="Seconds between two tokens; for --refusal, and to tell how many met it.",
)
@click.option(
    "--decode-load",
    type=Amount(min=0, max=1, min_open=True),
    default=1.0,
    help="Share of --slo-tbt above which requests are refused for it; default 1.",
)
@click.option("--costs", default="", metavar="P=V,..", help="As `prefill_tokens_per_s=8000`.")
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="AXIS=V,V..",
    help="Run these too: capacity, cpu-capacity, pool-capacity, one-cache, nodes, rate, delay,"
    " loss, index, decisions, sessions, slo-ttft, slo-tbt, load-age, estimate-error, act, decoders,"
    " or POLICY.PARAMETER. `usual`: capacity, delay, loss, weighted.alpha and one-cache.",
)
@click.option(
    "--block-size",
    type=click.IntRange(1, BLOCK_SIZE_MAX),
    default=512,
    show_default=True,
    help="Tokens for each id of the trace.",
)
@click.option("--ignore-unknown-fields", is_flag=True, help="Pass over fields that are not known.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=1337, show_default=True)
@click.option("--processes", type=click.IntRange(1), help="At most; default one for each core.")
@click.option(
    "--report",
    type=_OUTPUT,
    help="Write one HTML page: what is best, then all tables and plots.",
)
@click.option("--json", "json_path", type=_OUTPUT, help="Write all results as JSON.")
@click.option("--csv", "csv_path", type=_OUTPUT, help="Write a line for each run.")
@click.option(
    "--plots",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write each plot as PNG into this directory.",
)
def simulate(
    traces: tuple[Path, ...],
    policies: tuple[str, ...],
    every: bool,
    sweeps: tuple[str, ...],
    block_size: int,
    ignore_unknown_fields: bool,
    processes: int | None,
    report: Path | None,
    json_path: Path | None,
    csv_path: Path | None,
    plots: Path | None,
    **options: Any,
) -> None:
    """Run traces of requests on simulated nodes, under routing policies, and compare.

    TRACE has a request on each line, as Mooncake publishes them: {"timestamp": ms,
    "input_length": tokens, "output_length": tokens, "hash_ids": [an id for each block]}. It may be
    compressed by gzip; - is standard input. docs/offline.md makes one from logs of your own.

    The nodes' events go through the index as an engine's do. Where a trace has a line that cannot
    be used, what stands before it is run, and the exit code is 1. Results that a run can make again
    (--report, --json, --csv, --plots) are written over what is there.
    """
    from lab.whatif.plan import is_worth_a_look, parse_sweeps, plan
    from lab.whatif.report.conclusion import concluded
    from lab.whatif.report.document import document_of
    from lab.whatif.report.table import text_lines

    if report is not None or plots is not None:
        need("matplotlib")
    check_folders(report, json_path, csv_path)
    if every and policies:
        raise ConfigurationError("Expected --policy or --all, got both")
    base = _setup_of(block_size=block_size, **options)
    planned = partial(
        plan,
        base,
        block_size=block_size,
        workloads=len(traces),
        policies=policies,
        every=every,
        sweeps=parse_sweeps(sweeps),
    )
    planned()  # before minutes of work: that it can be
    read, workloads = _read_all(traces, block_size, ignore_unknown_fields)
    facts = _facts_of(read, workloads, base)
    looks = [
        number
        for number, one in enumerate(workloads)
        if is_worth_a_look(one.block_count, base.nodes) and one.distinct < one.block_count
    ]
    jobs = planned(look_at=looks)
    outcomes = _run_all(jobs, workloads, processes)
    document = concluded(document_of(jobs, outcomes, facts))
    for line in text_lines(document):
        click.echo(printable(line))
    _write(document, report, json_path, csv_path, plots)
    if any(trace.problem for trace in read):
        sys.exit(1)


def _setup_of(
    *,
    block_size: int,
    capacity: str,
    cpu_capacity: str,
    pool_capacity: str,
    leases: str | None,
    costs: str,
    decode_costs: str,
    **options: Any,
) -> "Setup":
    from lab.whatif.setup import DecodeCosts, Leases, Setup, parse_capacity
    from routing.costs import Costs

    for name in ("index_delay", "decisions", "slo_ttft", "slo_tbt", "load_age", "act"):
        options[f"{name}_s"] = options.pop(name)
    try:
        return msgspec.convert(
            {
                **options,
                "gpu_blocks": parse_capacity(capacity, block_size),
                "cpu_blocks": parse_capacity(cpu_capacity, block_size),
                "pool_blocks": parse_capacity(pool_capacity, block_size),
                "costs": _assigned("--costs", costs, Costs),
                "decode_costs": _assigned("--decode-costs", decode_costs, DecodeCosts),
                "leases": None
                if leases is None
                else _assigned("--leases", "" if leases == "default" else leases, Leases),
            },
            Setup,
            from_attributes=True,
        )
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"Cannot use the options: {cause_of(error)}") from error


def _assigned(option: str, text: str, kind: type[StructT]) -> StructT:
    from routing.policies.assignments import parse_assignments

    try:
        return parse_assignments(text, kind)
    except ValueError as error:
        raise ConfigurationError(f"Cannot use {option}: {error}") from error


def _read_all(
    paths: Sequence[Path], block_size: int, ignore_unknown: bool
) -> "tuple[list[Trace], list[Workload]]":
    from lab.whatif.workload import Workload
    from replay.traces.reader import STDIN, read_trace

    traces: list[Trace] = []
    sizes = [0 if path == STDIN else path.stat().st_size for path in paths]
    total = sum(sizes) or None
    with (
        told_of_interruption(lambda: "while traces were read"),
        progress_shown("Reading", "bytes", everywhere=True) as tell,
    ):
        for number, path in enumerate(paths):
            before = sum(sizes[:number])

            def when_read(read_bytes: int, before: int = before) -> None:
                tell(Progress(before + read_bytes, total, before + read_bytes))

            traces.append(
                read_trace(
                    path,
                    block_size=block_size,
                    ignore_unknown=ignore_unknown,
                    when_read=when_read,
                )
            )
        names = Counter(trace.name for trace in traces)
        # Blocks are numbered here, so that lines of progress go on meanwhile.
        return traces, [
            Workload(
                trace.name if names[trace.name] == 1 else f"{number}: {path}",
                block_size,
                trace.requests,
            )
            for number, (path, trace) in enumerate(zip(paths, traces, strict=True), 1)
        ]


def _facts_of(
    traces: "Sequence[Trace]", workloads: "Sequence[Workload]", base: "Setup"
) -> "list[TraceFacts]":
    from lab.whatif.report.document import facts_of

    found = []
    for trace, workload in zip(traces, workloads, strict=True):
        notes = list(trace.notes)
        if workload.reused_ids:
            notes.append(
                f"{workload.reused_ids:,} blocks have an id that stands for another prefix, too;"
                " they are told apart by what comes before them"
            )
        facts = facts_of(workload, [*notes, *_doubts_of(workload, base)], trace.cut)
        for note in facts.notes:
            kind = "Error" if note == trace.cut else "Note"
            click.echo(f"{kind}: {printable(workload.name)}: {printable(note)}", err=True)
        found.append(facts)
    return found


def _doubts_of(workload: "Workload", base: "Setup") -> Iterator[str]:
    """What is probably meant in another way than it is written."""
    tokens = sum(workload.prompt_tokens)
    seconds = workload.arrivals_s[-1] - workload.arrivals_s[0]
    speed = base.nodes * base.costs.prefill_tokens_per_s
    if seconds and (times := tokens / seconds / speed) > _OVERWORK:
        yield (
            f"{counted(len(workload), 'request')} in {seconds:.3g} s are"
            f" {times:,.0f} times what {counted(base.nodes, 'node')} can compute:"
            " timestamp is in ms; are these seconds?"
        )
    mean = workload.block_count / len(workload)
    if base.gpu_blocks is not None and base.gpu_blocks < mean and not base.pool_blocks:
        yield (
            f"--capacity is {counted(base.gpu_blocks, 'block')} of {workload.block_size} tokens,"
            f" less than the mean prompt of {mean:.0f}: tokens are written as `3M`, blocks as"
            " `5859blocks`"
        )


def _run_all(jobs: "Sequence[Job]", workloads: "Sequence[Workload]", processes: int | None) -> Any:
    from lab.whatif.sweep import run_all

    runs, taken = 0, 0
    total = sum(len(workloads[job.workload]) for job in jobs)

    def far() -> str:
        return f"after {runs:,} of {counted(len(jobs), 'run')}, {taken / total:.0%} of all requests"

    with told_of_interruption(far), progress_shown("Running", "runs", everywhere=True) as tell:

        def when_done() -> None:
            nonlocal runs
            runs += 1

        def when_taken(requests: int) -> None:
            nonlocal taken
            taken = requests
            tell(Progress(taken, total, runs))

        when_taken(0)
        return run_all(
            jobs, workloads, processes=processes, when_done=when_done, when_taken=when_taken
        )


@contextmanager
def told_of_interruption(far: Callable[[], str]) -> Iterator[None]:
    """An interruption says in one line how far the work was; its exit code is the caller's."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"Interrupted {far()}: nothing is written", err=True)
        raise


def _write(
    document: "Document",
    report: Path | None,
    json_path: Path | None,
    csv_path: Path | None,
    plots: Path | None,
) -> None:
    from lab.whatif.report.document import to_json
    from lab.whatif.report.table import to_csv

    if json_path is not None:
        _write_file(json_path, to_json(document))
    if csv_path is not None:
        _write_file(csv_path, to_csv(document).encode())
    if report is None and plots is None:
        return
    from lab.whatif.report.page import page_of
    from lab.whatif.report.plots import pictures_of

    pictures = list(pictures_of(document))
    if plots is not None:
        for picture in pictures:
            _write_file(plots / f"{picture.name}.png", picture.png)
    if report is not None:
        _write_file(report, page_of(document, pictures).encode())


def _write_file(path: Path, content: bytes) -> None:
    """Raises:
    click.ClickException: names the file; a write that fails in mid-file does not.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise click.ClickException(f"Cannot write {path}: {error.strerror}") from error
