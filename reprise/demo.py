"""`reprise up --demo`: the service, and beside it simulated engines and a router that uses its
answers.
"""

import threading
from collections.abc import Sequence

import click

from replay.demo import Demo
from reprise.server import serve
from reprise.settings import Settings
from schemas.registration import Registration


def run_beside(settings: Settings, registrations: Sequence[Registration]) -> None:
    """Serves until SIGINT or SIGTERM, with the demo's processes running as long.

    Raises:
        ConfigurationError, StorageError: see `reprise.server.serve`.
    """
    stop = threading.Event()
    thread: list[threading.Thread] = []

    def begin(base_url: str) -> None:
        click.echo(
            f"Reprise answers on {base_url} (OpenAPI: {base_url}/docs). Ctrl-C stops it all."
        )
        demo = Demo(base_url=base_url, say=click.echo, stop=stop)
        thread.append(threading.Thread(target=demo.run, name="demo"))
        thread[0].start()

    try:
        serve(settings, registrations, when_serving=begin, when_stopping=stop.set)
    finally:
        stop.set()
        for one in thread:
            one.join()
