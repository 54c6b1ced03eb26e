"""Names of media that are one tier here: what an event says of one says nothing of the others.

Blocks are counted by tier: a copy on `FS` and one on `OBJ` are two of `DISK`. An event that ends
all copies on `FS`, or says how many are left there, is applied to the tier, and where another name
of it is in use, what is counted may be wrong from then on. By which names blocks were stored is
known here, where batches follow on one another, and in the log
(`schemas.records.EventsRecord.media`).

So is whether it has stored blocks for all instances, in a pool. A clear of an engine says nothing
of those, nor does its end: they are dropped with what is its own, since it no longer vouches for
them, and that is known from then on.

So it is with DISK, by each of its names: neither a clear nor the end of a process empties it. And
with the CPU of a vLLM engine: `POST /reset_prefix_cache` clears the GPU, and the CPU where it is
asked for that; the event is the same (vLLM 0.9 to 0.33). Dynamo passes it on.

And so is whether vLLM keeps each offloaded block by itself. From 0.24 on it names them without
their size, and where it keeps several as one (a chunk) by the last of them: the others are on that
tier, too, and nothing says so. What begins a prompt is never the last of several. So while it has
named none such, what it has offloaded may be chunks, and one that it names shows that none is.

Dynamo keeps the blocks of such placeholders back, and passes on that something was stored, and what
is removed. So both say there that the tier has blocks that nothing names.

And whether it says what is gone from there, by each name. LMCache and Mooncake's store connector
within vLLM name blocks by their tokens as they store them, and never one that they no longer have;
vLLM's own offloading does of its CPU (`kv_offloading` `native`), and its tiers of files and objects
do not, for itself or for all instances. So it is told apart by who owns the blocks, where events
name that, and for all instances. KVCR's blocks are a set beside those, of which each removal is
said; but what was lost of them, no clear of the engine drops. Of a vLLM engine that is registered
with LMCache no removal tells anything (`Registration.doubt`).
"""

from collections.abc import Iterable
from typing import Final

from bridge.wire import DecodedBatch, DecodedRun
from bridge.wire.batch import first_block_of, is_unsized
from bridge.wire.drop_reasons import DropReason
from bridge.wire.fields import TIER_CLEARED, TIERS, media_of
from schemas.errors import EventError
from schemas.events import BlockEvent, StoredBlocks
from schemas.positions import (
    CPU_CLEARED,
    CPU_TAKEN_BACK,
    DISK_CLEARED,
    DISK_STORED,
    DISK_TAKEN_BACK,
    ON_CPU,
    OUTLIVING,
    OWNED_CHUNKS,
    OWNED_ON_CPU,
    OWNED_ON_DISK,
    OWNED_ON_DISK_TAKEN_BACK,
    OWNED_SET,
    POOL_CLEARED,
    SAYS_ALL_GONE,
    SHARED_TAKEN_BACK,
    SHARES,
    UNSIZED,
    WHOLE,
    media_of_next,
    taken_back_of_stored,
)
from schemas.registration import Registration, facts_of

_CLEARED: Final = (CPU_CLEARED, DISK_CLEARED)
"""Of each of `TIERS`."""

_TAKEN_BACK: Final = CPU_TAKEN_BACK | DISK_TAKEN_BACK | SHARED_TAKEN_BACK | OWNED_ON_DISK_TAKEN_BACK
_OF_OFFLOADING: Final = (
    UNSIZED | WHOLE | ON_CPU | DISK_STORED | OWNED_ON_DISK | OWNED_CHUNKS | _TAKEN_BACK
)
_LASTING: Final = (
    SHARES | POOL_CLEARED | CPU_CLEARED | DISK_CLEARED | SAYS_ALL_GONE | _OF_OFFLOADING
)

_FIRST_BLOCKS_KEPT: Final = 256  # of a publisher; offloading follows on what it keeps by seconds


class Media:
    """Of one publisher, as its batches are accepted; one owner.

    Attributes:
        names: by which blocks were stored since the last clear, see `bridge.wire.fields.media_bit`.
    """

    __slots__ = (
        "_clears_gpu_alone",
        "_first_blocks",
        "_keeps_blocks_back",
        "_lasting",
        "_passed_over",
        "names",
    )

    def __init__(self, registration: Registration) -> None:
        self.names = 0
        self._first_blocks = b""  # of prompts, the latest ones, until one of them was offloaded
        facts = facts_of(registration.kind)
        self._clears_gpu_alone = facts.clears_gpu_alone
        self._passed_over = 0 if self._clears_gpu_alone else _OF_OFFLOADING
        self._passed_over |= ON_CPU if registration.kv_offloading == "native" else 0
        self._passed_over &= ~(OWNED_SET | OWNED_CHUNKS)  # no offloading of the engine's
        self._keeps_blocks_back = facts.keeps_blocks_back
        # What a clear may leave.
        self._lasting = sum(TIERS) if self._clears_gpu_alone else OUTLIVING

    def forget(self) -> None:
        """What comes next is of another incarnation."""
        self.names = media_of_next(self.names)
        self._first_blocks = b""

    def of_run(self, run: DecodedRun) -> None:
        """Batches together, none of which clears."""
        self._note(run)

    def of_batch(self, batch: DecodedBatch) -> DecodedBatch:
        """The batch; with what is missing, where it may have been of another name."""
        self._note(batch)
        # Every removal settles its tier there: what goes must have been stored.
        if self._keeps_blocks_back and batch.settled & ~self.names:
            self.names |= UNSIZED
        names = self.names
        # An engine's clear drops what was lost of its own blocks, and nothing of its owner's.
        is_doubted = names & OWNED_ON_CPU and (batch.clears or names & CPU_CLEARED)
        if batch.clears or batch.settled & TIER_CLEARED:
            kept = batch.media & ~_OF_OFFLOADING if batch.clears else names
            self.names = kept | (names & _LASTING) | (POOL_CLEARED if names & SHARES else 0)
        for tier, cleared in zip(TIERS, _CLEARED, strict=True):
            used, settled = names & tier, batch.settled & tier
            if used & self._lasting and batch.clears:
                self.names |= cleared
            elif settled and batch.settled & TIER_CLEARED:
                self.names &= ~cleared
            if settled and used and (used | settled).bit_count() > 1:
                detail = f"Expected one medium of its tier, got {media_of(used | settled)}"
                error = EventError(DropReason.SHARED_TIER, f"{detail}: which copies are gone?")
                batch = batch._replace(dropped=[*batch.dropped, error])
        self.names |= CPU_CLEARED if is_doubted else 0
        return batch

    def _note(self, batch: DecodedBatch | DecodedRun) -> None:
        """By which names it stores, and whether its blocks may be chunks."""
        self.names |= batch.media & ~self._passed_over
        # What went before anything was stored says nothing of what is.
        self.names &= ~_TAKEN_BACK | taken_back_of_stored(self.names)
        if not self._clears_gpu_alone or self.names & WHOLE:
            return
        if batch.media & UNSIZED:
            self._look_for_first(batch.events)
        else:
            self._keep_first(batch.first_blocks)

    def _look_for_first(self, events: Iterable[BlockEvent]) -> None:
        for event in events:
            if isinstance(event, StoredBlocks) and is_unsized(event):
                kept = {*_each(self._first_blocks)}
                if not kept.isdisjoint(_each(event.hashes)):
                    self.names |= WHOLE
                    self._first_blocks = b""
                    return
            else:
                self._keep_first(first_block_of(event))

    def _keep_first(self, hashes: bytes) -> None:
        if hashes:
            self._first_blocks = (self._first_blocks + hashes)[-8 * _FIRST_BLOCKS_KEPT :]


def _each(hashes: bytes) -> Iterable[bytes]:
    return (hashes[at : at + 8] for at in range(0, len(hashes), 8))
