"""`reprise export`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from console.interruption import asked_to_stop
from console.output import check_folders
from console.param_types import Amount
from console.progress import progress_shown
from console.terminal import printable
from replay.traces.counts import counted
from reprise.bounds import OPTION_HOURS_MAX
from reprise.cli.captures import is_capture, notes_of, steps_of
from reprise.cli.registration_options import registration_options
from schemas.errors import ConfigurationError
from schemas.limits import BLOCK_SIZE_MAX
from streams.index_settings import seed_from

if TYPE_CHECKING:
    from replay.block_events import BlockEvents
    from replay.capture.reader import Capture
    from replay.chains import Chains

EXPORT_JOIN_S: Final = 10.0  # --join: what goes on so soon is of the same request

_OUTPUT: Final = click.Path(path_type=Path, dir_okay=False)
_DAMAGED: Final = 1
_INTERRUPTED: Final = 130


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--parquet", type=_OUTPUT, help="A row for each block of each event.")
@click.option("--mooncake", type=_OUTPUT, help="A trace of requests, as the events show them.")
@click.option(
    "--trace-block-size",
    type=click.IntRange(1, BLOCK_SIZE_MAX),
    help="With --mooncake: tokens for each id, a multiple of the engines'.  [default: theirs]",
)
@click.option(
    "--join",
    "join_s",
    type=Amount(min=0, max=3600 * OPTION_HOURS_MAX),
    help="With --mooncake: what goes on where a request ended, within this many seconds, is part of"
    f" it.  [default: {EXPORT_JOIN_S:g}]",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@registration_options
@click.pass_context
def export(
    context: click.Context,
    /,
    file: Path,
    parquet: Path | None,
    mooncake: Path | None,
    trace_block_size: int | None,
    join_s: float | None,
    force: bool,
    **of_publishers: object,
) -> None:
    """Write a capture as Parquet, or as a trace of requests in Mooncake's format.

    docs/offline.md has the columns, queries for DuckDB, and what of a trace is derived. A file
    stands in its place only once it is whole.

    \b
    reprise export hour.capture --parquet hour.parquet
    reprise export hour.capture --mooncake hour.jsonl && reprise simulate hour.jsonl --block-size 16

    \b
    exit code 0   the capture was read to its end
              1   it is damaged: what is intact is exported, and told
    """  # noqa: D301
    from replay.capture.reader import Capture
    from replay.chains import Chains

    if (parquet is None) == (mooncake is None):
        got = "neither" if parquet is None else "both"
        raise click.UsageError(f"Expected one of --parquet and --mooncake, got {got}")
    for option, value in {"--trace-block-size": trace_block_size, "--join": join_s}.items():
        if value is not None and mooncake is None:
            raise click.UsageError(f"Expected {option} with --mooncake only, got it with --parquet")
    _check(file, parquet or mooncake)
    with Capture(file) as capture, asked_to_stop() as stopped:
        chains = Chains(seed_from(os.environ))
        with progress_shown("Exporting", "records") as tell:
            steps = steps_of(capture, of_publishers, tell, stopped)
            if parquet is not None:
                said = _write_parquet(capture, steps, chains, parquet, force)
            else:
                assert mooncake is not None
                join = EXPORT_JOIN_S if join_s is None else join_s
                said = _write_trace(steps, chains, mooncake, force, trace_block_size, join)
        for note in notes_of(capture, steps, chains):
            click.echo(printable(f"note: {note}"), err=True)
        is_whole = capture.damage is None
    click.echo(printable(said))
    if not steps.ended:
        click.echo("note: interrupted; the file has what was read before", err=True)
        context.exit(_INTERRUPTED)
    if not is_whole:
        context.exit(_DAMAGED)


def _check(file: Path, output: Path | None) -> None:
    assert output is not None
    if not is_capture(file):
        raise ConfigurationError(
            f"Expected a capture, got a file that does not begin as one: {file}"
        )
    check_folders(output)


def _write_parquet(
    capture: "Capture", steps: "BlockEvents", chains: "Chains", path: Path, force: bool
) -> str:
    from lab.exports.output import whole_file
    from lab.exports.parquet import write_parquet
    from schemas.extras import need
    from schemas.limits import MIB

    need("pyarrow")
    need("numpy")
    with whole_file(path, replace=force) as output:
        summary = write_parquet(steps, chains, capture.header, output, capture.notes)
    return (
        f"exported {counted(summary.rows, 'row')} of {counted(steps.records, 'record')} to {path},"
        f" {output.size_bytes / MIB:.2f} MiB"
    )


def _write_trace(
    steps: "BlockEvents",
    chains: "Chains",
    path: Path,
    force: bool,
    block_size: int | None,
    join_s: float,
) -> str:
    from lab.exports.output import whole_file
    from lab.exports.requests import Requests
    from replay.traces.writer import write_requests

    requests = Requests(steps, chains, block_size=block_size, join_s=join_s)
    with whole_file(path, replace=force) as output:
        count = write_requests(requests, output.write)
    left = ", ".join(f"{name} {count:,}" for name, count in sorted(requests.counters.items()))
    size = requests.block_size
    said = f"exported {counted(count, 'request')} of {counted(steps.records, 'record')} to {path}"
    if size is not None:
        said += f"; read it with --block-size {size}"
    said += f"; {left}" if left else ""
    return said + "; requests that an engine had cached in full left no event, and are missing"
