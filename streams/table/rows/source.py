"""Where a reader of rows takes them from: what a topic has brought, or what a store has."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from schemas.errors import RowCorruptError, StorageError
from schemas.identities import StreamKey
from streams.table.rows import format as rows

# All of it is counted: reprise_fold_records and reprise_worker_records for records,
# reprise_table_rows for rows, by outcome.
SKIPPED_ROWS_NAMED_MAX: Final = 100  # waiting to be logged; the latest ones are kept

KeyedRow = tuple[bytes, bytes | None]
"""A key and its value; None for a tombstone."""


class RowSource(Protocol):
    """Rows of one partition that are to be sorted out; at most one of each key."""

    def covered(self) -> bytes | None:
        """The `covered` row. It is taken: there is none until the next one comes."""
        ...

    def plain_rows(self) -> Iterator[KeyedRow]:
        """All other rows that belong to no context. They are taken."""
        ...

    def context_prefixes(self) -> Iterable[bytes]:
        """What the keys of each context's rows begin with."""
        ...

    def context_rows(self, prefix: bytes) -> Iterator[KeyedRow]:
        """The rows of a context. They are taken."""
        ...

    def keep(self, key: bytes, value: bytes) -> None:
        """Gives a row back that does not count yet."""
        ...

    def drop(self, key: bytes) -> None:
        """The row no longer counts: it is of a past generation."""
        ...


class GatheredRows:
    """What a topic has brought since the last commit; the last row of each key."""

    def __init__(self) -> None:
        self._plain: dict[bytes, bytes | None] = {}
        self._contexts: dict[bytes, dict[bytes, bytes | None]] = {}

    def put(self, key: bytes, value: bytes | None) -> None:
        """The next row. A tombstone stays, so that whoever sorts the rows out sees it."""
        gathered = self._plain
        if key[:1] == rows.CONTEXT:
            gathered = self._contexts.setdefault(rows.prefix_of(key), {})
        gathered.pop(key, None)
        gathered[key] = value

    def remove(self, key: bytes) -> None:
        """Forgets the row, as a tombstone does for a row that was not applied yet."""
        if key[:1] != rows.CONTEXT:
            self._plain.pop(key, None)
            return
        prefix = rows.prefix_of(key)
        gathered = self._contexts.get(prefix)
        if gathered is not None:
            gathered.pop(key, None)
            if not gathered:
                del self._contexts[prefix]

    def replace(self, later: "GatheredRows") -> None:
        """Rows have come after these, none of which was applied yet."""
        for key, value in later.items():
            if value is None:
                self.remove(key)
            else:
                self.put(key, value)

    def add(self, later: "GatheredRows") -> None:
        """Rows have come after these."""
        for key, value in later.items():
            self.put(key, value)

    def items(self) -> Iterator[KeyedRow]:
        """All of them."""
        for gathered in (self._plain, *self._contexts.values()):
            yield from gathered.items()

    def covered(self) -> bytes | None:
        """See `RowSource`."""
        return self._plain.pop(rows.COVERED_KEY, None)

    def plain_rows(self) -> Iterator[KeyedRow]:
        """See `RowSource`."""
        taken, self._plain = self._plain, {}
        yield from taken.items()

    def context_prefixes(self) -> list[bytes]:
        """See `RowSource`."""
        return list(self._contexts)

    def context_rows(self, prefix: bytes) -> Iterator[KeyedRow]:
        """See `RowSource`."""
        yield from self._contexts.pop(prefix, {}).items()

    def keep(self, key: bytes, value: bytes) -> None:
        """See `RowSource`."""
        self.put(key, value)

    def drop(self, key: bytes) -> None:
        """See `RowSource`."""


class SkippedRow(NamedTuple):
    """A row that could not be used: where it is, and why."""

    partition: int
    key: bytes
    reason: str


class SkippedRows:
    """What became of rows, and what may be wrong because some could not be used.

    Attributes:
        counters: rows by outcome.
        damaged: streams of which a row is missing.
    """

    def __init__(self, *, strict: bool) -> None:
        """`strict`: raise the error of the first such row instead of passing over it."""
        self.counters: Counter[str] = Counter()
        self.damaged: set[StreamKey] = set()
        self._strict = strict
        self._named: deque[SkippedRow] = deque(maxlen=SKIPPED_ROWS_NAMED_MAX)

    def skip(self, row: SkippedRow, error: StorageError) -> None:
        """Skips the row; raises its error where the reader is strict."""
        if self._strict:
            raise error
        self.counters[row.reason] += 1
        self._named.append(row)
        with suppress(RowCorruptError):
            if row.key[:1] in (rows.PUBLISHER, rows.REGISTRATION):
                self.damaged.add(rows.parse_publisher_key(row.key).stream)
            elif row.key[:1] == rows.MARK:
                self.damaged.add(rows.parse_mark_key(row.key).stream)

    def take(self) -> list[SkippedRow]:
        """Those since the last call, the latest `SKIPPED_ROWS_NAMED_MAX` of them."""
        named = list(self._named)
        self._named.clear()
        return named
