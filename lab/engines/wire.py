"""Block events in the encoding of each vLLM release.

Source: `vllm/distributed/kv_events.py`, 0.9.0 to 0.33.0. A batch is always the array `[ts, events,
dp_rank]`
(0.9.0: without the rank). An event is, up to 0.23, the array `[tag, field...]` of a fixed length
for that release, nil where nothing is known; from 0.24 on the map `{"type": tag, field: ...}` from
which fields that hold their default are absent, except those that have no default.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

GPU: Final = "GPU"
CPU: Final = "CPU"

ExtraKey = str | tuple[str, int]
"""A LoRA's name, a cache salt, or a multimodal key and its offset."""


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Consecutive blocks now in a tier. The fields are those of the newest release."""

    block_hashes: Sequence[int | bytes]
    parent_block_hash: int | bytes | None = None
    token_ids: Sequence[int] = ()
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: Sequence[tuple[ExtraKey, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: Sequence[Sequence[int]] | None = None


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Blocks no longer in a tier."""

    block_hashes: Sequence[int | bytes]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The cache was emptied."""


EngineEvent = BlockStored | BlockRemoved | AllBlocksCleared

_STORED_REQUIRED: Final = (
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
)
_FIELD_SINCE: Final[dict[str, dict[str, tuple[int, int, int]]]] = {
    "BlockStored": {
        **dict.fromkeys(_STORED_REQUIRED, (0, 9, 0)),
        "medium": (0, 10, 2),
        "lora_name": (0, 14, 0),
        "extra_keys": (0, 17, 0),
        "group_idx": (0, 20, 0),
        "kv_cache_spec_kind": (0, 22, 0),
        "kv_cache_spec_sliding_window": (0, 22, 0),
        "locality": (0, 26, 0),
        "ownership": (0, 29, 0),
        "session_id": (0, 30, 0),
        "lookahead_token_ids": (0, 33, 0),
    },
    "BlockRemoved": {
        "block_hashes": (0, 9, 0),
        "medium": (0, 10, 2),
        "group_idx": (0, 20, 0),
        "locality": (0, 26, 0),
        "ownership": (0, 29, 0),
    },
    "AllBlocksCleared": {},
}
_NO_DEFAULT: Final = {
    "BlockStored": frozenset({*_STORED_REQUIRED, "medium", "lora_name"}),
    "BlockRemoved": frozenset({"block_hashes", "medium"}),
    "AllBlocksCleared": frozenset[str](),
}
_BATCH_HAS_RANK_SINCE: Final = (0, 9, 1)
_EVENTS_ARE_MAPS_SINCE: Final = (0, 24, 0)
_REPLAY_HAS_TOPIC_SINCE: Final = (0, 26, 0)

NEWEST_WIRE: Final = "0.33"


class Release(NamedTuple):
    """A vLLM release, as far as its wire differs from others'."""

    major: int
    minor: int
    patch: int

    @property
    def replay_has_topic(self) -> bool:
        """Whether replies to a replay request carry the topic frame."""
        return self >= _REPLAY_HAS_TOPIC_SINCE


def parse_release(wire: str) -> Release:
    """The release that "0.33" or "0.10.2" names.

    Raises:
        ValueError: not two or three numbers, or older than 0.9.0, the first to publish events.
    """
    parts = wire.split(".")
    if not (2 <= len(parts) <= 3 and all(part.isdigit() for part in parts)):
        raise ValueError(f"Expected a vLLM release such as `0.33`, got: {wire}")
    release = Release(*(int(part) for part in (*parts, "0")[:3]))
    if release < (0, 9, 0):
        raise ValueError(f"Expected a vLLM release from 0.9.0 on, got: {wire}")
    return release


class EventEncoder:
    """Encodes batches as one release does."""

    def __init__(self, wire: str = NEWEST_WIRE) -> None:
        self.release = parse_release(wire)
        as_maps = self.release >= _EVENTS_ARE_MAPS_SINCE
        self._types = {tag: self._event_type(tag, as_maps=as_maps) for tag in _FIELD_SINCE}
        self._encoder = msgspec.msgpack.Encoder()

    def encode(self, events: Sequence[EngineEvent], *, timestamp_s: float, dp_rank: int) -> bytes:
        """One batch. Fields that the release does not know are dropped, as its engine would."""
        batch: list[object] = [timestamp_s, [self._shaped(event) for event in events]]
        if self.release >= _BATCH_HAS_RANK_SINCE:
            batch.append(dp_rank)
        return self._encoder.encode(batch)

    def _event_type(self, tag: str, *, as_maps: bool) -> type[msgspec.Struct]:
        names = [name for name, since in _FIELD_SINCE[tag].items() if since <= self.release]
        fields: list[tuple[str, type] | tuple[str, type, None]] = [
            (name, object) if name in _NO_DEFAULT[tag] else (name, object, None) for name in names
        ]
        return msgspec.defstruct(
            tag, fields, tag=True, array_like=not as_maps, omit_defaults=True, module=__name__
        )

    def _shaped(self, event: EngineEvent) -> msgspec.Struct:
        wire_type = self._types[type(event).__name__]
        return wire_type(*(getattr(event, name) for name in wire_type.__struct_fields__))
