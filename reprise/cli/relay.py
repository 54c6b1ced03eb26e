"""`reprise relay`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from console.settings import part_settings
from reprise.cli.process import begin_service
from reprise.http.monitor_settings import MonitorSettings
from reprise.settings import log_level_from

if TYPE_CHECKING:
    from bridge.relay.relay_settings import RelayedEngine


@click.command()
@click.option(
    "--engine",
    "endpoints",
    metavar="ADDRESS",
    multiple=True,
    required=True,
    help="An engine's PUB socket, tcp://127.0.0.1:5557; of several, once for each.",
)
@click.option(
    "--listen",
    "listens",
    metavar="ADDRESS",
    multiple=True,
    required=True,
    help="Where bridges find the --engine in the same place: tcp://10.0.0.7:6557, or tcp://*:6557.",
)
@click.option(
    "--replay",
    "replay_endpoints",
    metavar="ADDRESS",
    multiple=True,
    help="The replay socket of the --engine in the same place.",
)
@click.option(
    "--listen-replay",
    "listen_replays",
    metavar="ADDRESS",
    multiple=True,
    help="Where bridges find the --replay in the same place.",
)
@click.option(
    "--curve-key",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    envvar="REPRISE_CURVE_KEY",
    show_envvar=True,
    help="The relay's key pair, as `reprise curve-key` makes one.",
)
@click.option(
    "--bridge-keys",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    envvar="REPRISE_BRIDGE_KEYS",
    show_envvar=True,
    help="A file of the public keys of bridges that may connect, one a line. It is read again when"
    " it changes.",
)
@part_settings(MonitorSettings, "monitor")
def relay(
    endpoints: tuple[str, ...],
    listens: tuple[str, ...],
    replay_endpoints: tuple[str, ...],
    listen_replays: tuple[str, ...],
    curve_key: Path,
    bridge_keys: Path,
    monitor: MonitorSettings,
) -> None:
    """Encrypt what an engine publishes and replays, on its way to the bridges.

    It runs on the engine's host, where the engine binds loopback alone. Register the engine with
    the relay's addresses and, as `curve_server_key`, its public key.

    \b
    reprise relay --engine tcp://127.0.0.1:5557 --listen tcp://10.0.0.7:6557 \\
      --replay tcp://127.0.0.1:5657 --listen-replay tcp://10.0.0.7:6657 \\
      --curve-key relay-1.key_secret --bridge-keys bridges.txt

    \b
    CONDUCTOR_LOG_LEVEL    DEBUG, INFO, WARNING or ERROR      [default: INFO]
    """  # noqa: D301
    from bridge.relay.relay_settings import RelaySettings
    from reprise.roles.relay import run_relay

    monitor.check_host()
    settings = RelaySettings(
        engines=_engines(endpoints, listens, replay_endpoints, listen_replays),
        key=curve_key,
        bridge_keys=bridge_keys,
    )
    begin_service(log_level_from(os.environ))
    run_relay(settings, monitor)


def _engines(
    endpoints: Sequence[str],
    listens: Sequence[str],
    replay_endpoints: Sequence[str],
    listen_replays: Sequence[str],
) -> "tuple[RelayedEngine, ...]":
    """Each with what was given in its place."""
    from bridge.relay.relay_settings import RelayedEngine

    if len(listens) != len(endpoints):
        raise click.UsageError(
            f"Expected --listen for each of {len(endpoints)} engines, got {len(listens)}"
        )
    for option, given in (("--replay", replay_endpoints), ("--listen-replay", listen_replays)):
        if len(given) not in (0, len(endpoints)):
            raise click.UsageError(
                f"Expected {option} for none or each of {len(endpoints)} engines, got {len(given)}"
            )
    nothing = [""] * len(endpoints)
    return tuple(
        RelayedEngine(
            endpoint=endpoint, listen=listen, replay_endpoint=replay, listen_replay=listen_replay
        )
        for endpoint, listen, replay, listen_replay in zip(
            endpoints, listens, replay_endpoints or nothing, listen_replays or nothing, strict=True
        )
    )
