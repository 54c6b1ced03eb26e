"""What the commands that run a service have in common: the file of settings, the seed, the log."""

from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module
from typing import Any, Final, TypeVar

import click

from console.settings import RoleCommand, Setting, setting
from reprise.settings import DEFAULT_SEED, check_log_level, log_level_from, seed_from

R = TypeVar("R")

ROLES: Final = ("up", "bridge", "streams", "serve")


class ServiceCommand(RoleCommand):
    """The command of a role: the file of settings may have the keys of all of them."""

    def known_settings(self) -> Iterable[Setting]:
        """See `RoleCommand`."""
        return (one for role in ROLES for one in role_command(role).settings())


def role_command(role: str) -> ServiceCommand:
    """The command of one of ROLES."""
    command = getattr(import_module(f"reprise.cli.{role}"), role)
    assert isinstance(command, ServiceCommand)
    return command


def _to_log_level(context: click.Context, parameter: click.Parameter, text: str) -> str:
    level = log_level_from({"CONDUCTOR_LOG_LEVEL": text})
    check_log_level(level)
    return level


def log_level_option(command: Callable[..., R]) -> Callable[..., R]:
    """`--log-level`, handed over as `log_level`."""
    return setting(
        "--log-level",
        key="log_level",
        envvar="CONDUCTOR_LOG_LEVEL",
        default="INFO",
        show_default=True,
        callback=_to_log_level,
        help="DEBUG, INFO, WARNING or ERROR.",
    )(command)


def seed_option(command: Callable[..., R]) -> Callable[..., R]:
    """The seed of the prefix hash, handed over as `seed`."""

    @wraps(command)
    def run(*args: Any, seed: str, **options: Any) -> R:
        number = seed_from({"CONDUCTOR_SEED": seed})
        return command(*args, seed=number, **options)

    return setting(
        "--seed",
        key="seed",
        is_seldom_set=True,
        in_file=int,
        envvar="CONDUCTOR_SEED",
        default=str(DEFAULT_SEED),
        help="Seed of the prefix hash, the same for every role; another one rebuilds the table.",
    )(run)
