"""A capture of the events topic: all its partitions, in no consumer group, so no role notices."""

import asyncio
from pathlib import Path

from brokers.availability import check_access, describe, quiet_client, until_reached
from brokers.broker_settings import KafkaSettings
from brokers.client_types import Message
from brokers.errors import KafkaError
from brokers.options import ClientOptions, client_options
from brokers.reading import log_bounds, opened_reader, read_to_end
from brokers.topics import count_partitions
from replay.bounds import CAPTURE_LOOK_S, CAPTURE_STALLED_S
from replay.capture.errors import CaptureError
from replay.capture.format import CaptureKind, CaptureSelection, Header, Summary
from replay.capture.record_filter import UNREADABLE, RecordFilter, check_bounds, partition_source
from replay.capture.writer import INTERRUPTED, CaptureWriter
from schemas.clock import REAL_CLOCK, Clock
from schemas.limits import TAIL_REACH_S
from schemas.positions import LogBounds
from schemas.progress import Progress, StopCheck, Tell, never, silent


def capture_kafka(
    settings: KafkaSettings,
    path: Path,
    asked: CaptureSelection,
    *,
    created_by: str,
    replace: bool = False,
    tell: Tell = silent,
    stopped: StopCheck = never,
    clock: Clock = REAL_CLOCK,
) -> Summary:
    """As `from_log.capture_log`, of what the events topic has now. Messages whose checksum fails
    are left out, and counted.

    Raises:
        ConfigurationError: no broker answers or lets us in, or there is no such topic.
        CaptureError: the file is there, a position is not one of this log, or Kafka went away.
        DiskError: the file cannot be written; what was written before can be read.
    """
    quiet_client()
    return asyncio.run(_capture(settings, path, asked, created_by, replace, tell, stopped, clock))


async def _capture(
    settings: KafkaSettings,
    path: Path,
    asked: CaptureSelection,
    created_by: str,
    replace: bool,
    tell: Tell,
    stopped: StopCheck,
    clock: Clock,
) -> Summary:
    clients = client_options(settings)
    topic = settings.topics.events.name

    async def look() -> dict[int, LogBounds]:
        await check_access(clients)
        partitions = range(await count_partitions(clients, topic))
        found = await log_bounds(clients, topic, partitions)
        return {partition: LogBounds(*bounds) for partition, bounds in found.items()}

    partitions = await until_reached(look, servers=settings.bootstrap, patience_s=TAIL_REACH_S)
    check_bounds(asked, partitions)
    header = Header(
        kind=CaptureKind.RECORDS,
        created_at=clock.unix(),
        created_by=created_by,
        source=f"the Kafka topic {topic}",
        asked=asked,
        partitions=tuple(
            partition_source(asked, partition, bounds, keeps_registrations=False)
            for partition, bounds in sorted(partitions.items())
        ),
    )
    with CaptureWriter(path, header, replace=replace, clock=clock.unix) as writer:
        filling = _CaptureFiller(writer, asked, partitions)
        reading = asyncio.create_task(_read(clients, topic, filling))
        try:
            await _watch(reading, filling, tell, stopped)
        except KafkaError as error:
            raise CaptureError(
                f"Kafka at {settings.bootstrap} went away: {describe(error)}"
            ) from error
        finally:
            reading.cancel()
            await asyncio.wait([reading])
    return writer.summary


class _CaptureFiller:
    """Takes messages of all partitions into a capture."""

    def __init__(
        self, writer: CaptureWriter, asked: CaptureSelection, partitions: dict[int, LogBounds]
    ) -> None:
        self.starts: dict[int, int | None] = {}
        self._writer = writer
        self._sieves: dict[int, RecordFilter] = {}
        self._reached: dict[int, int] = {}
        self._total = 0
        for partition, bounds in partitions.items():
            sieve = RecordFilter(asked, partition, bounds, writer.left_out)
            start = (asked.first or {}).get(partition, bounds.start)
            if start < sieve.end:
                self.starts[partition], self._sieves[partition] = start, sieve
                self._reached[partition] = start
                self._total += sieve.end - start
        self._begun_at = sum(self._reached.values())

    def take(self, message: Message) -> None:
        """The next one of its partition."""
        sieve = self._sieves[message.partition]
        self._reached[message.partition] = min(message.offset + 1, sieve.end)
        if message.offset >= sieve.end:
            return
        for entry, is_spared in sieve.take(message.offset, message.value or b""):
            self._writer.add(entry, spared=is_spared)

    def corrupt(self, partition: int, offset: int) -> None:
        """A message that cannot be read."""
        self._reached[partition] = offset + 1
        self._writer.left_out[UNREADABLE] += 1

    @property
    def progress(self) -> Progress:
        """How far it is."""
        done = sum(self._reached.values()) - self._begun_at
        return Progress(done, self._total, self._writer.entries, self._writer.size_bytes)

    def interrupt(self) -> None:
        """It ends before its end."""
        self._writer.ended = INTERRUPTED


async def _read(clients: ClientOptions, topic: str, filling: _CaptureFiller) -> None:
    if not filling.starts:
        return
    async with opened_reader(clients, committed=False) as reader:
        await read_to_end(reader, topic, filling.starts, filling.take, filling.corrupt)


async def _watch(
    reading: "asyncio.Task[None]", filling: _CaptureFiller, tell: Tell, stopped: StopCheck
) -> None:
    """Returns when all was read, or it is to end.

    Raises:
        CaptureError: nothing comes any more.
    """
    monotonic = asyncio.get_running_loop().time
    done, moved_at = -1, monotonic()
    while True:
        ended, _ = await asyncio.wait([reading], timeout=CAPTURE_LOOK_S)
        progress, now = filling.progress, monotonic()
        tell(progress)
        if ended:
            return reading.result()
        if stopped():
            return filling.interrupt()
        if progress.done != done:
            done, moved_at = progress.done, now
        elif now - moved_at > CAPTURE_STALLED_S:
            raise CaptureError(
                f"Kafka sent nothing for {CAPTURE_STALLED_S:g} s, though it has more"
            )
