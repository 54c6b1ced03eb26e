"""`reprise streams`."""

import click

from console.settings import role_settings
from console.terminal import warn_without_native
from reprise.cli.process import begin_service
from reprise.cli.service_command import ServiceCommand
from reprise.roles.role_settings import StreamsRoleSettings
from storage.slots import take_place


@click.command(cls=ServiceCommand)
@role_settings(StreamsRoleSettings)
def streams(settings: StreamsRoleSettings) -> None:
    """Fold the events in Kafka into tables: one worker of any number, sharing the partitions.

    It needs nothing but the brokers. A lost --data is reread from the table topic, and a lost table
    topic is rebuilt from --data or from the events.

    """
    from reprise.roles.streams import work

    settings = settings.at(take_place(settings.worker.data, settings.slots))
    begin_service(settings.log_level)
    warn_without_native(settings.worker.kernel)
    work(settings)
