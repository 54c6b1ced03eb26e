"""Options of the commands that look at segments of memory."""

from collections.abc import Callable
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from bridge.memory.reading import DEFAULT_PREFIX
from bridge.memory.watch import MemorySettings
from console.settings import setting
from schemas.errors import ConfigurationError

R = TypeVar("R")
Command = Callable[..., R]

_OPTIONS: Final = (
    setting(
        "--memory-dir",
        key="memory.dir",
        is_seldom_set=True,
        envvar="REPRISE_MEMORY_DIR",
        type=click.Path(path_type=Path),
        help="Directory of kvcached's memory segments, as /dev/shm; it is only read."
        "  [default: none]",
    ),
    setting(
        "--memory-prefix",
        key="memory.prefix",
        is_seldom_set=True,
        envvar="REPRISE_MEMORY_PREFIX",
        default=DEFAULT_PREFIX,
        show_default=True,
        help="What the names of segments begin with; empty for any name.",
    ),
    setting(
        "--memory-host",
        key="memory.host",
        is_seldom_set=True,
        envvar="REPRISE_MEMORY_HOST",
        default="",
        help="What this machine is called beside its segments; the same for all bridges of a"
        " machine.  [default: its host name]",
    ),
)


def memory_options(command: Command[R]) -> Command[R]:
    """Adds the options and calls the command with `memory`: its `MemorySettings`, or None."""

    @wraps(command)
    def with_settings(
        memory_dir: Path | None,
        memory_prefix: str,
        memory_host: str,
        **arguments: Any,
    ) -> R:
        try:
            memory = (
                None
                if memory_dir is None
                else MemorySettings(
                    directory=memory_dir,
                    prefix=memory_prefix,
                    host=memory_host,
                )
            )
        except ConfigurationError as error:
            raise click.UsageError(str(error)) from error
        return command(memory=memory, **arguments)

    return reduce(lambda decorated, option: option(decorated), _OPTIONS[::-1], with_settings)
