"""`reprise bridge`."""

from typing import TYPE_CHECKING

import click

from bridge.memory.watch import MemorySettings
from brokers.broker_settings import KafkaSettings
from console.param_types import Amount
from console.settings import setting
from reprise.bounds import GATHER_MS_MAX, OPTION_GIB_MAX, SESSION_S_MAX
from reprise.cli.curve_options import curve_options
from reprise.cli.engine_options import engine_options
from reprise.cli.kafka_options import DataPlace, data_option, kafka_options, metrics_options
from reprise.cli.memory_options import memory_options
from reprise.cli.process import begin_service
from reprise.cli.scrape_options import scrape_load_option
from reprise.cli.service_command import ServiceCommand, log_level_option
from reprise.http.tls_settings import TlsSettings
from reprise.rooms import lmcache_options
from schemas import limits

if TYPE_CHECKING:
    from reprise.rooms import LmcacheSettings


@click.command(cls=ServiceCommand)
@kafka_options()
@data_option("Directory of the spool, which no other bridge uses; made where it is missing.")
@metrics_options
@setting(
    "--window-ms",
    key="bridge.window_ms",
    is_seldom_set=True,
    envvar="REPRISE_WINDOW_MS",
    type=click.IntRange(0, GATHER_MS_MAX),
    default=limits.RECORD_WINDOW_MS,
    show_default=True,
    help="How long a publisher's batches are collected into one record; 0 for no time.",
)
@setting(
    "--spool-gib",
    key="bridge.spool_gib",
    is_seldom_set=True,
    envvar="REPRISE_SPOOL_GIB",
    type=Amount(0, OPTION_GIB_MAX),
    default=limits.SPOOL_BYTES_MAX / limits.GIB,
    show_default=True,
    help="How much the spool on disk may hold while Kafka is away.",
)
@setting(
    "--session-timeout-s",
    key="kafka.session_timeout_s",
    is_seldom_set=True,
    envvar="REPRISE_SESSION_TIMEOUT_S",
    type=Amount(limits.SESSION_MIN_S, SESSION_S_MAX),
    default=limits.BRIDGE_SESSION_S,
    show_default=True,
    help="The other bridges take over one that sends no heartbeat for this long.",
)
@lmcache_options
@memory_options
@scrape_load_option
@curve_options
@engine_options
@log_level_option
def bridge(
    kafka: KafkaSettings,
    data: DataPlace,
    metrics_host: str,
    metrics_port: int | None,
    metrics_tls: TlsSettings | None,
    window_ms: int,
    spool_gib: float,
    session_timeout_s: float,
    lmcache: "LmcacheSettings | None",
    memory: MemorySettings | None,
    scrape_load_s: float,
    log_level: str,
) -> None:
    """Receive the engines' events and append them to Kafka: one bridge of any number.

    The bridges share the registered publishers. One needs nothing but the brokers, and spools to
    --data while they are away.

    """
    from reprise.roles.bridge import BridgeOptions, run_bridge

    options = BridgeOptions(
        kafka=kafka,
        data=data.path,
        window_ms=window_ms,
        spool_bytes=int(spool_gib * limits.GIB),
        session_s=session_timeout_s,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        metrics_tls=metrics_tls,
        lmcache=lmcache if data.is_first or lmcache is None else lmcache.without_topic(),
        memory=memory,
        scrape_load_s=scrape_load_s,
    )
    begin_service(log_level)
    run_bridge(options)
