"""One message as it came: what its payload is encoded in, and where its events are.

An event stays encoded, and can be put alone into a payload like its own: so a decoder says of each
what it makes of it. What is looked for is a list of maps, or of arrays that begin with a name, at
the top of the payload or one level below; or one of these alone.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from bridge.wire.opaque import DECODING_ERRORS
from doctor.publishers.bounds import CHECK_NAME_CHARS_MAX, CHECK_PAYLOAD_BYTES_MAX

TAG_FIELDS: Final = ("type", "event_type", "event", "op", "kind", "action", "tag", "name")
"""By which events are told apart, the likeliest first."""

_KINDS: Final[dict[type, str]] = {
    **{bool: "yes or no", int: "an integer", float: "a number", str: "a text"},
    **{bytes: "bytes", dict: "a map", type(None): "null"},
}
_RANK_FIELDS: Final = ("data_parallel_rank", "dp_rank", "rank")
_RANK_AT: Final = 2
_FORM_PARTS: Final = 8  # of what surrounds events
_ONE: Final = "event"


class Encoding(StrEnum):
    """Of a payload."""

    MSGPACK = "msgpack"
    JSON = "JSON"
    PROTOBUF = "protobuf, as it seems"
    OTHER = "other bytes"
    EMPTY = "nothing"
    LARGE = "too large to be taken apart"


class SentEvent(NamedTuple):
    """One event.

    Attributes:
        tag: what it is called.
        path: where it is in its payload, as msgspec spells it.
        at: its first byte there.
        value: it, decoded.
        encoded: it, as it came.
        wrap: makes a payload that has this event alone, of the event encoded.
        encode: encodes a value as the payload is.
    """

    tag: str
    path: str
    at: int
    value: Any
    encoded: bytes
    wrap: Callable[[bytes], bytes]
    encode: Callable[[object], bytes]


class SentPayload(NamedTuple):
    """One payload.

    Attributes:
        form: of what surrounds the events, for people.
        rank: that it names; None for none.
        fault: what is wrong with the encoding, and at which byte; "" for nothing.
    """

    encoding: Encoding
    form: str = ""
    rank: int | None = None
    events: Sequence[SentEvent] = ()
    fault: str = ""


class _Codec(NamedTuple):
    encoding: Encoding
    whole: "msgspec.msgpack.Decoder[Any] | msgspec.json.Decoder[Any]"
    items: "msgspec.msgpack.Decoder[Any] | msgspec.json.Decoder[Any]"
    fields: "msgspec.msgpack.Decoder[Any] | msgspec.json.Decoder[Any]"
    encode: Callable[[object], bytes]


_MSGPACK: Final = _Codec(
    Encoding.MSGPACK,
    msgspec.msgpack.Decoder(),
    msgspec.msgpack.Decoder(list[msgspec.Raw]),
    msgspec.msgpack.Decoder(dict[str, msgspec.Raw]),
    msgspec.msgpack.encode,
)
_JSON: Final = _Codec(
    Encoding.JSON,
    msgspec.json.Decoder(),
    msgspec.json.Decoder(list[msgspec.Raw]),
    msgspec.json.Decoder(dict[str, msgspec.Raw]),
    msgspec.json.encode,
)


def read_payload(payload: bytes) -> SentPayload:
    """What is in it. Cost O(bytes)."""
    if not payload:
        return SentPayload(Encoding.EMPTY)
    if len(payload) > CHECK_PAYLOAD_BYTES_MAX:
        return SentPayload(Encoding.LARGE)
    first = payload[0]
    if payload.lstrip()[:1] in (b"{", b"["):
        codec = _JSON
    elif 0x80 <= first <= 0x9F or 0xDC <= first <= 0xDF:
        codec = _MSGPACK
    else:
        is_protobuf = is_like_protobuf(payload)
        return SentPayload(Encoding.PROTOBUF if is_protobuf else Encoding.OTHER)
    try:
        return _taken_apart(payload, codec)
    except DECODING_ERRORS as error:
        return SentPayload(codec.encoding, fault=str(error))


def tag_of(value: object) -> str:
    """What an event is called; "" where nothing says it."""
    if isinstance(value, list):
        return value[0] if value and isinstance(value[0], str) else ""
    if not isinstance(value, dict):
        return ""
    for holder in (value, *(one for one in value.values() if isinstance(one, dict))):
        for name in TAG_FIELDS:
            if isinstance(holder.get(name), str):
                return str(holder[name])
    for one in value.values():  # a map of one field that is called as the event is
        if isinstance(one, dict) and len(one) == 1:
            return str(next(iter(one)))
    data = value.get("data")
    return data if isinstance(data, str) else ""


def is_like_protobuf(payload: bytes) -> bool:
    """Whether it is a row of fields of protobuf to its end; other bytes rarely are."""
    at, fields = 0, 0
    while at < len(payload):
        key, at = _varint(payload, at)
        size = {0: 0, 1: 8, 5: 4}.get(key & 7)
        if key >> 3 == 0:
            return False
        if key & 7 == 0:
            _, at = _varint(payload, at)
        elif key & 7 == 2:
            size, at = _varint(payload, at)
        if size is None:
            return False
        at, fields = at + size, fields + 1
    return at == len(payload) and fields > 0


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """The number there and where it ends; beyond the payload where it does not."""
    value = 0
    for place, byte in enumerate(payload[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return value, len(payload) + 1


def _taken_apart(payload: bytes, codec: _Codec) -> SentPayload:
    value = codec.whole.decode(payload)
    form, rank = _form_of(value), _rank_of(value)
    return SentPayload(codec.encoding, form, rank, list(_events_of(payload, value, codec)))


def _events_of(payload: bytes, value: Any, codec: _Codec) -> Iterator[SentEvent]:
    if _is_event(value) and not _holds_events(value):
        yield _event(value, "$", 0, payload, lambda one: one, codec)
        return
    if isinstance(value, list):
        parts: list[Any] = codec.items.decode(payload)
        if _are_events(value):
            yield from _listed(payload, payload, value, "$", lambda one: one, codec)
            return
        for place, held in enumerate(value):
            if _are_events(held):

                def within(encoded: bytes, place: int = place) -> bytes:
                    raw = msgspec.Raw(encoded)
                    return codec.encode([*parts[:place], raw, *parts[place + 1 :]])

                yield from _listed(payload, bytes(parts[place]), held, f"$[{place}]", within, codec)
                return
    elif isinstance(value, dict):
        fields: dict[str, Any] = codec.fields.decode(payload)
        for name, held in value.items():
            if _are_events(held):

                def inside(encoded: bytes, name: str = name) -> bytes:
                    return codec.encode(fields | {name: msgspec.Raw(encoded)})

                yield from _listed(payload, bytes(fields[name]), held, f"$.{name}", inside, codec)
                return


def _listed(
    payload: bytes,
    encoded: bytes,
    values: Sequence[object],
    path: str,
    wrap: Callable[[bytes], bytes],
    codec: _Codec,
) -> Iterator[SentEvent]:
    """The events of a list that is somewhere in the payload."""
    at = payload.find(encoded)

    def alone(one: bytes) -> bytes:
        return wrap(codec.encode([msgspec.Raw(one)]))

    for place, (raw, value) in enumerate(zip(codec.items.decode(encoded), values, strict=True)):
        at = max(payload.find(bytes(raw), at), 0)
        yield _event(value, f"{path}[{place}]", at, bytes(raw), alone, codec)
        at += len(bytes(raw))


def _event(
    value: object,
    path: str,
    at: int,
    encoded: bytes,
    wrap: Callable[[bytes], bytes],
    codec: _Codec,
) -> SentEvent:
    return SentEvent(
        tag_of(value)[:CHECK_NAME_CHARS_MAX] or _ONE, path, at, value, encoded, wrap, codec.encode
    )


def _is_event(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and isinstance(value[0], str)
    return isinstance(value, dict)


def _are_events(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_event, value))


def _holds_events(value: object) -> bool:
    """Whether a map is what surrounds events, and has no name of its own."""
    return isinstance(value, dict) and not tag_of(value) and any(map(_are_events, value.values()))


def _form_of(value: object) -> str:
    if _are_events(value):
        return "a list of events"
    if _is_event(value) and not _holds_events(value):
        return "one event, a map" if isinstance(value, dict) else "one event, an array"
    if isinstance(value, list):
        return "an array of " + ", ".join(map(_kind_of, value[:_FORM_PARTS]))
    assert isinstance(value, dict)
    fields = list(value.items())[:_FORM_PARTS]
    named = (f"{str(name)[:CHECK_NAME_CHARS_MAX]}: {_kind_of(one)}" for name, one in fields)
    return "a map of " + ", ".join(named)


def _kind_of(value: object) -> str:
    if isinstance(value, list):
        if _are_events(value):
            return "events as maps" if isinstance(value[0], dict) else "events as arrays"
        return "a list" if value else "events"
    return _KINDS.get(type(value), "other bytes")


def _rank_of(value: object) -> int | None:
    rank: object = None
    if isinstance(value, list) and len(value) > _RANK_AT:
        rank = value[_RANK_AT]
    elif isinstance(value, dict):
        rank = next((value[name] for name in _RANK_FIELDS if name in value), None)
    return rank if isinstance(rank, int) and not isinstance(rank, bool) else None
