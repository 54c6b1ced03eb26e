"""`reprise serve`."""

from pathlib import Path

import click

from console.settings import role_settings
from console.terminal import say_ready, warn_without_native
from reprise.cli.configuration import config_option, configured
from reprise.cli.process import begin_service
from reprise.cli.service_command import ServiceCommand
from reprise.roles.role_settings import ServeSettings
from storage.slots import take_place


@click.command(cls=ServiceCommand)
@config_option(
    "Mooncake Conductor's configuration file: its publishers are put into the registry where they"
    " are missing."
)
@role_settings(ServeSettings)
def serve(settings: ServeSettings, config: Path | None) -> None:
    """Answer queries from the tables in Kafka: one replica of any number.

    It needs nothing but the brokers, and keeps answering while they or the workers are away;
    /health, /metrics and the headers of each answer say how old the table is.

    """
    from reprise.roles.serve import serve_replica

    settings.engines.use()
    settings, registrations = configured(settings, config)
    settings = settings.at(take_place(settings.data, settings.slots))
    begin_service(settings.log_level)
    warn_without_native(settings.kernel)
    serve_replica(settings, registrations, when_serving=say_ready)
