"""The command line. Flags win over the environment, that over files."""

import click

from reprise import __version__
from reprise.cli import distributed, embedded
from reprise.cli.interruption import Commands

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Commands, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="reprise")
def main() -> None:
    """Tells an LLM router which engine holds the longest prefix of a prompt.

    \b
    reprise up --demo                try it: four simulated engines and a router
    reprise up --data DIR            run it; register engines by POST /register
    reprise bridge --kafka HOST:PORT the engines' events, into Kafka
    reprise serve --kafka HOST:PORT  a replica that answers from the tables in Kafka
    reprise verify --data DIR        prove the table: fold its log afresh
    reprise tail --data DIR          print the log as JSON lines
    """  # noqa: D301 -- click's \\b keeps the lines apart


for command in (
    embedded.up,
    embedded.verify,
    distributed.tail,
    distributed.bridge,
    distributed.streams,
    distributed.serve,
):
    main.add_command(command)
