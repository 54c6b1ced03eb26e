"""SGLang's events, 0.4.10 to 0.5.23: arrays up to 0.5.19, maps since 0.5.20.

Source: `sglang/srt/disaggregation/kv_events.py`. Like vLLM's, except that hashes are signed, pages
of EAGLE drafts carry pairs of tokens, there are no cache groups, and a cache salt is a field of its
own.

    0.4.10  block_hashes, parent_block_hash, token_ids, block_size, lora_id
    0.5.9   + medium
    0.5.18  + {"cache_salt": salt}, as an eighth element, where there is a salt; 0.5.19 the same
    0.5.20  + cache_salt, session_id (maps)
    0.5.22  + lora_name (maps)

Up to 0.5.5 a hash is Python's `hash(tuple(page))`: of the page alone, not of what is before it. So
a page is found where one chain only has it, and 0.5.1 to 0.5.5 do not say of a chain behind which
other it hangs: its pages look like the first ones of a prompt. Nothing in what they send tells
more, see docs/compatibility.md.

`extra_keys` of a store, which is proposed (sgl-project/sglang#40601), stands for the salt: a row
for each block, as of vLLM. `session_id`, and of a removal `reason`, `lora_name` and
`component_types`, are ignored: they name no block. `ownership` is that of KVCR's linker, as of
vLLM. What is not listed here: `bridge.wire.batch`.
"""

from typing import ClassVar, Final

import msgspec
from msgspec import UNSET, UnsetType

from bridge.wire.batch import BatchDecoder
from bridge.wire.fields import (
    NIL,
    Origin,
    block_size_of,
    hashes_of,
    lora_name_of,
    medium_of,
    paired_keys,
    parent_of,
    tokens_of,
)
from bridge.wire.forms import CLEARED_ARRAYS, CLEARED_MAPS, WireEvent, forms_of
from bridge.wire.vllm import extra_keys_of
from schemas.arrays import ArrayPacker
from schemas.events import BlockEvent, RemovedBlocks, StoredBlocks, extra_key
from schemas.registration import SGLANG, Registration


class _Stored(WireEvent):
    block_hashes: msgspec.Raw
    parent_block_hash: int | bytes | None = None
    token_ids: msgspec.Raw = NIL
    block_size: int | None = None
    lora_id: int | str | None = None
    medium: str | None = None

    def left_out(self, sequence: int, origin: Origin, reason: str) -> StoredBlocks | None:
        """See `WireEvent`."""
        medium = medium_of(self.medium)
        return StoredBlocks(
            sequence=sequence,
            hashes=hashes_of(self.block_hashes, origin.packer),
            medium=medium,
            owned=self.has_set(medium),
            left_out=reason,
        )

    def stored(
        self,
        sequence: int,
        origin: Origin,
        *,
        lora_name: str | UnsetType | None,
        cache_salt: str | None,
        extra_keys: msgspec.Raw = NIL,
    ) -> StoredBlocks:
        """The event, with what its form can say."""
        hashes = hashes_of(self.block_hashes, origin.packer)
        parent = parent_of(self.parent_block_hash)
        name = lora_name_of(lora_name, self.lora_id, origin)
        keys = extra_keys_of(extra_keys, name)
        if not keys and parent is None:
            keys = _salted(cache_salt, len(hashes) // 8)
        block_size, medium = block_size_of(self.block_size), medium_of(self.medium)
        return StoredBlocks(
            sequence=sequence,
            hashes=hashes,
            tokens=tokens_of(self.token_ids, origin.packer),
            parent=parent,
            block_size=block_size,
            medium=medium,
            owned=self.has_set(medium),
            lora_name=name,
            extra_keys=paired_keys(keys, self.token_ids, hashes, block_size, origin),
        )


class _Removed(WireEvent):
    block_hashes: msgspec.Raw
    medium: str | None = None

    removes: ClassVar[bool] = True

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        medium = medium_of(self.medium)
        return RemovedBlocks(
            sequence=sequence,
            hashes=hashes_of(self.block_hashes, origin.packer),
            medium=medium,
            owned=self.has_set(medium),
        )


class _Metadata(msgspec.Struct, forbid_unknown_fields=True):
    cache_salt: str | None = None


class _StoredArray(_Stored, array_like=True, tag="BlockStored", forbid_unknown_fields=True):
    metadata: _Metadata | None = None

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        cache_salt = None if self.metadata is None else self.metadata.cache_salt
        return self.stored(sequence, origin, lora_name=UNSET, cache_salt=cache_salt)


class _RemovedArray(_Removed, array_like=True, tag="BlockRemoved", forbid_unknown_fields=True):
    pass


class _StoredMap(_Stored, tag="BlockStored", tag_field="type", forbid_unknown_fields=True):
    cache_salt: str | None = None
    session_id: msgspec.Raw = NIL
    lora_name: str | UnsetType | None = UNSET
    extra_keys: msgspec.Raw = NIL
    ownership: msgspec.Raw = NIL

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        return self.stored(
            sequence,
            origin,
            lora_name=self.lora_name,
            cache_salt=self.cache_salt,
            extra_keys=self.extra_keys,
        )


class _RemovedMap(_Removed, tag="BlockRemoved", tag_field="type", forbid_unknown_fields=True):
    reason: msgspec.Raw = NIL
    lora_name: msgspec.Raw = NIL
    component_types: msgspec.Raw = NIL
    ownership: msgspec.Raw = NIL


def _salted(cache_salt: str | None, blocks: int) -> tuple[bytes, ...]:
    """A salt enters the first block of a chain; the others inherit it through their parents."""
    if not cache_salt or not blocks:
        return ()
    return (extra_key([cache_salt]), *[b""] * (blocks - 1))


KIND: Final = SGLANG

_FORMS: Final = forms_of(
    maps=(_StoredMap, _RemovedMap, *CLEARED_MAPS),
    arrays=(_StoredArray, _RemovedArray, *CLEARED_ARRAYS),
)


def open_source(registration: Registration, packer: ArrayPacker) -> BatchDecoder:
    """The decoder of an SGLang publisher's messages."""
    return BatchDecoder(registration, packer, forms=_FORMS)
