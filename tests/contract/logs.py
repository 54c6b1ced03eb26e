"""The two logs behind one interface, each with the code that writes and reads it in service.

embedded   `logs.embedded`, which one process writes and reads; one partition
kafka      a real topic: written by the bridge's writer, read by the worker's clients
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple, Protocol

from aiokafka import TopicPartition  # type: ignore[import-untyped]
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete  # type: ignore[import-untyped]

from bridge.bounds import SPOOL_BYTES_MAX
from bridge.delivery.delivery import Delivery
from bridge.delivery.lease import Lease
from bridge.delivery.spool import Spool
from bridge.delivery.writer import Writer
from brokers.broker_settings import KafkaSettings
from brokers.clients import Clients, partition_of
from brokers.options import client_options
from brokers.reading import log_bounds, opened_reader
from brokers.topics import ensure_topics
from logs.embedded import EmbeddedLog
from logs.interface import LogEntry
from logs.producer import ReplaceableProducer
from schemas.identities import Offset, PublisherKey, StreamKey
from schemas.limits import BRIDGE_SESSION_S
from schemas.positions import Position
from schemas.records import Record, encode_record
from schemas.topics import encode_stream
from streams.kernel import open_kernel
from streams.table.driver import recover
from streams.table.fold import Fold
from streams.table.table import Table
from streams.worker.app import WorkerApp
from streams.worker.tables import PartitionTables

SEED = 1337
FLUSH_S = 0.01
WAIT_S = 30.0


class Bounds(NamedTuple):
    """Of one partition: nothing before `first` is kept, and the next record comes at `end`."""

    first: int
    end: int


class Reader(Protocol):
    """Reads one partition on from an offset."""

    def poll(self) -> list[LogEntry]:
        """What has come since, up to where the log ends now."""
        ...

    def close(self) -> None: ...


class Log(Protocol):
    """What every log can do."""

    @property
    def partitions(self) -> range: ...

    def append(self, records: Sequence[Record]) -> list[Position]:
        """Appends them as the bridge does; where each of them stands."""
        ...

    def append_bytes(self, stream: StreamKey, value: bytes) -> Position:
        """Appends something that no bridge of this version would, where the stream's records go."""
        ...

    def restart_writer(self) -> None:
        """Ends the writer in order; the next one knows only what is on disk and in the log."""
        ...

    def open_reader(self, partition: int, start: int) -> Reader: ...

    def bounds(self, partition: int) -> Bounds: ...

    def retire(self, partition: int, before: int) -> None:
        """Drops the records before this offset."""
        ...

    def live_once(self) -> list[Fold]:
        """One life of the role that folds the log: it begins with the table that the life before
        left, reads on to the end of the log, flushes and stops. Its folds, by partition.
        """
        ...

    def close(self) -> None: ...


def new_fold() -> Fold:
    return Fold(open_kernel(SEED))


class EmbeddedReader:
    """Reads on from an offset; each time with an iterator of its own."""

    def __init__(self, log: "EmbeddedUnderTest", start: int) -> None:
        self._log = log
        self._next = start

    def poll(self) -> list[LogEntry]:
        entries = list(self._log.log.read(Offset(self._next)))
        self._next = entries[-1].offset + 1 if entries else self._next
        return entries

    def close(self) -> None: ...


class EmbeddedUnderTest:
    """See `Log`. Every record is a segment, so that any of them can be the first one kept."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.log = self._open()

    def _open(self) -> EmbeddedLog:
        return EmbeddedLog(self._directory / "log", segment_bytes=1)

    @property
    def partitions(self) -> range:
        return range(1)

    def append(self, records: Sequence[Record]) -> list[Position]:
        first = self.log.append([encode_record(record) for record in records])
        return [Position(0, first + place) for place in range(len(records))]

    def append_bytes(self, stream: StreamKey, value: bytes) -> Position:
        return Position(0, self.log.append([value]))

    def restart_writer(self) -> None:
        self.log.close()
        self.log = self._open()

    def open_reader(self, partition: int, start: int) -> Reader:
        return EmbeddedReader(self, start)

    def bounds(self, partition: int) -> Bounds:
        return Bounds(self.log.complete_from, self.log.end_offset)

    def retire(self, partition: int, before: int) -> None:
        self.log.retain(bytes_max=0, age_max_s=0.0, now=0.0, floor=Offset(before))

    def live_once(self) -> list[Fold]:
        table = Table(self._directory / "table", new_fold, log=self.log)
        try:
            recover(table, self.log)
            return [table.fold]
        finally:
            table.close()

    def close(self) -> None:
        self.log.close()


class KafkaReader:
    """One consumer that stays open."""

    def __init__(self, runner: asyncio.Runner, settings: KafkaSettings, part: TopicPartition):
        self._runner = runner
        self._options = client_options(settings)
        self._part = part
        self._stack = AsyncExitStack()

    def open(self, start: int) -> None:
        self._runner.run(self._open(start))

    async def _open(self, start: int) -> None:
        opened = opened_reader(self._options, committed=True)
        self._consumer = await self._stack.enter_async_context(opened)
        self._consumer.assign([self._part])
        self._consumer.seek(self._part, start)

    def poll(self) -> list[LogEntry]:
        return self._runner.run(self._poll())

    async def _poll(self) -> list[LogEntry]:
        end = (await self._consumer.end_offsets([self._part]))[self._part]
        found: list[LogEntry] = []
        async with asyncio.timeout(WAIT_S):
            while await self._consumer.position(self._part) < end:
                batches = await self._consumer.getmany(self._part, timeout_ms=100)
                for records in batches.values():
                    found += [LogEntry(Offset(one.offset), one.value or b"") for one in records]
        return found

    def close(self) -> None:
        self._runner.run(self._stack.aclose())


class KafkaUnderTest:
    """See `Log`. The clients rest between two calls, for the tests' loop does."""

    def __init__(self, settings: KafkaSettings, directory: Path) -> None:
        self._settings = settings
        self._directory = directory
        self._runner = asyncio.Runner()
        self._written: dict[int, list[int]] = {number: [] for number in self.partitions}
        self._runner.run(ensure_topics(settings))
        self._runner.run(self._open_writer())

    async def _open_writer(self) -> None:
        settings = self._settings
        clients = Clients(client_options(settings))
        self._producer = ReplaceableProducer(clients.producer)
        self._spool = Spool(self._directory / "spool", bytes_max=SPOOL_BYTES_MAX)
        self._writer = Writer(
            Delivery(
                topic=settings.topics.events,
                producer=self._producer,
                spool=self._spool,
                on_written=self._note,
                lease=Lease(),
            )
        )
        self._writing = asyncio.create_task(self._writer.run())

    async def _close_writer(self) -> None:
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)
        assert not self._spool.records, "all that was appended had been acknowledged"
        self._spool.close()

    def _note(self, publisher: PublisherKey, record: Record, offset: int) -> None:
        self._written[self._partition(publisher.stream)].append(offset)

    def _partition(self, stream: StreamKey) -> int:
        return partition_of(encode_stream(stream), len(self.partitions))

    def _part(self, partition: int) -> TopicPartition:
        return TopicPartition(self._settings.topics.events.name, partition)

    @property
    def partitions(self) -> range:
        return range(self._settings.events_partitions)

    def append(self, records: Sequence[Record]) -> list[Position]:
        self._runner.run(self._append(records))
        places = [self._partition(record.stream) for record in records]
        positions = [Position(place, self._written[place].pop(0)) for place in places]
        assert not any(self._written.values()), "the writer told of each record once"
        return positions

    async def _append(self, records: Sequence[Record]) -> None:
        self._writer.append(records)
        async with asyncio.timeout(WAIT_S):
            # On a busy machine the broker may be late: records go through the spool then.
            while self._spool.records or not await self._writer.flush(1.0):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def append_bytes(self, stream: StreamKey, value: bytes) -> Position:
        partition = self._partition(stream)
        message = (encode_stream(stream), value)
        self._runner.run(self._producer.send(self._part(partition).topic, partition, [message]))
        return Position(partition, self.bounds(partition).end - 1)

    def restart_writer(self) -> None:
        self._runner.run(self._close_writer())
        self._runner.run(self._open_writer())

    def open_reader(self, partition: int, start: int) -> Reader:
        reader = KafkaReader(self._runner, self._settings, self._part(partition))
        reader.open(start)
        return reader

    def bounds(self, partition: int) -> Bounds:
        topic = self._settings.topics.events.name
        told = self._runner.run(log_bounds(client_options(self._settings), topic, [partition]))
        return Bounds(told[partition].start, told[partition].end)

    def retire(self, partition: int, before: int) -> None:
        self._runner.run(self._retire(partition, before))

    async def _retire(self, partition: int, before: int) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._settings.bootstrap)
        await admin.start()
        try:
            await admin.delete_records({self._part(partition): RecordsToDelete(before)})
        finally:
            await admin.close()

    def live_once(self) -> list[Fold]:
        return self._runner.run(self._live_once())

    async def _live_once(self) -> list[Fold]:
        settings, options = self._settings, client_options(self._settings)
        tables = PartitionTables(
            self._directory / "tables",
            options,
            events_topic=settings.topics.events.name,
            table_topic=settings.topics.table.name,
            make_fold=new_fold,
        )
        app = WorkerApp(
            options,
            tables,
            group=settings.group("streams"),
            topic=settings.topics.events.name,
            flush_s=FLUSH_S,
            session_timeout_s=BRIDGE_SESSION_S,
        )
        bounds = await log_bounds(options, settings.topics.events.name, self.partitions)

        def has_read_all() -> bool:
            return all(
                (next_ := tables.next_offset(number)) is not None and next_ >= bounds[number].end
                for number in self.partitions
            )

        stopping = asyncio.Event()
        reading = asyncio.create_task(app.run(stopping))
        try:
            async with asyncio.timeout(WAIT_S):
                while not has_read_all() and not reading.done():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            stopping.set()
            await reading
            return [tables.owned[number].table.fold for number in self.partitions]
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await tables.close()

    def close(self) -> None:
        try:
            self._runner.run(self._close_writer())
        finally:
            self._runner.close()
