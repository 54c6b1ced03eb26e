"""`reprise serve`."""

import os
from pathlib import Path
from typing import Any

import click

from brokers.broker_settings import KafkaSettings
from console.param_types import Amount
from console.settings import setting
from console.terminal import say_ready, warn_without_native
from reprise.bounds import HISTORY_BYTES, LEAVE_S, OPTION_GIB_MAX
from reprise.cli.http_options import answering_options
from reprise.cli.kafka_options import DataPlace, data_option, kafka_options
from reprise.cli.process import begin_service
from reprise.cli.service_command import ServiceCommand
from reprise.settings import config_path_from
from schemas import limits


@click.command(cls=ServiceCommand)
@kafka_options()
@setting(
    "--history",
    key="history.on",
    envvar="REPRISE_HISTORY",
    is_flag=True,
    help="Keep the table's past in --data, for queries with `as_of` and for `/explain`. This"
    " replica then folds the log itself, too.",
)
@setting(
    "--history-gib",
    key="history.gib",
    is_seldom_set=True,
    envvar="REPRISE_HISTORY_GIB",
    type=Amount(0, OPTION_GIB_MAX),
    default=HISTORY_BYTES / limits.GIB,
    show_default=True,
    help="How much of the past to keep, in GiB.",
)
@data_option("Directory of --history; without that a replica keeps nothing on disk.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Mooncake Conductor's configuration file: its publishers are put into the registry where"
    " they are missing.  [env: CONDUCTOR_CONFIG_PATH; default: ~/.mooncake/conductor_config.json]",
)
@setting(
    "--audit",
    key="audit.rate",
    is_seldom_set=True,
    envvar="REPRISE_AUDIT",
    type=Amount(0, 1),
    default=0.0,
    show_default=True,
    help="The share of answers to keep, in PREFIX.answers, for `reprise audit verify`, from 0 to"
    " 1.",
)
@setting(
    "--leave-to",
    key="serve.leave_to",
    is_seldom_set=True,
    metavar="HOST",
    envvar="REPRISE_LEAVE_TO",
    help="A name that stands for all replicas, on the same port: after SIGTERM this one goes on"
    f" answering until another is ready, {LEAVE_S:.0f} s at most.  [default: it ends at"
    " once]",
)
@setting(
    "--leave-for",
    key="serve.leave_for",
    is_seldom_set=True,
    metavar="HOST",
    envvar="REPRISE_LEAVE_FOR",
    help="A name that stands for who asks the replicas: serve.leave_to waits no longer than it"
    " stands for anything.  [default: it is not looked up]",
)
@answering_options(in_environment=True)
def serve(
    kafka: KafkaSettings,
    history: bool,
    history_gib: float,
    data: DataPlace,
    config: Path | None,
    port: int | None,
    audit: float,
    leave_to: str | None,
    leave_for: str | None,
    log_level: str,
    answering: dict[str, Any],
) -> None:
    """Answer queries from the tables in Kafka: one replica of any number.

    It needs nothing but the brokers, and keeps answering while they or the workers are away;
    /health, /metrics and the headers of each answer say how old the table is.

    """
    from reprise import conductor_config
    from reprise.roles.leaving import LeaveSettings
    from reprise.roles.serve import ServeSettings, serve_replica

    configuration = conductor_config.load(
        config or config_path_from(os.environ), required=config is not None
    )
    if not data.is_first:
        answering["act_s"] = 0.0
    settings = ServeSettings(
        **answering,
        kafka=kafka,
        port=configuration.port if port is None else port,
        history=data.path if history and history_gib else None,
        history_bytes=int(history_gib * limits.GIB),
        audit_rate=audit,
        leave=LeaveSettings(to=leave_to, asked_by=leave_for or "", shared=data.shared)
        if leave_to
        else None,
    )
    begin_service(log_level)
    warn_without_native(settings.kernel)
    serve_replica(settings, configuration.registrations, when_serving=say_ready)
