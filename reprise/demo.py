"""`reprise up --demo`: the service, and beside it simulated engines and a router that uses its
answers.
"""

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Final

import click

from lab.demo.demo import BASE_PORT, PORTS_PER_ENGINE, Demo, DemoOptions, lost_engines
from lab.engines.process import EngineStartError
from lab.traffic.index_client import ServiceError
from reprise.roles.up import run_up
from reprise.settings import Settings
from schemas.errors import ConfigurationError
from schemas.registration import Registration

ENGINES_FILE: Final = "demo-engines.json"
KEY_VARIABLE: Final = "REPRISE_KEY"
BASE_PORT_VARIABLE: Final = "REPRISE_DEMO_BASE_PORT"


def run_beside(settings: Settings, registrations: Sequence[Registration]) -> None:
    """Serves until SIGINT or SIGTERM, with the demo's processes beside it.

    Where the demo cannot start or continue, it prints why, and the service runs without it.

    Raises:
        ConfigurationError, StorageError: see `reprise.roles.up.run_up`.
    """
    options = DemoOptions(
        base_port=base_port_from(os.environ),
        owner=str(settings.data.resolve()),
        key=os.environ.get(KEY_VARIABLE, "").strip(),
        redraws=sys.stdout.isatty(),
        engines_path=str(settings.data.resolve() / ENGINES_FILE),
    )
    stop = threading.Event()
    thread: list[threading.Thread] = []

    def begin(base_url: str) -> None:
        click.echo(
            f"Reprise answers on {base_url} (page: {base_url}/ui, API: {base_url}/docs)."
            " Ctrl-C stops it all."
        )
        demo = Demo(base_url=base_url, say=click.echo, stop=stop, options=options)
        thread.append(threading.Thread(target=_run, args=(demo,), name="demo"))
        thread[0].start()

    try:
        run_up(
            settings,
            registrations,
            forgets=lost_engines(options),
            when_serving=begin,
            when_stopping=stop.set,
        )
    finally:
        stop.set()
        for started in thread:
            started.join()


def base_port_from(environment: Mapping[str, str]) -> int:
    """REPRISE_DEMO_BASE_PORT, or the default: engines take ports from there on, 0 for any.

    Raises:
        ConfigurationError: it is not a port with room for the engines' ports after it.
    """
    text = environment.get(BASE_PORT_VARIABLE, "")
    if not text:
        return BASE_PORT
    highest = 65_536 - PORTS_PER_ENGINE * len(DemoOptions().dp_ranks)
    if not text.isascii() or not text.isdigit() or int(text) > highest:
        raise ConfigurationError(
            f"Expected {BASE_PORT_VARIABLE} to be a port up to {highest}, got: {text}"
        )
    return int(text)


def _run(demo: Demo) -> None:
    try:
        demo.run()
    except (EngineStartError, OSError, ServiceError) as error:
        click.echo(f"The demo has ended: {error}; the service continues without it", err=True)
