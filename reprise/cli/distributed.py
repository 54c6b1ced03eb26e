"""The commands of the distributed form: `reprise tail`, `bridge`, `serve`, `streams`."""

import os
from pathlib import Path

import click
from click.core import ParameterSource

from brokers.settings import KafkaSettings
from reprise.cli.kafka_options import data_option, kafka_options, metrics_options
from reprise.cli.param_types import GIB_MAX, Amount
from reprise.cli.terminal import say_ready, start_logging, warn_without_native
from reprise.settings import DEFAULT_HOST, config_path_from, log_level_from, seed_from
from schemas import limits
from schemas.errors import RepriseError


@click.command()
@kafka_options(required=False, makes_topics=False)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="In place of --kafka: a data directory of `reprise up`, which may be running.",
)
@click.option("--tenant", help="Only records of this tenant.")
@click.option("--model", help="Only records of this model.")
@click.option("--instance", help="Only records of this instance.")
@click.option("--follow", is_flag=True, help="Begin at the end and go on until Ctrl-C.")
@click.option("--from-beginning", is_flag=True, help="With --follow: begin at the beginning.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after so many lines.")
@click.option("--compact", is_flag=True, help="Say how many hashes and tokens, not which.")
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

    What is not a record is printed with its place and the reason, whatever the filters. Partitions
    of Kafka are read side by side; within each the order is that of the log.

    \b
    reprise tail --data DIR --limit 5
    reprise tail --kafka HOST:PORT --follow --compact --instance worker-3
    """  # noqa: D301
    from streams.log.record_lines import StreamFilter
    from streams.log.tail import TailOptions, quiet_output, tail_embedded, tail_kafka

    kafka_by_flag = context.get_parameter_source("kafka") is ParameterSource.COMMANDLINE
    if (data is None and kafka is None) or (data is not None and kafka_by_flag):
        raise click.UsageError("Expected one of --kafka and --data")
    options = TailOptions(
        wanted=StreamFilter(tenant, model, instance),
        follow=follow,
        from_beginning=from_beginning or not follow,
        limit=limit,
        compact=compact,
    )
    try:
        with quiet_output() as write:
            if data is not None:
                tail_embedded(data, options, write)
            elif kafka is not None:
                tail_kafka(kafka, options, write)
    except RepriseError as error:
        raise click.ClickException(str(error)) from error


@click.command()
@kafka_options()
@data_option("Directory of the spool, which no other bridge uses; made where it is missing.")
@metrics_options
@click.option(
    "--window-ms",
    envvar="REPRISE_WINDOW_MS",
    show_envvar=True,
    type=click.IntRange(0, 10_000),
    default=50,
    show_default=True,
    help="How long a publisher's batches are collected for one record, 0 for not at all.",
)
@click.option(
    "--spool-gib",
    envvar="REPRISE_SPOOL_GIB",
    show_envvar=True,
    type=Amount(0, GIB_MAX),
    default=1.0,
    show_default=True,
    help="How much may wait on disk while Kafka is away.",
)
@click.option(
    "--session-timeout-s",
    envvar="REPRISE_SESSION_TIMEOUT_S",
    show_envvar=True,
    type=Amount(1, 300),
    default=10.0,
    show_default=True,
    help="A bridge without a sign of life for this long is replaced by the others.",
)
def bridge(
    kafka: KafkaSettings,
    data: Path,
    metrics_host: str,
    metrics_port: int | None,
    window_ms: int,
    spool_gib: float,
    session_timeout_s: float,
) -> None:
    """Receive the engines' events and append them to Kafka: one bridge of any number.

    The bridges share the registered publishers. One needs nothing but the brokers, and spools to
    --data while they are away.

    \b
    CONDUCTOR_LOG_LEVEL    DEBUG, INFO, WARNING or ERROR      [default: INFO]
    """  # noqa: D301
    from reprise.roles.bridge import BridgeOptions, run_bridge

    try:
        options = BridgeOptions(
            kafka=kafka,
            data=data,
            window_ms=window_ms,
            spool_bytes=int(spool_gib * limits.GIB),
            session_s=session_timeout_s,
            metrics_host=metrics_host,
            metrics_port=metrics_port,
        )
        start_logging(log_level_from(os.environ))
        run_bridge(options)
    except RepriseError as error:
        raise click.ClickException(str(error)) from error


@click.command()
@kafka_options()
@data_option("Accepted by every role; a replica keeps nothing on disk.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Mooncake Conductor's configuration file: its publishers are put into the registry where"
    " they are missing.  [env: CONDUCTOR_CONFIG_PATH; default: ~/.mooncake/conductor_config.json]",
)
@click.option(
    "--host",
    envvar="REPRISE_HOST",
    show_envvar=True,
    default=DEFAULT_HOST,
    show_default=True,
    help="Address to listen on.",
)
@click.option(
    "--port",
    envvar="REPRISE_PORT",
    show_envvar=True,
    type=click.IntRange(0, 65_535),
    help="Port to listen on, 0 for any.  [default: the configuration file's, or 13333]",
)
@click.option(
    "--kernel",
    type=click.Choice(["rust", "reference"]),
    help="The index to use.  [default: rust where it is built]",
)
def serve(
    kafka: KafkaSettings,
    data: Path,
    config: Path | None,
    host: str,
    port: int | None,
    kernel: str | None,
) -> None:
    """Answer queries from the tables in Kafka: one replica of any number.

    It needs nothing but the brokers, and goes on answering while they or the workers are away;
    /health, /metrics and the headers of each answer say how old the table is.

    \b
    CONDUCTOR_LOG_LEVEL    DEBUG, INFO, WARNING or ERROR      [default: INFO]
    CONDUCTOR_SEED         seed of the prefix hash            [default: 1337]
    """  # noqa: D301
    from reprise import conductor_config
    from reprise.roles.serve import ServeSettings, serve_replica

    try:
        configuration = conductor_config.load(
            config or config_path_from(os.environ), required=config is not None
        )
        settings = ServeSettings(
            kafka=kafka,
            host=host,
            port=configuration.port if port is None else port,
            seed=seed_from(os.environ),
            kernel=kernel,
        )
        start_logging(log_level_from(os.environ))
        warn_without_native(kernel)
        serve_replica(settings, configuration.registrations, when_serving=say_ready)
    except RepriseError as error:
        raise click.ClickException(str(error)) from error


@click.command()
@kafka_options()
@data_option("Directory of this worker's copies of its tables; one for each worker.")
@metrics_options
@click.option(
    "--flush-ms",
    envvar="REPRISE_FLUSH_MS",
    show_envvar=True,
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="How long records are gathered before their rows are written.",
)
@click.option(
    "--session-timeout-s",
    envvar="REPRISE_SESSION_TIMEOUT_S",
    show_envvar=True,
    type=Amount(1, 300),
    default=10.0,
    show_default=True,
    help="A worker without a sign of life for this long is replaced by the others.",
)
@click.option(
    "--kernel",
    type=click.Choice(["rust", "reference"]),
    help="The index to use.  [default: rust where it is built]",
)
def streams(
    kafka: KafkaSettings,
    data: Path,
    metrics_host: str,
    metrics_port: int | None,
    flush_ms: int,
    session_timeout_s: float,
    kernel: str | None,
) -> None:
    """Fold the events in Kafka into tables: one worker of any number, sharing the partitions.

    It needs nothing but the brokers. A lost --data is read again from the table topic, a lost table
    topic is folded again from the events.

    \b
    CONDUCTOR_LOG_LEVEL    DEBUG, INFO, WARNING or ERROR      [default: INFO]
    CONDUCTOR_SEED         seed of the prefix hash            [default: 1337]
    """  # noqa: D301
    from reprise.roles.streams import StreamsSettings, work

    try:
        settings = StreamsSettings(
            kafka=kafka,
            data=data,
            seed=seed_from(os.environ),
            kernel=kernel,
            metrics_host=metrics_host,
            metrics_port=metrics_port,
            flush_s=flush_ms / 1000,
            session_timeout_s=session_timeout_s,
        )
        start_logging(log_level_from(os.environ))
        warn_without_native(kernel)
        work(settings)
    except RepriseError as error:
        raise click.ClickException(str(error)) from error
