"""`reprise up`."""

from pathlib import Path

import click

from console.settings import role_settings
from console.terminal import say_ready, warn_without_native
from reprise.cli.configuration import config_option, configured
from reprise.cli.process import begin_service
from reprise.cli.service_command import ServiceCommand
from reprise.rooms import LAB, need
from reprise.settings import Settings


@click.command(cls=ServiceCommand)
@click.option("--demo", is_flag=True, help="Also start four simulated engines and a router.")
@config_option("Mooncake Conductor's configuration file.")
@role_settings(Settings)
def up(settings: Settings, demo: bool, config: Path | None) -> None:
    """Run the service in one process: bridge, log, prefix tables and HTTP API.

    Everything it knows is in --data: after a crash or a restart it answers as before.

    \b
    REPRISE_DEMO_BASE_PORT first of the 80 ports of --demo    [default: 15557]
    """  # noqa: D301
    start(settings, demo=demo, config=config)


def start(settings: Settings, *, demo: bool, config: Path | None) -> None:
    """Runs the service until it is stopped, with the demonstration beside it or without."""
    # Imported here: the web framework takes half a second that `--help` does not need.
    from reprise.roles.up import run_up

    if demo:
        need(LAB, "reprise up --demo")
    settings.engines.use()
    settings.curve.use()
    settings, registrations = configured(settings, config)
    begin_service(settings.log_level)
    warn_without_native(settings.kernel)
    if demo:
        from reprise.demo import run_beside

        run_beside(settings, registrations)
    else:
        run_up(settings, registrations, when_serving=say_ready)
