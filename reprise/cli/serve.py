"""`reprise serve`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from brokers.broker_settings import KafkaSettings
from console.addresses import DEFAULT_HOST
from console.param_types import Amount
from console.settings import setting
from console.terminal import say_ready, warn_without_native
from query_api.access.access_settings import AccessSettings
from query_api.grpc.grpc_settings import GrpcSettings
from query_api.http.wire import Wire
from reprise.bounds import HISTORY_BYTES, LEAVE_S, OPTION_GIB_MAX
from reprise.cli.access_options import access_options
from reprise.cli.engine_options import engine_options
from reprise.cli.grpc_options import grpc_options
from reprise.cli.http_options import query_options
from reprise.cli.kafka_options import DataPlace, data_option, kafka_options
from reprise.cli.process import begin_service
from reprise.cli.service_command import ServiceCommand, log_level_option, seed_option
from reprise.cli.tls_options import tls_options
from reprise.http.tls_settings import TlsSettings
from reprise.rooms import acting_options, gateway_options
from reprise.settings import config_path_from
from routing.decisions.router import RouterSettings
from routing.options import routing_options
from schemas import limits
from schemas.errors import RepriseError
from tokens.settings import tokens_option

if TYPE_CHECKING:
    from reprise.rooms import GatewaySettings


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
    "--host",
    key="host",
    envvar="REPRISE_HOST",
    default=DEFAULT_HOST,
    show_default=True,
    help="Address to listen on.",
)
@setting(
    "--port",
    key="port",
    envvar="REPRISE_PORT",
    type=click.IntRange(0, 65_535),
    help="Port to listen on, 0 for any.  [default: the configuration file's, or 13333]",
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
@routing_options
@acting_options
@gateway_options
@grpc_options
@tokens_option
@query_options()
@access_options
@tls_options
@engine_options
@seed_option
@log_level_option
def serve(
    kafka: KafkaSettings,
    history: bool,
    history_gib: float,
    data: DataPlace,
    config: Path | None,
    host: str,
    port: int | None,
    audit: float,
    leave_to: str | None,
    leave_for: str | None,
    default_wire: Wire,
    kernel: str | None,
    only_exact: bool,
    routing: RouterSettings,
    act_s: float,
    gateway: "GatewaySettings | None",
    grpc: GrpcSettings | None,
    select_service: bool,
    token_files: dict[str, Path],
    access: AccessSettings,
    tls: TlsSettings | None,
    seed: int,
    log_level: str,
) -> None:
    """Answer queries from the tables in Kafka: one replica of any number.

    It needs nothing but the brokers, and keeps answering while they or the workers are away;
    /health, /metrics and the headers of each answer say how old the table is.

    """
    from reprise import conductor_config
    from reprise.roles.leaving import LeaveSettings
    from reprise.roles.serve import ServeSettings, serve_replica

    try:
        configuration = conductor_config.load(
            config or config_path_from(os.environ), required=config is not None
        )
        settings = ServeSettings(
            kafka=kafka,
            host=host,
            port=configuration.port if port is None else port,
            seed=seed,
            kernel=kernel,
            only_exact=only_exact,
            routing=routing,
            act_s=act_s if data.is_first else 0.0,
            select_service=select_service,
            default_wire=default_wire,
            history=data.path if history and history_gib else None,
            history_bytes=int(history_gib * limits.GIB),
            audit_rate=audit,
            grpc=grpc,
            access=access,
            tls=tls,
            leave=LeaveSettings(to=leave_to, asked_by=leave_for or "", shared=data.shared)
            if leave_to
            else None,
            gateway=gateway,
            token_files=token_files,
        )
        begin_service(log_level)
        warn_without_native(kernel)
        serve_replica(settings, configuration.registrations, when_serving=say_ready)
    except RepriseError as error:
        raise click.ClickException(str(error)) from error
