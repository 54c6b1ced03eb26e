"""A worker's partition of the table topic: how a flush is written, and who may write.

**A flush is one record batch**, which a broker appends wholly or not at all, in one round trip. A
transaction for each flush would do too; measured on a broker beside it, p50 was 28 ms against
1.4 ms. A flush that does not fit one batch is written in two steps:

    Step 1. what goes ahead, the chunks of a context that is rewritten, in as many batches as it
            takes, of a large one beside the flushes before this one (`write_ahead`). None of them
            counts yet, wherever this ends: they belong to a generation without a mark, which
            readers ignore, and whose number this table never reuses once one of its rows is there.
            Where it is given up, a later flush removes them (`streams.table.rows.writer`).
    Step 2. everything else, which makes them count: one batch, or a transaction where it does not
            fit. Publishers, registrations and removals have no such guard: a row that replaces
            another is the only one left once the cleaner has passed, so they may not come apart.

Either way readers (`isolation_level="read_committed"`) never see half of a flush. What is left for
a transaction is the first flush after a rebuild, which removes the old table's rows, and a whole
table that is republished because its topic was lost; the latter may have
`TABLE_TRANSACTION_BYTES_MAX`. It does not go in steps: whoever opened a topic with half of a table
could not tell it from one that was written by another worker, and would mix the two.

**Of two workers that both believe that they own a partition**, as after a pause longer than the
session timeout, only the later one writes. Each takes the partition first:

    Step 1. it asks for the producer id of the partition's transactional id, which comes with a
            new epoch;
    Step 2. it writes a mark, a tombstone under a key of its own, with that id and epoch;
    Step 3. only then it reads where the table stands.

From the mark on brokers refuse batches of an older epoch, in a transaction or not, for as long as
they know the producer id, which is for a day without use (a transactional id: seven). So an owner
takes its partition again every `TABLE_RETAKE_S`. What came before the mark is read in step 3. An
owner that takes the partition again, for that or for a transaction, goes on only if its mark
directly follows what it wrote last.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from brokers.availability import describe
from brokers.client_internals import start_client, stop_producer
from brokers.client_types import EpochProducer, Partition, Producer
from brokers.clients import Clients
from brokers.errors import AWAY
from brokers.options import ClientOptions
from brokers.reading import opened_reader, read_batches
from schemas.errors import TableLostError, TableTooLargeError
from schemas.limits import (
    DUMP_CHUNK_ENTRIES_MAX,
    GIB,
    KAFKA_MESSAGE_MAX_BYTES,
    KAFKA_REQUEST_MS,
    KIB,
)
from streams.table.rows import format as rows
from streams.table.rows.format import RowWrite
from streams.table.topic_interface import TopicRow

# Rows of a partition's table that count together: keys and values, before compression.
TABLE_BATCH_BYTES_MAX: Final = KAFKA_MESSAGE_MAX_BYTES - 128 * KIB  # the codec may add a little
TABLE_TRANSACTION_BYTES_MAX: Final = 1 * GIB  # TableTooLargeError; within TABLE_TRANSACTION_MS

TABLE_RETAKE_S: Final = 6 * 3600.0  # an owner takes its partition again this often: a new producer

assert TABLE_RETAKE_S <= 12 * 3600, "brokers fence an older owner for a day after it last wrote"
assert DUMP_CHUNK_ENTRIES_MAX * 64 < TABLE_BATCH_BYTES_MAX, "a row of a table must fit a batch"
assert TABLE_BATCH_BYTES_MAX < KAFKA_MESSAGE_MAX_BYTES, "a flush of one batch must fit a message"
assert TABLE_BATCH_BYTES_MAX < TABLE_TRANSACTION_BYTES_MAX, "a larger flush needs a transaction"

logger = logging.getLogger(__name__)

_ROW_FRAME_BYTES: Final = 32
"""What a batch takes for a row beside its key and value, at most."""


class KafkaTableTopic:
    """See `TableTopic`, and the module. One owner; calls may not overlap.

    Attributes:
        waited_s: how long it has waited for brokers to write single batches, in all.
    """

    def __init__(
        self,
        options: ClientOptions,
        topic: str,
        partition: int,
        *,
        transactional_id: str,
        batch_bytes_max: int = TABLE_BATCH_BYTES_MAX,
        transaction_bytes_max: int = TABLE_TRANSACTION_BYTES_MAX,
    ) -> None:
        """Args:
        partition: of it.
        transactional_id: the same for every owner of the partition.
        batch_bytes_max: of rows that are one batch.
        transaction_bytes_max: of rows that are one transaction.
        """
        self._batch_bytes_max = batch_bytes_max
        self._transaction_bytes_max = transaction_bytes_max
        self._options = options
        self._clients = Clients(options)
        self._part = Partition(topic, partition)
        self._transactional_id = transactional_id
        self._producer: Producer | None = None
        self._next = -1
        self._taken_at = 0.0
        self.waited_s = 0.0

    @property
    def end(self) -> int:
        """Up to where this object knows the partition to be written; -1 before it was taken."""
        return self._next

    # Ownership

    async def take(self) -> bool:
        """See `TableTopic`.

        Raises:
            KafkaError: the broker is away.
        """
        with self._logged_if_slow("take"):
            return await self._take()

    async def _take(self) -> bool:
        await self.stop()
        claim = await self._start_transactional()
        epoch = claim.epoch
        await stop_producer(claim)
        producer = self._clients.fenced_producer(epoch, batch_bytes_max=self._batch_bytes_max)
        try:
            await start_client(producer)
            mark = await self._send(producer, [RowWrite(rows.OWNER_KEY, None)])
        except BaseException:
            await stop_producer(producer)
            raise
        assert mark is not None, "one row fits"
        followed = mark == self._next
        self._producer, self._next = producer, mark + 1
        self._taken_at = asyncio.get_running_loop().time()
        return followed

    async def stop(self) -> None:
        """Gives the partition up; a flush under way may or may not count."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            await stop_producer(producer)

    async def _start_transactional(self) -> EpochProducer:
        producer = self._clients.epoch_producer(self._transactional_id)
        try:
            await start_client(producer)
        except BaseException:
            await stop_producer(producer)
            raise
        return producer

    # Reading

    async def read(self, start: int) -> AsyncIterator[list[TopicRow]]:
        """See `TableTopic`. Raises KafkaError where the broker stays away."""
        async with opened_reader(self._options, committed=True) as reader:
            async for messages in read_batches(reader, self._part, start):
                yield [
                    TopicRow(message.offset, message.key or b"", message.value)
                    for message in messages
                    if message.key != rows.OWNER_KEY
                ]

    # Writing

    async def write(self, written: list[RowWrite], ahead: Sequence[RowWrite] = ()) -> list[int]:
        """See `TableTopic`."""
        with self._writing():
            return await self._write(written, ahead)

    async def write_ahead(self, ahead: Sequence[RowWrite]) -> None:
        """See `TableTopic`."""
        with self._writing():
            await self._write_batches(ahead)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Whatever ends a write may have left a part of it there."""
        try:
            with self._logged_if_slow("write"):
                yield
        except AWAY as error:
            raise TableLostError(f"Kafka failed: {describe(error)}") from error

    async def _write(self, written: list[RowWrite], ahead: Sequence[RowWrite]) -> list[int]:
        if self._producer is None:
            raise TableLostError("the partition was given up")
        if asyncio.get_running_loop().time() - self._taken_at > TABLE_RETAKE_S:
            await self._take_again()
        offsets = await self._write_batch([*ahead, *written])
        if offsets is None:
            return await self._write_in_steps(written, ahead)
        return offsets[len(ahead) :]

    async def _write_in_steps(
        self, written: list[RowWrite], ahead: Sequence[RowWrite]
    ) -> list[int]:
        """See the module."""
        # Step 1.
        await self._write_batches(ahead)
        # Step 2.
        offsets = await self._write_batch(written) if ahead else None
        return await self._write_in_transaction(written) if offsets is None else offsets

    async def _write_batches(self, written: Iterable[RowWrite]) -> None:
        for batch in self._batches(written):
            found = await self._write_batch(batch)
            assert found is not None, "a batch of rows that were measured fits"

    def _batches(self, written: Iterable[RowWrite]) -> Iterator[list[RowWrite]]:
        batch: list[RowWrite] = []
        size_bytes = 0
        for row in written:
            row_bytes = _size_bytes(row)
            if batch and size_bytes + row_bytes > self._batch_bytes_max // 2:
                yield batch
                batch, size_bytes = [], 0
            batch.append(row)
            size_bytes += row_bytes
        if batch:
            yield batch

    async def _write_batch(self, written: list[RowWrite]) -> list[int] | None:
        """Writes the rows as one batch; their offsets, or None where they do not fit."""
        if self._producer is None:
            raise TableLostError("the partition was given up")
        first = await self._send(self._producer, self._with_expected_offset(written))
        if first is None:
            return None
        if first != self._next:
            await self._spoil(self._producer)
            raise TableLostError(
                f"expected to write at {self._next} of {self._part.topic}, wrote at {first}: it is"
                " another topic of that name, or another process has written"
            )
        self._next = first + len(written)
        return list(range(first, self._next))

    def _with_expected_offset(self, written: list[RowWrite]) -> list[RowWrite]:
        """The rows with the place of the `covered` row at their end written into it: should the
        topic have been recreated, no reader takes them for all that there is.
        """
        *others, last = written
        if last.key != rows.COVERED_KEY or last.value is None:
            return written
        value = rows.with_expected_offset(last.value, self._next + len(others))
        return [*others, RowWrite(last.key, value)]

    async def _spoil(self, producer: Producer) -> None:
        """What was just written does not follow on the rows that are there. No table counts without
        a `covered` row that can be read: so whoever opens the partition refolds the events.

        Rows of earlier versions do not say where they were expected, nor does a batch of other rows
        that goes ahead; where a worker is killed before this, its `covered` row tells readers.
        """
        await self._send(producer, [RowWrite(rows.COVERED_KEY, b"")])

    @contextmanager
    def _logged_if_slow(self, what: str) -> Iterator[None]:
        """The client retries for as long as the broker refuses or is away, and logs nothing."""
        topic, partition = self._part
        loop = asyncio.get_running_loop()
        text = "Still cannot %s partition %d of %s after %d s; retrying"
        seconds = KAFKA_REQUEST_MS // 1000
        timer = loop.call_later(seconds, logger.warning, text, what, partition, topic, seconds)
        try:
            yield
        finally:
            timer.cancel()

    async def _take_again(self) -> None:
        if not await self.take():
            raise TableLostError("another worker has taken the partition")

    async def _send(self, producer: Producer, written: Iterable[RowWrite]) -> int | None:
        """Writes the rows as one batch; the offset of the first, or None where they do not fit."""
        batch = producer.create_batch()
        for row in written:
            if batch.append(key=row.key, value=row.value, timestamp=None) is None:
                return None
        topic, partition = self._part
        loop = asyncio.get_running_loop()
        began = loop.time()
        sent = await (await producer.send_batch(batch, topic, partition=partition))
        self.waited_s += loop.time() - began
        if sent.offset < 0:  # a repeated batch, of which the broker has forgotten where it is
            raise TableLostError("the broker did not say where it wrote")
        return int(sent.offset)

    async def _write_in_transaction(self, written: list[RowWrite]) -> list[int]:
        size_bytes = sum(map(_size_bytes, written))
        if size_bytes > self._transaction_bytes_max:
            raise TableTooLargeError(
                partition=self._part.partition,
                topic=self._part.topic,
                size_bytes=size_bytes,
                bytes_max=self._transaction_bytes_max,
            )
        await self.stop()
        producer = await self._start_transactional()
        topic, partition = self._part
        try:
            await producer.begin_transaction()
            sent = [
                await producer.send(topic, key=row.key, value=row.value, partition=partition)
                for row in self._with_expected_offset(written)
            ]
            offsets = [acknowledged.offset for acknowledged in await asyncio.gather(*sent)]
            if offsets != list(range(self._next, self._next + len(written))):
                await producer.abort_transaction()
                raise TableLostError(
                    f"expected to write {len(written)} rows at {self._next}, wrote at {offsets[0]}"
                    f" to {offsets[-1]}: another worker has taken the partition, or the topic was"
                    " recreated"
                )
            await producer.commit_transaction()
        finally:
            await stop_producer(producer)
        self._next = offsets[-1] + 2  # a transaction ends in a record of the broker's
        await self._take_again()
        return offsets


def _size_bytes(row: RowWrite) -> int:
    return len(row.key) + len(row.value or b"") + _ROW_FRAME_BYTES
