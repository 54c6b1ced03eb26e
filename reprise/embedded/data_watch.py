"""Notices that the data directory is not the one any more that was opened."""

import os
from collections.abc import Iterable
from pathlib import Path

from schemas.conditions import Conditions, Part


class DataWatch:
    """Files that are open outlive their directory: without this, a service whose directory was
    deleted or replaced would go on, and lose all of it when it ends.

    Args:
        paths: directories that have just been opened.
    """

    def __init__(self, paths: Iterable[Path], conditions: Conditions) -> None:
        self._opened = {path: _identity(path) for path in paths}
        self._conditions = conditions

    def check(self) -> None:
        """Sets or clears the condition; cost: a look at each directory."""
        for path, opened in self._opened.items():
            found = _identity(path)
            if found != opened:
                became = "deleted" if found is None else "replaced"
                message = (
                    f"{path} was {became} beneath the service: what it knows ends with it."
                    " Put it back, or stop the service, and start it on the directory that is to be"
                )
                self._conditions.set(Part.DATA, became, message)
                return
        self._conditions.clear(Part.DATA)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
