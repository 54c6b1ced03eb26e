"""What a server of LMCache's multi-process mode streams by gRPC, in its own words.

    stored     medium, block_hashes, block_size: chunks, each named by its hash
    removed    medium, block_hashes
    lost       what came before is not all: its bus has dropped events, or its log has them no more
    cleared    nothing that came before counts

Source: lmcache 0.5.7rc2, `lmcache/v1/multiprocess/modules/kv_events.py`; the last two are ours
(`bridge.grpc.lmcache`).

A hash is of a chunk and of all that is before it, and has the same 8 bytes as where such a server
tells its coordinator. So a chunk is held by its hash alone; its tokens are not kept: what it hangs
on need not be held, for LMCache makes room chunk by chunk.

It is told of each rank's and each group's part of a chunk, and not whose it is: the first one that
is stored has the chunk held, and the first one that is gone ends that.
"""

from typing import ClassVar, Final

import msgspec

from bridge.wire.batch import BatchDecoder
from bridge.wire.drop_reasons import DropReason
from bridge.wire.fields import Origin, block_size_of, hashes_of, medium_of
from bridge.wire.forms import WireEvent, forms_of
from schemas.arrays import ArrayPacker
from schemas.errors import EventError
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.registration import LMCACHE_TOPIC, Registration

KIND: Final = LMCACHE_TOPIC

LOST: Final = "lost"
CLEARED: Final = "cleared"


class _Stored(WireEvent, tag="stored", tag_field="kind", forbid_unknown_fields=True):
    medium: str
    block_hashes: msgspec.Raw
    block_size: int | None = None

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        return StoredBlocks(
            sequence=sequence,
            hashes=hashes_of(self.block_hashes, origin.packer),
            block_size=block_size_of(self.block_size) or origin.registration.block_size,
            medium=medium_of(self.medium),
            lora_name=origin.lora_name,
            by_hash=True,
            reported=True,
        )

    def left_out(self, sequence: int, origin: Origin, reason: str) -> StoredBlocks | None:
        """See `WireEvent`."""
        hashes = hashes_of(self.block_hashes, origin.packer)
        medium = medium_of(self.medium)
        return StoredBlocks(sequence=sequence, hashes=hashes, medium=medium, left_out=reason)


class _Removed(WireEvent, tag="removed", tag_field="kind", forbid_unknown_fields=True):
    medium: str
    block_hashes: msgspec.Raw

    removes: ClassVar[bool] = True

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        hashes = hashes_of(self.block_hashes, origin.packer)
        medium = medium_of(self.medium)
        return RemovedBlocks(sequence=sequence, hashes=hashes, medium=medium, whole=True)


class _Lost(WireEvent, tag=LOST, tag_field="kind", forbid_unknown_fields=True):
    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        detail = "Expected all that its server records, which has dropped some, or has it no more"
        raise EventError(DropReason.EVENTS_MISSING, detail)


class _Cleared(WireEvent, tag=CLEARED, tag_field="kind", forbid_unknown_fields=True):
    removes: ClassVar[bool] = True
    clears: ClassVar[bool] = True

    def canonical(self, sequence: int, origin: Origin) -> BlockEvent:
        """See `WireEvent`."""
        return ClearedBlocks(sequence=sequence)


_FORMS: Final = forms_of(maps=(_Stored, _Removed, _Lost, _Cleared), tag_field="kind")


def open_source(registration: Registration, packer: ArrayPacker) -> BatchDecoder:
    """The decoder of such a server's messages."""
    return BatchDecoder(registration, packer, forms=_FORMS)
