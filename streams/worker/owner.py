"""What the worker's Faust app asks of whoever has the tables."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from logs.interface import LogEntry
from schemas.folded_work import FoldedWork


class PartitionOwner(Protocol):
    """Who has the tables."""

    async def assign(self, partitions: Iterable[int]) -> bool:
        """Opens these tables, and closes all others; False where they were taken away meanwhile.

        Raises:
            RepriseError, KafkaError, OSError: they cannot be folded now.
        """
        ...

    async def release(self) -> None:
        """None of them is to be folded until the next `assign`; returns once none is."""
        ...

    def next_offset(self, partition: int) -> int | None:
        """Where to read on; None where the table is not open."""
        ...

    def covered(self, partition: int) -> int | None:
        """The offset after the last that its table topic covers; None where it is not open."""
        ...

    def last_work(self, partition: int) -> FoldedWork | None:
        """What was folded last of a partition, which is told beside `covered`; None for nothing."""
        ...

    async def fold(self, records: Mapping[int, Sequence[LogEntry]]) -> None:
        """Folds records of each partition, and writes what they changed."""
        ...

    async def check(self) -> None:
        """Looks whether what was written is there still; to be called now and then: where nothing
        is to be folded, nothing is written that would tell.

        Raises:
            TableLostError: it is not; the tables have to be opened again.
            KafkaError: that cannot be seen now.
        """
        ...

    async def close(self) -> None:
        """Gives everything up for good, after what is under way; after the app."""
        ...

    async def read_past(self, partition: int, start: int) -> list[LogEntry]:
        """The records from `start` on, where some of them are corrupt."""
        ...
