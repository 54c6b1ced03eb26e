"""What is known of a value that says more than its type has: of events in which structs stand in
structs, whose unknown fields msgspec refuses with all the rest.
"""

from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from bridge.wire.opaque import is_empty

EVENT_DEPTH_MAX: Final = 16  # of maps and arrays in an event with unknown fields

StructT = TypeVar("StructT", bound=msgspec.Struct)


class KnownPart(NamedTuple):
    """A value without its unknown fields.

    Attributes:
        unknown: names of the fields that are gone, for people.
        are_empty: whether none of them says anything.
    """

    value: Any
    unknown: str
    are_empty: bool


def known_part(value: object, of: type[StructT]) -> KnownPart:
    """What of a decoded value the type has. Cost O(value).

    Raises:
        ValueError: it is too deep, or not of the type.
    """
    unknown: list[tuple[str, object]] = []  # one name may stand in several places
    known = _part(value, _type_info(of), unknown, EVENT_DEPTH_MAX)
    names = ", ".join(sorted({name for name, _ in unknown}))
    are_empty = all(_is_empty(held) for _, held in unknown)
    return KnownPart(msgspec.convert(known, of), names, are_empty)


@cache
def _type_info(of: type) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(of)


def _part(
    value: object, node: msgspec.inspect.Type, unknown: list[tuple[str, object]], levels: int
) -> object:
    if not levels:
        raise ValueError(f"Expected at most {EVENT_DEPTH_MAX} levels, got more")
    if isinstance(value, list):
        items = [one for one in _alternatives(node) if isinstance(one, msgspec.inspect.ListType)]
        if items:
            return [_part(one, items[0].item_type, unknown, levels - 1) for one in value]
    if not isinstance(value, dict):
        return value
    for one in _alternatives(node):
        if isinstance(one, msgspec.inspect.StructType) and _is_tagged(value, one):
            fields = {field.encode_name: field.type for field in one.fields}
            known = {}
            for name, held in value.items():
                if name in fields:
                    known[name] = _part(held, fields[name], unknown, levels - 1)
                elif name == one.tag_field:
                    known[name] = held
                else:
                    unknown.append((str(name)[:80], held))
            return known
    return value


def _alternatives(node: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    return node.types if isinstance(node, msgspec.inspect.UnionType) else (node,)


def _is_tagged(value: dict[Any, Any], node: msgspec.inspect.StructType) -> bool:
    return node.tag_field is None or value.get(node.tag_field) == node.tag


def _is_empty(value: object) -> bool:
    try:
        return is_empty(msgspec.Raw(msgspec.msgpack.encode(value)))
    except OverflowError:  # a number above 64 bits
        return False
