"""`reprise replay`."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from console.addresses import DEFAULT_HOST, DEFAULT_PORT
from console.interruption import asked_to_stop
from console.param_types import Amount
from console.progress import progress_shown
from console.settings import setting_option
from console.terminal import printable, say_ready, warn_without_native
from query_api.access.access_settings import INSECURE, check_loopback
from reprise.bounds import OPTION_HOURS_MAX
from reprise.cli.process import begin_service
from reprise.cli.publishing import SendOptions, publish, say_notes
from reprise.cli.registration_options import registration_options, registrations_of
from reprise.settings import log_level_from
from streams.index_settings import seed_from

if TYPE_CHECKING:
    from replay.as_records import CaptureRecords
    from replay.capture.reader import Capture
    from replay.folding import ReplayedTable
from typing import Final

REPLAY_SPEED_MAX: Final = 1e6  # of --speed; faster is as fast as it goes

_DAMAGED = 1
_DIFFERENT = 3
_INTERRUPTED = 130


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--speed",
    type=Amount(min=0.0, min_open=True, max=REPLAY_SPEED_MAX),
    help="1 as it happened, 10 ten times as fast.  [default: as fast as it goes]",
)
@click.option(
    "--compare",
    type=click.Path(path_type=Path, exists=True),
    help="A capture, or a data directory: say which contexts have other digests there.",
)
@click.option("--serve", is_flag=True, help="Answer HTTP queries from it, until Ctrl-C.")
@setting_option(INSECURE, bool, "insecure")
@click.option("--host", help=f"With --serve: address to listen on.  [default: {DEFAULT_HOST}]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help=f"With --serve: port to listen on, 0 for any.  [default: {DEFAULT_PORT}]",
)
@click.option(
    "--as-publisher",
    metavar="ADDRESS",
    help="Send it out as its engines did: a PUB socket at this address, and for each further"
    " publisher at the next port.",
)
@click.option(
    "--replay-socket",
    metavar="ADDRESS",
    help="With --as-publisher: a replay socket at this address, and so on.",
)
@click.option(
    "--publisher",
    "only",
    metavar="NAME",
    help="With --as-publisher: this one alone, as `instance|tenant|rank`.",
)
@click.option(
    "--wait",
    "wait_s",
    type=Amount(min=0.0, max=3600 * OPTION_HOURS_MAX),
    help="With --as-publisher: begin after this many seconds.  [default: with the first subscriber"
    " of each]",
)
@click.option(
    "--stay",
    "stay_s",
    type=Amount(min=0.0, max=3600 * OPTION_HOURS_MAX),
    help="With --as-publisher: answer replay requests for this many seconds after the end. "
    " [default:"
    " until Ctrl-C]",
)
@click.option(
    "--renumber",
    is_flag=True,
    help="With --as-publisher: number batches from 0 without a hole.  [default: as captured]",
)
@registration_options
@click.pass_context
def replay(
    context: click.Context,
    /,
    file: Path,
    speed: float | None,
    compare: Path | None,
    serve: bool,
    host: str | None,
    port: int | None,
    insecure: bool,
    as_publisher: str | None,
    replay_socket: str | None,
    only: str | None,
    wait_s: float | None,
    stay_s: float | None,
    renumber: bool,
    **of_publishers: object,
) -> None:
    """Fold a capture into a table, and print the digest of each context as `reprise verify` does.

    A capture of frames is decoded and sequenced as a bridge does it; where it was made without
    --model and --block-size, they are to be given here. With --serve the table is queried over
    HTTP; with --as-publisher nothing is folded, and any indexer can subscribe to what is sent.

    \b
    reprise replay hour.capture --compare data
    reprise replay hour.capture --serve --port 13444
    reprise replay hour.capture --as-publisher tcp://127.0.0.1:5557 --speed 1

    \b
    exit code 0   it was folded; with --compare, both give the same digests
              1   it cannot be read, or not to its end: what was readable is folded, and printed
              3   with --compare: they differ
    """  # noqa: D301
    _check_options(
        serve,
        as_publisher,
        {
            "--serve": {"--host": host, "--port": port, "--insecure": insecure or None},
            "--as-publisher": {
                "--replay-socket": replay_socket,
                "--publisher": only,
                "--wait": wait_s,
                "--stay": stay_s,
                "--renumber": renumber or None,
            },
        },
        compare,
    )
    seed = seed_from(os.environ)
    if as_publisher is not None:
        sending = SendOptions(
            as_publisher, replay_socket or "", only, wait_s, stay_s, speed, renumber
        )
        is_whole, ended = publish(file, sending)
        context.exit(_INTERRUPTED if not ended else 0 if is_whole else _DAMAGED)
    warn_without_native(None)
    if serve:
        check_loopback(host or DEFAULT_HOST, "--host", insecure)
        _serve(file, seed, speed, of_publishers, host or DEFAULT_HOST, port)
        return
    table, is_whole, ended = _folded(file, seed, speed, of_publishers)
    for line in table.lines():
        click.echo(printable(line))
    different = compare is not None and _compare(table, file, compare, seed, of_publishers)
    if not ended:
        context.exit(_INTERRUPTED)
    if not is_whole:
        context.exit(_DAMAGED)
    if different:
        context.exit(_DIFFERENT)


def _check_options(
    serve: bool,
    as_publisher: str | None,
    options: dict[str, dict[str, object]],
    compare: Path | None,
) -> None:
    chosen = {"--serve": serve, "--as-publisher": as_publisher is not None}
    if sum([*chosen.values(), compare is not None]) > 1:
        raise click.UsageError("Expected one of --compare, --serve and --as-publisher, got several")
    for main, others in options.items():
        for option, value in others.items():
            if value is not None and not chosen[main]:
                raise click.UsageError(f"Expected {option} with {main} only, got it without")


def _serve(
    file: Path,
    seed: int,
    speed: float | None,
    of_publishers: dict[str, object],
    host: str,
    port: int | None,
) -> None:
    from replay.capture.reader import Capture
    from replay.folding import ReplayedTable
    from reprise.roles.replay import ReplayedService, serve_capture
    from streams.kernel import open_kernel

    begin_service(log_level_from(os.environ))
    with Capture(file) as capture:
        say_notes(capture)
        records = records_of(capture, of_publishers)
        table = ReplayedTable(open_kernel(seed), records)

        def say() -> None:
            for line in table.lines():
                click.echo(printable(line))

        def make_service() -> ReplayedService:
            total = None if capture.header.publishers else capture.entries
            return ReplayedService(table, records, total=total, speed=speed, when_folded=say)

        serve_capture(
            make_service,
            host=host,
            port=DEFAULT_PORT if port is None else port,
            when_serving=say_ready,
        )


def _folded(
    file: Path, seed: int, speed: float | None, of_publishers: dict[str, object]
) -> "tuple[ReplayedTable, bool, bool]":
    """The table; whether the capture is intact; whether it was folded to its end."""
    from replay.capture.reader import Capture
    from replay.folding import ReplayedTable, ReplayPace, fold_capture
    from streams.kernel import open_kernel

    with Capture(file) as capture:
        say_notes(capture)
        records = records_of(capture, of_publishers)
        table = ReplayedTable(open_kernel(seed), records)
        with progress_shown("Replaying", "records") as tell, asked_to_stop() as stopped:
            total = None if capture.header.publishers else capture.entries
            pace = None if speed is None else ReplayPace(speed, stopped=stopped)
            ended = fold_capture(records, table, total=total, pace=pace, tell=tell, stopped=stopped)
        _say_folded(table, records)
        return table, capture.damage is None, ended


def records_of(capture: "Capture", of_publishers: dict[str, object]) -> "CaptureRecords":
    """The records of a capture of either kind; what its publishers are, where that was given."""
    from replay.as_records import CaptureRecords
    from streams.kernel import array_packer

    publishers = capture.header.publishers
    endpoints = [(one.endpoint, one.replay_endpoint) for one in publishers]
    given = registrations_of(of_publishers, endpoints)
    if not publishers and any(value not in (None, ()) for value in of_publishers.values()):
        raise click.UsageError(
            "Expected --model and the like for a capture of frames only, but it has records"
        )
    named = {lane: one for lane, one in enumerate(given) if one is not None}
    return CaptureRecords(capture, array_packer(), named)


def _say_folded(table: "ReplayedTable", records: "CaptureRecords") -> None:
    sequenced = records.sequenced
    if sequenced.messages:
        click.echo(
            f"messages {sequenced.messages}  lost {sequenced.gaps}  restarts {sequenced.restarts}"
            f"  duplicates {sequenced.duplicates}{_counts('dropped', sequenced.dropped.items())}"
        )
    skipped = sum(table.skipped.values())
    click.echo(f"folded {table.records - skipped}{_counts('skipped', table.skipped.items())}")
    blocks = _counts("", table.kernel.counters().items()).strip(" :")
    if blocks:
        click.echo(f"blocks {blocks}")
    for partition, record in table.named:
        place = f"{partition}:{record.offset}"
        click.echo(printable(f"note: record {place} is skipped: {record.detail}"), err=True)


def _counts(what: str, counts: Iterable[tuple[str, int]]) -> str:
    said = ", ".join(f"{name} {count}" for name, count in sorted(counts) if count)
    return f"  {what}: {said}" if said else ""


def _compare(
    table: "ReplayedTable", file: Path, other: Path, seed: int, of_publishers: dict[str, object]
) -> bool:
    """Prints which contexts differ; whether any does."""
    if other.is_dir():
        theirs = _digests_of_log(other, seed)
    else:
        from replay.capture.reader import Capture
        from replay.folding import ReplayedTable, fold_capture
        from streams.kernel import open_kernel

        with Capture(other) as capture:
            say_notes(capture)
            is_of_frames = bool(capture.header.publishers)
            unnamed = {"instances": (), **dict.fromkeys(of_publishers.keys() - {"instances"})}
            records = records_of(capture, of_publishers if is_of_frames else unnamed)
            compared = ReplayedTable(open_kernel(seed), records)
            fold_capture(records, compared, total=None)
            theirs = compared.digests
    ours = table.digests
    differing = sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))
    for name in differing:
        here, there = ours.get(name, "nothing"), theirs.get(name, "nothing")
        click.echo(printable(f"differs  {name}: {here} in {file}, {there} in {other}"))
    if not differing:
        click.echo(f"same digests of {len(ours)} contexts: {file} and {other}")
    return bool(differing)


def _digests_of_log(data: Path, seed: int) -> dict[str, str]:
    from logs.embedded import ReadOnlyLog
    from streams.kernel import open_kernel
    from streams.table.fold import Fold
    from streams.table.verification import context_digests, fresh_fold

    log = ReadOnlyLog(data / "log")
    try:
        fold = Fold(open_kernel(seed))
        fresh_fold(fold, log)
        return context_digests(fold.kernel)
    finally:
        log.close()
