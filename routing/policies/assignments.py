"""`NAME=VALUE,NAME=VALUE`: the parameters of a policy, or the terms of a cost model, as text."""

from typing import Final, TypeVar

import msgspec

from schemas.causes import cause_of

StructT = TypeVar("StructT", bound=msgspec.Struct)

_SWITCHES: Final = {"on": "true", "off": "false"}


def parse_assignments(text: str, kind: type[StructT]) -> StructT:
    """The struct with these fields; those that are not named have their defaults.

    Raises:
        ValueError: says what was expected, and what came.
    """
    known = [field.name for field in msgspec.structs.fields(kind)]
    values: dict[str, str | float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"expected NAME=VALUE, got: {part}")
        if name not in known:
            names = ", ".join(known) or "none"
            raise ValueError(f"expected parameters of {names}, got: {name}")
        if name in values:
            raise ValueError(f"expected {name} once, got it twice: {text}")
        values[name] = float("inf") if value == "inf" else _SWITCHES.get(value, value)
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"{cause_of(error)}, in: {text}") from error


def describe_fields(kind: type[msgspec.Struct]) -> list[str]:
    """The fields with their defaults, as they are written."""
    return [f"{field.name}={_text(field.default)}" for field in msgspec.structs.fields(kind)]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
