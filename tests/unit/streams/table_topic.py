"""A partition of the table topic in memory: transactions, owners, and the cleaner."""

import random
from collections.abc import AsyncIterator, Sequence

from schemas.errors import TableLostError
from streams.table.rows.format import COVERED_KEY, RowWrite
from streams.table.rows.reader import RowReader
from streams.table.topic_interface import TopicRow


class MemoryTopic:
    """What the brokers hold. Offsets have holes: marks of transactions and owners take one."""

    def __init__(self) -> None:
        self.rows: list[TopicRow] = []
        self.next_offset = 0
        self.owner = 0
        self.rng = random.Random(0)  # where a write ends that fails among its chunks

    def open(self) -> "OwnedTopic":
        """For a worker that has yet to take it."""
        return OwnedTopic(self)

    def lose(self) -> None:
        """The topic is deleted and made anew."""
        self.rows = []
        self.next_offset = 0

    def spoil(self) -> None:
        """No table counts any more: what an owner does that finds another topic beneath it."""
        self.rows.append(TopicRow(self.next_offset, COVERED_KEY, b""))
        self.next_offset += 1

    def compact(self, rng: random.Random) -> None:
        """What the cleaner may have done at some point of its work.

        Up to a random offset some superseded rows are gone, and some tombstones before which
        nothing of their key is left.
        """
        dirty_from = rng.randint(0, self.next_offset)
        last = {row.key: row.offset for row in self.rows if row.offset < dirty_from}
        kept: list[TopicRow] = []
        seen: set[bytes] = set()
        for row in self.rows:
            superseded = row.offset < last.get(row.key, -1)
            done = row.value is None and row.key not in seen and row.offset < dirty_from
            if (superseded or done) and rng.random() < 0.8:
                continue
            seen.add(row.key)
            kept.append(row)
        self.rows = kept

    def follow(self, follower: RowReader, start: int = 0) -> int:
        """Puts the rows from `start` on; returns where to go on."""
        for row in self.rows:
            if row.offset >= start:
                follower.put(0, row.key, row.value)
        return self.next_offset


class OwnedTopic:
    """Implements `TableTopic`. `fails` lets the next write fail before or after it counts, or among
    the rows that go ahead, as `KafkaTableTopic` may where they are many.
    """

    def __init__(self, topic: MemoryTopic) -> None:
        self._topic = topic
        self._owner = 0
        self._next = -1
        self.fails = ""

    async def take(self) -> bool:
        topic = self._topic
        topic.owner += 1
        followed = topic.next_offset == self._next
        topic.next_offset += 1
        self._owner, self._next = topic.owner, topic.next_offset
        return followed

    async def read(self, start: int) -> AsyncIterator[list[TopicRow]]:
        rows = [row for row in self._topic.rows if row.offset >= start]
        for begin in range(0, len(rows), 3):
            yield rows[begin : begin + 3]

    async def write(self, written: list[RowWrite], ahead: Sequence[RowWrite] = ()) -> list[int]:
        topic = self._topic
        if self._owner != topic.owner or self.fails == "before":
            raise TableLostError("fenced or failed")
        if self.fails == "chunks" and ahead:
            self._append(ahead[: topic.rng.randint(0, len(ahead))])
            raise TableLostError("the worker was killed")
        self._append(ahead)
        offsets = self._append(written)
        topic.next_offset += 1
        self._next = topic.next_offset
        if self.fails == "after":
            raise TableLostError("the answer was lost")
        return offsets

    async def write_ahead(self, ahead: Sequence[RowWrite]) -> None:
        topic = self._topic
        if self._owner != topic.owner or self.fails == "before":
            raise TableLostError("fenced or failed")
        if self.fails == "chunks":
            self._append(ahead[: topic.rng.randint(0, len(ahead))])
            raise TableLostError("the worker was killed")
        self._append(ahead)
        self._next = topic.next_offset
        if self.fails == "after":
            raise TableLostError("the answer was lost")

    def _append(self, written: Sequence[RowWrite]) -> list[int]:
        first = self._topic.next_offset
        offsets = list(range(first, first + len(written)))
        self._topic.rows += [
            TopicRow(offset, *row) for offset, row in zip(offsets, written, strict=True)
        ]
        self._topic.next_offset += len(written)
        return offsets
