"""`reprise trace`."""

import tempfile
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
from schemas.errors import ConfigurationError
from schemas.limits import BLOCK_SIZE_MAX, MIB
from schemas.progress import Progress

if TYPE_CHECKING:
    from replay.traces.merge import ConversationMerge
    from replay.traces.session_hits import Distribution
    from schemas.progress import StopCheck

IMPORT_EVERY_S: Final = 60.0  # --every: between the beginnings of two conversations
IMPORT_ERRORS_SHOWN: Final = 8  # of files that are left out; all are counted

_BAD: Final = 1
_INTERRUPTED: Final = 130


@click.group()
def trace() -> None:
    """Make traces of requests that `reprise simulate` and `reprise miss-ratio` read."""


@trace.command(name="import")
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="PATH...",
    type=click.Path(path_type=Path, exists=True),
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The trace that is written.",
)
@click.option(
    "--every",
    "every_s",
    type=Amount(min=0, max=3600 * OPTION_HOURS_MAX),
    default=IMPORT_EVERY_S,
    help="Seconds after which the next conversation begins: each knows its own times only."
    f"  [default: {IMPORT_EVERY_S:g}]",
)
@click.option(
    "--warm-prefix",
    "shared",
    type=Amount(min=0, max=1),
    default=0.0,
    help="Share of a conversation's tools and system prompt of which the blocks are the same in all"
    " of them.  [default: 0, none]",
)
@click.option(
    "--block-size",
    type=click.IntRange(1, BLOCK_SIZE_MAX),
    help="Tokens for each id that is written, a multiple of the conversations'.  [default: theirs]",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.pass_context
def import_conversations(
    context: click.Context,
    /,
    paths: tuple[Path, ...],
    out: Path,
    every_s: float,
    shared: float,
    block_size: int | None,
    force: bool,
) -> None:
    """Make one trace of conversations of coding agents.

    PATH is a JSON file of one conversation as github.com/callanjfox/kv-cache-tester publishes them,
    or a folder of them; gzip is read. docs/offline.md says what becomes of times, sub-agents and
    ids. A trace stands in its place only once it is whole.

    \b
    reprise trace import kv-cache-tester/traces --out agents.jsonl
    reprise miss-ratio agents.jsonl --block-size 64 --sample 0.01

    \b
    exit code 0   all files were taken
              1   one could not be: the others are in the trace, and it is told
    """  # noqa: D301
    from lab.exports.output import whole_file
    from replay.traces.conversations import conversation_files
    from replay.traces.merge import ConversationMerge

    check_folders(out)
    files = list(conversation_files(paths))
    with (
        whole_file(out, replace=force) as output,
        tempfile.TemporaryFile(dir=out.parent) as lines,
        asked_to_stop() as stopped,
    ):
        merge = ConversationMerge(
            lines, out.parent, every_s=every_s, shared=shared, block_size=block_size
        )
        errors, is_whole = _take_all(merge, files, stopped)
        if not merge.requests:
            raise ConfigurationError(
                f"Expected a request in {counted(len(files), 'file')}, got none"
            )
        merge.write(output.write)
    for line in _summary(merge, out, output.size_bytes):
        click.echo(printable(line))
    if errors:
        click.echo(f"error: {counted(errors, 'file')} of {len(files):,} left out", err=True)
    if not is_whole:
        click.echo("note: interrupted; the trace has what was read before", err=True)
        context.exit(_INTERRUPTED)
    if errors:
        context.exit(_BAD)


def _take_all(
    merge: "ConversationMerge", files: list[Path], stopped: "StopCheck"
) -> tuple[int, bool]:
    """How many files were left out, and whether all were looked at."""
    from replay.traces.conversations import ConversationError, read_conversation

    errors = 0
    with progress_shown("Reading", "files", everywhere=True) as tell:
        for number, file in enumerate(files):
            tell(Progress(number, len(files), number))
            if stopped():
                return errors, False
            try:
                merge.take(read_conversation(file), str(file))
            except ConversationError as error:
                errors += 1
                if errors <= IMPORT_ERRORS_SHOWN:
                    click.echo(printable(f"error: {error}; left out"), err=True)
    return errors, True


def _summary(merge: "ConversationMerge", out: Path, size_bytes: int) -> list[str]:
    each, tokens = merge.conversation_requests(), merge.input_tokens()
    return [
        f"imported {counted(merge.requests, 'request')} of {counted(each.count, 'conversation')} to"
        f" {out}, {size_bytes / MIB:.2f} MiB; {merge.agent_requests:,} of them are of"
        f" {counted(merge.agents, 'sub-agent')}; read it with --block-size {merge.block_size}",
        f"requests of a conversation: {_said(each)}",
        f"input tokens of a request: {_said(tokens)}",
    ]


def _said(one: "Distribution") -> str:
    names = ("min", "p10", "p25", "median", "p75", "p90", "max", "mean")
    return ", ".join(f"{name.replace('p', 'P')} {getattr(one, name):,.0f}" for name in names)
