"""What a fold and an operator rely on, of the embedded log and of the Kafka log alike."""

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from brokers.broker_settings import KafkaSettings
from logs.interface import LogEntry
from schemas.codec import decode_record
from schemas.events import BlockEvent
from schemas.identities import Medium, Offset, PublisherKey, StreamKey
from schemas.positions import Position, PublisherState
from schemas.records import Record, encode_record
from schemas.registration import Registration
from streams.kernel.interface import ContextView
from streams.table.fold import Fold
from streams.table.ledger import Ledger
from tests.building import (
    BLOCK,
    STREAM,
    cleared,
    events_record,
    gap_record,
    registered_record,
    registration,
    removed,
    reset_record,
    stored,
    unregistered_record,
)
from tests.contract.logs import EmbeddedUnderTest, KafkaUnderTest, Log, Reader, new_fold

STREAMS = [STREAM._replace(instance_id=name) for name in "abcdef"]
LARGE_BLOCKS = 400_000  # 3.2 MB of hashes: below the largest record, above every usual buffer


@pytest.fixture(params=["embedded", "kafka"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    with opened(request.param, request, tmp_path) as log:
        yield log


@contextmanager
def opened(form: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[Log]:
    log: Log
    if form == "kafka":
        settings: KafkaSettings = request.getfixturevalue("kafka_settings")
        log = KafkaUnderTest(settings, directory / form)
    else:
        log = EmbeddedUnderTest(directory / form)
    try:
        yield log
    finally:
        log.close()


@pytest.fixture
def seed() -> int:
    """Named in every failure; REPRISE_TEST_SEED repeats it."""
    return int(os.environ.get("REPRISE_TEST_SEED", random.SystemRandom().randrange(2**32)))


# What is read


class Placed(NamedTuple):
    """A record and where it stands."""

    position: Position
    value: bytes


@contextmanager
def reader_of(log: Log, partition: int, start: int) -> Iterator[Reader]:
    reader = log.open_reader(partition, start)
    try:
        yield reader
    finally:
        reader.close()


def read(log: Log, partition: int, start: int = 0) -> list[LogEntry]:
    with reader_of(log, partition, start) as reader:
        return reader.poll()


def read_all(log: Log) -> list[Placed]:
    """Partition by partition."""
    return [
        Placed(Position(partition, entry.offset), entry.value)
        for partition in log.partitions
        for entry in read(log, partition)
    ]


def record(encoded: bytes) -> Record:
    return decode_record(encoded)


def batches(count: int, *, first: int = 0, streams: Sequence[StreamKey] = STREAMS) -> list[Record]:
    """As many for each stream, by turns; each stores one block."""
    return [
        record(events_record(n, n, [stored(n, [n + 1], range(BLOCK))], stream=stream))
        for n in range(first, first + count)
        for stream in streams
    ]


def placed(log: Log, records: Sequence[Record]) -> list[Placed]:
    positions = log.append(records)
    return [
        Placed(position, encode_record(one))
        for position, one in zip(positions, records, strict=True)
    ]


# Records in, records out


def test_what_is_appended_comes_back_in_order_for_each_publisher_byte_for_byte(log: Log) -> None:
    appended = batches(20)
    for begin in range(0, len(appended), 17):  # turns that end in the middle of a round
        log.append(appended[begin : begin + 17])
    values = [one.value for one in read_all(log)]
    assert sorted(values) == sorted(encode_record(one) for one in appended)
    for stream in STREAMS:
        wanted = [encode_record(one) for one in appended if one.stream == stream]
        assert [value for value in values if record(value).stream == stream] == wanted


def test_each_record_is_where_the_writer_was_told_and_offsets_only_rise(log: Log) -> None:
    appended = placed(log, batches(5)) + placed(log, batches(5, first=5))
    assert sorted(read_all(log)) == sorted(appended)
    for partition in log.partitions:
        told = [one.position.offset for one in appended if one.position.partition == partition]
        assert told == sorted(set(told))


def test_reading_from_an_offset_gives_that_record_and_all_after_it(log: Log) -> None:
    log.append(batches(4))
    for partition in log.partitions:
        whole = read(log, partition)
        for place, entry in enumerate(whole):
            assert read(log, partition, entry.offset) == whole[place:]


def test_reading_at_the_end_gives_nothing_and_then_what_comes(log: Log) -> None:
    assert read_all(log) == []
    (one, *_) = placed(log, batches(1, streams=[STREAM]))
    partition, offset = one.position
    with reader_of(log, partition, offset + 1) as reader:
        assert reader.poll() == []
        later = placed(log, batches(3, first=1, streams=[STREAM]))
        assert reader.poll() == [(position.offset, value) for position, value in later]
        assert reader.poll() == []


def test_two_readers_see_the_same_however_often_each_of_them_looks(log: Log) -> None:
    for partition in log.partitions:
        with reader_of(log, partition, 0) as often, reader_of(log, partition, 0) as once:
            seen: list[LogEntry] = []
            for turn in range(4):
                log.append(batches(3, first=3 * turn))
                seen += often.poll()
            assert seen
            assert once.poll() == seen


def test_a_record_of_megabytes_comes_back_whole(log: Log) -> None:
    event = removed(0, range(LARGE_BLOCKS))
    appended = placed(log, [record(events_record(0, 0, [event])), *batches(1, streams=[STREAM])])
    assert read_all(log) == appended


def test_the_bounds_say_what_is_kept_and_where_the_next_record_comes(log: Log) -> None:
    assert [log.bounds(partition) for partition in log.partitions] == [(0, 0)] * len(log.partitions)
    for turn in range(3):
        log.append(batches(2, first=2 * turn))
    for partition in log.partitions:
        entries = read(log, partition)
        assert log.bounds(partition) == (entries[0].offset, entries[-1].offset + 1)


# Restarts and retention


def test_what_was_appended_outlives_the_writer_and_no_offset_is_used_twice(log: Log) -> None:
    appended: list[Placed] = []
    for life in range(3):
        appended += placed(log, batches(3, first=3 * life))
        log.restart_writer()
    assert sorted(read_all(log)) == sorted(appended)
    assert len({one.position for one in appended}) == len(appended)


def test_what_retention_leaves_keeps_its_offsets_and_new_records_get_new_ones(log: Log) -> None:
    appended = placed(log, batches(6, streams=[STREAM]))
    partition, kept_from = appended[4].position
    log.retire(partition, kept_from)
    assert log.bounds(partition) == (kept_from, appended[-1].position.offset + 1)
    log.restart_writer()
    appended += placed(log, batches(2, first=6, streams=[STREAM]))
    assert read_all(log) == appended[4:]
    assert len({one.position for one in appended}) == len(appended)


# Folding


class Table(NamedTuple):
    """What a fold comes to, whatever the partitions: they share neither streams nor contexts."""

    contexts: list[ContextView]
    publishers: dict[PublisherKey, PublisherState]
    ledgers: dict[PublisherKey, Ledger]
    registrations: dict[PublisherKey, Registration]
    counters: dict[str, int]

    @classmethod
    def of(cls, folds: Sequence[Fold]) -> "Table":
        counters: Counter[str] = Counter()
        for fold in folds:
            counters.update(fold.counters)
        return cls(
            sorted(view for fold in folds for view in fold.kernel.contexts()),
            {key: state for fold in folds for key, state in fold.publishers.items()},
            {key: one for fold in folds for key, one in fold.ledgers.current.items()},
            {
                key: known.registration
                for fold in folds
                for key, known in fold.registrations.items()
            },
            dict(counters),
        )

    @classmethod
    def straight(cls, values: Sequence[bytes]) -> "Table":
        """Without any log."""
        fold = new_fold()
        for offset, value in enumerate(values):
            fold.apply(Offset(offset), value)
        return cls.of([fold])


class Folding:
    """A fold of each partition, which may stop at any record and be read on from there."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._folds = {partition: new_fold() for partition in log.partitions}
        self.skipped: list[tuple[Position, str]] = []

    def read_on(self, records_max: int = 10**9) -> None:
        """Folds at most so many records of each partition, by a reader of its own."""
        for partition, fold in self._folds.items():
            for entry in read(self._log, partition, fold.offset + 1)[:records_max]:
                skipped = fold.apply(entry.offset, entry.value)
                if skipped is not None:
                    self.skipped.append((Position(partition, skipped.offset), skipped.reason))

    def table(self) -> Table:
        return Table.of(list(self._folds.values()))


def newer(value: bytes) -> bytes:
    """The record as a later version would write it."""
    changed = value.replace(b"\xa7version\x01", b"\xa7version\x09")
    assert changed != value
    return changed


def test_what_is_no_record_is_skipped_counted_and_named_and_the_rest_goes_on(log: Log) -> None:
    good = batches(3, streams=[STREAM])
    first = encode_record(good[0])
    bad = [
        (b"\xc1 no record", "malformed_record"),
        (b"", "malformed_record"),
        (first[: len(first) // 2], "malformed_record"),
        (newer(first), "newer_version"),
    ]
    log.append(good[:1])
    named = [(log.append_bytes(STREAM, value), reason) for value, reason in bad]
    log.append(good[1:])
    folding = Folding(log)
    folding.read_on()
    assert folding.skipped == named
    table = folding.table()
    assert table == Table.straight(
        [first, *(value for value, _ in bad), *map(encode_record, good[1:])]
    )
    assert table.counters["malformed_record"] == 3
    assert table.counters["newer_version"] == 1
    assert table.publishers == Table.straight([encode_record(one) for one in good]).publishers


class Histories:
    """Turns of what bridges and accidents may put into a log, from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._cursors = {
            PublisherKey(stream, rank): (1, 0) for stream in STREAMS[:4] for rank in (0, 1)
        }
        self._past: list[bytes] = []

    def turn(self) -> list[bytes]:
        """The values of one turn."""
        made = [self._next() for _ in range(self._random.randrange(1, 12))]
        self._past += made
        return made

    def _next(self) -> bytes:
        chance = self._random
        publisher = chance.choice(list(self._cursors))
        stream, rank = publisher
        incarnation, sequence = self._cursors[publisher]
        one = registration(stream.instance_id, dp_rank=rank)
        match chance.choice(["events"] * 12 + ["gap", "reset", "again", "hole", "in", "out"]):
            case "gap":
                last = sequence + chance.randrange(3)
                self._cursors[publisher] = incarnation, last + 1
                made = gap_record(
                    sequence, last, incarnation=incarnation, stream=stream, dp_rank=rank
                )
            case "reset":
                self._cursors[publisher] = incarnation + 1, 0
                made = reset_record(incarnation + 1, stream=stream, dp_rank=rank)
            case "again" if self._past:
                made = chance.choice(self._past)
            case "in":
                made = registered_record(one)
            case "out":
                self._cursors[publisher] = incarnation + 1, 0
                made = unregistered_record(one)
            case kind:
                first = sequence + (2 if kind == "hole" else 0)
                last = first + chance.randrange(3)
                self._cursors[publisher] = incarnation, last + 1
                batch = [
                    event for number in range(first, last + 1) for event in self._events(number)
                ]
                made = events_record(
                    first, last, batch, incarnation=incarnation, stream=stream, dp_rank=rank
                )
        return made

    def _events(self, sequence: int) -> list[BlockEvent]:
        chance = self._random
        begin = chance.randrange(1, 60)
        hashes = range(begin, begin + chance.randrange(1, 6))
        medium = chance.choice([Medium.GPU, Medium.GPU, Medium.CPU])
        match chance.choice(["stored"] * 6 + ["removed"] * 3 + ["cleared"]):
            case "stored":
                tokens = range(BLOCK * begin, BLOCK * hashes.stop)
                parent = chance.choice([None, begin - 1])
                return [stored(sequence, hashes, tokens, parent=parent, medium=medium)]
            case "removed":
                return [removed(sequence, hashes, medium=medium)]
        return [cleared(sequence)]


def append_values(log: Log, values: Sequence[bytes]) -> None:
    log.append([record(value) for value in values])


def test_the_fold_of_what_is_read_is_the_fold_of_what_was_appended(log: Log, seed: int) -> None:
    histories, appended = Histories(seed), list[bytes]()
    stops = random.Random(seed)
    folding = Folding(log)
    for _ in range(30):
        turn = histories.turn()
        append_values(log, turn)
        appended += turn
        folding.read_on(stops.randrange(8))  # stops anywhere, and resumes there
    folding.read_on()
    assert folding.table() == Table.straight(appended), f"seed {seed}"


def test_a_table_that_is_stopped_and_resumed_equals_one_that_never_was(log: Log, seed: int) -> None:
    histories, appended = Histories(seed), list[bytes]()
    for _ in range(3):
        for _ in range(8):
            turn = histories.turn()
            append_values(log, turn)
            appended += turn
        # The counters are those of a life; what was skipped in an earlier one is not in them.
        table = Table.of(log.live_once())._replace(counters={})
        assert table == Table.straight(appended)._replace(counters={}), f"seed {seed}"


@pytest.mark.usefixtures("kafka_settings")
def test_both_logs_of_the_same_batches_fold_to_the_same_table(
    request: pytest.FixtureRequest, tmp_path: Path, seed: int
) -> None:
    histories = Histories(seed)
    turns = [histories.turn() for _ in range(20)]
    tables = []
    for form in ("embedded", "kafka"):
        with opened(form, request, tmp_path) as log:
            for turn in turns:
                append_values(log, turn)
            folding = Folding(log)
            folding.read_on()
            tables.append(folding.table())
    assert tables[0] == tables[1], f"seed {seed}"
    assert tables[0].contexts, f"seed {seed}"
