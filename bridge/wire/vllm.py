"""vLLM's events, 0.9.0 to 0.33: arrays up to 0.23, maps since 0.24.

Source: `vllm/distributed/kv_events.py`. Fields were only ever added at the end, so one list of
fields reads every version. `session_id` names no block. The blocks of an owner that is known
(`schemas.events.OWNERS`) are a set of its own; of others it counts that there is one
(`bridge.wire.fields`). With `lookahead_token_ids` a block is one of the tokens behind it, too,
which no query tells in time: it is left out. What is not listed here: `bridge.wire.batch`.

    0.9.0   block_hashes, parent_block_hash, token_ids, block_size, lora_id
    0.10.2  + medium          0.14.0  + lora_name        0.17.0  + extra_keys
    0.20.0  + group_idx       0.22.0  + kv_cache_spec_kind, kv_cache_spec_sliding_window
    0.26.0  + locality (maps only, as all that follow)
    0.29.0  + ownership       0.30.0  + session_id       0.33.0  + lookahead_token_ids

An event of a cache group of sliding windows or of recurrent layers names the blocks that are kept
of a chain, and has the tokens of the whole chain. What an engine needs of such a group is said by
its kind and its window (`last_blocks_of`); of chunks of local attention no field says it.

Offloading names the tokens of a block on another tier (`self_describing_kv_events`, since 0.24),
and never its extra keys: what has a salt or an image looks like a plain prompt's block. Mooncake's
store connector does likewise (since 0.21), and says of a later part of a prompt that it begins one.
So such an event names blocks as one without tokens does. Its block size is kept. LMCache within
vLLM names its blocks by hashes of its own: where the registration says so, tokens are all that they
are known by.

`remaining_copy_counts` of a removal, which is proposed (vllm-project/vllm#48933), says of each
block how many copies are left: so many are held, however many were announced.

`origin`, which is proposed (vllm-project/vllm#51699), says of cached blocks that a request uses
again that they are `REUSED`. Without it nothing tells them: `bridge.wire.hit_reports`.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import UNSET, UnsetType

from bridge.wire.batch import BatchDecoder
from bridge.wire.drop_reasons import DropReason
from bridge.wire.fields import (
    NIL,
    Origin,
    block_size_of,
    group_of,
    hashes_of,
    is_nil,
    is_remote,
    lora_name_of,
    medium_of,
    name_of,
    paired_keys,
    parent_of,
    tokens_of,
)
from bridge.wire.forms import CLEARED_ARRAYS, CLEARED_MAPS, WireEvent, forms_of
from bridge.wire.opaque import DECODING_ERRORS, is_empty
from schemas.arrays import ArrayPacker
from schemas.errors import EventError
from schemas.events import (
    BlockEvent,
    RemovedBlocks,
    StoredBlocks,
    extra_key,
    without_adapter,
)
from schemas.identities import Medium
from schemas.limits import HOLD_COUNT_MAX
from schemas.registration import VLLM, Registration

KIND: Final = VLLM

_REUSED: Final = "REUSED"

MAMBA: Final = "mamba"
WINDOWED: Final = frozenset({"sliding_window", "sliding_window_mla"})
"""Kinds of cache groups whose rule is known."""

WINDOW_MAX: Final = 2**31 - 1  # tokens; of what is above it no rule is known

_window: Final = msgspec.msgpack.Decoder(Annotated[int, msgspec.Meta(ge=2, le=WINDOW_MAX)])
_counts: Final = msgspec.msgpack.Decoder(list[Annotated[int, msgspec.Meta(ge=0)]])
_extra_keys: Final = msgspec.msgpack.Decoder(list[list[object] | None] | None)


class StoredFields(WireEvent):
    """What all of its stores have.

    Attributes:
        has_rules: whether what an engine needs of sparse groups is as vLLM needs it.
    """

    has_rules: ClassVar[bool] = True

    block_hashes: msgspec.Raw
    parent_block_hash: int | bytes | None = None
    token_ids: msgspec.Raw = NIL
    block_size: int | None = None
    lora_id: int | str | None = None
    medium: str | None = None
    lora_name: str | UnsetType | None = UNSET
    extra_keys: msgspec.Raw = NIL
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: msgspec.Raw = NIL

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`: beyond the GPU the blocks of their names, where nothing else is said."""
        self.check()
        lora_name = lora_name_of(self.lora_name, self.lora_id, origin)
        hashes = hashes_of(self.block_hashes, origin.packer)
        tokens = tokens_of(self.token_ids, origin.packer)
        parent = parent_of(self.parent_block_hash)
        block_size = block_size_of(self.block_size)
        keys = extra_keys_of(self.extra_keys, lora_name)
        spec_kind = name_of(self.kv_cache_spec_kind)
        last_blocks = 0
        if self.has_rules:
            last_blocks = last_blocks_of(spec_kind, self.kv_cache_spec_sliding_window, block_size)
        medium, shared = medium_of(self.medium), self.is_shared()
        is_on_gpu = medium is Medium.GPU and not shared
        by_tokens = origin.registration.kv_offloading == "lmcache"
        if not (is_on_gpu or by_tokens) and is_nil(self.extra_keys):
            tokens, parent = b"", None
        return StoredBlocks(
            sequence=sequence,
            hashes=hashes,
            tokens=tokens,
            parent=parent,
            block_size=block_size,
            medium=medium,
            shared=shared,
            owned=self.has_set(medium, shared=shared),
            lora_name=lora_name,
            group=group_of(self.group_idx),
            spec_kind=spec_kind,
            last_blocks=last_blocks,
            reported=self.is_reported(),
            extra_keys=paired_keys(keys, self.token_ids, hashes, block_size, origin),
        )

    def left_out(self, sequence: int, origin: Origin, reason: str) -> StoredBlocks | None:
        """See `WireEvent`."""
        medium, shared = medium_of(self.medium), self.is_shared()
        return StoredBlocks(
            sequence=sequence,
            hashes=hashes_of(self.block_hashes, origin.packer),
            medium=medium,
            shared=shared,
            owned=self.has_set(medium, shared=shared),
            group=group_of(self.group_idx),
            spec_kind=name_of(self.kv_cache_spec_kind),
            reported=self.is_reported(),
            left_out=reason,
        )

    def check(self) -> None:
        """Raises EventError where the blocks are not those of their tokens alone."""

    def is_shared(self) -> bool:
        """Whether every instance can read the blocks."""
        return False

    def is_reported(self) -> bool:
        """Whether the blocks were there before."""
        return False


class RemovedFields(WireEvent):
    """What all of its removals have."""

    block_hashes: msgspec.Raw
    medium: str | None = None
    group_idx: int | None = None

    removes: ClassVar[bool] = True

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        medium, shared = medium_of(self.medium), self.is_shared()
        return RemovedBlocks(
            sequence=sequence,
            hashes=hashes_of(self.block_hashes, origin.packer),
            medium=medium,
            shared=shared,
            owned=self.has_set(medium, shared=shared),
            group=group_of(self.group_idx),
        )

    def is_shared(self) -> bool:
        """Whether every instance could read the blocks."""
        return False


class _StoredArray(StoredFields, array_like=True, tag="BlockStored", forbid_unknown_fields=True):
    pass


class _RemovedArray(RemovedFields, array_like=True, tag="BlockRemoved", forbid_unknown_fields=True):
    pass


class _StoredMap(StoredFields, tag="BlockStored", tag_field="type", forbid_unknown_fields=True):
    locality: str | None = None
    ownership: msgspec.Raw = NIL
    session_id: msgspec.Raw = NIL
    lookahead_token_ids: msgspec.Raw = NIL
    origin: str | None = None

    def check(self) -> None:
        """See `StoredFields`."""
        if not is_empty(self.lookahead_token_ids):
            detail = "Expected blocks of their own tokens, got some that depend on later ones"
            raise EventError(DropReason.LOOKAHEAD, detail)

    @property
    def has_origin(self) -> bool:
        """See `WireEvent`."""
        return self.origin is not None

    def is_reported(self) -> bool:
        """See `StoredFields`."""
        return self.origin is not None and self.origin.upper() == _REUSED

    def is_shared(self) -> bool:
        """See `StoredFields`."""
        return is_remote(self.locality)


class _RemovedMap(RemovedFields, tag="BlockRemoved", tag_field="type", forbid_unknown_fields=True):
    locality: str | None = None
    ownership: msgspec.Raw = NIL
    remaining_copy_counts: msgspec.Raw = NIL

    @property
    def settles_medium(self) -> bool:
        """See `WireEvent`."""
        return not is_nil(self.remaining_copy_counts)

    def events(self, sequence: int, origin: Origin) -> Sequence[BlockEvent]:
        """See `WireEvent`: one for each number of copies that are left, where they say it."""
        removed = self.canonical(sequence, origin)
        assert isinstance(removed, RemovedBlocks)
        if is_nil(self.remaining_copy_counts):
            return (removed,)
        hashes = [removed.hashes[at : at + 8] for at in range(0, len(removed.hashes), 8)]
        by_count: dict[int, list[bytes]] = {}
        for one, left in zip(hashes, self._counts(len(hashes)), strict=True):
            by_count.setdefault(min(left, HOLD_COUNT_MAX), []).append(one)
        return tuple(
            msgspec.structs.replace(removed, hashes=b"".join(part), whole=not left, left=left)
            for left, part in by_count.items()
        )

    def _counts(self, blocks: int) -> list[int]:
        """How many copies are left of each block."""
        try:
            counts = _counts.decode(self.remaining_copy_counts)
        except DECODING_ERRORS as error:
            raise EventError(DropReason.BAD_COPY_COUNTS, str(error)) from error
        if len(counts) != blocks:
            detail = f"Expected a number of copies for each of {blocks} blocks, got {len(counts)}"
            raise EventError(DropReason.BAD_COPY_COUNTS, detail)
        return counts

    def left_out(self, sequence: int, origin: Origin, reason: str) -> RemovedBlocks | None:
        """See `WireEvent`: one copy less is right, however many are left."""
        if reason != DropReason.BAD_COPY_COUNTS:
            return None
        removed = self.canonical(sequence, origin)
        assert isinstance(removed, RemovedBlocks)
        return removed

    def is_shared(self) -> bool:
        """See `RemovedFields`."""
        return is_remote(self.locality)


def last_blocks_of(spec_kind: str, window: msgspec.Raw, block_size: int) -> int:
    """How many blocks of a cache group the engine needs at the end of a prefix that it reuses; 0
    where that is not known, or is none of a sparse group. vLLM 0.33.0:
    `SlidingWindowManager._contiguous_blocks_for_hit`, `MambaManager.find_longest_cache_hit`.
    """
    if spec_kind == MAMBA:
        return 1
    if spec_kind not in WINDOWED or not block_size:
        return 0
    try:
        tokens: int = _window.decode(window)
    except DECODING_ERRORS:
        return 0
    return -(-(tokens - 1) // block_size)


def extra_keys_of(encoded: msgspec.Raw, lora_name: str) -> tuple[bytes, ...]:
    """One key for each block, () when no block has any.

    The LoRA's name stands first where the engine hashes one; it is a level of the table here. A
    number of rows that is not that of the blocks is kept: the kernel counts it.
    """
    if encoded is NIL:
        return ()
    try:
        rows = _extra_keys.decode(encoded) or []
        keys = tuple(extra_key(without_adapter(row, lora_name)) for row in rows)
    except (ValueError, TypeError, RecursionError) as error:
        raise EventError(DropReason.BAD_EXTRA_KEYS, str(error)) from error
    return keys if any(keys) else ()


_FORMS: Final = forms_of(
    maps=(_StoredMap, _RemovedMap, *CLEARED_MAPS),
    arrays=(_StoredArray, _RemovedArray, *CLEARED_ARRAYS),
)


def open_source(registration: Registration, packer: ArrayPacker) -> BatchDecoder:
    """The decoder of a vLLM publisher's messages."""
    is_named = registration.kv_offloading != "lmcache"
    return BatchDecoder(
        registration, packer, forms=_FORMS, scopeless_tiers=is_named, has_rules=True
    )
