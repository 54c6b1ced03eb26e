"""`reprise tail`."""

from pathlib import Path

import click

from brokers.broker_settings import KafkaSettings
from console.output import quiet_output
from console.terminal import printable_json
from reprise.cli.data_option import existing_data
from reprise.cli.kafka_options import check_one_source, kafka_options


@click.command()
@kafka_options()
@existing_data("In place of --kafka: a data directory of `reprise up`, which may be running.")
@click.option("--tenant", help="Only records of this tenant.")
@click.option("--model", "--modelname", "model", help="Only records of this model.")
@click.option("--instance", help="Only records of this instance.")
@click.option("--follow", is_flag=True, help="Start at the end and print new records until Ctrl-C.")
@click.option("--from-beginning", is_flag=True, help="With --follow: start at the oldest record.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many lines.")
@click.option(
    "--compact", is_flag=True, help="Print counts of hashes and tokens in place of their values."
)
@click.pass_context
def tail(
    context: click.Context,
    kafka: KafkaSettings | None,
    data: Path | None,
    tenant: str | None,
    model: str | None,
    instance: str | None,
    follow: bool,
    from_beginning: bool,
    limit: int | None,
    compact: bool,
) -> None:
    """Print the log's records as JSON lines, from the oldest to the newest.

    What cannot be decoded is printed with its offset and the reason, filtered or not.
    Partitions of Kafka are read side by side; within each the order is that of the log.

    \b
    reprise tail --data DIR --limit 5
    reprise tail --kafka HOST:PORT --follow --compact --instance worker-3
    """  # noqa: D301
    from streams.log.record_lines import StreamFilter
    from streams.log.tail import TailOptions, tail_embedded, tail_kafka

    check_one_source(context, kafka, data)
    options = TailOptions(
        wanted=StreamFilter(tenant, model, instance),
        follow=follow,
        from_beginning=from_beginning or not follow,
        limit=limit,
        compact=compact,
    )
    with quiet_output() as output:

        def write(lines: bytes) -> None:
            output(printable_json(lines))

        if data is not None:
            tail_embedded(data, options, write)
        elif kafka is not None:
            tail_kafka(kafka, options, write)
