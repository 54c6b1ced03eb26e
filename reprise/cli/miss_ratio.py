"""`reprise miss-ratio`."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from console.interruption import asked_to_stop
from console.output import check_folders
from console.param_types import Amount, Amounts
from console.progress import progress_shown
from console.terminal import printable
from replay.traces.counts import counted
from reprise.cli.captures import is_capture, notes_of, steps_of
from reprise.cli.registration_options import registration_options
from schemas.errors import ConfigurationError
from schemas.extras import need
from streams.index_settings import seed_from

if TYPE_CHECKING:
    from lab.miss_ratio.miss_ratio import MissRatios
    from lab.miss_ratio.report import Analysis
    from schemas.progress import StopCheck

    Sizes = tuple[str, ...]

CURVE_SIZES_MAX: Final = 1024  # that one command names
REGRET_WINDOWS_MAX: Final = 16  # that one command names

_OUTPUT: Final = click.Path(path_type=Path, dir_okay=False)
_DAMAGED: Final = 1
_INTERRUPTED: Final = 130
_REGRET: Final = (60.0, 300.0, 3600.0)


@click.command(name="miss-ratio")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    type=click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True),
)
@click.option(
    "--size",
    "sizes",
    multiple=True,
    help="Of a cache: tokens (`3M`), or blocks (`5859blocks`); several times for more.  [default:"
    " in equal ratios, up to where nothing more hits]",
)
@click.option(
    "--sample",
    type=Amount(min=0, max=1, min_open=True),
    default=1.0,
    help="Share of the blocks to follow (SHARDS), for what does not fit in memory; tables then say"
    " the standard error.  [default: 1, all, exact]",
)
@click.option(
    "--regret",
    type=Amounts(REGRET_WINDOWS_MAX),
    help="Seconds within which a removed block is stored again; of captures.  [default:"
    " 60,300,3600]",
)
@click.option("--json", "json_path", type=_OUTPUT, help="Write all of it as JSON.")
@click.option("--csv", "csv_path", type=_OUTPUT, help="Write a line for each size, and each time.")
@click.option("--plot", type=_OUTPUT, help="Write the curves as PNG.")
@click.option("--ignore-unknown-fields", is_flag=True, help="Of a trace: pass over such fields.")
@registration_options
@click.pass_context
def miss_ratio(
    context: click.Context,
    /,
    files: tuple[Path, ...],
    sizes: tuple[str, ...],
    sample: float,
    regret: tuple[float, ...] | None,
    json_path: Path | None,
    csv_path: Path | None,
    plot: Path | None,
    ignore_unknown_fields: bool,
    **of_publishers: object,
) -> None:
    """Hit rate against the size of an LRU cache, in one pass; and eviction regret.

    FILE is a trace in Mooncake's format (--block-size: tokens for each id, 512 where it is not
    given; gzip is read, - is standard input), which has every access, or a capture, which has the
    blocks that engines stored: those that their own caches missed. docs/offline.md says what that
    can tell and what it cannot. A curve is of one cache for all requests: of several engines each
    with a cache of its own, `reprise simulate --sweep capacity=1M,3M,9M,unbounded` tells.

    Results that a run can make again (--json, --csv, --plot) are written over what is there.

    \b
    reprise miss-ratio conversation_trace.jsonl --size 3M --size 50M
    reprise miss-ratio hour.capture --regret 60,600 --plot curve.png

    \b
    exit code 0   all files were read to their end
              1   one cannot be read to its end: what was readable is used, and told
    """  # noqa: D301
    from lab.miss_ratio.report import Analysis, text_lines
    from replay.traces.reader import STDIN

    if len(sizes) > CURVE_SIZES_MAX:
        raise click.UsageError(f"Expected at most {CURVE_SIZES_MAX} of --size, got {len(sizes)}")
    if plot is not None:
        need("matplotlib")
    check_folders(json_path, csv_path, plot)
    for size in sizes:
        _blocks_of(size, 1)
    analysis = Analysis(curves=[], regrets=[], notes=[])
    is_whole = True
    with asked_to_stop() as stopped:
        for file, name in zip(files, _names(files), strict=True):
            if file != STDIN and is_capture(file):
                reading = CaptureReading(file, name, sample, regret or _REGRET, stopped)
                is_whole &= _read_capture(analysis, reading, sizes, of_publishers)
            else:
                if regret is not None:
                    _note(analysis, name, "a trace says nothing of removals: no regret")
                is_whole &= _read_trace(
                    *(analysis, file, name, sample, sizes, stopped),
                    block_size=of_publishers["block_size"],
                    ignore_unknown=ignore_unknown_fields,
                )
            if ended := stopped():
                break
    for line in text_lines(analysis, all_points=bool(sizes)):
        click.echo(printable(line))
    _write(analysis, json_path, csv_path, plot)
    if ended:
        click.echo("note: interrupted; this is of what was read before", err=True)
        context.exit(_INTERRUPTED)
    if not is_whole:
        context.exit(_DAMAGED)


class CaptureReading(NamedTuple):
    """What is wanted of one capture."""

    file: Path
    name: str
    sample: float
    windows: tuple[float, ...]
    stopped: "StopCheck"


def _names(files: tuple[Path, ...]) -> list[str]:
    from replay.traces.reader import STDIN

    files = tuple(Path("standard input") if file == STDIN else file for file in files)
    counts = Counter(file.name for file in files)
    return [
        file.name if counts[file.name] == 1 else f"{number}: {file}"
        for number, file in enumerate(files, 1)
    ]


def _blocks_of(size: str, block_size: int) -> int:
    from lab.whatif.setup import parse_capacity

    blocks = parse_capacity(size, block_size)
    if blocks is None:
        raise ConfigurationError(
            "Expected a --size with an end; what an endless cache hits is told"
        )
    return blocks


def _add_curves(analysis: "Analysis", ratios: "MissRatios", name: str, sizes: "Sizes") -> None:
    wanted = (
        (lambda block_size: [_blocks_of(size, block_size) for size in sizes]) if sizes else None
    )
    analysis.curves.extend(ratios.curves(wanted))
    if ratios.was_full:
        what = (
            f"more blocks than are followed at a time: from there on {100 * ratios.rate:.3g} %"
            " of them were"
        )
        _note(analysis, name, what)
    if ratios.other_groups:
        _note(analysis, name, f"{ratios.other_groups:,} accesses of further models are left out")


def _note(analysis: "Analysis", name: str, note: str, kind: str = "note") -> None:
    analysis.notes.append(f"{name}: {note}")
    click.echo(printable(f"{kind}: {name}: {note}"), err=True)


def _read_trace(
    analysis: "Analysis",
    file: Path,
    name: str,
    sample: float,
    sizes: "Sizes",
    stopped: "StopCheck",
    *,
    block_size: object,
    ignore_unknown: bool,
) -> bool:
    """Whether it was read to its end."""
    from lab.miss_ratio.accesses import use_trace
    from lab.miss_ratio.miss_ratio import MissRatios
    from replay.traces.reader import DEFAULT_BLOCK_SIZE, STDIN, read_trace
    from replay.traces.session_hits import SessionHits
    from schemas.progress import Progress

    tokens = block_size if isinstance(block_size, int) else DEFAULT_BLOCK_SIZE
    total = None if file == STDIN else file.stat().st_size
    with progress_shown("Reading", "bytes", everywhere=True) as tell:
        trace = read_trace(
            file,
            block_size=tokens,
            ignore_unknown=ignore_unknown,
            when_read=lambda done: tell(Progress(done, total, done)),
        )
    for note in trace.notes:
        _note(analysis, name, note, "error" if note == trace.cut else "note")
    ratios, hits = MissRatios(sample=sample), SessionHits()
    with progress_shown("Analysing", "requests", everywhere=True) as tell:
        use_trace(ratios, name, tokens, trace.requests, hits, tell=tell, stopped=stopped)
    _add_curves(analysis, ratios, name, sizes)
    if rates := hits.rates():
        analysis.sessions[name] = rates
    if hits.left_out:
        what = f"{counted(hits.left_out, 'request')} had no room, and are in no session's hits"
        _note(analysis, name, what)
    return trace.problem is None


def _read_capture(
    analysis: "Analysis",
    reading: CaptureReading,
    sizes: "Sizes",
    of_publishers: dict[str, object],
) -> bool:
    """Whether it is intact."""
    from lab.miss_ratio.accesses import use_capture
    from lab.miss_ratio.miss_ratio import MissRatios
    from lab.miss_ratio.regret import Regrets
    from replay.capture.reader import Capture
    from replay.chains import Chains

    ratios = MissRatios(sample=reading.sample)
    regrets = Regrets(reading.name, reading.windows)
    chains = Chains(seed_from(os.environ))
    with (
        Capture(reading.file) as capture,
        progress_shown("Analysing", "records", everywhere=True) as tell,
    ):
        steps = steps_of(capture, of_publishers, tell, reading.stopped)
        use_capture(ratios, regrets, reading.name, steps, chains)
        is_whole = capture.damage is None
    for note in notes_of(capture, steps, chains):
        _note(analysis, reading.name, note)
    if regrets.forgotten:
        what = f"{regrets.forgotten:,} removals had no room: it is not known what became of them"
        _note(analysis, reading.name, what)
    _add_curves(analysis, ratios, reading.name, sizes)
    analysis.regrets.extend(regrets.results())
    return is_whole


def _write(
    analysis: "Analysis", json_path: Path | None, csv_path: Path | None, plot: Path | None
) -> None:
    from lab.miss_ratio.report import plot_of, to_csv, to_json
    from storage.faults import disk_errors

    contents: list[tuple[Path | None, Callable[[], bytes]]] = [
        (json_path, lambda: to_json(analysis)),
        (csv_path, lambda: to_csv(analysis).encode()),
        (plot, lambda: plot_of(analysis)),
    ]
    for path, make in contents:
        if path is not None:
            content = make()
            with disk_errors("write a result", path):
                path.write_bytes(content)
