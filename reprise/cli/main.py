"""The command line: one module a command. Flags win over the environment, that over files.

A command's module is imported when the command is asked for: what one of them needs is no other's
time.
"""

from typing import Final

import click

from console.interruption import Commands
from reprise import __version__
from reprise.rooms import GATEWAY, LAB, MissingRoomError, need

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

_OWN: Final = (
    *("up", "gateway", "verify", "audit", "tail", "get", "gaps", "repair", "backup", "restore"),
    *("keys", "capture", "replay", "republish", "load", "trace", "simulate", "miss-ratio"),
    *("export", "bridge", "streams", "serve", "config", "discover", "relay", "curve-key"),
    "publishers",
)

COMMANDS: Final = {
    **{name: f"{__package__}.{name.replace('-', '_')}" for name in _OWN},
    "doctor": "doctor.command",
}
"""The module of each, by its name as it is typed."""

_REPLACED: Final = {
    "top": "reprise get /ui/instances --every 2",
    "memory": "reprise get /memory",
    "promises": "reprise get /promises",
    "prefixes": "reprise get /prefixes",
    "advice": "reprise get /advice",
    "explain": "reprise get /explain --body FILE",
}
"""Commands that showed one document, and what shows it now."""

_ROOMS: Final = {
    **dict.fromkeys(("trace", "simulate", "miss-ratio", "export"), LAB),
    "gateway": GATEWAY,
}
"""The room that a command needs, of those that can be left out."""


def _check_room(name: str) -> None:
    if name in _ROOMS:
        try:
            need(_ROOMS[name], f"reprise {name}")
        except MissingRoomError as error:
            raise click.ClickException(str(error)) from error


@click.group(
    cls=Commands,
    modules=COMMANDS,
    before=_check_room,
    replaced=_REPLACED,
    context_settings=_CONTEXT,
)
@click.version_option(__version__, prog_name="reprise")
def main() -> None:
    """Tells an LLM router which engine holds the longest prefix of a prompt.

    \b
    reprise up --demo                  try it: four simulated engines and a router
    reprise up --data DIR              run all of it in one process; POST /register adds engines
    reprise gateway --engine URL       the same, and answer OpenAI's API in front of engines
    reprise bridge --kafka HOST:PORT   append the engines' events to Kafka
    reprise streams --kafka HOST:PORT  fold the events in Kafka into tables
    reprise serve --kafka HOST:PORT    answer queries from the tables in Kafka
    reprise relay --engine ADDRESS     encrypt what an engine says on its way to the bridges
    reprise curve-key NAME             make a key pair, of a relay or a bridge
    reprise config show ROLE           list every setting, its value, and where that comes from
    reprise discover --url URL         register the engines of a Kubernetes namespace
    reprise verify --data DIR          prove the table by folding its whole log
    reprise audit verify --data DIR    prove the answers that were kept, and all decisions
    reprise tail --data DIR            print the log as JSON lines
    reprise doctor                     say what is wrong with a service and its engines
    reprise get PATH                   print what a service answers of PATH as a table, or follow it
    reprise gaps                       say what became of every batch: seen, repaired or lost
    reprise keys add ID --right RIGHT  make a key, which requests must have beyond loopback
    reprise repair --data DIR          say what is damaged in DIR, and repair it
    reprise backup --out BACKUP        copy a data directory while a service uses it
    reprise restore BACKUP --data DIR  make a data directory of a backup, proven by its digests
    reprise capture --out FILE         take a range of the log, or what engines send, into a file
    reprise publishers check FILE      say what an unknown engine sends, and how to register it
    reprise replay FILE                fold a capture: digest, compare, serve, or publish it
    reprise republish --data DIR       publish the events of all engines at one address, as vLLM's
    reprise load FILE --data DIR       append a capture to a log, or to Kafka
    reprise trace import DIR --out F   make a trace of coding agents' conversations
    reprise simulate --report F TRACE  run a trace of requests under other policies
    reprise miss-ratio FILE            hit rate against cache size, of a trace or a capture
    reprise export FILE                a capture as Parquet, or as a trace of requests
    """  # noqa: D301 -- click's \\b keeps the lines apart
