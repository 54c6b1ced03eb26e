"""`reprise up`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridge.memory.watch import MemorySettings
from console.addresses import DEFAULT_HOST
from console.param_types import Amount
from console.settings import setting
from console.terminal import say_ready, warn_without_native
from query_api.access.access_settings import AccessSettings
from query_api.grpc.grpc_settings import GrpcSettings
from query_api.http.wire import Wire
from reprise.bounds import (
    HISTORY_BYTES,
    LOG_RETENTION_BYTES,
    LOG_RETENTION_S,
    OPTION_GIB_MAX,
    OPTION_HOURS_MAX,
)
from reprise.cli.access_options import access_options
from reprise.cli.curve_options import curve_options
from reprise.cli.engine_options import engine_options
from reprise.cli.grpc_options import grpc_options
from reprise.cli.http_options import query_options
from reprise.cli.memory_options import memory_options
from reprise.cli.process import begin_service
from reprise.cli.scrape_options import scrape_load_option
from reprise.cli.service_command import ServiceCommand, log_level_option, seed_option
from reprise.cli.tls_options import tls_options
from reprise.http.tls_settings import TlsSettings
from reprise.rooms import LAB, acting_options, gateway_options, lmcache_options, need
from reprise.settings import Settings, config_path_from
from routing.decisions.router import RouterSettings
from routing.options import routing_options
from schemas import limits
from schemas.errors import RepriseError
from tokens.settings import tokens_option

if TYPE_CHECKING:
    from reprise.rooms import GatewaySettings, LmcacheSettings


@click.command(cls=ServiceCommand)
@click.option("--demo", is_flag=True, help="Also start four simulated engines and a router.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Mooncake Conductor's configuration file.  [env: CONDUCTOR_CONFIG_PATH; default:"
    " ~/.mooncake/conductor_config.json]",
)
@setting(
    "--data",
    key="data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("data"),
    show_default=True,
    help="Directory of the log and the table; made where it is missing.",
)
@setting(
    "--host",
    key="host",
    default=DEFAULT_HOST,
    show_default=True,
    help="Address to listen on.",
)
@setting(
    "--port",
    key="port",
    type=click.IntRange(0, 65_535),
    help="Port to listen on, 0 for any.  [default: the configuration file's, or 13333]",
)
@setting(
    "--log-retention-gib",
    key="log.retention_gib",
    is_seldom_set=True,
    type=Amount(limits.LOG_SEGMENT_BYTES / limits.GIB, OPTION_GIB_MAX),
    default=LOG_RETENTION_BYTES / limits.GIB,
    show_default=True,
    help="How much of the log to keep, in GiB.",
)
@setting(
    "--log-retention-hours",
    key="log.retention_hours",
    is_seldom_set=True,
    type=Amount(0, OPTION_HOURS_MAX),
    default=LOG_RETENTION_S / 3600,
    show_default=True,
    help="How long to keep the log, in hours.",
)
@setting(
    "--history-gib",
    key="history.gib",
    is_seldom_set=True,
    type=Amount(0, OPTION_GIB_MAX),
    default=HISTORY_BYTES / limits.GIB,
    show_default=True,
    help="How much of the table's past to keep for queries with `as_of`, in GiB; 0 for none.",
)
@setting(
    "--audit",
    key="audit.rate",
    is_seldom_set=True,
    type=Amount(0, 1),
    default=0.0,
    show_default=True,
    help="The share of answers to keep for `reprise audit verify`, from 0 to 1.",
)
@gateway_options
@lmcache_options
@memory_options
@scrape_load_option
@routing_options
@acting_options
@grpc_options
@tokens_option
@query_options()
@access_options
@tls_options
@curve_options
@engine_options
@seed_option
@log_level_option
def up(
    demo: bool,
    config: Path | None,
    data: Path,
    host: str,
    port: int | None,
    log_retention_gib: float,
    log_retention_hours: float,
    history_gib: float,
    audit: float,
    memory: MemorySettings | None,
    scrape_load_s: float,
    default_wire: Wire,
    kernel: str | None,
    only_exact: bool,
    routing: RouterSettings,
    act_s: float,
    grpc: GrpcSettings | None,
    select_service: bool,
    token_files: dict[str, Path],
    access: AccessSettings,
    tls: TlsSettings | None,
    lmcache: "LmcacheSettings | None",
    gateway: "GatewaySettings | None",
    seed: int,
    log_level: str,
) -> None:
    """Run the service in one process: bridge, log, prefix tables and HTTP API.

    Everything it knows is in --data: after a crash or a restart it answers as before.

    \b
    REPRISE_DEMO_BASE_PORT first of the 80 ports of --demo    [default: 15557]
    """  # noqa: D301
    # Imported here: the web framework takes half a second that `--help` does not need.
    from reprise import conductor_config
    from reprise.roles.up import run_up

    try:
        if demo:
            need(LAB, "reprise up --demo")
        configuration = conductor_config.load(
            config or config_path_from(os.environ), required=config is not None
        )
        settings = Settings(
            host=host,
            port=configuration.port if port is None else port,
            data=data,
            seed=seed,
            log_level=log_level,
            kernel=kernel,
            default_wire=default_wire,
            log_retention_bytes=int(log_retention_gib * limits.GIB),
            log_retention_s=log_retention_hours * 3600,
            history_bytes=int(history_gib * limits.GIB),
            audit_rate=audit,
            only_exact=only_exact,
            routing=routing,
            act_s=act_s,
            select_service=select_service,
            lmcache=lmcache,
            gateway=gateway,
            memory=memory,
            scrape_load_s=scrape_load_s,
            grpc=grpc,
            access=access,
            tls=tls,
            token_files=token_files,
        )
        begin_service(settings.log_level)
        warn_without_native(kernel)
        if demo:
            from reprise.demo import run_beside

            run_beside(settings, configuration.registrations)
        else:
            run_up(settings, configuration.registrations, when_serving=say_ready)
    except RepriseError as error:
        raise click.ClickException(str(error)) from error
