"""`reprise relay`: the relay (`bridge.relay.relay`) as a process, with its monitor."""

import contextlib
import logging
import signal
import time
from collections.abc import Mapping
from typing import Final

from bridge.relay.relay import Relay
from bridge.relay.relay_settings import RelaySettings
from bridge.sockets.reader import open_reader
from reprise.http.monitor_settings import MonitorSettings
from reprise.http.open_files import raise_open_files_limit
from reprise.metrics.roles import http_collector, relay_metrics
from reprise.monitor import (
    listening_of,
    monitor_app,
    monitor_connections,
    monitored_beside,
)
from schemas.conditions import Conditions
from streams.kernel import socket_reader

logger = logging.getLogger(__name__)

ROLE: Final = "relay"


def _fields(relay: Relay) -> Mapping[str, object]:
    """What `/health` adds: the public key, and each engine."""
    return {
        "public_key": relay.public_key,
        "engines": [
            {
                "endpoint": one.engine.endpoint,
                "listen": one.engine.listen,
                "connected": one.has_link,
                "messages": one.messages,
            }
            for one in relay.publications
        ],
    }


def run_relay(
    settings: RelaySettings,
    monitor: MonitorSettings,
) -> None:
    """Relays until SIGINT or SIGTERM.

    Args:
        monitor: where /health, /ready and /metrics answer.

    Raises:
        ConfigurationError: a file of keys cannot be used, or an address cannot be bound.
    """
    raise_open_files_limit()
    relay = Relay(settings, Conditions(time.time, logger), open_reader(socket_reader))
    with contextlib.ExitStack() as beside:
        beside.callback(relay.close)
        listening = listening_of(monitor)
        if listening is not None:
            connections = monitor_connections()
            metrics = relay_metrics(relay)
            metrics.register(http_collector(connections))
            app = monitor_app(ROLE, relay.conditions, metrics, lambda: _fields(relay))
            beside.enter_context(monitored_beside(app, listening, connections))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: relay.stop())
        logger.info(
            "Register its engines with `curve_server_key` %s: %d bridges may connect",
            relay.public_key,
            len(relay.bridge_keys),
        )
        relay.run()
    logger.info("Stopped")
