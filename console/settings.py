"""The settings of the roles: keys of one file, `reprise.toml`, of which some are flags, too.

A setting is declared once, beside the field of the part that has its value (`schemas.setting`). A
role's settings are those of its parts in one object: a command has options of all of them, and gets
that object. The file's schema is what all roles have declared. A flag wins over the environment,
that over the file, and that over the default.
"""

import difflib
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import reduce, wraps
from inspect import get_annotations
from pathlib import Path
from types import NoneType
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_type_hints

import click
import msgspec
from click.core import ParameterSource

from console.param_types import Amount
from schemas.causes import cause_of
from schemas.errors import ConfigurationError
from schemas.limits import SETTINGS_FILE_BYTES_MAX
from schemas.setting import SETTING, Setting
from storage.files import read_file

FILE_NAME: Final = "reprise.toml"
"""In the working directory it is read where no other file is named."""

FILE_VARIABLE: Final = "REPRISE_SETTINGS"

T = TypeVar("T")
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


class Declared(NamedTuple):
    """A field of a part that is a setting.

    Attributes:
        kind: its type, without None.
        default: its value where nothing is given; None where there is none, too.
        is_required: the part cannot do without.
    """

    name: str
    setting: Setting
    kind: Any
    default: Any
    is_required: bool

    @property
    def given(self) -> Any:
        """The type of what is given."""
        if self.setting.given is not None:
            return self.setting.given
        is_plain = self.setting.path or self.kind in (bool, int, float, tuple[str, ...])
        return self.kind if is_plain else str

    @property
    def type(self) -> Any:
        """That of the option."""
        setting, given = self.setting, self.given
        if setting.choices or _is_enum(self.kind):
            return click.Choice(setting.choices or [one.name.lower() for one in self.kind])
        if setting.path:
            return click.Path(
                path_type=Path if given is Path else None,
                file_okay=setting.path != "directory",
                dir_okay=setting.path != "file",
            )
        if given in (int, float) and setting.read is None:
            return (click.IntRange if given is int else Amount)(*setting.bounds)
        if given == dict[str, str]:
            return click.UNPROCESSED
        return None if given is bool else click.STRING

    @property
    def option_default(self) -> Any:
        """That of the option; None where it has none in its own words."""
        default, unit = self.default, self.setting.unit
        if self.setting.has_own_default or not isinstance(default, str | int | float | Path):
            return None
        if isinstance(default, Enum):
            return default.name.lower()
        return self.given(self.default / unit) if unit != 1 else default

    def read(self, value: Any) -> Any:
        """The field's value by what is given of it; None where that is nothing.

        Raises:
            ValueError, ConfigurationError: nothing can be made of it.
        """
        setting = self.setting
        if self.given == tuple[str, ...]:
            value = tuple(one for text in value for one in text.replace(",", " ").split())
        if value in (None, ()):
            return None
        if _is_enum(self.kind):
            return self.kind[value.upper()]
        value = value if setting.unit == 1 else self.kind(value * setting.unit)
        return value if setting.read is None else setting.read(value)


class _Part(NamedTuple):
    """A field of a part that is a part itself; see `Declared`."""

    name: str
    kind: type
    is_required: bool


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _fields_of(part: Any) -> Iterator[Declared | _Part]:
    """What is settings of its fields, or parts; a subclass's own come before those of its base."""
    kinds, known = get_type_hints(part), {one.name: one for one in fields(part)}
    names = [name for cls in part.__mro__ for name in get_annotations(cls)]
    for one in (known[name] for name in dict.fromkeys(names) if name in known):
        kind, setting = kinds[one.name], one.metadata.get(SETTING)
        if NoneType in get_args(kind):
            (kind,) = (each for each in get_args(kind) if each is not NoneType)
        is_required = one.default is MISSING and one.default_factory is MISSING
        if setting is not None:
            default = None if one.default is MISSING else one.default
            yield Declared(one.name, setting, kind, default, is_required)
        elif isinstance(kind, type) and is_dataclass(kind):
            yield _Part(one.name, kind, is_required)


def declared(part: type, *, is_needed: bool = True) -> Iterator[tuple[Declared, bool]]:
    """All settings of a part and of those in it, and whether a command cannot do without each."""
    for one in _fields_of(part):
        if isinstance(one, Declared):
            yield one, is_needed and one.is_required
        else:
            yield from declared(one.kind, is_needed=is_needed and one.is_required)


def _made(part: type, values: Mapping[str, Any]) -> Any:
    """The part by the values of its keys; None where one is missing that it cannot do without."""
    found, given = list(_fields_of(part)), {}
    for one in found:
        if isinstance(one, Declared):
            given[one.name] = values.get(one.setting.key)
        else:
            with _shown_with_usage():
                given[one.name] = _made(one.kind, values)
    given = {name: value for name, value in given.items() if value is not None}
    missing = {one.name for one in found if one.is_required} - given.keys()
    if not missing:
        return part(**given)
    own = [one for one in found if isinstance(one, Declared)]
    flags = " and ".join(one.setting.option for one in own if one.is_required)
    for one in (each for each in own if each.name in given):
        if one.is_required:
            raise ConfigurationError(f"Expected {flags} together, got one of them")
        if one.setting.needs_part:
            raise ConfigurationError(f"Expected {flags} beside {one.setting.option}, got it alone")
    return None


@contextmanager
def _shown_with_usage() -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error


class SettingOption(click.Option):
    """An option that is a key of the file; see `Setting`."""

    def __init__(self, *arguments: Any, declared: Declared, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.declared = declared
        self.key = declared.setting.key
        self.is_secret = declared.setting.is_secret
        self.is_seldom_set = not declared.setting.is_usual

    @property
    def kind(self) -> Any:
        """The type of the key in the file."""
        given = self.declared.given
        return list[str] if self.multiple else str if given is Path else given

    def read(self, ctx: click.Context) -> Any:
        """See `Declared.read`."""
        assert self.name is not None
        try:
            return self.declared.read(ctx.params[self.name])
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, self) from error

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


def role_settings(part: type) -> Callable[[CommandT], CommandT]:
    """Adds all settings of a role to its command, which gets them as one object, `settings`."""
    return _with_settings(part, "settings", lambda context: made_settings(part, context))


def part_settings(
    part: type, name: str, *, required: bool = True, without: Collection[str] = ()
) -> Callable[[CommandT], CommandT]:
    """Adds the settings of one part to a command, which gets them as one object of this name.

    Args:
        required: False for a command that gets None where it is not given what the part needs.
        without: keys that the command has not.
    """

    def make(context: click.Context) -> Any:
        with _shown_with_usage():
            return made_settings(part, context)

    return _with_settings(part, name, make, required=required, without=without)


def made_settings(part: type[T], context: click.Context) -> T:
    """A part by the options of a command.

    Raises:
        ConfigurationError, click.UsageError: they cannot be used.
    """
    own = {one.setting.key for one, _ in declared(part)}
    options = [one for one in context.command.params if isinstance(one, SettingOption)]
    made: T = _made(part, {one.key: one.read(context) for one in options if one.key in own})
    return made


def _with_settings(
    part: type,
    name: str,
    make: Callable[[click.Context], Any],
    *,
    required: bool = True,
    without: Collection[str] = (),
) -> Callable[[CommandT], CommandT]:
    found = {one.setting.key: (one, needed) for one, needed in declared(part, is_needed=required)}
    options = [
        _option(one, _parameter(key), needed)
        for key, (one, needed) in found.items()
        if key not in without
    ]

    def decorate(command: CommandT) -> CommandT:
        @wraps(command)
        def run(*args: Any, **given: Any) -> Any:
            others = {name: value for name, value in given.items() if name not in parameters}
            return command(*args, **others, **{name: make(click.get_current_context())})

        parameters = {_parameter(key) for key in found}
        return reduce(lambda done, option: option(done), reversed(options), run)  # type: ignore[return-value]

    return decorate


def setting_option(setting: Setting, kind: type, name: str) -> Callable[[CommandT], CommandT]:
    """The option of one setting, for a command that gets its value by this name."""
    return _option(Declared(name, setting, kind, None, is_required=False), name)


def _option(one: Declared, name: str, required: bool = False) -> Callable[[CommandT], CommandT]:
    setting, default = one.setting, one.option_default
    return click.option(
        setting.option,
        name,
        cls=SettingOption,
        declared=one,
        type=one.type,
        required=required,
        **({} if default is None else {"default": default}),  # click takes None for a default
        show_default=default not in (None, "", False),
        is_flag=one.kind is bool,
        multiple=one.given == tuple[str, ...],
        metavar=setting.metavar or None,
        envvar=setting.environment,
        show_envvar=True,
        help=setting.help,
    )


def _parameter(key: str) -> str:
    return key.replace(".", "_")


class RoleCommand(click.Command):
    """A command whose settings are keys of the file; `--settings` and `--set` are added to it."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params = [_settings_option(), _set_option(), *self.params]
        for one in self.params:
            if isinstance(one, SettingOption) and one.is_seldom_set:
                one.hidden = True
        self.epilog = (
            f"What is set seldom is a key of {FILE_NAME}: `reprise config show {self.name}` lists"
            " all of them, what is in force, and where that comes from."
        )

    def settings(self) -> list[SettingOption]:
        """All that it has."""
        return [one for one in self.params if isinstance(one, SettingOption)]

    def known_settings(self) -> Iterable[SettingOption]:
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


def read_settings(path: Path, known: Iterable[SettingOption]) -> dict[str, Any]:
    """The values of a file, by key.

    Args:
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
