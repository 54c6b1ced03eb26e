"""Appends a capture's records to a log: so history moves between an embedded one and Kafka.

Records go in as they are, in their order, under new offsets; a table folds the same from them. Left
out is what would say something of now that was true then: heartbeats, by which publishers would
count as confirmed, and what segments of memory held; and what is no record.

A record that is not above its publisher's cursor in the log would be skipped by every fold. So a
capture that has such a record is refused, unless it is forced: then what the log has already is
appended again, and skipped. That is how a load that was interrupted goes on.

A registration is followed by who uses the log, so it passes the gate of a stranger's: a socket of
this machine's file system is refused, unless who loads it says that it may be.

**What the capture does not prove, the log may not claim.** A range that does not begin where its
log did cannot tell what a silent publisher holds. In an empty embedded log the registrations of
such publishers come first, and it counts as complete only from behind them, as after retention: so
a fold of it degrades them (`streams.table.recovery`). In Kafka nobody follows what is not in the
registry, so none of it is confirmed; nor is who is registered later, before the engine was asked.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from brokers.availability import describe, quiet_client
from brokers.broker_settings import KafkaSettings
from brokers.clients import Clients, partition_of
from brokers.errors import AWAY
from brokers.options import client_options
from brokers.reading import log_bounds, opened_reader, read_to_end
from brokers.topics import count_partitions, ensure_topics
from logs.embedded import EmbeddedLog
from logs.producer import ReplaceableProducer
from replay.as_records import CaptureRecords
from replay.bounds import CAPTURE_LOOK_S, CAPTURE_STALLED_S
from replay.capture.errors import CaptureError
from replay.capture.format import CaptureEntry
from schemas.codec import decode_log_record
from schemas.errors import ConfigurationError, RecordError
from schemas.identities import Offset, PublisherKey
from schemas.limits import KAFKA_BATCH_BYTES, RECORD_SEND_BYTES_MAX, TAIL_REACH_S
from schemas.memory_segments import MemoryRecord
from schemas.positions import Cursor
from schemas.progress import Progress, StopCheck, Tell, never, silent
from schemas.records import (
    BridgeRecord,
    HeartbeatRecord,
    LogRecord,
    Record,
    RegisteredRecord,
    UnregisteredRecord,
)
from schemas.topics import encode_stream

LOAD_RECORDS: Final = 256  # appended to an embedded log in one write

MakeRecords = Callable[[], CaptureRecords]
"""The records from their beginning on, each time."""


class LoadResult(NamedTuple):
    """What a load did.

    Attributes:
        records: that were appended.
        left_out: by reason.
        ended: whether it came to the end.
    """

    records: int
    left_out: Counter[str]
    ended: bool


class _Survey(NamedTuple):
    """What a first look at a capture tells.

    Attributes:
        firsts: by publisher, its first batch in the capture.
        local: by publisher, its address that is a socket of this machine's file system.
        unproven: the registrations of publishers of which it is not known what they hold.
        partial: whether the capture does not begin where its log did.
    """

    firsts: dict[PublisherKey, Cursor]
    local: dict[PublisherKey, str]
    unproven: list[bytes]
    partial: bool
    total: int


def load_into_log(
    make_records: MakeRecords,
    data: Path,
    *,
    force: bool = False,
    local_sockets: bool = False,
    tell: Tell = silent,
    stopped: StopCheck = never,
) -> LoadResult:
    """Appends a capture to the log of a data directory, which is made where it is missing. Cost
    O(log and capture).

    Args:
        data: the directory; no service may use it.
        force: append also what the log has already.
        local_sockets: append also registrations of sockets of this machine's file system.
        stopped: whether to end before.

    Raises:
        DataDirectoryInUseError: a service uses it.
        CaptureError: the log has records of a publisher at or beyond those of the capture, or a
            registration is refused.
        DiskError: the log cannot be written; what was appended stays.
    """
    survey = _survey(make_records())
    if not local_sockets:
        _refuse_local(survey.local)
    data.mkdir(parents=True, exist_ok=True)
    log = EmbeddedLog(data / "log")
    try:
        if not force:
            _refuse_overlap(survey.firsts, _cursors(value for _, value in log.read(Offset(0))))
        loading = _Loading(make_records(), survey)
        if survey.partial and log.end_offset == 0:
            loading.begin_with(survey.unproven)
            if survey.unproven:
                log.append(survey.unproven)
                log.complete_only_from(log.end_offset)
            else:
                log.advance_to(Offset(1))
        ended = True
        batch: list[bytes] = []
        for _, value in loading:
            batch.append(value)
            if len(batch) >= LOAD_RECORDS:
                log.append(batch)
                batch = []
                tell(loading.progress)
                if stopped():
                    ended = False
                    break
        log.append(batch)
        tell(loading.progress)
        return loading.done(ended=ended)
    finally:
        log.close()


def load_into_kafka(
    make_records: MakeRecords,
    settings: KafkaSettings,
    *,
    force: bool = False,
    local_sockets: bool = False,
    tell: Tell = silent,
    stopped: StopCheck = never,
) -> LoadResult:
    """Appends a capture to the events topic, each record to the partition of its stream, as bridges
    do; topics that are missing are made. Cost O(topic and capture).

    Raises:
        ConfigurationError: Kafka cannot be used.
        CaptureError: as `load_into_log`, or Kafka went away; what was appended stays.
    """
    survey = _survey(make_records())
    if not local_sockets:
        _refuse_local(survey.local)
    quiet_client()
    return asyncio.run(_load_into_kafka(make_records, survey, settings, force, tell, stopped))


async def _load_into_kafka(
    make_records: MakeRecords,
    survey: _Survey,
    settings: KafkaSettings,
    force: bool,
    tell: Tell,
    stopped: StopCheck,
) -> LoadResult:
    options, topic = client_options(settings), settings.topics.events.name
    try:
        async with asyncio.timeout(TAIL_REACH_S):
            await ensure_topics(settings)
    except TimeoutError as error:
        raise ConfigurationError(
            f"Expected Kafka to answer at {settings.bootstrap}, got no answer within"
            f" {TAIL_REACH_S:g} s"
        ) from error
    partitions = await count_partitions(options, topic)
    if not force:
        bounds = await log_bounds(options, topic, range(partitions))
        starts: dict[int, int | None] = {number: bound.start for number, bound in bounds.items()}
        there: dict[PublisherKey, Cursor] = {}
        async with opened_reader(options, committed=False) as reader:
            await read_to_end(
                *(reader, topic, starts),
                lambda message: _note_cursor(there, message.value or b""),
                lambda partition, offset: None,
            )
        _refuse_overlap(survey.firsts, there)
    loading = _Loading(make_records(), survey, bytes_max=RECORD_SEND_BYTES_MAX)
    producer = ReplaceableProducer(Clients(options).producer)
    ended = True
    try:
        waiting: dict[int, list[tuple[bytes, bytes]]] = {}
        sizes: Counter[int] = Counter()
        for record, value in loading:
            key = encode_stream(record.stream)
            partition = partition_of(key, partitions)
            waiting.setdefault(partition, []).append((key, value))
            sizes[partition] += len(value)
            if sizes[partition] >= KAFKA_BATCH_BYTES:
                sent = waiting.pop(partition)
                del sizes[partition]
                await _within(producer.send(topic, partition, sent), settings, stopped)
                tell(loading.progress)
                if stopped():
                    ended = False
                    break
        for partition, sent in sorted(waiting.items()):
            await _within(producer.send(topic, partition, sent), settings, never)
        tell(loading.progress)
        return loading.done(ended=ended)
    finally:
        await producer.replace()


async def _within(
    sending: Coroutine[object, object, object], settings: KafkaSettings, stopped: StopCheck
) -> None:
    """Waits for what is sent.

    Raises:
        CaptureError: Kafka does not take it, or it is to end before it has.
    """
    task = asyncio.ensure_future(sending)
    waited_s = 0.0
    while not task.done():
        await asyncio.wait([task], timeout=CAPTURE_LOOK_S)
        waited_s += CAPTURE_LOOK_S
        if not task.done() and (waited_s > CAPTURE_STALLED_S or stopped()):
            task.cancel()
            await asyncio.wait([task])
            raise CaptureError(
                f"Kafka at {settings.bootstrap} did not take the records. What it took stays;"
                " load again with --force to go on"
            )
    try:
        task.result()
    except AWAY as error:
        raise CaptureError(
            f"Kafka at {settings.bootstrap} did not take the records: {describe(error)}. What it"
            " took stays; load again with --force to go on"
        ) from error


class _Loading:
    """The records that are appended, and what is left out."""

    def __init__(
        self, records: CaptureRecords, survey: _Survey, *, bytes_max: int | None = None
    ) -> None:
        self._records = records
        self._total = survey.total
        self._bytes_max = bytes_max
        self._written: set[bytes] = set()
        self._left_out: Counter[str] = Counter()
        self._seen = self._taken = 0

    def begin_with(self, values: Iterable[bytes]) -> None:
        """These are in the log already."""
        self._written = set(values)
        self._taken += len(self._written)

    @property
    def progress(self) -> Progress:
        """How far it is."""
        return Progress(self._seen, self._total, self._taken)

    def done(self, *, ended: bool) -> LoadResult:
        """What it came to."""
        return LoadResult(self._taken, self._left_out, ended)

    def __iter__(self) -> Iterator[tuple[Record, bytes]]:
        for entry in self._records:
            self._seen += 1
            record = _decoded(entry)
            if record is None:
                self._left_out["unreadable"] += 1
            elif isinstance(record, HeartbeatRecord):
                self._left_out["heartbeats"] += 1
            elif isinstance(record, MemoryRecord):
                self._left_out["memory"] += 1
            elif self._bytes_max is not None and len(entry.value) > self._bytes_max:
                self._left_out["too_large"] += 1
            elif self._written and entry.value in self._written:
                self._written.discard(entry.value)
            else:
                self._taken += 1
                yield record, entry.value


def _survey(records: CaptureRecords) -> _Survey:
    before = {number: records.unproven_before(number) for number in records.partitions}
    firsts: dict[PublisherKey, Cursor] = {}
    local: dict[PublisherKey, str] = {}
    unregistered: set[PublisherKey] = set()
    unproven: dict[PublisherKey, bytes] = {}
    total = 0
    for entry in records:
        total += 1
        record = _decoded(entry)
        if record is None or isinstance(record, BridgeRecord):
            continue
        publisher = record.publisher
        if isinstance(record, UnregisteredRecord):
            unregistered.add(publisher)
        elif isinstance(record, RegisteredRecord):
            if record.registration.local_socket:
                local[publisher] = record.registration.local_socket
            is_new = publisher in firsts or publisher in unregistered
            if entry.position < before[entry.lane] and not is_new:
                unproven.setdefault(publisher, entry.value)
        else:
            firsts.setdefault(publisher, Cursor(record.incarnation, record.first_sequence))
    return _Survey(firsts, local, list(unproven.values()), any(before.values()), total)


def _decoded(entry: CaptureEntry) -> LogRecord | None:
    try:
        return decode_log_record(entry.value)
    except RecordError:
        return None


def _cursors(values: Iterable[bytes]) -> dict[PublisherKey, Cursor]:
    there: dict[PublisherKey, Cursor] = {}
    for value in values:
        _note_cursor(there, value)
    return there


def _note_cursor(there: dict[PublisherKey, Cursor], value: bytes) -> None:
    try:
        record = decode_log_record(value)
    except RecordError:
        return
    if not isinstance(record, BridgeRecord | RegisteredRecord | UnregisteredRecord):
        publisher = record.publisher
        there[publisher] = max(record.last, there.get(publisher, record.last))


def _refuse_local(local: dict[PublisherKey, str]) -> None:
    if local:
        name, address = next(iter(local.items()))
        raise CaptureError(
            f"Expected registrations of addresses of a network, got {address[:80]} of"
            f" {' / '.join(map(str, name.stream))} / rank {name.dp_rank}: a service would"
            " connect to that socket of its machine. Give --local-sockets if you know where the"
            " capture comes from"
        )


def _refuse_overlap(firsts: dict[PublisherKey, Cursor], there: dict[PublisherKey, Cursor]) -> None:
    beyond = [name for name, first in firsts.items() if name in there and there[name] >= first]
    if not beyond:
        return
    name, more = beyond[0], len(beyond) - 1
    first, cursor = firsts[name], there[name]
    others = f", and of {more} more" if more else ""
    raise CaptureError(
        f"Expected a log without batches of a publisher at or beyond those of the capture, which"
        f" would be skipped, but it has {cursor.incarnation}:{cursor.sequence} where the capture"
        f" begins with {first.incarnation}:{first.sequence} of {' / '.join(map(str, name.stream))}"
        f" / rank {name.dp_rank}{others}. Load into another log, or give --force to append them"
        " all the same"
    )
