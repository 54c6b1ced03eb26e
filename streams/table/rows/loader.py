"""Loading rows into a kernel so that the order between contexts of one stream is kept.

A context's own changes are complete in themselves, but the contexts of one stream (its adapters)
share the engine's keys: a block may leave one and come into another, and a kernel lets the later
one win. So the rows of a stream with several contexts are loaded flush by flush, and the rows of
one flush, between which no order is written down, are first reduced to what they end in.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from schemas.identities import ModelContext, StreamKey
from streams.kernel.changes import CHANGE_BYTES, Op
from streams.kernel.interface import Kernel

_RANK = slice(16, 20)
_OP_AT = 21


class ContextRow(NamedTuple):
    """A row of a context's table, in its place among the stream's.

    Attributes:
        covers: the source offset of the flush that wrote it.
        n: its place among the rows of its context.
    """

    covers: int
    context: ModelContext
    n: int
    body: bytes


def by_stream(contexts: Iterable[ModelContext]) -> dict[StreamKey, list[ModelContext]]:
    """The contexts of each stream."""
    streams: defaultdict[StreamKey, list[ModelContext]] = defaultdict(list)
    for context in contexts:
        streams[context.stream].append(context)
    return dict(streams)


class LoadStep(NamedTuple):
    """One step: how many bytes of rows it took, and the row that the kernel refuses, if any."""

    size_bytes: int
    refused: ContextRow | None


def load_rows(kernel: Kernel, rows: list[ContextRow]) -> Iterator[LoadStep]:
    """Loads rows of one stream; rows of one context must come in order of n. Cost O(changes).

    Yields:
        After each row, or after those of one context in one flush. A row that the kernel refuses is
        not loaded.
    """
    if len({row.context for row in rows}) > 1:
        rows = list(_flushes(rows))
    for row in rows:
        try:
            kernel.load(row.context, row.body)
        except ValueError:
            yield LoadStep(len(row.body), row)
        else:
            yield LoadStep(len(row.body), None)


def _flushes(rows: list[ContextRow]) -> Iterator[ContextRow]:
    """Flush by flush, what each context's rows of it end in."""
    ordered = sorted(rows, key=lambda row: (row.covers, row.context, row.n))
    for _, group in groupby(ordered, key=lambda row: (row.covers, row.context)):
        parts = list(group)
        yield parts[0]._replace(body=net(b"".join(part.body for part in parts)))


def net(changes: bytes) -> bytes:
    """The same changes without those that later ones of the row undo. Cost O(changes).

    What is left commutes with the net changes of the stream's other contexts in the same flush: at
    its end an engine's key is live in one context at most, and a kernel ignores a removal from
    another. A length that is no multiple of a change's is left to the kernel to refuse.
    """
    last: dict[bytes, bytes] = {}
    for start in range(0, len(changes), CHANGE_BYTES):
        change = changes[start : start + CHANGE_BYTES]
        if len(change) == CHANGE_BYTES and change[_OP_AT] == Op.CLEAR:
            rank = change[_RANK]
            last = {key: kept for key, kept in last.items() if kept[_RANK] != rank}
            last[b"clear" + rank] = change
        else:
            # A key may have named another block before: its removal has to stay.
            key = change[:_OP_AT]
            last.pop(key, None)
            last[key] = change
    return b"".join(last.values())
