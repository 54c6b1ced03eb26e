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
asked for that; the event is the same (vLLM 0.9 to 0.33).

And so is whether what it holds may have been overwritten. TensorRT-LLM takes a block that a prompt
shares a part of, where nothing hangs on that and no request uses it, and says nothing
(`enable_partial_reuse`, its default in 1.0 to main of 2026).
"""

from typing import Final

from bridge.wire import DecodedBatch, trtllm, vllm
from bridge.wire.drop_reasons import DropReason
from bridge.wire.fields import TIER_CLEARED, TIERS, media_of
from schemas.errors import EventError
from schemas.positions import (
    CPU_CLEARED,
    DISK_CLEARED,
    OUTLIVING,
    POOL_CLEARED,
    REUSES_IN_PART,
    SHARES,
    media_of_next,
)
from schemas.registration import Registration

_CLEARED: Final = (CPU_CLEARED, DISK_CLEARED)
"""Of each of `TIERS`."""

_LASTING: Final = SHARES | POOL_CLEARED | CPU_CLEARED | DISK_CLEARED


class Media:
    """Of one publisher, as its batches are accepted; one owner.

    Attributes:
        names: by which blocks were stored since the last clear, see `bridge.wire.fields.media_bit`.
    """

    __slots__ = ("_in_part", "_lasting", "names")

    def __init__(self, registration: Registration) -> None:
        self.names = 0
        in_part = registration.kind == trtllm.KIND and registration.kv_partial_reuse != "none"
        self._in_part = REUSES_IN_PART if in_part else 0
        # What a clear may leave.
        self._lasting = sum(TIERS) if registration.kind == vllm.KIND else OUTLIVING

    def forget(self) -> None:
        """What comes next is of another incarnation."""
        self.names = media_of_next(self.names)

    def of_batch(self, batch: DecodedBatch) -> DecodedBatch:
        """The batch; with what is missing, where it may have been of another name."""
        names = self.names | batch.media
        self.names = names
        if batch.clears or batch.settled & TIER_CLEARED:
            kept = batch.media if batch.clears else names
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
        self.names |= self._in_part if batch.event_count else 0
        return batch
