"""What the commands that run a service have in common: the file of settings."""

from collections.abc import Iterable
from importlib import import_module
from typing import Final

from console.settings import RoleCommand, SettingOption

ROLES: Final = ("up", "bridge", "streams", "serve")


class ServiceCommand(RoleCommand):
    """The command of a role: the file of settings may have the keys of all of them."""

    def known_settings(self) -> Iterable[SettingOption]:
        """See `RoleCommand`."""
        return (one for role in ROLES for one in role_command(role).settings())


def role_command(role: str) -> ServiceCommand:
    """The command of one of ROLES."""
    command = getattr(import_module(f"reprise.cli.{role}"), role)
    assert isinstance(command, ServiceCommand)
    return command
