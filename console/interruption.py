"""How SIGINT and SIGTERM end a command, whatever its caller has set for them."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import FrameType, MappingProxyType
from typing import Any, Final

import click

from console.output import told_of_full_output
from schemas.errors import RepriseError

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_SIGNALLED: Final = 128
"""A command that a signal ended returns this and the signal's number, as a shell says it."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt in the body, and end the process silently.

    The exit code is 130 or 143. A service installs handlers of its own once it runs, and ends with
    0. What starts a command may have SIGINT ignored (`nohup`, a background job of a non-interactive
    shell); Python then leaves it ignored, and it could not stop the command.

    Raises:
        SystemExit: a signal ended the body.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # no other thread may install handlers
        return
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.raise_signal(signal.SIGINT)

    before = {number: signal.getsignal(number) for number in _ENDING}
    # asyncio takes SIGINT over, to let its tasks end in order, only from this very handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(_SIGNALLED + (received[0] if received else signal.SIGINT))
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """SIGINT and SIGTERM raise nothing in the body, which asks whether one came, and ends in order.
    A second one ends it at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # no other thread may install handlers
        return
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


_NONE: Final[Mapping[str, str]] = MappingProxyType({})


class Commands(click.Group):
    """A group whose commands end by SIGINT and SIGTERM, and with a message where output is full.

    Its own help describes them: to ask each for its help would import all.
    """

    def __init__(
        self,
        *,
        modules: Mapping[str, str] = _NONE,
        before: Callable[[str], None] = lambda name: None,
        replaced: Mapping[str, str] = _NONE,
        **attributes: Any,
    ) -> None:
        """A command is the function of its name, with _ for -.

        Args:
            modules: where each is, by its name as it is typed.
            before: called with the name before a command is imported; raises ClickException
                where it cannot be used.
            replaced: what to type in place of a command that there is no more, by its name.
            attributes: see `click.Group`.
        """
        super().__init__(**attributes)
        self._modules = modules
        self._before = before
        self._replaced = replaced

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See `click.Group`."""
        return [*self._modules, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command's module. See `click.Group`."""
        if cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        self._before(cmd_name)
        module = import_module(self._modules[cmd_name])
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See `click.Group`; a name that is none is answered with those that are near."""
        name = args[0] if args else ""
        if name in self.list_commands(ctx):
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches  # only where a name is wrong

        if name == "help" and not ctx.resilient_parsing:
            raise click.UsageError(
                f"Expected a command, got: help. Try `{ctx.command_path} -h`", ctx
            )
        if name in self._replaced:
            raise click.UsageError(
                f"Expected a command, got: {name}. `{self._replaced[name]}` took its place", ctx
            )
        near = get_close_matches(name, self.list_commands(ctx))
        if near and not name.startswith("-"):
            raise click.UsageError(
                f"Expected a command, got: {name}. Did you mean: {', '.join(near)}?", ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See the class."""

    def invoke(self, ctx: click.Context) -> object:
        """See `click.Group`. What an error of Reprise says ends a command, and what it says of
        others' names is shown as it is.
        """
        try:
            with ended_by_signals(), told_of_full_output():
                return super().invoke(ctx)
        except (RepriseError, click.ClickException) as error:
            from console.terminal import printable_lines  # it imports more than `--help` needs

            if isinstance(error, RepriseError):
                raise click.ClickException(printable_lines(str(error))) from error
            error.message = printable_lines(error.message)
            raise
