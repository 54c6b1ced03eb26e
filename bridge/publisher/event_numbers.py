"""What the numbers of events say, beside those of batches: an engine that drops events itself, or
begins its cache again, shows it there alone.
"""

from bridge.wire import DecodedBatch
from bridge.wire.batch_parts import EventRun
from bridge.wire.drop_reasons import DropReason
from bridge.wire.event_ids import EventIds
from schemas.errors import BatchError, EventError
from schemas.events import ClearedBlocks, encode_run


class EventNumbers:
    """Of one publisher, as its batches are accepted; one owner."""

    __slots__ = ("_is_whole", "_last")

    def __init__(self) -> None:
        self._last: EventIds | None = None
        self._is_whole = False  # all batches of the incarnation have come, from the first one on

    def forget(self) -> None:
        """What comes next need not follow on: another incarnation, or batches are missing."""
        self._last = None
        self._is_whole = False

    def of_batch(self, batch: DecodedBatch) -> DecodedBatch:
        """The batch, with what its numbers say: a clear before it where the engine has begun again,
        and what is missing among what it drops. One of another worker is not used.
        """
        self._is_whole = self._is_whole or batch.sequence == 0
        ids, last = batch.ids, self._last
        if ids is None:
            return batch
        if last is None and self._is_whole:
            last = ids.beginning
        began_again = False
        if last is not None:
            try:
                ids, began_again = last.then(ids)
            except EventError as error:
                other = BatchError(error.reason, error.detail)
                return DecodedBatch.unusable(batch.sequence, batch.digest, other)
        if ids.has_hole:
            ids = ids.told
            batch = batch._replace(dropped=[*batch.dropped, _missing(last, batch)])
        self._last = ids
        return _cleared(batch) if began_again else batch


def _missing(last: EventIds | None, batch: DecodedBatch) -> EventError:
    assert batch.ids is not None
    before = last.own if last is not None else None
    after = batch.ids.own
    if before is not None and before.last < batch.ids.start:
        behind = f" from {batch.ids.start} on"
    else:
        behind = "" if before is None else f" behind {before.last}"
    got = "others" if after is None else f"{after.first} to {after.last}"
    detail = f"Expected consecutive event_id{behind}, got {got}: the engine has dropped some"
    return EventError(DropReason.EVENTS_MISSING, detail)


def _cleared(batch: DecodedBatch) -> DecodedBatch:
    clear = encode_run([ClearedBlocks(sequence=batch.sequence)])
    count = batch.event_count + 1
    if not batch.parts:
        return batch._replace(run=clear + batch.run, event_count=count, clears=True)
    first, *others = batch.parts
    parts = (EventRun(first.events + 1, clear + first.encoded), *others)
    return batch._replace(parts=parts, event_count=count, clears=True)
