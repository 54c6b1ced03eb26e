"""TensorRT-LLM's events as `LLM.get_kv_cache_events()` gives them, in JSON: one, or an array.

    {event_id, data, window_size?, attention_dp_rank?, layer_group_id?, hash_algo?}

    data    {type: "created", num_blocks_per_cache_level}
            {type: "stored", parent_hash, blocks: [{type: "stored_block", block_hash,
              tokens: [{type?: "unique_token", token_id, token_extra_id?}], cache_level?, priority?,
              mm_keys?, cache_salt?}], lora_name?, cache_salt?}
            {type: "removed", block_hashes}
            {type: "updated", block_hash, cache_level?: {old_value, new_value}, priority?}

No release sends them over ZeroMQ by itself: whoever has the engine in its process forwards them,
with the sequence numbers of its own socket. They have no time.

The engine numbers its events, and drops the oldest where nobody takes them: a number that is
missing is a loss, although the forwarder's own sequence has no hole. So whoever forwards them
forwards all.

A model with several attention windows has an event for each. What forms a prefix is the largest:
the engine names all windows by its first events, which say that the pools were created. Which that
is `bridge.publisher.windows` knows: here events have their window in place of a group.

Each request that ends leaves its last block in the tree, which may be a part of one: no query asks
for it, and it says nothing of the registered size.

The engine has one tree of blocks, and says what it adds to that. So a full block that comes while
it is held had been dropped without an event, as by `reset_prefix_cache`. It is held once: such
events are marked as reports (`StoredBlocks.reported`), and `streams.table.fold` doubts the
publisher from the first one on.

Source: `tensorrt_llm/_utils.py` (KVCacheEventSerializer), TensorRT-LLM 1.0 to the main branch of
2026.
"""

import string
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Annotated, Final

import msgspec

from bridge.wire.drop_reasons import DropReason
from bridge.wire.event_ids import EventId
from bridge.wire.fields import name_of
from bridge.wire.known_part import KnownPart, known_part
from bridge.wire.opaque import DECODING_ERRORS
from bridge.wire.single_events import ReadEvent, check_blocks, json_events, with_unknown
from schemas.arrays import Token, hash_to_u64, tokens_to_bytes
from schemas.errors import EventError
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks, extra_key
from schemas.identities import PARTIAL_BLOCK, Medium
from schemas.limits import BLOCK_SIZE_MAX, GROUP_NUMBER_MAX
from schemas.registration import Registration

_LEVELS: Final = (Medium.GPU, Medium.CPU, Medium.DISK)
_HEX_DIGITS: Final = 16
_hex_alphabet: Final = frozenset(string.hexdigits)


class _Token(msgspec.Struct, forbid_unknown_fields=True):
    token_id: Token | str
    token_extra_id: int = 0
    type: str = "unique_token"


class _MultimodalKey(msgspec.Struct, forbid_unknown_fields=True):
    hash: str
    start_offset: int
    uuid: str | None = None
    type: str = "mm_key"


class _Block(msgspec.Struct, forbid_unknown_fields=True):
    block_hash: int | str
    tokens: list[_Token]
    cache_level: int = 0
    priority: int | None = None
    mm_keys: list[_MultimodalKey] | None = None
    cache_salt: str | None = None
    type: str = "stored_block"

    def keys(self, salt: str | None) -> bytes:
        """What besides tokens enters its hash.

        Raises:
            EventError: a number in it is above 64 bits.
        """
        keys: list[object] = [salt] if salt else []
        keys += [[key.hash, key.start_offset] for key in self.mm_keys or ()]
        for place, token in enumerate(self.tokens):
            if isinstance(token.token_id, str):
                keys.append([name_of(token.token_id), place])
            if token.token_extra_id:
                keys.append([token.token_extra_id, place])
        try:
            return extra_key(keys)
        except OverflowError as error:
            raise EventError(DropReason.BAD_EXTRA_KEYS, str(error)) from error


class _Created(msgspec.Struct, tag_field="type", tag="created"):
    """How many blocks there are: of a pool that is new, and of which nothing is stored."""


class _Stored(msgspec.Struct, tag_field="type", tag="stored", forbid_unknown_fields=True):
    blocks: list[_Block]
    parent_hash: int | str | None = None
    lora_name: str | None = None
    cache_salt: str | None = None


class _Removed(msgspec.Struct, tag_field="type", tag="removed", forbid_unknown_fields=True):
    block_hashes: list[int | str]


class _Diff(msgspec.Struct):
    old_value: int
    new_value: int


class _Updated(msgspec.Struct, tag_field="type", tag="updated", forbid_unknown_fields=True):
    block_hash: int | str
    cache_level: _Diff | None = None
    priority: msgspec.Raw = msgspec.Raw(b"null")


class _Event(msgspec.Struct, forbid_unknown_fields=True):
    event_id: EventId
    data: _Created | _Stored | _Removed | _Updated
    window_size: Annotated[int, msgspec.Meta(ge=0, le=GROUP_NUMBER_MAX)] | None = None
    attention_dp_rank: int | None = None
    layer_group_id: int | None = None
    hash_algo: str | None = None


_event: Final = msgspec.json.Decoder(_Event)
_any: Final = msgspec.json.Decoder()


class ApiReader:
    """Reads one publisher's events; one owner.

    Args:
        registration: events of its rank, and those that name none, are its own; its LoRA is that of
            those that name none.
    """

    def __init__(self, registration: Registration) -> None:
        self._dp_rank = registration.dp_rank
        self._lora_name = registration.lora_name
        self._block_size = registration.block_size

    def read_batch(self, payload: bytes, sequence: int) -> tuple[float, Sequence[msgspec.Raw]]:
        """See `single_events.BatchReader`."""
        return 0.0, json_events(payload)

    def read_event(self, encoded: msgspec.Raw, sequence: int) -> ReadEvent:
        """See `single_events.EventReader`."""
        part = _read(encoded)
        event: _Event = part.value
        rank = event.attention_dp_rank
        if rank is not None and rank != self._dp_rank:
            return ReadEvent((), event.event_id, other_rank=rank)
        return with_unknown(ReadEvent(self._canonical(event, sequence), event.event_id), part)

    def _canonical(self, event: _Event, sequence: int) -> list[BlockEvent]:
        window = event.window_size or 0
        data = event.data
        if isinstance(data, _Created):
            named = StoredBlocks(sequence=sequence, hashes=b"", group=window)
            return [ClearedBlocks(sequence=sequence), named]
        if isinstance(data, _Stored):
            # Groups of layers with one window have a block each, by one name.
            holds_once = event.layer_group_id is None
            return list(self._stored(data, sequence, window, holds_once=holds_once))
        if isinstance(data, _Removed):
            return _removed(data, sequence, window)
        if data.cache_level is not None:
            return _moved(data.block_hash, data.cache_level, sequence, window)
        return []

    def _stored(
        self, data: _Stored, sequence: int, window: int, *, holds_once: bool
    ) -> Iterator[BlockEvent]:
        """One event for each run of blocks of one size and level."""
        check_blocks(len(data.blocks))
        parent = None if data.parent_hash is None else _hash_of(data.parent_hash)
        is_root = parent is None
        lora_name = name_of(data.lora_name) or self._lora_name
        is_partial = self._ends_in_part(data)
        for (size, level), run in groupby(
            data.blocks, lambda one: (len(one.tokens), one.cache_level)
        ):
            if size > BLOCK_SIZE_MAX:
                detail = f"Expected a block of at most {BLOCK_SIZE_MAX} tokens, got {size}"
                raise EventError(DropReason.BAD_BLOCK_SIZE, detail)
            blocks = list(run)
            keys = []
            for block in blocks:
                keys.append(block.keys((block.cache_salt or data.cache_salt) if is_root else None))
                is_root = False
            hashes = [_hash_of(block.block_hash) for block in blocks]
            if is_partial and blocks[-1] is data.blocks[-1]:
                yield StoredBlocks(
                    sequence=sequence,
                    hashes=_packed(hashes),
                    medium=_medium_of(level),
                    group=window,
                    left_out=PARTIAL_BLOCK,
                )
                return
            yield StoredBlocks(
                sequence=sequence,
                hashes=_packed(hashes),
                tokens=b"".join(map(_tokens_of, blocks)),
                parent=parent,
                block_size=size,
                medium=_medium_of(level),
                lora_name=lora_name,
                group=window,
                reported=holds_once and size == self._block_size,
                extra_keys=tuple(keys) if any(keys) else (),
            )
            parent = hashes[-1]

    def _ends_in_part(self, data: _Stored) -> bool:
        """Whether its last block is the end of a request's prompt, as the engine stores it of each
        that ends: of an engine with another block size the first block has that size, too.
        """
        sizes = [len(block.tokens) for block in data.blocks[-2:]]
        if not sizes or not 0 < sizes[-1] < self._block_size:
            return False
        return sizes[0] == self._block_size if len(sizes) > 1 else data.parent_hash is not None


def _read(encoded: msgspec.Raw) -> KnownPart:
    """The event, and what is not known of it."""
    try:
        return KnownPart(_event.decode(encoded), "", True)
    except DECODING_ERRORS as error:
        try:
            return known_part(_any.decode(encoded), _Event)
        except DECODING_ERRORS as other:
            raise EventError(DropReason.MALFORMED_EVENT, str(error)) from other


def _removed(data: _Removed, sequence: int, window: int) -> list[BlockEvent]:
    """A block is gone from wherever it was: the event names no level."""
    check_blocks(len(data.block_hashes))
    hashes = _packed(map(_hash_of, data.block_hashes))
    return [
        RemovedBlocks(sequence=sequence, hashes=hashes, medium=medium, group=window)
        for medium in _LEVELS
    ]


def _moved(block_hash: int | str, level: _Diff, sequence: int, window: int) -> list[BlockEvent]:
    hashes = _packed([_hash_of(block_hash)])
    return [
        StoredBlocks(
            sequence=sequence, hashes=hashes, medium=_medium_of(level.new_value), group=window
        ),
        RemovedBlocks(
            sequence=sequence, hashes=hashes, medium=_medium_of(level.old_value), group=window
        ),
    ]


def _tokens_of(block: _Block) -> bytes:
    ids = (token.token_id for token in block.tokens)
    return tokens_to_bytes([0 if isinstance(one, str) else one for one in ids])


def _medium_of(level: int) -> Medium:
    if not 0 <= level < len(_LEVELS):
        raise EventError(DropReason.UNKNOWN_MEDIUM, f"Expected a cache level, got: {level}")
    return _LEVELS[level]


def _hash_of(value: int | str) -> int:
    """The block's hash as u64; of one in hexadecimal the low 64 bits."""
    try:
        if not isinstance(value, str):
            return hash_to_u64(value)
        if not value or not _hex_alphabet.issuperset(value):
            raise ValueError(f"Expected a hash in hexadecimal, got: {value[:80]}")
        return int(value[-_HEX_DIGITS:], 16)
    except ValueError as error:
        raise EventError(DropReason.BAD_HASHES, str(error)[:200]) from error


def _packed(hashes: Iterable[int]) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in hashes)
