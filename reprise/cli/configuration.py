"""`--config` of the commands that take publishers and their port from Conductor's own file."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from reprise.settings import AnsweringSettings, config_path_from
from schemas.registration import Registration
from schemas.setting import changed

S = TypeVar("S", bound=AnsweringSettings)
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def config_option(help_text: str) -> Callable[[CommandT], CommandT]:
    """Adds it, handed over as `config`."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        help=f"{help_text}  [env: CONDUCTOR_CONFIG_PATH; default:"
        " ~/.mooncake/conductor_config.json]",
    )


def configured(settings: S, config: Path | None) -> tuple[S, Sequence[Registration]]:
    """The settings with the file's port where none is given, and the file's publishers.

    Raises:
        ConfigurationError: the file cannot be used.
    """
    from reprise import conductor_config  # `--help` needs no registrations

    found = conductor_config.load(
        config or config_path_from(os.environ), required=config is not None
    )
    if click.get_current_context().params["port"] is None:
        settings = changed(settings, port=found.port)
    return settings, found.registrations
