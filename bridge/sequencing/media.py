"""Names of media that are one tier here: what an event says of one says nothing of the others.

Blocks are counted by tier: a copy on `FS` and one on `OBJ` are two of `DISK`. An event that ends
all copies on `FS`, or says how many are left there, is applied to the tier, and where another name
of it is in use, what is counted may be wrong from then on. By which names blocks were stored is
known here, where batches follow on one another, and in the log
(`schemas.records.EventsRecord.media`).
"""

from bridge.wire import DecodedBatch
from bridge.wire.drop_reasons import DropReason
from bridge.wire.fields import TIERS, media_of
from schemas.errors import EventError


class Media:
    """Of one publisher, as its batches are accepted; one owner.

    Attributes:
        names: by which blocks were stored since the last clear, see `bridge.wire.fields.media_bit`.
    """

    __slots__ = ("names",)

    def __init__(self) -> None:
        self.names = 0

    def of_batch(self, batch: DecodedBatch) -> DecodedBatch:
        """The batch; with what is missing, where it may have been of another name."""
        names = self.names | batch.media
        self.names = batch.media if batch.clears else names
        for tier in TIERS:
            used, settled = names & tier, batch.settled & tier
            if settled and used and (used | settled).bit_count() > 1:
                detail = f"Expected one medium of its tier, got {media_of(used | settled)}"
                error = EventError(DropReason.SHARED_TIER, f"{detail}: which copies are gone?")
                batch = batch._replace(dropped=[*batch.dropped, error])
        return batch
