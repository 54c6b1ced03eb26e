"""What becomes of stored events that only report hits, as one publisher's batches are accepted."""

import logging
from collections.abc import Sequence

from bridge.sequencing.counters import PublisherCounters
from bridge.wire import DecodedBatch, DecodedRun
from bridge.wire.drop_reasons import DropReason
from bridge.wire.parts import EventRun
from schemas.arrays import HitReports
from schemas.errors import EventError, WireError

_logger = logging.getLogger(__name__)


class Reports:
    """Marks reports among accepted events (`bridge.wire.hit_reports`); one owner.

    Args:
        hits: of this publisher; None where it reports none, or says itself which events do.
        counters: of this publisher: `reports` is counted there.
    """

    def __init__(self, hits: HitReports | None, counters: PublisherCounters) -> None:
        self._hits = hits
        self._counters = counters
        self._is_whole = True  # all that the publisher has announced and holds was taken
        self._is_unknown = False

    def of_run(self, run: DecodedRun) -> DecodedRun:
        """The batches as they are to be written."""
        if self._hits is None:
            return run
        events, count = self._taken(self._hits, run.run, run.event_count)
        return run._replace(run=events, event_count=count)

    def of_batch(self, batch: DecodedBatch) -> DecodedBatch:
        """The batch as it is to be written."""
        if self._hits is None:
            return batch
        if batch.parts:
            return batch._replace(parts=self._of_parts(self._hits, batch.parts))
        events, count = self._taken(self._hits, batch.run, batch.event_count)
        return batch._replace(run=events, event_count=count)

    def forget(self) -> None:
        """Batches are missing between the last one and the next, or were accepted elsewhere."""
        self._is_whole = False
        if self._hits is not None:
            self._hits.forget()

    def place(self, *, is_empty: bool) -> None:
        """The log is all that is known; `is_empty`: it has nothing of the incarnation."""
        self.forget()
        self._is_whole = is_empty

    def note_clear(self) -> None:
        """In the last batch the publisher has said that it holds nothing."""
        self._is_whole = True

    def take_doubt(self) -> list[WireError]:
        """What is wrong since it was found out that the publisher reports hits, told once: those of
        before that were counted as blocks, and of which it is no longer known which they were.
        """
        if not self._is_unknown:
            return []
        self._is_unknown = False
        detail = "hits that it announced again before now were counted as blocks, and stay"
        return [EventError(DropReason.COPIES_UNKNOWN, f"{detail} until it clears or restarts")]

    def _taken(self, hits: HitReports, run: bytes, count: int) -> tuple[bytes, int]:
        were_known = hits.are_known
        marked = hits.take(run, count)
        if hits.are_known and not were_known:
            self._is_unknown = hits.has_left_out or not self._is_whole
            _logger.warning(
                "%s announces cached blocks again as stored, as vLLM does for requests with"
                " kv_cache_report_mode=full: from here on they are not counted twice. Register it"
                " with that mode and they never are",
                self._counters.publisher,
            )
        if marked is None:
            return run, count
        events, added, reports = marked
        self._counters.reports += reports + added
        return events, count + added

    def _of_parts(self, hits: HitReports, parts: Sequence[EventRun]) -> tuple[EventRun, ...]:
        made = []
        for part in parts:
            marked = hits.mark(part.encoded, part.events)
            if marked is not None:
                events, _, reports = marked
                self._counters.reports += reports
                part = EventRun(part.events, events)
            made.append(part)
        return tuple(made)
