"""The rows that counted at a flush, as a source for the one reader of rows."""

from collections.abc import Callable, Iterator

from schemas.identities import StreamKey
from streams.history.needed_rows import NeededRows
from streams.history.store import FlushRun, HistoryStore
from streams.table.rows import format as rows
from streams.table.rows.format import RowKind

StreamFilter = Callable[[StreamKey], bool]
"""Of which streams the rows are wanted."""


class RowsAsOf:
    """Implements `streams.table.rows.source.RowSource` over one flush of a run.

    Args:
        wanted: rows of other streams are left out.
        needed: of the changes in the rows of contexts; None for all.
    """

    def __init__(
        self,
        store: HistoryStore,
        run: FlushRun,
        covers: int,
        wanted: StreamFilter,
        needed: NeededRows | None = None,
    ) -> None:
        self._store = store
        self._run = run
        self._covers = covers
        self._wanted = wanted
        self._needed = needed

    def covered(self) -> bytes | None:
        """See `RowSource`."""
        return self._store.covered_row(self._run, self._covers)

    def plain_rows(self) -> Iterator[tuple[bytes, bytes | None]]:
        """See `RowSource`."""
        kinds = (rows.MARK, rows.PUBLISHER, rows.REGISTRATION, rows.FACT)
        for key, value in self._store.plain_rows(self._run, self._covers, kinds):
            if rows.is_ledger_key(key):
                continue  # no answer depends on it
            if key[:1] == rows.FACT or self._wanted(_stream_of(key)):
                yield key, value

    def context_prefixes(self) -> Iterator[bytes]:
        """See `RowSource`."""
        for prefix in self._store.context_prefixes(self._run):
            if self._wanted(rows.parse_context_prefix(prefix).stream):
                yield prefix

    def context_rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """See `RowSource`."""
        needed = self._needed
        selection = None if needed is None else needed.of(rows.parse_context_prefix(prefix))
        for key, value in self._store.context_rows(self._run, prefix, self._covers):
            if selection is None:
                yield key, value
            else:
                row = rows.decode_row(key, value)
                body = selection.of(row.body)
                yield key, rows.encode_row(RowKind(row.kind), row.covers, body)

    def keep(self, key: bytes, value: bytes) -> None:
        """See `RowSource`: nothing will follow that it could wait for."""

    def drop(self, key: bytes) -> None:
        """See `RowSource`: the past is kept."""


def _stream_of(key: bytes) -> StreamKey:
    if key[:1] == rows.MARK:
        return rows.parse_mark_key(key).stream
    return rows.parse_publisher_key(key).stream
