"""What a log is: records under rising offsets, appended, read in order, retired when old."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from schemas.identities import Offset
from schemas.positions import LogBounds


class LogEntry(NamedTuple):
    """One record as it stands in the log; decode it with `schemas.codec.decode_record`."""

    offset: Offset
    value: bytes


class TracedEntry(LogEntry):
    """One that says which span wrote it.

    Attributes:
        traceparent: of that span.
    """

    traceparent = ""


class ReadableLog(Protocol):
    """Reading side; all a fold needs."""

    @property
    def end_offset(self) -> Offset:
        """The offset that the next record will get."""
        ...

    @property
    def bounds(self) -> LogBounds:
        """Its first and next offset; records that retention spares stand before the first."""
        ...

    @property
    def complete_from(self) -> Offset:
        """From here on nothing has been retired; 0 while the log is whole."""
        ...

    def read(self, start: Offset) -> Iterator[LogEntry]:
        """Entries with offsets of at least `start`, in order, up to the end as of the call."""
        ...


class RecordLog(ReadableLog, Protocol):
    """Writing side; one writer."""

    def append(self, values: Sequence[bytes], *, now: float = 0.0) -> Offset:
        """Appends the records as one write; returns the first one's offset, the others follow.
        `now`, in Unix seconds, dates them.

        Order: on return they survive the death of this process; after `sync`, of the machine.

        Raises:
            DiskError: none of them was appended; or all, which shows at the end of the reopened
                log.
        """
        ...

    def sync(self) -> None:
        """Makes everything appended so far durable.

        Raises:
            DiskError: it may not be.
        """
        ...

    def advance_to(self, offset: Offset) -> None:
        """Lets the next record get `offset`: a table has folded further than this log reaches.

        What lies between is lost, so the log counts as complete only from there on.

        Raises:
            ValueError: the offset has been given out already.
            DiskError: nothing was changed.
        """
        ...

    def reopen(self) -> None:
        """Closes and opens the log, which ends the state after a failed write.

        Raises:
            StorageError: it cannot be opened now; try again.
        """
        ...
