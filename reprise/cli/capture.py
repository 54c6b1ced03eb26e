"""`reprise capture`."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeVar

import click

from brokers.broker_settings import KafkaSettings
from console.interruption import asked_to_stop
from console.param_types import Amount, Moment, PositionsType
from console.progress import progress_shown
from reprise import __version__
from reprise.bounds import OPTION_HOURS_MAX
from reprise.cli.data_option import existing_data
from reprise.cli.kafka_options import is_by_flag, kafka_options
from reprise.cli.registration_options import registration_options, registrations_of
from schemas.limits import MIB

if TYPE_CHECKING:
    from replay.capture.format import CapturedPublisher, CaptureSelection, Summary

R = TypeVar("R")

_PIPE: Final = "-"
_A_PIPE: Final = "a pipe"

_INTERRUPTED = 130
"""Exit code where Ctrl-C ended it before its end, as of a shell."""


def _range_options(command: Callable[..., R]) -> Callable[..., R]:
    options = (
        click.option("--since", type=Moment(), help="Records from this time on: ISO 8601 or Unix."),
        click.option("--until", type=Moment(), help="Records from before this time."),
        click.option(
            "--from",
            "first",
            type=PositionsType(),
            help="Records from this position on, as Reprise-Position has it.",
        ),
        click.option("--to", "last", type=PositionsType(), help="Records up to and with this one."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=_PIPE,
    help="The file to write.  [default: a pipe that stands behind it]",
)
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@existing_data("Take it from the log of a data directory of `reprise up`, which may be running.")
@kafka_options()
@click.option(
    "--from-zmq",
    "endpoints",
    multiple=True,
    metavar="ADDRESS",
    help="Record what the engine at this PUB socket sends, as it comes; may be given again.",
)
@click.option(
    "--replay",
    "replay_endpoints",
    multiple=True,
    metavar="ADDRESS",
    help="The replay socket of the engine of the --from-zmq in the same place.",
)
@_range_options
@registration_options
@click.option(
    "--for",
    "seconds",
    type=Amount(min=0.0, min_open=True, max=3600 * OPTION_HOURS_MAX),
    help="With --from-zmq: end after this many seconds.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), help="With --from-zmq: end after this many messages."
)
@click.pass_context
def capture(
    context: click.Context,
    /,
    out: Path,
    force: bool,
    data: Path | None,
    kafka: KafkaSettings | None,
    endpoints: tuple[str, ...],
    replay_endpoints: tuple[str, ...],
    since: float | None,
    until: float | None,
    first: dict[int, int] | None,
    last: dict[int, int] | None,
    seconds: float | None,
    limit: int | None,
    **of_publishers: object,
) -> None:
    """Take a range of the log, or what engines send, into one file.

    --tenant, --model and --instance choose the streams of a log. With --from-zmq they say, with
    --type, --block-size and --dp-rank, what the engine is, so that `reprise replay` can fold what
    it sent. Ctrl-C ends the capture; the file is whole then, too. Without --out it goes into a
    pipe, once it has ended: `reprise capture --from-zmq ADDRESS --for 9 | reprise publishers check`

    \b
    reprise capture --data DIR --since 2026-11-24T10:00:00Z --out hour.capture
    reprise capture --kafka HOST:PORT --model deepseek --out deepseek.capture
    reprise capture --from-zmq tcp://10.0.0.7:5557 --model m --block-size 16 --out engine.capture
    """  # noqa: D301
    kafka_by_flag = is_by_flag(context)
    sources = [data is not None, kafka_by_flag, bool(endpoints)]
    if sum(sources) > 1 or not (any(sources) or kafka):
        raise click.UsageError(
            f"Expected one of --data, --kafka and --from-zmq, got {sum(sources) or 'none'}"
        )
    of_log = {"--since": since, "--until": until, "--from": first, "--to": last}
    of_zmq = {"--for": seconds, "--limit": limit, "--replay": replay_endpoints or None}
    for option, value in (of_log if endpoints else of_zmq).items():
        if value is not None:
            other = "a log" if endpoints else "--from-zmq"
            raise click.UsageError(
                f"Expected {option} with {other} only, not with"
                f" {'--from-zmq' if endpoints else 'a log'}"
            )
    is_piped = str(out) == _PIPE
    if is_piped and sys.stdout.isatty():
        raise click.UsageError("Expected --out, or a pipe behind the command, got neither")
    with TemporaryDirectory(prefix="reprise-capture-") if is_piped else nullcontext() as folder:
        path = Path(folder) / "capture" if folder else out
        if endpoints:
            publishers = _publishers(endpoints, replay_endpoints, of_publishers)
            summary = _capture_frames(publishers, path, force, seconds, limit)
        else:
            asked = _asked(since, until, first, last, of_publishers)
            summary = _capture_records(data, kafka, asked, path, force)
        _say(summary, path, _A_PIPE if folder else str(out))
        if folder:
            with path.open("rb") as written:
                copyfileobj(written, sys.stdout.buffer)
                sys.stdout.buffer.flush()
    if summary.ended != "complete":
        context.exit(_INTERRUPTED)


def _asked(
    since: float | None,
    until: float | None,
    first: dict[int, int] | None,
    last: dict[int, int] | None,
    of_publishers: dict[str, object],
) -> "CaptureSelection":
    from replay.capture.format import CaptureSelection

    if since is not None and until is not None and since >= until:
        raise click.UsageError(f"Expected --since before --until, got {since:f} and {until:f}")
    for option in ("kind", "block_size", "dp_rank", "lora_name", "additional_salt"):
        if of_publishers[option] is not None:
            flag = option.replace("_", "-").replace("kind", "type")
            raise click.UsageError(f"Expected --{flag} with --from-zmq only, not with a log")
    instances = of_publishers["instances"]
    assert isinstance(instances, tuple)
    if len(instances) > 1:
        raise click.UsageError("Expected one --instance to choose by, got several")
    return CaptureSelection(
        since=since,
        until=until,
        first=first,
        last=last,
        tenant=_text(of_publishers["tenant_id"]),
        model=_text(of_publishers["model_name"]),
        instance=instances[0] if instances else None,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _publishers(
    endpoints: tuple[str, ...], replay_endpoints: tuple[str, ...], of_publishers: dict[str, object]
) -> "list[CapturedPublisher]":
    from replay.capture.format import CapturedPublisher

    if len(replay_endpoints) > len(endpoints):
        raise click.UsageError("Expected no more --replay than --from-zmq")
    replays = [*replay_endpoints, *[""] * (len(endpoints) - len(replay_endpoints))]
    named = registrations_of(of_publishers, list(zip(endpoints, replays, strict=True)))
    return [
        CapturedPublisher(endpoint=endpoint, replay_endpoint=replay, registration=registration)
        for endpoint, replay, registration in zip(endpoints, replays, named, strict=True)
    ]


def _capture_records(
    data: Path | None,
    kafka: KafkaSettings | None,
    asked: "CaptureSelection",
    out: Path,
    force: bool,
) -> "Summary":
    from replay.capture.from_kafka import capture_kafka
    from replay.capture.from_log import capture_log

    with progress_shown("Capturing", "records") as tell, asked_to_stop() as stopped:
        if data is not None:
            return capture_log(
                *(data, out, asked),
                created_by=__version__,
                replace=force,
                tell=tell,
                stopped=stopped,
            )
        assert kafka is not None
        return capture_kafka(
            *(kafka, out, asked), created_by=__version__, replace=force, tell=tell, stopped=stopped
        )


def _capture_frames(
    publishers: "list[CapturedPublisher]",
    out: Path,
    force: bool,
    seconds: float | None,
    limit: int | None,
) -> "Summary":
    from replay.capture.from_zmq import capture_frames

    with progress_shown("Recording", "messages") as tell, asked_to_stop() as stopped:
        return capture_frames(
            *(publishers, out),
            created_by=__version__,
            replace=force,
            seconds=seconds,
            limit=limit,
            tell=tell,
            stopped=stopped,
        )


def _say(summary: "Summary", path: Path, out: str) -> None:
    left_out = ", ".join(f"{name} {count}" for name, count in sorted(summary.left_out.items()))
    click.echo(
        f"{summary.ended}: {summary.entries} entries, {path.stat().st_size / MIB:.2f} MiB in {out}"
        + (f"; left out: {left_out}" if left_out else ""),
        err=out == _A_PIPE,
    )
