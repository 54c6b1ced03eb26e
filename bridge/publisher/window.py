"""Packs what one publisher sent in one window into as few records as its order allows. Pure.

A log message costs its readers the same whatever its size, so batches that follow each other
without a gap share a record, up to RECORD_BYTES_MAX. Of a batch that comes in
parts each is a record, so that no record takes long to fold.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from bridge.wire.batch_parts import EventRun
from schemas.events import ARRAY32, ARRAY_HEADER
from schemas.identities import PublisherKey
from schemas.limits import RECORD_BYTES_MAX
from schemas.records import (
    PART_VERSION,
    RECORD_VERSION,
    EventsRecord,
    GapRecord,
    Part,
    ResetRecord,
    SequencedRecord,
    UnusableRun,
)
from schemas.troubles import registrable

UNUSABLE_RUNS_MAX: Final = 1024  # named in one record; a further one begins the next record


class Window:
    """The records of one publisher, in the order of arrival; one use, one owner.

    Args:
        bridge_time: Unix seconds, of every record of the window.
    """

    __slots__ = (
        "_batches",
        "_bridge_time",
        "_doubted",
        "_encoded",
        "_engine_time",
        "_events",
        "_first",
        "_incarnation",
        "_incomplete",
        "_last",
        "_media",
        "_other_ranks",
        "_publisher",
        "_records",
        "_repaired",
        "_unusable",
        "_window",
    )

    def __init__(self, publisher: PublisherKey, bridge_time: float) -> None:
        self._publisher = publisher
        self._bridge_time = bridge_time
        self._records: list[SequencedRecord] = []
        self._incarnation = self._first = self._last = -1
        self._engine_time = 0.0
        self._doubted = False
        self._repaired = ""
        self._start_run()

    def _start_run(self) -> None:
        self._encoded = bytearray(ARRAY_HEADER.size)
        self._batches = 0
        self._events = 0
        self._unusable: list[UnusableRun] = []
        self._other_ranks: set[int] = set()
        self._window: int | None = None
        self._media: int | None = None

    @property
    def room_bytes(self) -> int:
        """How many bytes of events the record that was begun can still take."""
        return max(0, RECORD_BYTES_MAX - len(self._encoded))  # a first batch always fits

    @property
    def next_room_bytes(self) -> int:
        """The same of a new record."""
        return RECORD_BYTES_MAX - ARRAY_HEADER.size

    def add_batch(
        self,
        *,
        incarnation: int,
        sequence: int,
        engine_time: float,
        event_count: int,
        run: bytes,
        parts: Sequence[EventRun] = (),
        doubted: bool = False,
        unusable: str = "",
        is_whole: bool = False,
        repaired: str = "",
        batches: int = 1,
        other_ranks: Sequence[int] = (),
        attention_window: int | None = None,
        media: int | None = None,
    ) -> None:
        """Appends one batch; one without events still moves the cursor. `run`: its events,
        by `schemas.events.encode_run`; `parts`: the same of a large one; `unusable`: why an event
        is left out of it, and `is_whole` whether all are; `repaired`: why it had been missing,
        where a replay brought it; `batches`: where there are several of consecutive numbers, the
        first of which is `sequence`; `other_ranks`: whose events it has, too; `attention_window`:
        the largest one, where its events name any; `media`: see `Media.names`, None for none.

        The caller has put a gap or a reset between batches that do not follow each other.
        """
        if (doubted, repaired) != (self._doubted, self._repaired):
            self._flush()
            self._doubted, self._repaired = doubted, repaired
        if parts:
            self._flush()
            self._other_ranks.update(other_ranks)
            self._window, self._media = attention_window, media
            self._add_parts(parts, incarnation, sequence, engine_time, unusable=unusable)
            return
        if self._batches and (
            len(self._encoded) + len(run) > RECORD_BYTES_MAX
            or len(self._unusable) >= UNUSABLE_RUNS_MAX
        ):
            self._flush()
        self._encoded += run
        if other_ranks:
            self._other_ranks.update(other_ranks)
        if attention_window is not None:
            self._window = attention_window
        if media is not None:
            self._media = media
        if not self._batches:
            self._incarnation = incarnation
            self._first = sequence
        else:
            assert (incarnation, sequence) == (self._incarnation, self._last + 1)
        self._batches += batches
        self._events += event_count
        self._last = sequence + batches - 1
        if unusable:
            self._add_unusable(UnusableRun(sequence, sequence, unusable, is_whole))
        self._engine_time = engine_time

    def _add_unusable(self, one: UnusableRun) -> None:
        if self._unusable:
            last = self._unusable[-1]
            if (last.last + 1, last.reason, last.is_whole) == (one.first, one.reason, one.is_whole):
                self._unusable[-1] = UnusableRun(last.first, one.last, last.reason, last.is_whole)
                return
        self._unusable.append(one)

    def _add_parts(
        self,
        parts: Sequence[EventRun],
        incarnation: int,
        sequence: int,
        engine_time: float,
        *,
        unusable: str,
    ) -> None:
        total, named = sum(count for count, _ in parts), (self._window, self._media)
        end = 0
        for count, run in parts:
            first, end = end, end + count
            self._incarnation, self._first, self._last = incarnation, sequence, sequence
            self._batches, self._events, self._engine_time = 1, count, engine_time
            if unusable:
                self._add_unusable(UnusableRun(sequence, sequence, unusable))
            self._encoded += run
            self._window, self._media = named
            self._flush(Part(first, end, total))

    def add_reset(self, *, incarnation: int, reason: str) -> None:
        """Appends the start of a new incarnation."""
        self._flush()
        self._records.append(
            ResetRecord(
                stream=self._publisher.stream,
                dp_rank=self._publisher.dp_rank,
                bridge_time=self._bridge_time,
                incarnation=incarnation,
                first_sequence=-1,
                last_sequence=-1,
                reason=reason,
            )
        )

    def add_gap(self, *, incarnation: int, first: int, last: int, reason: str) -> None:
        """Appends the loss of the batches `first..last`."""
        self._flush()
        self._records.append(
            GapRecord(
                stream=self._publisher.stream,
                dp_rank=self._publisher.dp_rank,
                bridge_time=self._bridge_time,
                incarnation=incarnation,
                first_sequence=first,
                last_sequence=last,
                reason=reason,
            )
        )

    def close(self) -> list[SequencedRecord]:
        """All records of the window."""
        self._flush()
        return self._records

    def _flush(self, part: Part | None = None) -> None:
        if not self._batches:
            return
        ARRAY_HEADER.pack_into(self._encoded, 0, ARRAY32, self._events)
        self._records.append(
            EventsRecord(
                stream=self._publisher.stream,
                dp_rank=self._publisher.dp_rank,
                bridge_time=self._bridge_time,
                incarnation=self._incarnation,
                first_sequence=self._first,
                last_sequence=self._last,
                engine_time=self._engine_time,
                events=msgspec.Raw(self._encoded),
                doubted=True if self._doubted else msgspec.UNSET,
                incomplete=self._unusable[-1].last if self._unusable else msgspec.UNSET,
                unusable=tuple(self._unusable) if self._unusable else msgspec.UNSET,
                repaired=self._repaired or msgspec.UNSET,
                other_ranks=registrable(self._other_ranks) or msgspec.UNSET,
                window=msgspec.UNSET if self._window is None else self._window,
                media=msgspec.UNSET if self._media is None else self._media,
                part=msgspec.UNSET if part is None else part,
                version=RECORD_VERSION if part is None else PART_VERSION,
            )
        )
        self._start_run()
