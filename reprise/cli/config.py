"""`reprise config`: what settings are in force, and where each comes from."""

from pathlib import Path

import click

from console.interruption import Commands
from console.terminal import printable, table_lines
from reprise.cli.service_command import ROLES, role_command


@click.group(cls=Commands)
def config() -> None:
    """Say what settings are in force."""


@config.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("role", type=click.Choice(ROLES))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def show(context: click.Context, role: str, arguments: tuple[str, ...]) -> None:
    """List every key of reprise.toml that a role has, its value, and where that comes from.

    What stands behind ROLE is what the role would be started with.

    \b
    reprise config show up
    reprise config show serve --settings /etc/reprise.toml --port 13334
    """  # noqa: D301
    command = role_command(role)
    for one in command.params:
        one.required = False  # nothing is started
    with command.make_context(role, list(arguments), parent=context) as found:
        rows = [
            (key, printable(_shown(setting.value)), printable(setting.source))
            for key, setting in sorted(command.found(found).items())
        ]
    for line in table_lines(("key", "value", "from"), rows, ()):
        click.echo(line)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value) if isinstance(value, str | int | float | Path) else ""
