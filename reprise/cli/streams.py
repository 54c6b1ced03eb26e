"""`reprise streams`."""

import click

from brokers.broker_settings import KafkaSettings
from console.param_types import Amount
from console.settings import setting
from console.terminal import warn_without_native
from reprise.bounds import GATHER_MS_MAX, SESSION_S_MAX
from reprise.cli.kafka_options import DataPlace, data_option, kafka_options, metrics_options
from reprise.cli.process import begin_service
from reprise.cli.service_command import ServiceCommand, log_level_option, seed_option
from reprise.http.tls_settings import TlsSettings
from schemas import limits


@click.command(cls=ServiceCommand)
@kafka_options()
@data_option("Directory of this worker's copies of its tables; one for each worker.")
@metrics_options
@setting(
    "--flush-ms",
    key="streams.flush_ms",
    is_seldom_set=True,
    envvar="REPRISE_FLUSH_MS",
    type=click.IntRange(1, GATHER_MS_MAX),
    default=int(limits.WORKER_FLUSH_S * 1000),
    show_default=True,
    help="How long records are gathered before they are folded and written.",
)
@setting(
    "--session-timeout-s",
    key="kafka.session_timeout_s",
    is_seldom_set=True,
    envvar="REPRISE_SESSION_TIMEOUT_S",
    type=Amount(limits.SESSION_MIN_S, SESSION_S_MAX),
    default=limits.WORKER_SESSION_S,
    show_default=True,
    help="The other workers take over one that sends no heartbeat for this long.",
)
@setting(
    "--kernel",
    key="kernel",
    is_seldom_set=True,
    type=click.Choice(["rust", "reference"]),
    help="The index to use.  [default: rust where it is built]",
)
@seed_option
@log_level_option
def streams(
    kafka: KafkaSettings,
    data: DataPlace,
    metrics_host: str,
    metrics_port: int | None,
    metrics_tls: TlsSettings | None,
    flush_ms: int,
    session_timeout_s: float,
    kernel: str | None,
    seed: int,
    log_level: str,
) -> None:
    """Fold the events in Kafka into tables: one worker of any number, sharing the partitions.

    It needs nothing but the brokers. A lost --data is reread from the table topic, and a lost table
    topic is rebuilt from --data or from the events.

    """
    from reprise.roles.streams import StreamsSettings, work

    settings = StreamsSettings(
        kafka=kafka,
        data=data.path,
        seed=seed,
        kernel=kernel,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        flush_s=flush_ms / 1000,
        session_timeout_s=session_timeout_s,
    )
    begin_service(log_level)
    warn_without_native(kernel)
    work(settings, metrics_tls)
