"""What a table asks of its partition of the table topic; `streams.table.topic` is the real one."""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from streams.table.rows.format import RowWrite


class TopicRow(NamedTuple):
    """A row as it stands in the table topic."""

    offset: int
    key: bytes
    value: bytes | None


class TableTopic(Protocol):
    """One partition of the table topic. To be taken before anything else."""

    async def take(self) -> bool:
        """Makes this the only writer: nothing that an owner before sends from now on is written.

        Returns:
            Whether no other worker took it since this object did: the last row is this object's.
        """
        ...

    def read(self, start: int) -> AsyncIterator[list[TopicRow]]:
        """Committed rows from `start` to the end as of the call, in order."""
        ...

    async def write(self, written: list[RowWrite], ahead: Sequence[RowWrite] = ()) -> list[int]:
        """Writes the rows, all or none of them; returns their offsets.

        Args:
            written: what counts together.
            ahead: what counts only with them, wherever it stands: before them, all of it where
                they are written, and any part of it where they are not.

        Raises:
            TableLostError: another worker owns the partition now, or what was written is unknown:
                all of the rows or none.
        """
        ...

    async def write_ahead(self, ahead: Sequence[RowWrite]) -> None:
        """Writes rows that count only with what is written later.

        Raises:
            TableLostError: as `write`; any part of them may be written.
        """
        ...
