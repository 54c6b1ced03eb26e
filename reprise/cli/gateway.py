"""`reprise gateway`."""

from typing import Final

import click

from console.settings import made_settings
from reprise import rooms
from reprise.cli.service_command import role_command
from reprise.cli.up import start
from reprise.settings import Settings
from schemas.setting import changed

DEFAULT_LISTEN: Final = ":8080"


@click.command(
    context_settings={"ignore_unknown_options": True},
    options_metavar="[--listen [HOST:]PORT] [--engine URL]...",
)
@click.option(
    "--listen",
    metavar="[HOST:]PORT",
    help="Where to answer; a port alone is on 127.0.0.1."
    f"  [default: gateway.listen of reprise.toml, or {DEFAULT_LISTEN}]",
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def gateway(context: click.Context, listen: str | None, options: tuple[str, ...]) -> None:
    """Answer OpenAI's API in front of engines: `reprise up` with --gateway.

    Each --engine is asked what it is. All other options are those of `reprise up`. In front of
    engines that others follow already: `reprise serve --kafka HOST:PORT --gateway [HOST:]PORT`.

    \b
    reprise gateway --engine http://10.0.0.7:8000 --engine http://10.0.0.8:8000
    """  # noqa: D301
    room = rooms.gateway()
    assert room is not None, "`main` has looked"
    command = role_command("up")
    with command.make_context("gateway", list(options), parent=context.parent) as found:
        if not (found.params["gateway_engines"] or found.params["demo"]):
            click.echo(
                "Warning: no --engine is given: requests are answered 503 until engines are"
                " registered (POST /register, reprise discover)",
                err=True,
            )
        if listen:
            found.params["gateway_listen"] = None
        settings = made_settings(Settings, found)
        if not settings.gateway.listen:
            own = room.listening(settings.gateway, listen or DEFAULT_LISTEN, "--listen")
            settings = changed(settings, gateway=own)
        start(settings, demo=found.params["demo"], config=found.params["config"])
