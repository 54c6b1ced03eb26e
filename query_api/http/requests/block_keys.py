"""What besides tokens enters the hashes of a prompt's blocks, as a request says it.

    extra_keys   for each whole block a row of keys, or null, as events of engines have them
    media        images and the like: `[{"hash": ..., "offset": tokens, "length": tokens}]`
    features     the same by vLLM's names, as its `/v1/chat/completions/render` answers it, and its
                 `/inference/v1/generate` takes it: `mm_hashes` and `mm_placeholders` by modality

The row of the first block gets the request's salt; an adapter's name is taken from each. Events of
an engine are made into the same keys by the bridge.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec

from query_api.http.errors import RequestError
from query_api.http.requests.fields import got
from query_api.http.wire import Field, Wire, malformed
from schemas.events import extra_key, without_adapter
from schemas.limits import BLOCK_SIZE_MAX, MIB
from schemas.media import MEDIA_FORMS, MediaFeatures, MediaItem, media_keys_bytes, media_rows

EXTRA_KEYS_BYTES_MAX: Final = 4 * MIB  # of a field, before it is objects: status="413"
MEDIA_KEYS_BYTES_MAX: Final = 16 * MIB  # of the keys that media make of blocks: status="413"
MEDIA_MAX: Final = 4096  # of one prompt: status="413"
KEYED_BLOCKS_MAX: Final = 65_536  # to the last one with keys, some 0.1 s: status="413"

KEY_FIELDS: Final = ("extra_keys", "features", "media")
"""Of a body, by name: at most one of them says something."""

Row = Sequence[object] | None


class _Parts(msgspec.Struct):
    """Of `features`, before they are objects."""

    mm_hashes: msgspec.Raw
    mm_placeholders: msgspec.Raw


class _Decoders(NamedTuple):
    rows: Any
    media: Any
    features: Any
    parts: Any


_DECODERS: Final = {
    wire: _Decoders(
        module.Decoder(list[list[Any] | None] | None).decode,
        module.Decoder(list[MediaItem] | None).decode,
        module.Decoder(MediaFeatures).decode,
        module.Decoder(_Parts).decode,
    )
    for wire, module in ((Wire.JSON, msgspec.json), (Wire.MSGPACK, msgspec.msgpack))
}
_RULES: Final = {
    "extra_keys": "an array with an array of keys, or null, for each whole block",
    "media": 'an array of {"hash": string, "offset": tokens, "length": tokens, at least 1}',
    "features": (
        '{"mm_hashes": {modality: [hash]}, "mm_placeholders": {modality: [{"offset": tokens,'
        ' "length": tokens, at least 1}]}}'
    ),
}
_PLACE: Final = re.compile(r" - at `\$([^`]*)`$")


class BlockKeys(NamedTuple):
    """What a request says of it, checked.

    Attributes:
        rows: for each whole block; () where the request has no `extra_keys`.
        media: by place, none within another.
    """

    rows: Sequence[Row] = ()
    media: Sequence[MediaItem] = ()

    @property
    def adapter(self) -> str:
        """What every row begins with, which may be the name of an adapter; "" for none. Cost
        O(rows).
        """
        first = self.rows[0][0] if self.rows and self.rows[0] else None
        if not isinstance(first, str):
            return ""
        return first if all(row and row[0] == first for row in self.rows) else ""

    def of_blocks(
        self, blocks: int, block_size: int, lora_name: str, salt: str
    ) -> list[tuple[bytes, ...]]:
        """The keys of a prompt's first blocks, as a kernel takes them, in each form in which
        engines have them, the newest first. Cost O(blocks).

        Args:
            blocks: whole ones of the prompt.
            block_size: tokens.
            lora_name: the adapter, which is a level of the index, and no key.
            salt: the request's own; "" for none.
        """
        if not self.rows and not self.media:
            return [(extra_key([salt]),) if salt else ()]
        if self.rows:
            return [_packed([without_adapter(row, lora_name) for row in self.rows], salt)]
        found = [media_rows(self.media, blocks, block_size, form) for form in MEDIA_FORMS]
        packed = (_packed(rows, salt) for rows in found if salt or not _is_salt(rows))
        return list(dict.fromkeys(packed))


def _is_salt(rows: Sequence[Sequence[object]]) -> bool:
    """Whether they are those of a salt alone: vLLM 0.17 and 0.18 wrote an image so that is wholly
    within the first block, and a query of one must not find the blocks of another's salt.
    """
    return len(rows) == 1 and len(rows[0]) == 1 and isinstance(rows[0][0], str)


NO_KEYS: Final = BlockKeys()


def read_block_keys(
    given: Mapping[str, Field], wire: Wire, tokens: int, block_size: int
) -> BlockKeys:
    """Those of the fields of a body that are `KEY_FIELDS`.

    Args:
        given: by name; null says nothing.
        tokens: of the prompt.
        block_size: of it, tokens.

    Raises:
        RequestError: `invalid_type`, `invalid_value`, `out_of_range`, `too_many_elements`,
            `body_too_large`.
    """
    said = {
        name: field
        for name, field in given.items()
        if bytes(memoryview(field.raw)[:5]) not in _NOTHING
    }
    if len(said) > 1:
        first, second = sorted(said)[:2]
        text = f"{first} must not be used together with {second}"
        more = ": they say the same in different ways, leave one of them out"
        raise RequestError("invalid_value", text, field=second, more=more)
    rows: Sequence[Row] = ()
    media: Sequence[MediaItem] = ()
    for name, field in said.items():
        if name == "extra_keys":
            rows = _read_rows(field, wire, tokens, block_size)
        else:
            media = _checked(_read_items(field, wire), name, tokens, block_size)
    return BlockKeys(rows, media) if rows or media else NO_KEYS


_NOTHING: Final = (b"null", b"\xc0")


def _read_rows(field: Field, wire: Wire, tokens: int, block_size: int) -> list[Row]:
    _check_bytes(field, field.raw)
    rows: list[Row] = _decoded(_DECODERS[wire].rows, field, wire)
    _check_blocks(field.name, len(rows) if any(rows) else 0)
    try:
        extra_key([rows])
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        message = "extra_keys has a key that no event can have"
        more = f", expected strings, numbers of 64 bits and arrays of these: {error}"
        raise RequestError("invalid_value", message, field=field.name, more=more) from error
    blocks, left = divmod(tokens, block_size)
    if rows and len(rows) not in (blocks, blocks + bool(left)):
        message = f"extra_keys must have a row for each of {blocks} whole blocks"
        more = f" of {block_size} tokens, null for none, got {len(rows)}"
        raise RequestError("invalid_value", message, field=field.name, more=more)
    return rows[:blocks] if any(rows) else []


def _read_items(field: Field, wire: Wire) -> list[MediaItem]:
    """In any order."""
    if field.name == "media":
        _check_bytes(field, field.raw)
        items: list[MediaItem] = _decoded(_DECODERS[wire].media, field, wire)
        return items
    parts: _Parts = _decoded(_DECODERS[wire].parts, field, wire)
    _check_bytes(field, parts.mm_hashes, parts.mm_placeholders)
    features: MediaFeatures = _decoded(_DECODERS[wire].features, field, wire)
    try:
        return features.items()
    except ValueError as error:
        message = f"features must be {_RULES[field.name]}"
        more = f", as many hashes as places: {error}"
        raise RequestError("invalid_value", message, field=field.name, more=more) from error


def _checked(items: list[MediaItem], name: str, tokens: int, block_size: int) -> list[MediaItem]:
    """By place."""
    if len(items) > MEDIA_MAX:
        message = f"{name} must have at most {MEDIA_MAX} items"
        more = f", got {len(items)}"
        raise RequestError("too_many_elements", message, field=name, status=413, more=more)
    items = sorted(items, key=lambda item: item.offset)
    for item, following in pairwise(items):
        if following.offset < item.end:
            message = f"{name} must not overlap"
            more = f", got tokens {item.offset} to {item.end} and one from {following.offset} on"
            raise RequestError("invalid_value", message, field=name, more=more)
    if items and items[-1].end > tokens:
        message = f"{name} must lie within the {tokens} tokens of the prompt"
        more = f", got tokens {items[-1].offset} to {items[-1].end}"
        raise RequestError("out_of_range", message, field=name, more=more)
    if block_size > BLOCK_SIZE_MAX:
        return []
    blocks = tokens // block_size
    _check_blocks(name, min(blocks, -(-items[-1].end // block_size)) if items else 0)
    size = media_keys_bytes(items, blocks, block_size)
    if size > MEDIA_KEYS_BYTES_MAX:
        message = f"{name} must make keys of at most {MEDIA_KEYS_BYTES_MAX} bytes"
        more = f", got some {size}: a hash for each block that it is in"
        raise RequestError("body_too_large", message, field=name, status=413, more=more)
    return items


def _check_blocks(name: str, blocks: int) -> None:
    if blocks > KEYED_BLOCKS_MAX:
        message = f"{name} must be of the first {KEYED_BLOCKS_MAX} blocks"
        more = f", got {blocks}"
        raise RequestError("too_many_elements", message, field=name, status=413, more=more)


def _check_bytes(field: Field, *parts: bytes | msgspec.Raw) -> None:
    size = sum(len(memoryview(part)) for part in parts)
    if size > EXTRA_KEYS_BYTES_MAX:
        message = f"{field.name} must be at most {EXTRA_KEYS_BYTES_MAX} bytes"
        raise RequestError(
            "body_too_large", message, field=field.name, status=413, more=f", got {size}"
        )


def _decoded(decoder: Any, field: Field, wire: Wire) -> Any:
    """The value; a refusal says which part of it is wrong."""
    try:
        return decoder(field.raw)
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        where = f" in {field.name}{place[1]}" if place and place[1] else ""
        message = f"{field.name} must be {_RULES[field.name]}"
        raise RequestError(
            "invalid_type", message, field=field.name, more=f"; wrong{where}{got(field)}"
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(wire, error, bytes(field.raw), field=field.name) from error


def _packed(rows: list[list[object]], salt: str) -> tuple[bytes, ...]:
    """With the salt in the first row, where engines have it: before digests of embeddings, which
    are bytes. As it is where it stands there.
    """
    if salt and not rows:
        rows = [[]]
    if salt and salt not in rows[0]:
        first = rows[0]
        at = next((at for at, key in enumerate(first) if isinstance(key, bytes)), len(first))
        rows = [[*first[:at], salt, *first[at:]], *rows[1:]]
    keys = [extra_key(row) for row in rows]
    while keys and not keys[-1]:
        keys.pop()
    return tuple(keys)
