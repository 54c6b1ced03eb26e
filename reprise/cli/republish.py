"""`reprise republish`."""

from pathlib import Path

import click

from brokers.broker_settings import KafkaSettings
from console.interruption import asked_to_stop
from console.param_types import Amount
from console.terminal import printable
from reprise.bounds import OPTION_HOURS_MAX
from reprise.cli.data_option import existing_data
from reprise.cli.kafka_options import check_one_source, kafka_options


@click.command()
@kafka_options()
@existing_data("In place of --kafka: a data directory of `reprise up`, which may be running.")
@click.option(
    "--bind",
    metavar="ADDRESS",
    default="tcp://127.0.0.1:5557",
    show_default=True,
    help="Where the events of all engines are published.",
)
@click.option(
    "--replay-socket", metavar="ADDRESS", help="Where they can be asked for again, as of vLLM."
)
@click.option("--tenant", help="Only events of this tenant.")
@click.option("--model", "--modelname", "model", help="Only events of this model.")
@click.option("--instance", help="Only events of this instance.")
@click.option(
    "--wait",
    "wait_s",
    type=Amount(min=0.0, max=3600 * OPTION_HOURS_MAX),
    help="Begin after this many seconds.  [default: with the first subscriber]",
)
@click.pass_context
def republish(
    context: click.Context,
    kafka: KafkaSettings | None,
    data: Path | None,
    bind: str,
    replay_socket: str | None,
    tenant: str | None,
    model: str | None,
    instance: str | None,
    wait_s: float | None,
) -> None:
    """Publish the events of all engines again, as vLLM's, until Ctrl-C.

    Other indexers read one address in place of one of each engine, of any type. Topics are
    `kv@INSTANCE@MODEL`. The first events are those of the log's oldest record; new ones follow as
    the log grows.

    \b
    reprise republish --data DIR --bind tcp://127.0.0.1:5557
    reprise republish --kafka HOST:PORT --replay-socket tcp://127.0.0.1:5558 --model llama
    """  # noqa: D301
    from replay.publisher import CapturePublishers
    from replay.republisher import Republisher
    from streams.log.record_lines import StreamFilter
    from streams.log.tail import TailOptions, read_embedded, read_kafka

    check_one_source(context, kafka, data)
    options = TailOptions(follow=True, from_beginning=True)
    with asked_to_stop() as stopped:
        publishers = CapturePublishers([0], bind, replay_socket or "", stopped=stopped)
        try:
            [one] = publishers.publishers.values()
            replay = f"  replay {one.replay_endpoint}" if one.replay_endpoint else ""
            click.echo(printable(f"{one.endpoint}{replay}"))
            if wait_s is None:
                click.echo("waiting for a subscriber", err=True)
                publishers.serve_until(publishers.are_subscribed)
            else:
                publishers.serve_until(lambda: False, seconds=wait_s)
            again = Republisher(publishers, StreamFilter(tenant, model, instance), stopped=stopped)
            if stopped():
                return
            if data is not None:
                read_embedded(data, options, again.take)
            elif kafka is not None:
                read_kafka(kafka, options, again.take)
            left_out = f", {again.left_out} records that cannot be read" if again.left_out else ""
            click.echo(f"sent {one.sent} batches of {again.engines} ranks{left_out}")
        finally:
            publishers.close()
