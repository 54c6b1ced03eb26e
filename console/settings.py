"""The settings of the roles: keys of one file, `reprise.toml`, of which some are flags, too.

A setting is declared once, as an option of the commands that have it (`Setting`): its key, its
variable, its type and bounds, its default and its help. The file's schema is what all roles have
declared. A flag wins over the environment, that over the file, and that over the default.
"""

import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
import msgspec
from click.core import ParameterSource

from schemas.causes import cause_of
from schemas.errors import ConfigurationError
from schemas.limits import SETTINGS_FILE_BYTES_MAX
from storage.files import read_file

FILE_NAME: Final = "reprise.toml"
"""In the working directory it is read where no other file is named."""

FILE_VARIABLE: Final = "REPRISE_SETTINGS"

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

GONE: Final[Mapping[str, str]] = {
    "memory.period_s": "segments of memory are looked at every second",
}
"""Keys of earlier versions that nobody has set, and what is so now."""

_GIVEN: Final = f"{__name__}.given"
_FOUND: Final = f"{__name__}.found"
_PATH: Final = f"{__name__}.path"


class FoundSetting(NamedTuple):
    """The value of a setting that is in force, and where it comes from."""

    value: object
    source: str


class Setting(click.Option):
    """An option that is a key of the file.

    Args:
        declarations: of the flag.
        key: in the file, with its table: `memory.prefix`.
        is_seldom_set: it is no flag of a role's command, which takes the key alone.
        is_secret: its value is not shown.
        in_file: its type in the file, where that is not its own.
        attributes: see `click.Option`.
    """

    def __init__(
        self,
        *declarations: Any,
        key: str,
        is_seldom_set: bool = False,
        is_secret: bool = False,
        in_file: Any = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*declarations, **attributes)
        self.key = key
        self.is_seldom_set = is_seldom_set
        self.is_secret = is_secret
        self._in_file = in_file

    @property
    def kind(self) -> Any:
        """The type of the key in the file."""
        if self._in_file is not None:
            return self._in_file
        if self.multiple:
            return list[str]
        if self.is_flag:
            return bool
        kinds = {click.IntRange: int, click.FloatRange: float}
        return next((one for type_, one in kinds.items() if isinstance(self.type, type_)), str)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> Any:
        """See `click.Option`. `--set` counts as the flag that it stands for."""
        given = ctx.meta.get(_GIVEN)
        if given is None or self.name is None:
            return super().consume_value(ctx, opts)
        if self.is_seldom_set and self.name in opts:
            raise click.UsageError(
                f"{max(self.opts, key=len)} is no flag: set {self.key} in {FILE_NAME},"
                f" or give --set {self.key}=VALUE",
                ctx,
            )
        value, source = super().consume_value(ctx, opts)
        if self.key in given and self.name not in opts:
            text = given[self.key]
            value, source = (text,) if self.multiple else text, ParameterSource.COMMANDLINE
        shown = "(not shown)" if self.is_secret and value else value
        ctx.meta[_FOUND][self.key] = FoundSetting(shown, self._describe(ctx, source))
        return value, source

    def _describe(self, ctx: click.Context, source: ParameterSource) -> str:
        if source is ParameterSource.ENVIRONMENT:
            return f"environment, {self.envvar}"
        if source is ParameterSource.DEFAULT_MAP:
            return f"file, {ctx.meta[_PATH]}"
        return "flag" if source is ParameterSource.COMMANDLINE else "default"

    def get_error_hint(self, ctx: click.Context) -> str:
        """See `click.Option`: names the key where it is not the flag that is wrong."""
        hint = super().get_error_hint(ctx)
        if _GIVEN not in ctx.meta or self.name is None:
            return hint
        if ctx.get_parameter_source(self.name) is ParameterSource.DEFAULT_MAP:
            return f"{self.key} in {ctx.meta[_PATH]}"
        return f"--set {self.key}" if self.is_seldom_set else hint


def setting(*declarations: str, key: str, **attributes: Any) -> Callable[[CommandT], CommandT]:
    """Adds a `Setting` to a command, as `click.option` adds an option."""
    return click.option(*declarations, cls=Setting, key=key, show_envvar=True, **attributes)


class RoleCommand(click.Command):
    """A command whose settings are keys of the file; `--settings` and `--set` are added to it."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params = [_settings_option(), _set_option(), *self.params]
        for one in self.params:
            if isinstance(one, Setting) and one.is_seldom_set:
                one.hidden = True
        self.epilog = (
            f"What is set seldom is a key of {FILE_NAME}: `reprise config show {self.name}` lists"
            " all of them, what is in force, and where that comes from."
        )

    def settings(self) -> list[Setting]:
        """All that it has."""
        return [one for one in self.params if isinstance(one, Setting)]

    def known_settings(self) -> Iterable[Setting]:
        """Those that the file may have: of all roles."""
        return self.settings()

    def found(self, context: click.Context) -> Mapping[str, FoundSetting]:
        """What is in force, by key, once its arguments are read."""
        found: dict[str, FoundSetting] = context.meta[_FOUND]
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command`."""
        ctx.meta[_GIVEN] = {}
        ctx.meta[_FOUND] = {}
        return super().parse_args(ctx, args)


def _settings_option() -> click.Option:
    return click.Option(
        ["--settings"],
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar=FILE_VARIABLE,
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=_use_file,
        help=f"File of settings (TOML).  [default: {FILE_NAME} of the working directory, if any]",
    )


def _set_option() -> click.Option:
    return click.Option(
        ["--set"],
        metavar="KEY=VALUE",
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=_use_given,
        help=f"Any key of {FILE_NAME}, once for each.",
    )


def _use_file(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    command = ctx.command
    assert isinstance(command, RoleCommand)
    if path is None:
        path = Path(FILE_NAME)
        if not path.is_file():
            return
    try:
        values = read_settings(path, command.known_settings())
    except ConfigurationError as error:
        raise click.ClickException(str(error)) from error
    ctx.meta[_PATH] = path
    ctx.default_map = {
        str(one.name): values[one.key] for one in command.settings() if one.key in values
    }


def _use_given(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> None:
    command = ctx.command
    assert isinstance(command, RoleCommand)
    known = [one.key for one in command.settings()]
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"expected KEY=VALUE, got: {text}", ctx, param)
        if key not in known:
            raise click.BadParameter(
                f"expected a key of `reprise {command.name}`, got: {key}{_meant(key, known)}",
                ctx,
                param,
            )
        ctx.meta[_GIVEN][key] = value


def _meant(key: str, known: Iterable[str]) -> str:
    if key in GONE:
        return f". It is no setting any more: {GONE[key]}. Leave it out"
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f". Did you mean {close[0]}?" if close else ""


def read_settings(path: Path, known: Iterable[Setting]) -> dict[str, Any]:
    """The values of a file, by key.

    Args:
        path: of the file.
        known: what it may have.

    Raises:
        ConfigurationError: it cannot be read, or has a key or a value that cannot be used.
    """
    kinds = {one.key: one.kind for one in known}
    try:
        document = tomllib.loads(read_file(path, SETTINGS_FILE_BYTES_MAX).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"Expected settings as TOML in {path}, but they cannot be read: {cause_of(error)}"
        ) from error
    values = dict(_flat(document, {key.rpartition(".")[0] for key in (*kinds, *GONE)}))
    for key in values.keys() - kinds.keys():
        raise ConfigurationError(
            f"Expected keys that Reprise knows in {path}, got: {key}{_meant(key, kinds)}"
        )
    found = {}
    for key, value in values.items():
        try:
            found[key] = msgspec.convert(_as_integer(value), kinds[key])
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"Cannot use {key} in {path}: {cause_of(error)}") from error
    return found


def _as_integer(value: Any) -> Any:
    """What writes TOML of JSON, as Helm does, writes 8 as 8.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _flat(document: Mapping[str, Any], tables: set[str]) -> Iterable[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict) and name in tables:
            yield from ((f"{name}.{inner}", one) for inner, one in value.items())
        else:
            yield name, value
