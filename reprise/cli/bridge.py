"""`reprise bridge`."""

import click

from console.settings import role_settings
from reprise.cli.process import begin_service
from reprise.cli.service_command import ServiceCommand
from reprise.roles.role_settings import BridgeRoleSettings
from storage.slots import take_place


@click.command(cls=ServiceCommand)
@role_settings(BridgeRoleSettings)
def bridge(settings: BridgeRoleSettings) -> None:
    """Receive the engines' events and append them to Kafka: one bridge of any number.

    The bridges share the registered publishers. One needs nothing but the brokers, and spools to
    --data while they are away.

    """
    from reprise.roles.bridge import run_bridge

    settings.engines.use()
    settings.curve.use()
    settings = settings.at(take_place(settings.bridge.data, settings.slots))
    begin_service(settings.log_level)
    run_bridge(settings)
