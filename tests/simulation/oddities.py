"""What an engine may send that is not as its release has it, and what becomes of that: the table of
docs/compatibility.md, written out.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

Event = list[Any] | dict[str, Any]
"""One event, decoded, in the form in which it is sent."""

EVENT: Final = "event"
BATCH: Final = "batch"
_LOOKAHEAD: Final = "lookahead"

_FIELDS: Final = {
    "BlockStored": (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
        *("lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
        "kv_cache_spec_sliding_window",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": ("medium",),
}
"""Of each event, the fields that an array has in their order."""


_NOTHING: Final[tuple[object, ...]] = (None, False, "", [], {}, [None, []])
_SOMETHING: Final[tuple[object, ...]] = ("x", 7, [[0]])


class Effect(Enum):
    """What becomes of an event."""

    USED = "used"  # as if nothing were odd about it
    LEFT_OUT = "left out"  # its blocks are known by their names, and found by nobody
    LOST = "lost"  # what it said is not known
    LESS = "less"  # used, and it may have meant less: what else there is is not known


class Oddity(NamedTuple):
    """One way in which an event is odd.

    Attributes:
        tag: of the events that may be so; EVENT where it is one more event, BATCH the batch itself.
        reason: under which it is counted; "" where it need not be.
        change: makes an event so.
        is_found_by_table: and not by the bridge.
    """

    name: str
    tag: str
    effect: Effect
    reason: str
    change: Callable[[Event], None]
    is_found_by_table: bool = False

    def make(self, payload: bytes) -> bytes | None:
        """The batch with its first event of the tag so; None where it has none."""
        batch: list[Any] = msgspec.msgpack.decode(payload)
        events: list[Event] = batch[1]
        if self.tag == BATCH:
            self.change(batch)
            return msgspec.msgpack.encode(batch)
        if self.tag == EVENT:
            is_map = bool(events) and isinstance(events[-1], dict)
            events.append({"type": "BlockPinned"} if is_map else ["BlockPinned"])
            return msgspec.msgpack.encode(batch)
        place = self.place([_tag(event) for event in events])
        if place is None:
            return None
        self.change(events[place])
        return msgspec.msgpack.encode(batch)

    def place(self, tags: list[str]) -> int | None:
        """Which of these events it changes."""
        return tags.index(self.tag) if self.tag in tags else None


def _tag(event: Event) -> str:
    return str(event["type"] if isinstance(event, dict) else event[0])


def put(field: str, value: object) -> Callable[[Event], None]:
    """Sets a field that is known."""

    def change(event: Event) -> None:
        if isinstance(event, dict):
            event[field] = value
            return
        place = 1 + _FIELDS[_tag(event)].index(field)
        event += [None] * (place + 1 - len(event))
        event[place] = value

    return change


def _add(value: object) -> Callable[[Event], None]:
    """Adds a field that nobody knows, or an element."""

    def change(event: Event) -> None:
        if isinstance(event, dict):
            event["hash_scheme"] = value
            return
        event += [None] * (1 + len(_FIELDS[_tag(event)]) - len(event))
        event.append(value)

    return change


def _get(event: Event, field: str) -> Any:
    return event[field] if isinstance(event, dict) else event[1 + _FIELDS[_tag(event)].index(field)]


def _halve(event: Event) -> None:
    """Blocks of half as many tokens."""
    tokens = _get(event, "token_ids")
    put("token_ids", tokens[: len(tokens) // 2])(event)
    put("block_size", _get(event, "block_size") // 2)(event)


def _shorten(event: Event) -> None:
    put("token_ids", _get(event, "token_ids")[:-1])(event)


def _hyper(event: Event) -> None:
    put("kv_cache_spec_kind", "hyper_attention")(event)
    _shorten(event)


def _bad_token(event: Event) -> None:
    put("token_ids", [*_get(event, "token_ids")[:-1], -(2**40)])(event)


def _bad_hash(event: Event) -> None:
    put("block_hashes", [*_get(event, "block_hashes")[:-1], "?"])(event)


def _nothing(event: Event) -> None: ...


def _lengthen(batch: Event) -> None:
    assert isinstance(batch, list)
    batch += [None] * (3 - len(batch)) + ["x", 5]


def _oddities() -> Iterator[Oddity]:
    store, removal, clear = _FIELDS
    for nothing in _NOTHING:
        yield Oddity("empty field", store, Effect.USED, "unknown_field", _add(nothing))
    yield Oddity(
        "unknown attention", store, Effect.USED, "", put("kv_cache_spec_kind", "hyper_attention")
    )
    yield Oddity("field", removal, Effect.USED, "unknown_field", _add("x"))
    yield Oddity("empty field", clear, Effect.USED, "unknown_field", _add(None))
    yield Oddity("field", clear, Effect.LESS, "unknown_field", _add("x"))
    for something in _SOMETHING:
        yield Oddity("field", store, Effect.LEFT_OUT, "unknown_field", _add(something))
    lookahead = put("lookahead_token_ids", [[7]])
    yield Oddity(_LOOKAHEAD, store, Effect.LEFT_OUT, "lookahead", lookahead)
    yield Oddity("bad token", store, Effect.LEFT_OUT, "bad_tokens", _bad_token)
    parent = put("parent_block_hash", b"x")
    yield Oddity("bad parent", store, Effect.LEFT_OUT, "bad_parent", parent)
    keys = put("extra_keys", 7)
    yield Oddity("bad keys", store, Effect.LEFT_OUT, "bad_extra_keys", keys)
    for name, reason, change in (
        ("block size", "block_size", _halve),
        ("tokens short", "token_count", _shorten),
        ("unknown attention, tokens short", "token_count", _hyper),
    ):
        yield Oddity(name, store, Effect.LEFT_OUT, reason, change, is_found_by_table=True)
    for tag in (store, removal):
        yield Oddity("medium", tag, Effect.LOST, "unknown_medium", put("medium", "MOON"))
        yield Oddity("bad hash", tag, Effect.LOST, "bad_hashes", _bad_hash)
    yield Oddity("one more event", EVENT, Effect.LOST, "unknown_event", _nothing)
    yield Oddity("elements", BATCH, Effect.USED, "", _lengthen)


ODDITIES: Final = tuple(_oddities())


def oddities_of(kind: str, *, as_maps: bool) -> list[Oddity]:
    """What an engine of this kind can send: of lookahead only vLLM's maps say something."""
    has_lookahead = as_maps and kind == "vLLM"
    return [one for one in ODDITIES if has_lookahead or one.name != _LOOKAHEAD]
