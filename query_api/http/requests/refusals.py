"""Refusals of bodies that msgspec decodes: its text says which place, the type what was expected.

Nothing of the decoder's words reaches the client: `Expected `int` >= 1 - at `$.block_size`` becomes
"block_size must be an integer of at least 1, got: 0".
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from query_api.bounds import VALUE_SHOWN_CHARS_MAX
from query_api.http.errors import RequestError, shown
from query_api.http.requests.queries import missing, unknown_field
from query_api.http.wire import Wire
from schemas.limits import KIB, NAME_BYTES_MAX

REFUSED_BYTES_SHOWN_MAX: Final = 256 * KIB  # of a larger body a refusal does not say what came

_PLACE: Final = re.compile(r" - at `\$\.?([^`]*)`$")
_UNKNOWN: Final = re.compile(r"contains unknown field `([^`]*)`")
_MISSING: Final = re.compile(r"missing required field `([^`]*)`")
_STEP: Final = re.compile(r"\[(\d+)\]|\[(\.\.\.)\]|\.?([^.\[\]]+)")


def body_refusal(
    form: Any, error: msgspec.ValidationError, body: bytes, wire: Wire
) -> RequestError:
    """What the client is told of a body that is not of its form.

    Args:
        form: the type that the body was to be decoded as.
        body: as it came.
    """
    text = str(error)
    place = _PLACE.search(text)
    where = place[1] if place else ""
    kinds = _kinds_at(_info(form), where)
    if unknown := _UNKNOWN.search(text):
        known = sorted({field.encode_name for field in _fields(kinds)})
        return unknown_field(_inner(where, unknown[1])[:NAME_BYTES_MAX], known)
    if lacking := _MISSING.search(text):
        name = lacking[1]
        types = [field.type for field in _fields(kinds) if field.encode_name == name]
        return missing(_inner(where, name), " or ".join(_words(types)))
    reason = "invalid_type" if ", got" in text else "out_of_range"
    expected = " or ".join(_words(kinds)) or "another value"
    came = _value_at(body, where, wire)
    message = f"{where or 'the body'} must be {expected}{came}"
    return RequestError(reason, message, field=where[:NAME_BYTES_MAX] or None)


def _inner(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


@cache
def _info(form: Any) -> inspect.Type:
    return inspect.type_info(form)


def _steps(where: str) -> Iterator[int | str | None]:
    """The way to a place: indices, names, and None for any key of a map."""
    for step in _STEP.finditer(where):
        index, any_key, name = step.groups()
        yield int(index) if index else None if any_key else name


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        yield from _alternatives(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _alternatives(one)
    else:
        yield kind


def _kinds_at(form: inspect.Type, where: str) -> list[inspect.Type]:
    """What may stand at a place."""
    kinds = list(_alternatives(form))
    for step in _steps(where):
        inner = [found for kind in kinds for found in _within(kind, step)]
        kinds = [one for kind in inner for one in _alternatives(kind)]
    return kinds


def _within(kind: inspect.Type, step: int | str | None) -> Iterator[inspect.Type]:
    if isinstance(step, int):
        if isinstance(kind, inspect.CollectionType):
            yield kind.item_type
        elif isinstance(kind, inspect.TupleType) and step < len(kind.item_types):
            yield kind.item_types[step]
    elif isinstance(kind, inspect.DictType):
        yield kind.value_type
    elif step is not None:
        yield from (field.type for field in _fields([kind]) if field.encode_name == step)


def _fields(kinds: list[inspect.Type]) -> list[inspect.Field]:
    structs = [one for kind in kinds for one in _alternatives(kind)]
    return [field for one in structs if isinstance(one, inspect.StructType) for field in one.fields]


def _words(kinds: list[inspect.Type]) -> list[str]:
    """What they are, for people; each once."""
    found = [_word(one) for kind in kinds for one in _alternatives(kind)]
    return list(dict.fromkeys(word for word in found if word))


def _word(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        name = "an integer" if isinstance(kind, inspect.IntType) else "a number"
        return name + _bounds(kind)
    if isinstance(kind, inspect.StrType):
        return "a string that is not empty" if kind.min_length else "a string"
    if isinstance(kind, inspect.EnumType):
        return f"one of {', '.join(str(one.value) for one in kind.cls)}"
    if isinstance(kind, inspect.LiteralType):
        return f"one of {', '.join(map(str, kind.values))}"
    if isinstance(kind, inspect.CollectionType):
        return "an array" + (f" of at most {kind.max_length}" if kind.max_length else "")
    if isinstance(kind, inspect.StructType | inspect.DictType):
        return "an object"
    if isinstance(kind, inspect.TupleType):
        return f"an array of {len(kind.item_types)}"
    return {inspect.BoolType: "true or false", inspect.NoneType: "null"}.get(type(kind), "")


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    least = kind.ge if kind.ge is not None else kind.gt
    most = kind.le if kind.le is not None else kind.lt
    if least is not None and most is not None:
        return f" from {least:.15g} to {most:.15g}" if _is_short(most) else f" of at least {least}"
    if least is not None:
        return f" of at least {least:.15g}"
    return f" of at most {most:.15g}" if most is not None else ""


def _is_short(bound: float) -> bool:
    """Whether anybody would send more: 2**63-1 is what the wire can carry."""
    return bound < 2**53


def _value_at(body: bytes, where: str, wire: Wire) -> str:
    """What stands at a place of the body; "" where that cannot be told, or costs too much: a large
    array is an object for each element. Cost O(body).
    """
    if len(body) > REFUSED_BYTES_SHOWN_MAX:
        return ""
    decode = msgspec.json.decode if wire is Wire.JSON else msgspec.msgpack.decode
    raw: Any = msgspec.Raw(body)
    try:
        for step in _steps(where):
            if isinstance(step, int):
                raw = decode(raw, type=list[msgspec.Raw])[step]
            elif step is None:
                return ""
            else:
                raw = decode(raw, type=dict[str, msgspec.Raw])[step]
        if wire is Wire.JSON:
            return f", got: {shown(bytes(memoryview(raw)[: 4 * VALUE_SHOWN_CHARS_MAX]).strip())}"
        return (
            f", got: {shown(repr(decode(raw)))}" if len(memoryview(raw)) <= NAME_BYTES_MAX else ""
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError):
        return ""
