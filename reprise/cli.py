"""The command line: `reprise up`, `reprise verify`, `reprise tail`. Flags win over the
environment, that over files.
"""

import logging
import os
import sys
from pathlib import Path

import click
from click.core import ParameterSource

from reprise import __version__
from reprise.kafka_options import data_option, kafka_options
from reprise.settings import (
    DEFAULT_HOST,
    Settings,
    config_path_from,
    log_level_from,
    seed_from,
)
from schemas import limits
from schemas.errors import RepriseError
from schemas.kafka import KafkaSettings
from streams.kernel import native_available

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="reprise")
def main() -> None:
    """Tells an LLM router which engine holds the longest prefix of a prompt.

    \b
    reprise up --demo                try it: four simulated engines and a router
    reprise up --data DIR            run it; register engines by POST /register
    reprise bridge --kafka HOST:PORT the engines' events, into Kafka
    reprise serve --kafka HOST:PORT  a replica that answers from the tables in Kafka
    reprise verify --data DIR        prove the table: fold its log afresh
    reprise tail --data DIR          print the log as JSON lines
    """  # noqa: D301 -- click's \\b keeps the lines apart


@main.command()
@click.option("--demo", is_flag=True, help="Also start four simulated engines and a router.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Mooncake Conductor's configuration file.  [env: CONDUCTOR_CONFIG_PATH; default:"
    " ~/.mooncake/conductor_config.json]",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data"),
    show_default=True,
    help="Directory of the log and the table; made where it is missing.",
)
@click.option("--host", default=DEFAULT_HOST, show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Port to listen on, 0 for any.  [default: the configuration file's, or 13333]",
)
@click.option(
    "--log-retention-gib",
    type=click.FloatRange(min=limits.LOG_SEGMENT_BYTES / limits.GIB),
    default=limits.LOG_RETENTION_BYTES / limits.GIB,
    show_default=True,
    help="How much of the log to keep.",
)
@click.option(
    "--log-retention-hours",
    type=click.FloatRange(min=0),
    default=limits.LOG_RETENTION_S / 3600,
    show_default=True,
    help="How long to keep it.",
)
@click.option(
    "--kernel",
    type=click.Choice(["rust", "reference"]),
    help="The index to use.  [default: rust where it is built]",
)
def up(
    demo: bool,
    config: Path | None,
    data: Path,
    host: str,
    port: int | None,
    log_retention_gib: float,
    log_retention_hours: float,
    kernel: str | None,
) -> None:
    """Run the service in one process: bridge, log, prefix tables and HTTP API.

    Everything it knows is in --data: after a crash or a restart it answers as before.

    \b
    CONDUCTOR_LOG_LEVEL    DEBUG, INFO, WARNING or ERROR      [default: INFO]
    CONDUCTOR_SEED         seed of the prefix hash            [default: 1337]
    REPRISE_DEMO_BASE_PORT first of the 80 ports of --demo    [default: 15557]
    """  # noqa: D301
    # Imported here: the web framework takes half a second that `--help` does not need.
    from reprise import conductor_config
    from reprise.demo import run_beside
    from reprise.server import serve

    try:
        configuration = conductor_config.load(
            config or config_path_from(os.environ), required=config is not None
        )
        settings = Settings(
            host=host,
            port=configuration.port if port is None else port,
            data=data,
            seed=seed_from(os.environ),
            log_level=log_level_from(os.environ),
            kernel=kernel,
            log_retention_bytes=int(log_retention_gib * limits.GIB),
            log_retention_s=log_retention_hours * 3600,
        )
        _start_logging(settings.log_level)
        _warn_without_native(kernel)
        if demo:
            run_beside(settings, configuration.registrations)
        else:
            serve(settings, configuration.registrations, when_serving=_say_ready)
    except RepriseError as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("data"),
    show_default=True,
    help="The data directory; the service that uses it may be running.",
)
def verify(data: Path) -> None:
    """Fold the whole log afresh and print the digest of each context.

    Compare with GET /digest of the running service, at the same position; equal digests prove that
    the table is what the log says.
    """
    from reprise.verification import verify_log

    try:
        for line in verify_log(data, seed_from(os.environ)):
            click.echo(line)
    except RepriseError as error:
        raise click.ClickException(str(error)) from error


@main.command()
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
    from reprise.record_lines import StreamFilter
    from reprise.tail import TailOptions, quiet_output, tail_embedded, tail_kafka

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


@main.command()
@kafka_options()
@data_option("Directory of the spool, which no other bridge uses; made where it is missing.")
@click.option(
    "--metrics-host",
    envvar="REPRISE_METRICS_HOST",
    show_envvar=True,
    default="127.0.0.1",
    show_default=True,
    help="Address of /metrics and /health.",
)
@click.option(
    "--metrics-port",
    envvar="REPRISE_METRICS_PORT",
    show_envvar=True,
    type=click.IntRange(0, 65_535),
    help="Port of /metrics and /health, 0 for any.  [default: none]",
)
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
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="How much may wait on disk while Kafka is away.",
)
@click.option(
    "--session-timeout-s",
    envvar="REPRISE_SESSION_TIMEOUT_S",
    show_envvar=True,
    type=click.FloatRange(1, 300),
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
    from reprise.bridge_role import BridgeOptions, run_bridge

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
        _start_logging(log_level_from(os.environ))
        run_bridge(options)
    except RepriseError as error:
        raise click.ClickException(str(error)) from error


@main.command()
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
    from reprise.serve_role import ServeSettings, serve_replica

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
        _start_logging(log_level_from(os.environ))
        _warn_without_native(kernel)
        serve_replica(settings, configuration.registrations, when_serving=_say_ready)
    except RepriseError as error:
        raise click.ClickException(str(error)) from error


@main.command()
@kafka_options()
@data_option("Directory of this worker's copies of its tables; one for each worker.")
@click.option(
    "--metrics-host",
    envvar="REPRISE_METRICS_HOST",
    show_envvar=True,
    default="127.0.0.1",
    show_default=True,
    help="Address of /metrics and /health.",
)
@click.option(
    "--metrics-port",
    envvar="REPRISE_METRICS_PORT",
    show_envvar=True,
    type=click.IntRange(0, 65_535),
    help="Port of /metrics and /health, 0 for any.  [default: none]",
)
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
    type=click.FloatRange(1, 300),
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
    from reprise.streams_role import StreamsSettings, work

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
        _start_logging(log_level_from(os.environ))
        _warn_without_native(kernel)
        work(settings)
    except RepriseError as error:
        raise click.ClickException(str(error)) from error


def _say_ready(base_url: str) -> None:
    click.echo(f"Reprise answers on {base_url} (OpenAPI: {base_url}/docs). Ctrl-C stops it.")


def _start_logging(level: str) -> None:
    logging.basicConfig(
        level=level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
    )
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLevelName(level)))


def _warn_without_native(kernel: str | None) -> None:
    if kernel is None and not native_available():
        logging.getLogger(__name__).warning(
            "The Rust kernel is not built: running the reference kernel, which is many times"
            " slower. Install Rust and run `make install`"
        )
