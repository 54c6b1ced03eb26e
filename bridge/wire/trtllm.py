"""TensorRT-LLM's events: of its own ZeroMQ publisher, of Dynamo's for it, and of its API as JSON.

The first two send batches like vLLM's, whose events are maps:

    TensorRT-LLM since 2026   vLLM's fields up to `locality`, and `mm_keys`: for each block its
                              multimodal segments; a token may be a string
    Dynamo's publisher        block_hashes, parent_block_hash, token_ids, block_size; where there is
                              one `lora_name`, `cache_salt`, `block_mm_infos`; hashes are signed

Both replay as vLLM does since 0.26, where they replay at all. The third is what
`LLM.get_kv_cache_events()` gives, see `bridge.wire.trtllm_api`.

Source: `tensorrt_llm/_torch/pyexecutor/kv_cache_events.py` of TensorRT-LLM's main branch of 2026,
which no release on PyPI has yet; `dynamo/trtllm/publisher.py` of ai-dynamo 1.6.1.
"""

from collections.abc import Sequence
from typing import ClassVar, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from bridge.wire.batch import BatchDecoder, DecodedBatch, read_frames
from bridge.wire.drop_reasons import DropReason
from bridge.wire.fields import (
    NIL,
    Origin,
    block_size_of,
    group_of,
    hashes_of,
    is_remote,
    lora_name_of,
    medium_of,
    name_of,
    paired_keys,
    parent_of,
    tokens_of,
)
from bridge.wire.forms import CLEARED_MAPS, WireEvent, forms_of
from bridge.wire.opaque import DECODING_ERRORS
from bridge.wire.single_events import decode_singly, is_json
from bridge.wire.trtllm_api import ApiReader
from bridge.wire.vllm import extra_keys_of
from schemas.arrays import ArrayPacker, Token, tokens_to_bytes
from schemas.errors import EventError
from schemas.events import BlockEvent, RemovedBlocks, StoredBlocks, extra_key
from schemas.registration import TENSORRT_LLM, Registration

KIND: Final = TENSORRT_LLM


class _MultimodalKey(msgspec.Struct, tag_field="type", tag="mm_key", forbid_unknown_fields=True):
    """A segment of an image or the like within a block."""

    hash: str
    start_offset: int
    uuid: str | None = None


class _MultimodalObject(msgspec.Struct, forbid_unknown_fields=True):
    mm_hash: int
    offsets: list[tuple[int, int]]


class _MultimodalInfo(msgspec.Struct, forbid_unknown_fields=True):
    """The same of a block as Dynamo has it."""

    mm_objects: list[_MultimodalObject]


RowT = TypeVar("RowT")

_mm_keys: Final = msgspec.msgpack.Decoder(list[list[_MultimodalKey] | None] | None)
_mm_infos: Final = msgspec.msgpack.Decoder(list[_MultimodalInfo | None] | None)
_mixed_tokens: Final = msgspec.msgpack.Decoder(list[Token | str])


class _Stored(WireEvent, tag="BlockStored", tag_field="type", forbid_unknown_fields=True):
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
    locality: str | None = None
    mm_keys: msgspec.Raw = NIL
    cache_salt: str | None = None
    block_mm_infos: msgspec.Raw = NIL

    def left_out(self, sequence: int, origin: Origin, reason: str) -> StoredBlocks | None:
        """See `WireEvent`."""
        return StoredBlocks(
            sequence=sequence,
            hashes=hashes_of(self.block_hashes, origin.packer),
            medium=medium_of(self.medium),
            shared=is_remote(self.locality),
            group=group_of(self.group_idx),
            spec_kind=name_of(self.kv_cache_spec_kind),
            left_out=reason,
        )

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        hashes = hashes_of(self.block_hashes, origin.packer)
        parent = parent_of(self.parent_block_hash)
        block_size = block_size_of(self.block_size)
        lora_name = lora_name_of(self.lora_name, self.lora_id, origin)
        keys: list[list[object]] = [[] for _ in range(len(hashes) // 8)]
        if self.cache_salt and parent is None and keys:
            keys[0].append(self.cache_salt)
        self._add_segments(keys)
        tokens = _tokens_of(self.token_ids, block_size, keys, origin.packer)
        given = self._extra_keys(keys, lora_name)
        return StoredBlocks(
            sequence=sequence,
            hashes=hashes,
            tokens=tokens,
            parent=parent,
            block_size=block_size,
            medium=medium_of(self.medium),
            shared=is_remote(self.locality),
            lora_name=lora_name,
            group=group_of(self.group_idx),
            spec_kind=name_of(self.kv_cache_spec_kind),
            extra_keys=paired_keys(given, self.token_ids, hashes, block_size, origin),
        )

    def _add_segments(self, keys: list[list[object]]) -> None:
        """Adds to each block's keys its segments of images and the like, as vLLM has them: the
        identifier and where it begins, where that is known.
        """
        if self.mm_keys is NIL and self.block_mm_infos is NIL:
            return
        try:
            for row, segments in _of_blocks(keys, _mm_keys.decode(self.mm_keys)):
                row += [[one.hash, one.start_offset] for one in segments]
            for row, info in _of_blocks(keys, _mm_infos.decode(self.block_mm_infos)):
                row += [[one.mm_hash, *one.offsets] for one in info.mm_objects]
        except DECODING_ERRORS as error:
            raise EventError(DropReason.BAD_EXTRA_KEYS, str(error)) from error

    def _extra_keys(self, keys: list[list[object]], lora_name: str) -> tuple[bytes, ...]:
        """Of each block all that enters its hash."""
        given = extra_keys_of(self.extra_keys, lora_name)
        if not any(keys):
            return given
        if given:
            detail = "Expected extra_keys, or a salt and segments, got both"
            raise EventError(DropReason.BAD_EXTRA_KEYS, detail)
        try:
            return tuple(map(extra_key, keys))
        except (ValueError, TypeError, RecursionError) as error:
            raise EventError(DropReason.BAD_EXTRA_KEYS, str(error)) from error


class _Removed(WireEvent, tag="BlockRemoved", tag_field="type", forbid_unknown_fields=True):
    block_hashes: msgspec.Raw
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None

    removes: ClassVar[bool] = True

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        return RemovedBlocks(
            sequence=sequence,
            hashes=hashes_of(self.block_hashes, origin.packer),
            medium=medium_of(self.medium),
            shared=is_remote(self.locality),
            group=group_of(self.group_idx),
        )


def _of_blocks(
    keys: list[list[object]], rows: Sequence[RowT | None] | None
) -> list[tuple[list[object], RowT]]:
    """Each block's keys with its row, where it has one."""
    if not rows or not any(rows):
        return []
    if len(rows) != len(keys):
        raise ValueError(f"Expected a row for each of {len(keys)} blocks, got {len(rows)}")
    return [(key, row) for key, row in zip(keys, rows, strict=True) if row]


def _tokens_of(
    encoded: msgspec.Raw, block_size: int, keys: list[list[object]], packer: ArrayPacker
) -> bytes:
    """The tokens; a string, which stands for a part of an image, is a key of its block, and token
    0: no prompt of tokens alone may match it.
    """
    try:
        return tokens_of(encoded, packer)
    except EventError as error:
        try:
            tokens = _mixed_tokens.decode(encoded)
        except DECODING_ERRORS:
            raise error from None
    for place, token in enumerate(tokens):
        if isinstance(token, str) and block_size:
            block, offset = divmod(place, block_size)
            if block < len(keys):
                keys[block].append([name_of(token), offset])
    return tokens_to_bytes([0 if isinstance(token, str) else token for token in tokens])


_FORMS: Final = forms_of(maps=(_Stored, _Removed, *CLEARED_MAPS))


class _Decoder(BatchDecoder):
    """Batches in msgpack, or the API's events in JSON."""

    def __init__(self, registration: Registration, packer: ArrayPacker) -> None:
        super().__init__(registration, packer, forms=_FORMS)
        self._arrays = packer
        self._api = ApiReader(registration)

    def decode(self, frames: Sequence[bytes]) -> DecodedBatch:
        """See `MessageDecoder`."""
        sequence, payload = read_frames(frames)
        if not is_json(payload):
            return super().decode(frames)
        batch = decode_singly(
            payload,
            sequence,
            self._arrays,
            read_batch=self._api.read_batch,
            read_event=self._api.read_event,
        )
        return batch._replace(has_windows=True)


def open_source(registration: Registration, packer: ArrayPacker) -> BatchDecoder:
    """The decoder of a TensorRT-LLM publisher's messages."""
    return _Decoder(registration, packer)
