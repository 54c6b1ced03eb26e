"""What a table needs of whoever keeps its past rows."""

from collections.abc import Sequence
from typing import Final, Protocol

from schemas.positions import LogBounds
from streams.table.rows.format import RowWrite
from streams.table.store import TableStore


class RowHistory(Protocol):
    """Keeps what a table has written, past rows included; `streams.history.recorder` has the rules.
    Its own failures are its own.
    """

    def begin(self, table: TableStore, log: LogBounds, /) -> None:
        """The table begins anew, empty, to be folded from what the log has."""
        ...

    def resume(self, table: TableStore, log: LogBounds, /) -> None:
        """The table goes on with the rows that it has, to be folded on with what the log has."""
        ...

    def add(self, written: Sequence[RowWrite], /) -> None:
        """These rows have been written, in this order."""
        ...

    def flush(self) -> None:
        """Writes what waits: the table is closed."""
        ...


class _NoHistory:
    """Keeps nothing."""

    def begin(self, table: TableStore, log: LogBounds, /) -> None:
        pass

    def resume(self, table: TableStore, log: LogBounds, /) -> None:
        pass

    def add(self, written: Sequence[RowWrite], /) -> None:
        pass

    def flush(self) -> None:
        pass


NO_HISTORY: Final[RowHistory] = _NoHistory()
