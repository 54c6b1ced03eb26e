"""ATOM's events (ROCm/ATOM, main branch of 2026): arrays of vLLM's fields, and some of its own.

Source: `atom/distributed/kv_events.py`. A store has one element more (#1316): where in the prompt
its first block begins, which names no block. Blocks may move between tiers:

    BlockTransferred    block_hashes, from_medium, to_medium, group_idx

The medium `REMOTE` is of another engine, of which a prompt's blocks were received: what is there is
not the publisher's, and passed over. Its replay ends with the numbers that it has yet.
"""

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from bridge.wire.batch import BatchDecoder
from bridge.wire.drop_reasons import DropReason
from bridge.wire.fields import NIL, Origin, group_of, hashes_of, medium_of
from bridge.wire.forms import CLEARED_ARRAYS, WireEvent, forms_of
from bridge.wire.vllm import RemovedFields, StoredFields
from schemas.arrays import ArrayPacker
from schemas.errors import PassedOverError
from schemas.events import BlockEvent, RemovedBlocks, StoredBlocks
from schemas.registration import ATOM, Registration

KIND: Final = ATOM

_REMOTE: Final = "REMOTE"


class _Stored(StoredFields, array_like=True, tag="BlockStored", forbid_unknown_fields=True):
    token_offset: msgspec.Raw = NIL

    def check(self) -> None:
        """See `StoredFields`."""
        _check_own(self.medium)


class _Removed(RemovedFields, array_like=True, tag="BlockRemoved", forbid_unknown_fields=True):
    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        _check_own(self.medium)
        return super().canonical(sequence, origin)


class _Transferred(WireEvent, array_like=True, tag="BlockTransferred", forbid_unknown_fields=True):
    block_hashes: msgspec.Raw
    from_medium: str
    to_medium: str
    group_idx: int | None = None

    removes: ClassVar[bool] = True

    def events(self, sequence: int, origin: Origin) -> Sequence[BlockEvent]:
        """See `WireEvent`: gone from one tier, and on the other one, of what is its own."""
        hashes, group = hashes_of(self.block_hashes, origin.packer), group_of(self.group_idx)
        moved: list[BlockEvent] = []
        if not _is_remote(self.from_medium):
            medium = medium_of(self.from_medium)
            moved.append(
                RemovedBlocks(sequence=sequence, hashes=hashes, medium=medium, group=group)
            )
        if not _is_remote(self.to_medium):
            medium = medium_of(self.to_medium)
            moved.append(StoredBlocks(sequence=sequence, hashes=hashes, medium=medium, group=group))
        return moved


def _is_remote(medium: str | None) -> bool:
    return medium is not None and medium.upper() == _REMOTE


def _check_own(medium: str | None) -> None:
    if _is_remote(medium):
        detail = "Expected blocks of the publisher's own, got some of medium REMOTE"
        raise PassedOverError(DropReason.NO_BLOCK, detail)


_FORMS: Final = forms_of(arrays=(_Stored, _Removed, _Transferred, *CLEARED_ARRAYS))


def open_source(registration: Registration, packer: ArrayPacker) -> BatchDecoder:
    """The decoder of an ATOM publisher's messages."""
    return BatchDecoder(registration, packer, forms=_FORMS)
