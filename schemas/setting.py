"""How a part declares what can be set of it: beside the field that has the value.

    @part
    class SpoolSettings:
        window_ms: int = setting(
            "bridge.window_ms", "How long to collect.", default=50, bounds=(0, 10_000)
        )

The field has the type and the default, and `setting` says all else. `console.settings` makes keys
of `reprise.toml`, options and variables of these, and the part's settings of what is given. The
settings of a role have those of its parts as fields. A part that no role can do without, or that is
off where it is not set, has a field without a default.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, replace
from typing import Any, Final, Literal, TypeVar, dataclass_transform

T = TypeVar("T")

SETTING: Final = "setting"
"""Of a field's metadata: its `Setting`."""

DERIVED: Final = "REPRISE_*"
"""The variable of a setting is REPRISE_ and its flag, unless it names another one."""


@dataclass(frozen=True)
class Setting:
    """What is declared of a setting beside its type and default.

    Attributes:
        key: in `reprise.toml`, with its table: `memory.prefix`.
        help: what `--help` says.
        flag: on the command line; "" for one like the key, `--memory-prefix`.
        is_usual: it is a flag of a role's command; others are keys of the file alone.
        variable: of the environment; None for none.
        metavar: what stands for its value in `--help`; "" for the name of its type.
        bounds: the least and the most of a number, in the unit of the key.
        choices: all values that it may have; () for any.
        path: what a path is of; "" for what is no path.
        unit: how much of the field's unit one of the key's is: GIB of a field of bytes.
        given: its type in the file and as a flag, where that is not the field's.
        read: makes the field's value of what is given, None for nothing. A ValueError is shown with
            the option.
        has_own_default: it has no default in the words of the key: the help says what holds then.
        needs_part: it is refused where its part has not what it cannot do without.
        is_secret: its value is not shown.
    """

    key: str
    help: str
    flag: str = ""
    is_usual: bool = False
    variable: str | None = DERIVED
    metavar: str = ""
    bounds: tuple[float | None, float | None] = (None, None)
    choices: tuple[str, ...] = ()
    path: Literal["", "file", "directory", "any"] = ""
    unit: float = 1
    given: Any = None
    read: Callable[[Any], Any] | None = None
    has_own_default: bool = False
    needs_part: bool = False
    is_secret: bool = False

    @property
    def option(self) -> str:
        """The flag."""
        return self.flag or "--" + self.key.replace(".", "-").replace("_", "-")

    @property
    def environment(self) -> str | None:
        """The variable, or None."""
        if self.variable != DERIVED:
            return self.variable
        return "REPRISE_" + self.option.removeprefix("--").replace("-", "_").upper()


def setting(
    key: str | Setting,
    help: str = "",
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    **attributes: Any,
) -> Any:
    """A field of a part that can be set: by a `Setting`, or by what one is made of."""
    found = key if isinstance(key, Setting) else Setting(key, help, **attributes)
    return field(default=default, default_factory=default_factory, metadata={SETTING: found})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
def part(cls: type[T]) -> type[T]:
    """Makes a class the settings of a part: a frozen dataclass, made by keywords."""
    return dataclass(frozen=True, kw_only=True)(cls)


def changed(settings: T, **changes: Any) -> T:
    """The settings of a part, or a `Setting`, with these changes."""
    return replace(settings, **changes)  # type: ignore[type-var]
