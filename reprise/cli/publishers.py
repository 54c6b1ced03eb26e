"""`reprise publishers`."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO, Final

import click
import msgspec

from console.interruption import asked_to_stop
from console.param_types import Amount
from console.progress import progress_shown
from console.terminal import printable
from reprise import __version__
from reprise.bounds import OPTION_HOURS_MAX
from schemas.limits import BLOCK_SIZE_MAX, GIB, MIB
from storage.faults import disk_errors

if TYPE_CHECKING:
    from doctor.publishers.check import Given
    from doctor.publishers.document import CheckDocument

CHECK_SECONDS: Final = 30.0  # of listening, where nothing else is said
CHECK_MESSAGES: Final = 10_000  # that are taken, likewise
CHECK_STREAM_BYTES_MAX: Final = 1 * GIB  # of a capture that comes by a pipe: disk

_FOUND: Final = 1
_UNREAD: Final = 3
_PIPE: Final = "-"


@click.group()
def publishers() -> None:
    """Look at what an unknown engine publishes.

    \b
    reprise publishers check --from-zmq tcp://10.0.0.7:5557
    reprise capture --from-zmq tcp://10.0.0.7:5557 --for 60 | reprise publishers check
    """  # noqa: D301


@publishers.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=_PIPE)
@click.option(
    "--from-zmq",
    "endpoints",
    multiple=True,
    metavar="ADDRESS",
    help="Listen at this PUB socket in place of a FILE; may be given again.",
)
@click.option(
    "--replay",
    "replay_endpoints",
    multiple=True,
    metavar="ADDRESS",
    help="The replay socket of the engine of the --from-zmq in the same place.",
)
@click.option(
    "--for",
    "seconds",
    type=Amount(min=0.0, min_open=True, max=3600 * OPTION_HOURS_MAX),
    help=f"With --from-zmq: end after this many seconds.  [default: {CHECK_SECONDS:.0f}]",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 100 * CHECK_MESSAGES),
    help=f"With --from-zmq: end after this many messages.  [default: {CHECK_MESSAGES}]",
)
@click.option("--type", "kind", help="The kind to try, as /register names it.  [default: each]")
@click.option("--model", help="The model, for the registration.")
@click.option("--instance", help="The instance, likewise.")
@click.option("--tenant", help="The tenant, likewise.")
@click.option(
    "--block-size", type=click.IntRange(1, BLOCK_SIZE_MAX), help="Where no event says it."
)
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
@click.pass_context
def check(
    context: click.Context,
    /,
    file: Path,
    endpoints: tuple[str, ...],
    replay_endpoints: tuple[str, ...],
    seconds: float | None,
    limit: int | None,
    kind: str | None,
    model: str | None,
    instance: str | None,
    tenant: str | None,
    block_size: int | None,
    as_json: bool,
) -> None:
    """Tell of frames what is understood, what is left out and why, and how to register the engine.

    FILE is a capture of frames; without one, or with `-`, the capture comes by the pipe. Each event
    is tried alone by the decoder of each kind, then all is folded as a service would do it.
    docs/publishers.md has the whole way from an engine to its registration.

    \b
    reprise publishers check engine.capture --model deepseek
    reprise publishers check --from-zmq tcp://10.0.0.7:5557 --replay tcp://10.0.0.7:5558 --for 60

    \b
    exit code 0   all that came is used
              1   some of it is not, or something of it is wrong, or nothing came
              3   no known kind reads it: docs/publishers.md says how one is added
    """  # noqa: D301
    from bridge.wire import KINDS
    from doctor.publishers.check import Given
    from doctor.publishers.document import Reading
    from doctor.publishers.words import lines_of

    if kind is not None and kind.lower() not in {one.lower() for one in KINDS}:
        raise click.UsageError(f"Expected --type {' or '.join(KINDS)}, got: {kind}")
    if not endpoints and (seconds or limit or replay_endpoints):
        raise click.UsageError(
            "Expected --for, --limit and --replay with --from-zmq only, got them without"
        )
    if endpoints and str(file) != _PIPE:
        raise click.UsageError(f"Expected a FILE or --from-zmq, got both, and the file: {file}")
    if len(replay_endpoints) > len(endpoints):
        raise click.UsageError(
            f"Expected no more --replay than --from-zmq, got {len(replay_endpoints)}"
        )
    given = Given(kind or "", model or "", instance or "", tenant or "", block_size or 0)
    if endpoints:
        listening = _recorded(endpoints, replay_endpoints, seconds, limit)
    elif str(file) == _PIPE:
        listening = _piped()
    else:
        listening = _named(file)
    with listening as path:
        document = _checked(path, given)
    if as_json:
        sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
        sys.stdout.buffer.flush()
    else:
        for line in lines_of(document):
            click.echo(printable(line))
    readings = {one.reading for one in document.publishers}
    if Reading.NONE in readings:
        context.exit(_UNREAD)
    if readings != {Reading.WHOLE}:
        context.exit(_FOUND)


def _checked(path: Path, given: "Given") -> "CheckDocument":
    from doctor.publishers.check import check_capture
    from replay.capture.reader import Capture

    # What is dropped, and why, is in the document.
    logging.getLogger("bridge.publisher").setLevel(logging.ERROR)
    with Capture(path) as capture, asked_to_stop() as stopped:
        return check_capture(capture, given, stopped=stopped)


@contextmanager
def _named(file: Path) -> Iterator[Path]:
    if not file.exists():
        raise click.UsageError(f"Expected a capture, but there is no file: {file}")
    yield file


@contextmanager
def _recorded(
    endpoints: tuple[str, ...],
    replay_endpoints: tuple[str, ...],
    seconds: float | None,
    limit: int | None,
) -> Iterator[Path]:
    """What comes of the sockets, in a file of its own."""
    from replay.capture.format import CapturedPublisher
    from replay.capture.from_zmq import capture_frames

    replays = [*replay_endpoints, *[""] * (len(endpoints) - len(replay_endpoints))]
    sources = [
        CapturedPublisher(endpoint=endpoint, replay_endpoint=replay, registration=None)
        for endpoint, replay in zip(endpoints, replays, strict=True)
    ]
    with TemporaryDirectory(prefix="reprise-check-") as folder:
        path = Path(folder) / "capture"
        with progress_shown("Listening", "messages") as tell, asked_to_stop() as stopped:
            capture_frames(
                *(sources, path),
                created_by=__version__,
                seconds=seconds or CHECK_SECONDS,
                limit=limit or CHECK_MESSAGES,
                tell=tell,
                stopped=stopped,
            )
        yield path


@contextmanager
def _piped() -> Iterator[Path]:
    """What comes by the pipe, in a file of its own; Ctrl-C ends its writer, and not this."""
    source = sys.stdin.buffer
    if source.isatty():
        raise click.UsageError(
            "Expected a FILE, --from-zmq, or a capture by a pipe, but got none of them"
        )
    with TemporaryDirectory(prefix="reprise-check-") as folder:
        path = Path(folder) / "capture"
        with asked_to_stop():
            _copy(source, path)
        yield path


def _copy(source: BinaryIO, path: Path) -> None:
    taken = 0
    with disk_errors("write a capture", path), path.open("wb") as target:
        while piece := source.read(MIB):
            taken += len(piece)
            if taken > CHECK_STREAM_BYTES_MAX:
                raise click.ClickException(
                    f"Expected a capture of at most {CHECK_STREAM_BYTES_MAX} bytes by a pipe, got"
                    " more: write it to a file, or end it sooner (--for, --limit)"
                )
            target.write(piece)
