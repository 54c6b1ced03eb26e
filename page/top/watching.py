"""Asks a service again and again, beside whoever shows what it says."""

import threading
from typing import NamedTuple

import click

from page.top.fleet import Fleet, ask_fleet


class Look(NamedTuple):
    """What is known now.

    Attributes:
        fleet: the last that was answered, None for nothing yet.
        problem: why nothing newer is there, or "".
    """

    fleet: Fleet | None
    problem: str


class Watcher:
    """Has a thread of its own, so that a service that hangs holds up no key."""

    def __init__(self, url: str, interval_s: float) -> None:
        """Args:
        url: of the service.
        interval_s: between two looks.
        """
        self._url = url
        self._interval_s = interval_s
        self._look = Look(None, "")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        """Begins to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Asks no more; an answer that is awaited is not waited for."""
        self._stopping.set()

    @property
    def look(self) -> Look:
        """The newest."""
        return self._look

    def _run(self) -> None:
        while True:
            try:
                self._look = Look(ask_fleet(self._url), "")
            except click.ClickException as error:
                self._look = Look(self._look.fleet, error.format_message())
            if self._stopping.wait(self._interval_s):
                return
