"""The records of a log as it grows, from Kafka or from a data directory.

`reprise tail` prints them as JSON lines.

It reads without a consumer group and beside the running service: no role notices it.
"""

import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from brokers.availability import check_access, until_reached
from brokers.broker_settings import KafkaSettings
from brokers.client_types import Partition
from brokers.errors import KafkaError
from brokers.options import ClientOptions, client_options
from brokers.reading import opened_reader
from brokers.topics import count_partitions
from logs.embedded import ReadOnlyLog
from logs.topic import read_once
from schemas.clock import REAL_CLOCK
from schemas.identities import Offset
from schemas.limits import TAIL_REACH_S
from storage.rocksdb import LOG, Database, disk_errors
from streams.log.record_lines import PlacedRecord, StreamFilter, record_line

TAIL_POLL_S: Final = 0.25  # between two looks for new records: the age of what it prints
TAIL_RECORDS_MAX: Final = 500  # read at once and printed, before the next ones


class TailOptions(NamedTuple):
    """What to print.

    Attributes:
        wanted: of which streams.
        follow: go on with what is written later; else stop where the log ended at the start.
        from_beginning: begin with the oldest record; else with what comes after the start.
        limit: stop after this many lines; None for no limit.
        compact: counts in place of hashes and tokens.
    """

    wanted: StreamFilter = StreamFilter()
    follow: bool = False
    from_beginning: bool = True
    limit: int | None = None
    compact: bool = False


Write = Callable[[bytes], object]

Take = Callable[[Iterable[PlacedRecord]], bool]
"""Takes the next records, of which there may be none just now; False where it wants no more."""


def tail_kafka(settings: KafkaSettings, options: TailOptions, write: Write) -> None:
    """Writes the records of the events topic as lines: see `read_kafka`.

    Args:
        write: takes whole lines, several at a time.
    """
    read_kafka(settings, options, _Printer(options, write).print)


def read_kafka(settings: KafkaSettings, options: TailOptions, take: Take) -> None:
    """Hands on the records of the events topic. Order: that of the log within each partition.

    Args:
        settings: where the log is.

    Raises:
        ConfigurationError: no broker answers or lets us in, or there is no such topic.
        StorageError: Kafka went away.
    """
    away = (KafkaError, TimeoutError)  # an OSError is of who takes the records
    read_once(settings, _read_kafka(settings, options, take), away=away)


async def _read_kafka(settings: KafkaSettings, options: TailOptions, take: Take) -> None:
    clients = client_options(settings)
    places = await events_partitions(settings, clients)
    async with aclosing(kafka_batches(clients, places, options)) as batches:
        async for entries in batches:
            if not take(entries):
                return


async def events_partitions(settings: KafkaSettings, clients: ClientOptions) -> list[Partition]:
    """Those of the events topic.

    Raises:
        ConfigurationError: no broker answers or lets us in, or there is no such topic.
    """
    topic = settings.topics.events.name

    async def look() -> int:
        await check_access(clients)
        return await count_partitions(clients, topic)

    partitions = await until_reached(look, servers=settings.bootstrap, patience_s=TAIL_REACH_S)
    return [Partition(topic, number) for number in range(partitions)]


async def kafka_batches(
    clients: ClientOptions, places: list[Partition], options: TailOptions
) -> AsyncGenerator[list[PlacedRecord], None]:
    """The records of partitions, some at a time; in each in order."""
    async with opened_reader(clients, committed=False) as reader:
        reader.assign(places)
        ends = await reader.end_offsets(places)
        begins = await reader.beginning_offsets(places) if options.from_beginning else ends
        for place in places:
            reader.seek(place, begins[place])
        while options.follow or [p for p in places if await reader.position(p) < ends[p]]:
            found = await reader.getmany(
                timeout_ms=int(TAIL_POLL_S * 1000), max_records=TAIL_RECORDS_MAX
            )
            yield [
                PlacedRecord(place.partition, message.offset, message.value)
                for place, messages in found.items()
                for message in messages
                if options.follow or message.offset < ends[place]
            ]


def tail_embedded(
    data: Path,
    options: TailOptions,
    write: Write,
    *,
    sleep: Callable[[float], None] = REAL_CLOCK.sleep,
) -> None:
    """Writes the records of a data directory's log as lines: see `read_embedded`."""
    read_embedded(data, options, _Printer(options, write).print, sleep=sleep)


def read_embedded(
    data: Path,
    options: TailOptions,
    take: Take,
    *,
    sleep: Callable[[float], None] = REAL_CLOCK.sleep,
) -> None:
    """Hands on the records of a data directory's log; the service that uses it may be running.

    Raises:
        StorageError: there is no log, or it cannot be read.
    """
    for entries in _embedded_batches(data / "log", options, sleep):
        if not take(entries):
            return


def _embedded_batches(
    path: Path, options: TailOptions, sleep: Callable[[float], None]
) -> Iterator[list[PlacedRecord]]:
    ReadOnlyLog(path).close()  # a reader that follows takes a log for whole whose files are gone
    open_log = _FollowedLog if options.follow else _WholeLog
    with tempfile.TemporaryDirectory(prefix="reprise-tail-") as scratch:
        log = open_log(path, Path(scratch))
        try:
            position = Offset(0) if options.from_beginning else log.end_offset
            while True:
                found = islice(log.read(position), TAIL_RECORDS_MAX)
                entries = [PlacedRecord(0, offset, value) for offset, value in found]
                if entries:
                    position = Offset(entries[-1].offset + 1)
                    yield entries
                elif options.follow:
                    yield []
                    sleep(TAIL_POLL_S)
                    log.catch_up()
                else:
                    return
        finally:
            log.close()


class _FollowedLog(ReadOnlyLog):
    """The log as of the moment of opening, or of the last `catch_up`."""

    _refuses_holes = False  # its writer may have dropped records since

    def __init__(self, path: Path, scratch: Path) -> None:
        """Opens it.

        Args:
            scratch: a directory for RocksDB's own files about this reader.
        """
        self._scratch = scratch
        super().__init__(path)

    def _open(self) -> Database:
        return Database.following(self.path, LOG, self._scratch)

    def catch_up(self) -> None:
        """Lets `read` find what the service has written since."""
        with disk_errors("follow the log", self.path):
            self._db.catch_up()


class _WholeLog(_FollowedLog):
    """The same, of which nothing may be missing."""

    _refuses_holes = True


class _Printer:
    """Filters, encodes, writes and counts lines."""

    def __init__(self, options: TailOptions, write: Write) -> None:
        self._options = options
        self._write = write
        self._left = options.limit

    def print(self, entries: Iterable[PlacedRecord]) -> bool:
        """Writes the entries' lines; False once the limit is reached."""
        lines: list[bytes] = []
        for entry in entries:
            line = record_line(entry, self._options.wanted, compact=self._options.compact)
            if line is None:
                continue
            lines.append(line + b"\n")
            if self._left is not None and len(lines) == self._left:
                break
        if lines:
            self._write(b"".join(lines))
        if self._left is not None:
            self._left -= len(lines)
        return self._left != 0
