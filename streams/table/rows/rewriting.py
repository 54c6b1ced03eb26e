"""The rows of a context's new generation, made in steps beside what is folded meanwhile.

    1. the context's entries are dumped, a slice at a time, and become chunks;
    2. whatever changed since the dump was begun becomes further chunks, in order: a change says
       what an entry is, so the chunks together are the context as of the last of them;
    3. after a flush comes the last chunk, of what has changed by then, and the mark that makes the
       generation the current one.

All chunks but the last may go ahead as they come: without the mark they do not count.
"""

from collections import deque
from collections.abc import Iterator

from schemas.identities import ModelContext
from schemas.limits import DUMP_CHUNK_ENTRIES_MAX
from streams.kernel.changes import CHANGE_BYTES
from streams.kernel.interface import ContextDump
from streams.table.rows import format as rows
from streams.table.rows.format import RowKind, RowPlace, RowWrite


class Rewriting:
    """See the module.

    Attributes:
        context: which is rewritten.
        generation: the number of the new one.
        next_n: where the next row of the generation goes.
    """

    def __init__(
        self, context: ModelContext, generation: int, dump: ContextDump, *, covers: int
    ) -> None:
        """Args:
        context: to be rewritten.
        generation: a number that the context never had.
        dump: opened as of `covers`.
        covers: what the flush before it covers.
        """
        self.context = context
        self.generation = generation
        self.next_n = 0
        self._dump = dump
        self._dump_covers = covers
        self._is_gathered = False
        self._is_taken = False
        self._since: deque[memoryview] = deque()
        self._since_bytes = 0
        self._last_bytes = 0
        self._since_covers = covers
        self._ahead: list[RowWrite] = []

    @property
    def has_chunk(self) -> bool:
        """Whether something is left of 1, or a chunk of 2: then `step` has something to do."""
        return not self._is_taken or self._since_bytes >= DUMP_CHUNK_ENTRIES_MAX * CHANGE_BYTES

    @property
    def may_end(self) -> bool:
        """Whether 3 may come after a flush. What the flush itself brought may be left, for under
        load each brings more than a chunk.
        """
        left = self._since_bytes - self._last_bytes
        return self._is_taken and left < DUMP_CHUNK_ENTRIES_MAX * CHANGE_BYTES

    def step(self, entries: int) -> int:
        """Goes on with 1 and 2: looks at about so many entries, or makes one chunk. Returns how
        many entries that took.
        """
        if not self._is_gathered:
            seen = self._dump.gather(entries)
            self._is_gathered = seen < entries
            return seen
        chunk_bytes = DUMP_CHUNK_ENTRIES_MAX * CHANGE_BYTES
        if not self._is_taken:
            body = self._dump.take(DUMP_CHUNK_ENTRIES_MAX)
            self._is_taken = len(body) < chunk_bytes
            self._add(body, self._dump_covers)
        else:
            body = self._next_since(chunk_bytes)
            self._add(body, self._since_covers)
        return len(body) // CHANGE_BYTES

    def _next_since(self, bytes_max: int) -> bytes:
        parts: list[memoryview] = []
        left = bytes_max
        while self._since and left:
            part = self._since.popleft()
            if len(part) > left:
                self._since.appendleft(part[left:])
                part = part[:left]
            parts.append(part)
            left -= len(part)
        self._since_bytes -= bytes_max - left
        return b"".join(parts)

    def note(self, changes: bytes, *, covers: int) -> None:
        """The next changes of the context since the dump was begun, of a flush that covers so
        much.
        """
        self._since.append(memoryview(changes))
        self._since_bytes += len(changes)
        self._last_bytes = len(changes)
        self._since_covers = covers

    def take_ahead(self) -> list[RowWrite]:
        """Chunks that are to be written now: more of them come."""
        if not self.has_chunk:
            return []
        ahead, self._ahead = self._ahead, []
        return ahead

    def rest(self) -> list[RowWrite]:
        """The chunks that come with the mark."""
        while self._since_bytes:
            body = self._next_since(DUMP_CHUNK_ENTRIES_MAX * CHANGE_BYTES)
            self._add(body, self._since_covers)
        rest, self._ahead = self._ahead, []
        return rest

    def _add(self, body: bytes, covers: int) -> None:
        if body:
            key = rows.row_key(RowPlace(self.context, self.generation, self.next_n))
            self._ahead.append(RowWrite(key, rows.encode_row(RowKind.CHUNK, covers, body)))
            self.next_n += 1

    def keys(self) -> Iterator[bytes]:
        """Of its chunks so far."""
        for n in range(self.next_n):
            yield rows.row_key(RowPlace(self.context, self.generation, n))
