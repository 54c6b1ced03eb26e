"""Attention windows of engines whose events name one each: which is the largest is known here,
where batches follow on one another, and not where they are decoded, which may be ahead of that.

Blocks of the largest window form prefixes, those of the others are sparse. Engines name all windows
before they store anything, so what is held is always of the one window that is the largest; the log
has it (`schemas.records.EventsRecord.window`). Where a larger one comes all the same, what was
taken for prefixes is dropped: nothing tells which of it the larger one has, too, and its removals
would be taken for those of a sparse window.
"""

from typing import Final

import msgspec

from bridge.wire import DecodedBatch
from bridge.wire.batch_parts import EventRun
from bridge.wire.drop_reasons import DropReason
from schemas.errors import EventError
from schemas.events import (
    BlockEvent,
    ClearedBlocks,
    RemovedBlocks,
    StoredBlocks,
    decode_run,
    encode_run,
)

SPARSE_KIND: Final = "sliding_window"


class Windows:
    """Of one publisher, as its batches are accepted; one owner.

    Attributes:
        largest: None where no event has been seen, 0 where these named none.
    """

    __slots__ = ("_is_beginning", "_is_untold", "largest")

    def __init__(self) -> None:
        self.place(None, is_empty=True)

    def place(self, largest: int | None, *, is_empty: bool) -> None:
        """Goes on from what the log has.

        Args:
            largest: as the log has it.
            is_empty: whether it has no batch of the incarnation.
        """
        self.largest = largest
        self._is_untold = largest is None and not is_empty  # of a log that does not have it
        self._is_beginning = False  # the last event has named a window of an empty cache

    def forget(self) -> None:
        """What comes next is of another cache."""
        self.place(None, is_empty=True)

    def of_batch(self, batch: DecodedBatch) -> DecodedBatch:
        """The batch as its windows are: the same where its events have none."""
        if not batch.has_windows:
            return batch
        errors: list[EventError] = []
        whole = ((batch.event_count, batch.run),)
        parts: list[EventRun] = []
        clears = batch.clears
        for count, run in batch.parts or whole:
            events: list[BlockEvent] = []
            for event in decode_run(run, count):
                events += self._of_event(event, errors)
            if events:
                parts.append(EventRun(len(events), encode_run(events)))
        clears = clears or any(error.reason == DropReason.LARGER_WINDOW for error in errors)
        is_one = len(parts) < 2
        return batch._replace(
            event_count=sum(count for count, _ in parts),
            run=b"".join(run for _, run in parts) if is_one else b"",
            parts=() if is_one else tuple(parts),
            clears=clears,
            dropped=[*batch.dropped, *errors],
            has_windows=False,
        )

    def _of_event(self, event: BlockEvent, errors: list[EventError]) -> list[BlockEvent]:
        if isinstance(event, ClearedBlocks):
            self.largest = self.largest if self._is_beginning else None
            self._is_beginning = self._is_untold = False
            return [event]
        window, known = event.group, self.largest
        self.largest = window if known is None else max(known, window)
        if isinstance(event, StoredBlocks) and not event.hashes:
            self._is_beginning = True
            return []
        self._is_beginning = False
        made: list[BlockEvent] = []
        if self._is_untold and window:
            detail = f"Expected to know the attention windows, got the first event of one: {window}"
            errors.append(EventError(DropReason.UNKNOWN_WINDOW, detail))
        elif known is not None and window > known:
            detail = f"Expected no attention window above {known}, got: {window}"
            errors.append(EventError(DropReason.LARGER_WINDOW, detail))
            made.append(ClearedBlocks(sequence=event.sequence))
        self._is_untold = False
        return made + _of_window(event, is_sparse=window < self.largest)


def _of_window(event: StoredBlocks | RemovedBlocks, *, is_sparse: bool) -> list[BlockEvent]:
    """The event, which had its window in place of a group."""
    if not is_sparse:
        return [msgspec.structs.replace(event, group=0)]
    if isinstance(event, RemovedBlocks):
        return []
    return [msgspec.structs.replace(event, group=0, spec_kind=SPARSE_KIND)]
