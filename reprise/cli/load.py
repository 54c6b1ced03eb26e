"""`reprise load`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from brokers.broker_settings import KafkaSettings
from console.interruption import asked_to_stop
from console.progress import progress_shown
from reprise.cli.kafka_options import check_one_source, kafka_options
from reprise.cli.publishing import say_notes
from reprise.cli.registration_options import registration_options
from reprise.cli.replay import records_of

if TYPE_CHECKING:
    from replay.as_records import CaptureRecords

_DAMAGED = 1
_INTERRUPTED = 130


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="A data directory, made where it is missing; no service may be using it.",
)
@kafka_options(makes_topics=True)
@click.option(
    "--force",
    is_flag=True,
    help="Append also records that the log has already; folds skip them.",
)
@click.option(
    "--local-sockets",
    is_flag=True,
    help="Append also registrations of `ipc://` addresses: the service connects to them.",
)
@registration_options
@click.pass_context
def load(
    context: click.Context,
    /,
    file: Path,
    data: Path | None,
    kafka: KafkaSettings | None,
    force: bool,
    local_sockets: bool,
    **of_publishers: object,
) -> None:
    """Append the records of a capture to the log of a data directory, or to Kafka.

    They go in as they are, but for heartbeats: what was confirmed then is not confirmed now. A
    capture of frames goes in as the records that a bridge would have written. The engines that are
    registered in it are followed once `reprise up` runs on the directory.

    \b
    reprise load hour.capture --data copy
    reprise load hour.capture --kafka HOST:PORT
    """  # noqa: D301
    from replay.capture.reader import Capture
    from replay.loading import load_into_kafka, load_into_log

    check_one_source(context, kafka, data)
    with Capture(file) as capture:
        say_notes(capture)

        def make_records() -> "CaptureRecords":
            return records_of(capture, of_publishers)

        with progress_shown("Loading", "records") as tell, asked_to_stop() as stopped:
            if data is not None:
                loaded = load_into_log(
                    *(make_records, data),
                    force=force,
                    local_sockets=local_sockets,
                    tell=tell,
                    stopped=stopped,
                )
            else:
                assert kafka is not None
                loaded = load_into_kafka(
                    *(make_records, kafka),
                    force=force,
                    local_sockets=local_sockets,
                    tell=tell,
                    stopped=stopped,
                )
        is_damaged = capture.damage is not None
    left_out = ", ".join(f"{name} {count}" for name, count in sorted(loaded.left_out.items()))
    where = data if data is not None else kafka and kafka.topics.events.name
    click.echo(
        f"loaded {loaded.records} records into {where}"
        + (f"; left out: {left_out}" if left_out else "")
    )
    if not loaded.ended:
        click.echo("note: interrupted; load again with --force to go on", err=True)
        context.exit(_INTERRUPTED)
    if is_damaged:
        context.exit(_DAMAGED)
