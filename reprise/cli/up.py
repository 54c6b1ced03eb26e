"""`reprise up`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge.memory.watch import MemorySettings
from console.param_types import Amount
from console.settings import setting
from console.terminal import say_ready, warn_without_native
from reprise.bounds import (
    HISTORY_BYTES,
    LOG_RETENTION_BYTES,
    LOG_RETENTION_S,
    OPTION_GIB_MAX,
    OPTION_HOURS_MAX,
)
from reprise.cli.curve_options import curve_options
from reprise.cli.http_options import answering_options
from reprise.cli.memory_options import memory_options
from reprise.cli.process import begin_service
from reprise.cli.scrape_options import scrape_load_option
from reprise.cli.service_command import ServiceCommand
from reprise.rooms import LAB, lmcache_options, need
from reprise.settings import Settings, config_path_from
from schemas import limits

if TYPE_CHECKING:
    from reprise.rooms import LmcacheSettings


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
@lmcache_options
@memory_options
@scrape_load_option
@curve_options
@answering_options(in_environment=False)
def up(
    demo: bool,
    config: Path | None,
    data: Path,
    port: int | None,
    log_retention_gib: float,
    log_retention_hours: float,
    history_gib: float,
    audit: float,
    memory: MemorySettings | None,
    scrape_load_s: float,
    lmcache: "LmcacheSettings | None",
    log_level: str,
    answering: dict[str, Any],
) -> None:
    """Run the service in one process: bridge, log, prefix tables and HTTP API.

    Everything it knows is in --data: after a crash or a restart it answers as before.

    \b
    REPRISE_DEMO_BASE_PORT first of the 80 ports of --demo    [default: 15557]
    """  # noqa: D301
    # Imported here: the web framework takes half a second that `--help` does not need.
    from reprise import conductor_config
    from reprise.roles.up import run_up

    if demo:
        need(LAB, "reprise up --demo")
    configuration = conductor_config.load(
        config or config_path_from(os.environ), required=config is not None
    )
    settings = Settings(
        **answering,
        port=configuration.port if port is None else port,
        data=data,
        log_level=log_level,
        log_retention_bytes=int(log_retention_gib * limits.GIB),
        log_retention_s=log_retention_hours * 3600,
        history_bytes=int(history_gib * limits.GIB),
        audit_rate=audit,
        lmcache=lmcache,
        memory=memory,
        scrape_load_s=scrape_load_s,
    )
    begin_service(settings.log_level)
    warn_without_native(settings.kernel)
    if demo:
        from reprise.demo import run_beside

        run_beside(settings, configuration.registrations)
    else:
        run_up(settings, configuration.registrations, when_serving=say_ready)
