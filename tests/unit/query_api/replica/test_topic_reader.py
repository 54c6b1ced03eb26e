"""What the reader does with messages that it cannot use; the consumer is left out."""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokers.broker_settings import KafkaSettings
from brokers.client_types import Consumer, Message
from logs.attempts import LogLostError, StalledError
from query_api.replica import topic_reader
from query_api.replica.replica import Replica
from query_api.replica.snapshot import Topic, TopicPartition
from query_api.replica.topic_reader import TopicReader
from schemas.answer_states import AnswerState
from schemas.events import encode_events
from schemas.topics import encode_publisher, encode_registration
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.rows.format import CONTEXT, COVERED_KEY, with_expected_offset
from streams.table.rows.reader import RowReader
from tests.building import SCOPE, events_record, registered_record, registration, stored
from tests.fakes import FlushingWorker

ONE, TWO = registration("a"), registration("b", port=6000)
SETTINGS = KafkaSettings(bootstrap="k:1", events_partitions=1, registry_partitions=1)
PARTITIONS = {Topic.TABLE: 1, Topic.REGISTRY: 1}
TABLE, REGISTRY = TopicPartition(Topic.TABLE, 0), TopicPartition(Topic.REGISTRY, 0)
ROWS = (
    registered_record(ONE),
    events_record(0, 0, [stored(0, [1, 2], list(range(8)))]),
)


class Poisoned(RowReader):
    """A follower with a fault: it fails at rows of that value."""

    def put(self, partition: int, key: bytes, value: bytes | None) -> None:
        if value == b"poison":
            raise ZeroDivisionError("injected")
        super().put(partition, key, value)

    def catching_up(self, partition: int) -> Iterator[None]:
        gathered = self._partitions[partition].gathered
        if b"poison while loading" in gathered._plain.values():
            gathered._plain.clear()
            raise ZeroDivisionError("injected")
        return super().catching_up(partition)


class Reading:
    """A reader whose messages the test gives."""

    def __init__(self) -> None:
        self.replica = Replica(lambda: Poisoned(open_kernel(1337, name="reference")), PARTITIONS)
        self.reader = TopicReader(
            SETTINGS,
            cast(Any, {}),
            self.replica,
            prepare=cast(Any, None),
            when_refused=cast(Any, None),
        )
        self.read: dict[TopicPartition, int] = {TABLE: 0, REGISTRY: 0}

    def give(
        self, place: TopicPartition, entries: Sequence[tuple[bytes | None, bytes | None]]
    ) -> None:
        now = int(time.time() * 1000)
        messages = [
            SimpleNamespace(
                partition=0, offset=self.read[place] + n, timestamp=now, key=key, value=value
            )
            for n, (key, value) in enumerate(entries)
        ]
        self.read[place] += len(messages)
        ends = self.read | {TopicPartition(Topic.EVENTS, 0): 0}
        snapshot = self.replica.loading
        if snapshot.begun:
            self.replica.note_ends(ends)
        else:
            snapshot.begin(time.monotonic(), ends)
        asyncio.run(self.reader._apply(place, cast(Sequence[Message], messages)))
        if place is TABLE:
            asyncio.run(self.reader._advance(REGISTRY, self.read[REGISTRY]))
        self.replica.note_progress()


@pytest.fixture
def reading() -> Reading:
    return Reading()


@pytest.fixture
def rows() -> Sequence[tuple[bytes, bytes | None]]:
    return FlushingWorker(Fold(open_kernel(1337, name="reference"))).flush(*ROWS)


def test_an_unexpected_error_costs_one_row_and_the_answers_no_longer_say_exact(
    reading: Reading, rows: Sequence[tuple[bytes, bytes | None]], caplog: pytest.LogCaptureFixture
) -> None:
    reading.give(TABLE, [*rows, (b"P key", b"poison")])
    reading.give(TABLE, [(b"P key", b"poison"), *rows])
    assert reading.replica.internal_errors == 2
    assert reading.replica.ready
    assert reading.replica.kernel.contexts()
    assert reading.replica.state(SCOPE) is not AnswerState.EXACT
    assert reading.replica.current.faulty
    assert f"skipping the message of the table at offset {len(rows)} of partition 0" in caplog.text


def test_an_unexpected_error_while_rows_are_loaded_does_not_repeat_for_ever(
    reading: Reading,
) -> None:
    reading.give(TABLE, [(b"P key", b"poison while loading")])
    assert not reading.replica.loading.complete
    asyncio.run(reading.reader._advance(TABLE, 1))
    assert reading.replica.loading.complete
    assert reading.replica.internal_errors == 1


def test_a_row_that_is_corrupt_is_left_out_counted_and_named(
    reading: Reading, rows: Sequence[tuple[bytes, bytes | None]], caplog: pytest.LogCaptureFixture
) -> None:
    at = next(number for number, (key, _) in enumerate(rows) if key[:1] == CONTEXT)
    key, value = rows[at]
    assert value is not None
    reading.give(TABLE, [*rows[:at], (key, value[:-1] + b"?"), *rows[at + 1 :]])
    assert reading.replica.loading.table.counters["corrupt_rows"] == 1
    said = f"Cannot use a row of the table (corrupt_rows), in partition 0 with key {key.hex()}"
    assert said in caplog.text


def test_an_entry_of_the_registry_that_cannot_be_read_is_counted_and_named_within_a_bound(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topic_reader, "ENTRIES_NAMED_MAX", 2)
    key = encode_publisher(ONE.publisher)
    with caplog.at_level(logging.WARNING):
        reading.give(REGISTRY, [(b"\x92\x95\xa1\xff", b""), *[(key, b"\xa1\xff")] * 5])
        reading.give(REGISTRY, [(key, encode_registration(ONE))])
    assert reading.replica.entries_skipped == 6
    assert reading.replica.internal_errors == 0
    assert not reading.replica.current.faulty
    assert reading.replica.loading.registry.registrations == {ONE.publisher: ONE}
    assert caplog.text.count("Cannot read the registry entry") == 3


def test_a_flush_that_was_meant_for_another_place_of_the_topic_is_not_believed(
    reading: Reading, rows: Sequence[tuple[bytes, bytes | None]]
) -> None:
    """The topic was recreated while it was under way; its worker may die before it notices."""
    *others, (key, value) = rows
    assert key == COVERED_KEY
    assert value is not None
    reading.give(TABLE, [*others, (key, with_expected_offset(value, 100 + len(others)))])
    assert reading.replica.ready
    assert not reading.replica.kernel.contexts()
    assert reading.replica.current.table.is_damaged(SCOPE)
    placed = with_expected_offset(value, 2 * len(others) + 1)
    with pytest.raises(LogLostError, match="the table was rebuilt"):  # it is read again from 0
        reading.give(TABLE, [*others, (key, placed)])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TimeoutError(), "no answer in time"),
        (ConnectionRefusedError(111, "Connect call failed"), "Connection refused"),
    ],
)
def test_what_keeps_kafka_away_is_said_in_words_and_what_it_means_for_answers(
    reading: Reading,
    rows: Sequence[tuple[bytes, bytes | None]],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    told: str,
) -> None:
    monkeypatch.setattr(topic_reader, "REPLICA_STALL_S", 0.0)
    reading.give(TABLE, rows)

    async def end_offsets(_partitions: object) -> None:
        raise error

    consumer = cast(Any, SimpleNamespace(end_offsets=end_offsets))
    with pytest.raises(StalledError):
        asyncio.run(reading.reader.look(consumer))
    (condition,) = reading.replica.conditions.all()
    assert condition.message == (
        f"cannot use Kafka at {SETTINGS.bootstrap}: {told}; meanwhile answers say `stale`"
    )


class _Silent:
    """A consumer to which nothing comes, so many times."""

    def __init__(self, polls: int) -> None:
        self._polls = polls

    async def getmany(self, **_: object) -> dict[object, object]:
        if not self._polls:
            raise asyncio.CancelledError
        self._polls -= 1
        return {}

    async def position(self, _: object) -> int:
        return 0


def test_what_a_large_clear_left_is_released_while_nothing_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_reader, "MAINTAINED_ENTRIES", 2)
    kernel = open_kernel(1337, cleared_at_once=0)
    publisher = kernel.open_publisher(*ONE.publisher)
    kernel.apply(publisher, encode_events([stored(0, [1, 2, 3], range(12))]), -1)
    kernel.clear(publisher)
    replica = Replica(lambda: RowReader(kernel), PARTITIONS)
    reader = TopicReader(
        SETTINGS, cast(Any, {}), replica, prepare=cast(Any, None), when_refused=cast(Any, None)
    )
    for left in (1 + 1, 0):  # a block, and the end of its publisher's part in the scope
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(reader._read(cast(Consumer, _Silent(1))))
        assert kernel.release_left(0) == left
