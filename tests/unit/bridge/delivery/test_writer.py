"""The writer against a producer in memory that can be slow, away, or broken."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from bridge.delivery import complaints, delivery, partition_lag, partition_writer, writer
from bridge.delivery.delivery import Delivery
from bridge.delivery.dropped_records import RECORD_TOO_LARGE, SPOOL_FULL, SPOOL_UNREADABLE
from bridge.delivery.lease import Lease
from bridge.delivery.partition_lag import LAG_BYTES_FIRST, LAG_RECORD_BYTES
from bridge.delivery.spool import Spool
from bridge.delivery.writer import Writer
from bridge.publisher.anchor import Anchor
from brokers.client_types import Batch, SentBatch
from brokers.errors import KafkaError, MessageSizeTooLargeError
from logs.producer import ReplaceableProducer
from schemas.codec import decode_log_record
from schemas.errors import DiskError
from schemas.events import RemovedBlocks, encode_events
from schemas.identities import PublisherKey
from schemas.limits import KAFKA_BATCH_BYTES, KAFKA_MESSAGE_MAX_BYTES
from schemas.memory_segments import MemoryRecord, SegmentKey
from schemas.positions import Cursor, Proof
from schemas.records import (
    BridgeRecord,
    EventsRecord,
    GapRecord,
    LogRecord,
    Record,
    ResetRecord,
    UnregisteredRecord,
    encode_record,
)
from schemas.topics import Cleanup, TopicSpec
from schemas.tracing import NO_TRACER, Tracer
from tests.building import memory_record
from tests.spans import KeptSpans
from tests.unit.bridge.messages import registration

ONE = registration().publisher
TWO = registration(instance_id="w-2").publisher
TOPIC = TopicSpec("events", 3, Cleanup.DELETE, {})


class Sent(NamedTuple):
    offset: int


class FakeBatch:
    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.headers: list[list[tuple[str, bytes]] | None] = []

    def append(
        self,
        *,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> object | None:
        assert key
        assert value is not None
        if self.values and sum(map(len, self.values)) + len(value) > 1000:
            return None
        self.values.append(value)
        self.headers.append(headers)
        return self


class FakeBroker:
    """All partitions, and how they answer."""

    def __init__(self) -> None:
        self.partitions: dict[int, list[bytes]] = {}
        self.away = asyncio.Event()
        self.away.set()  # set: it is there
        self.failures: list[KafkaError] = []
        self.headers: list[list[list[tuple[str, bytes]] | None]] = []
        self.producers = 0

    def producer(self) -> "FakeProducer":
        self.producers += 1
        return FakeProducer(self)

    def records(self, publisher: PublisherKey) -> list[Record]:
        return [
            record
            for record in self.all_records()
            if not isinstance(record, BridgeRecord) and record.publisher == publisher
        ]

    def all_records(self) -> list[LogRecord]:
        return [decode_log_record(value) for log in self.partitions.values() for value in log]


class FakeClosable:
    """One of the two parts of aiokafka's producer that are closed to stop it at once."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[SentBatch]] = set()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()


class FakeProducer:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._sender, self.client = FakeClosable(), FakeClosable()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def create_batch(self) -> Batch:
        return FakeBatch()

    async def send_batch(
        self, batch: Batch, topic: str, *, partition: int
    ) -> "asyncio.Future[SentBatch]":
        assert isinstance(batch, FakeBatch)
        self._broker.headers.append(batch.headers)
        task = asyncio.create_task(self._write(partition, batch.values))
        self._sender.tasks.add(task)
        return task

    async def _write(self, partition: int, values: list[bytes]) -> SentBatch:
        await self._broker.away.wait()
        if self._broker.failures:
            raise self._broker.failures.pop(0)
        log = self._broker.partitions.setdefault(partition, [])
        log.extend(values)
        return Sent(len(log) - len(values))


class Memory:
    """What is to be said of segments of memory, and what of that has been written."""

    def __init__(self) -> None:
        self.said: list[MemoryRecord] = []
        self.in_log: list[MemoryRecord] = []

    def due(self) -> list[SegmentKey]:
        return [one.key for one in self.records()]

    def records(self) -> list[MemoryRecord]:
        return [one for one in self.said if one not in self.in_log]

    def written(self, record: MemoryRecord) -> None:
        self.in_log.append(record)


class Run:
    """A writer that runs."""

    def __init__(self, path: Path, *, spool_bytes: int = 2**20, tracer: Tracer = NO_TRACER) -> None:
        self.broker = FakeBroker()
        self.lease = Lease()
        self.written: list[tuple[PublisherKey, Record, int]] = []
        self.memory = Memory()
        self.spool = Spool(path, bytes_max=spool_bytes)
        self.writer = Writer(
            Delivery(
                topic=TOPIC,
                producer=ReplaceableProducer(self.broker.producer),
                spool=self.spool,
                on_written=lambda *written: self.written.append(written),
                lease=self.lease,
                tracer=tracer,
            )
        )
        self.task = asyncio.create_task(self.writer.run())

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.spool.close()

    async def drained(self) -> None:
        for _ in range(500):
            if not self.spool.records and await self.writer.flush(1):
                return
            await asyncio.sleep(0.01)
        pytest.fail("the spool was not drained")


def events(
    sequence: int, *, publisher: PublisherKey = ONE, incarnation: int = 1, size: int = 1
) -> EventsRecord:
    removed = [RemovedBlocks(sequence=sequence, hashes=bytes(8 * size))]
    return EventsRecord(
        stream=publisher.stream,
        dp_rank=publisher.dp_rank,
        bridge_time=1.0,
        incarnation=incarnation,
        first_sequence=sequence,
        last_sequence=sequence,
        engine_time=float(sequence),
        events=msgspec.Raw(encode_events([*removed])),
    )


def reset(incarnation: int) -> ResetRecord:
    return ResetRecord(
        stream=ONE.stream,
        dp_rank=ONE.dp_rank,
        bridge_time=1.0,
        incarnation=incarnation,
        first_sequence=-1,
        last_sequence=-1,
    )


def sequences(records: list[Record]) -> list[int]:
    return [one.last_sequence for one in records if isinstance(one, EventsRecord | GapRecord)]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_writer, "SPOOL_AFTER_S", 0.0)
    monkeypatch.setattr(partition_writer, "BRIDGE_RETRY_S", 0.01)


Scenario = Callable[[Run], Awaitable[None]]


def play(
    path: Path, scenario: Scenario, *, spool_bytes: int = 2**20, tracer: Tracer = NO_TRACER
) -> Run:
    async def run() -> Run:
        made = Run(path, spool_bytes=spool_bytes, tracer=tracer)
        try:
            await scenario(made)
        finally:
            await made.stop()
        return made

    return asyncio.run(run())


def test_records_are_written_in_order_and_told_with_their_offsets(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        for number in range(100):
            run.writer.append([events(number), events(number, publisher=TWO)])
        await run.drained()

    run = play(tmp_path, scenario)
    for publisher in (ONE, TWO):
        assert sequences(run.broker.records(publisher)) == list(range(100))
        offsets = [offset for one, _, offset in run.written if one == publisher]
        assert offsets == sorted(set(offsets))
    assert len(run.written) == 200


def test_a_broker_that_is_away_makes_records_spool_and_they_are_drained_in_order(
    tmp_path: Path,
) -> None:
    async def scenario(run: Run) -> None:
        run.broker.away.clear()
        for number in range(60):
            run.writer.append([events(number)])
            await asyncio.sleep(0)
        assert run.spool.records
        assert run.writer.is_late
        run.broker.away.set()
        for number in range(60, 80):
            run.writer.append([events(number)])
            await asyncio.sleep(0)
        await run.drained()

    run = play(tmp_path, scenario)
    assert sequences(run.broker.records(ONE)) == list(range(80))


def test_what_is_not_acknowledged_at_the_end_is_in_the_spool_of_the_next_life(
    tmp_path: Path,
) -> None:
    async def dies(run: Run) -> None:
        run.broker.away.clear()
        for number in range(30):
            run.writer.append([events(number)])
            await asyncio.sleep(0)

    async def lives(run: Run) -> None:
        assert run.writer.withheld() == [ONE]
        await asyncio.sleep(0.05)
        assert not run.written
        run.writer.release(ONE)
        run.writer.append([events(30)])
        await run.drained()

    play(tmp_path, dies)
    run = play(tmp_path, lives)
    assert sequences(run.broker.records(ONE)) == list(range(31))


def test_above_the_bound_records_are_lost_and_the_loss_is_known_exactly(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        run.broker.away.clear()
        for number in range(200):
            run.writer.append([events(number)])
            await asyncio.sleep(0)
        assert run.writer.losses_to_end() == []
        loss = run.writer.loss_of(ONE)
        assert loss is not None
        kept = loss.before.cursor.sequence
        heard = Proof(kept, float(kept))
        assert loss.before == Anchor(Cursor(1, kept), float(kept), heard=heard)
        assert (loss.incarnation, loss.first, loss.last) == (1, kept + 1, 199)
        assert run.writer.delivery.dropped[ONE, SPOOL_FULL] == 199 - kept
        run.broker.away.set()
        await run.drained()
        assert run.writer.losses_to_end() == [ONE]
        run.writer.append(run.writer.end_loss(ONE).records(ONE, 1.0))
        run.writer.append([events(200)])
        await run.drained()

    run = play(tmp_path, scenario, spool_bytes=5000)
    records = run.broker.records(ONE)
    (gap,) = (record for record in records if isinstance(record, GapRecord))
    assert gap.last_sequence == 199
    assert sequences(records) == [*range(gap.first_sequence), 199, 200]


def test_a_full_disk_is_said_once_and_not_with_each_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(publisher: PublisherKey, encoded: object) -> list[int]:
        raise DiskError(action="write the spool", path="spool", detail="no space left on it")

    async def scenario(run: Run) -> None:
        run.broker.away.clear()
        with monkeypatch.context() as patched:
            patched.setattr(run.spool, "append", full)
            for number in range(50):
                run.writer.append([events(number)])
                await run.writer.check()
                await asyncio.sleep(0)
                if run.writer.losses_to_end():  # there seems to be room: it begins anew
                    run.writer.append(run.writer.end_loss(ONE).records(ONE, 1.0))
        run.broker.away.set()
        await run.drained()
        monkeypatch.setattr(complaints, "CONDITION_REPEAT_S", 0.0)
        await run.writer.check()

    with caplog.at_level(logging.INFO):
        play(tmp_path, scenario)
    loggers = (writer.__name__, delivery.__name__)
    told = [record for record in caplog.records if record.name in loggers]
    assert [record.levelname for record in told] == ["ERROR", "WARNING", "INFO"], told
    assert "no space left" in told[0].getMessage()
    assert "has not failed" in told[2].getMessage()


def test_a_reset_that_is_lost_is_said_before_the_gap(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        run.broker.away.clear()
        for number in range(100):
            run.writer.append([events(number)])
            await asyncio.sleep(0)
        run.writer.append([reset(2), events(0, incarnation=2), events(1, incarnation=2)])
        said = run.writer.end_loss(ONE).records(ONE, 1.0)
        assert [type(one) for one in said] == [ResetRecord, GapRecord]
        assert (said[1].incarnation, said[1].first_sequence, said[1].last_sequence) == (2, 0, 1)

    play(tmp_path, scenario, spool_bytes=3000)


def test_an_unregistering_is_never_lost(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        run.broker.away.clear()
        for number in range(100):
            run.writer.append([events(number)])
            await asyncio.sleep(0)
        assert run.writer.loss_of(ONE) is not None
        gone = UnregisteredRecord(stream=ONE.stream, dp_rank=ONE.dp_rank, bridge_time=1.0)
        run.writer.append([gone])
        run.broker.away.set()
        await run.drained()

    run = play(tmp_path, scenario, spool_bytes=3000)
    assert isinstance(run.broker.records(ONE)[-1], UnregisteredRecord)


def test_without_a_lease_nothing_is_written(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        run.lease.begin(owns=True)
        for number in range(20):
            run.writer.append([events(number)])
        await asyncio.sleep(0.1)
        assert not run.broker.partitions
        run.lease.end()
        await run.drained()

    run = play(tmp_path, scenario)
    assert sequences(run.broker.records(ONE)) == list(range(20))


def test_a_producer_that_fails_for_good_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        run.broker.failures = [KafkaError("out of order"), KafkaError("again")]
        for number in range(20):
            run.writer.append([events(number)])
            await asyncio.sleep(0)
        await run.drained()

    run = play(tmp_path, scenario)
    assert sequences(run.broker.records(ONE)) == list(range(20))
    assert run.broker.producers == 3
    assert run.writer.delivery.produce_errors == 2


def test_a_record_above_the_bound_of_a_message_is_a_gap(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        run.writer.append([events(0), events(1, size=KAFKA_MESSAGE_MAX_BYTES // 8), events(2)])
        await run.drained()

    run = play(tmp_path, scenario)
    kinds = [type(one) for one in run.broker.records(ONE)]
    assert kinds == [EventsRecord, GapRecord, EventsRecord]
    assert sequences(run.broker.records(ONE)) == [0, 1, 2]
    assert run.writer.delivery.dropped[ONE, RECORD_TOO_LARGE] == 1


def test_a_record_that_the_broker_finds_too_large_is_a_gap_too(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        run.broker.failures = [MessageSizeTooLargeError()]
        run.writer.append([events(0, size=200)])
        await run.drained()

    run = play(tmp_path, scenario)
    assert [type(one) for one in run.broker.records(ONE)] == [GapRecord]


def test_what_follows_on_withheld_records_that_are_dropped_is_written(tmp_path: Path) -> None:
    """Of a publisher that was unregistered, what is spooled is dropped, and that is written."""

    async def scenario(run: Run) -> None:
        run.broker.away.clear()
        run.writer.append([events(number) for number in range(3)])
        run.writer.spill()
        run.writer.withhold(ONE)
        run.writer.discard(ONE)
        run.writer.append([UnregisteredRecord(stream=ONE.stream, dp_rank=0, bridge_time=0.0)])
        run.writer.spill()
        run.broker.away.set()
        await run.drained()
        assert isinstance(run.broker.records(ONE)[-1], UnregisteredRecord)

    play(tmp_path, scenario)


def test_spooled_records_that_are_withheld_wait_and_the_others_go_on(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        run.broker.away.clear()
        for number in range(20):
            run.writer.append([events(number), events(number, publisher=TWO)])
            await asyncio.sleep(0)
        run.writer.withhold(ONE)
        run.broker.away.set()
        for _ in range(100):
            if TWO not in run.spool:
                break
            await asyncio.sleep(0.01)
        assert sequences(run.broker.records(TWO)) == list(range(20))
        assert len(run.broker.records(ONE)) < 20
        run.writer.release(ONE)
        await run.drained()
        assert sequences(run.broker.records(ONE)) == list(range(20))

    play(tmp_path, scenario)


def unreadable(count: int) -> list[bytes]:
    newer = {"kind": "novelty", "version": 9, "fill": bytes(KAFKA_BATCH_BYTES // 8)}
    return [msgspec.msgpack.encode(newer)] * count


def test_more_unreadable_records_than_a_batch_at_the_head_keep_nobody_waiting(
    tmp_path: Path,
) -> None:
    async def scenario(run: Run) -> None:
        run.spool.append(ONE, unreadable(20))
        run.spool.append(ONE, [encode_record(events(number)) for number in range(5, 8)])
        run.writer.place(ONE, Anchor(Cursor(1, 7), 7.0))
        run.writer.release(ONE)
        await run.drained()
        run.writer.append([events(8)])
        await run.drained()

    run = play(tmp_path, scenario, spool_bytes=2**30)
    assert sequences(run.broker.records(ONE)) == [5, 6, 7, 8]
    assert run.spool.dropped == {(ONE, SPOOL_UNREADABLE): 20}


def test_what_becomes_unreadable_while_it_waits_is_a_gap_in_its_place(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        run.writer.append([events(0)])
        await run.drained()
        run.lease.begin(owns=True)
        run.broker.away.clear()
        for number in range(1, 5):
            run.writer.append([events(number)])
        run.writer.spill()
        _, second, third, _ = run.spool.read(ONE)
        run.spool.replace(ONE, [(second.number, b"?"), (third.number, b"?")])
        run.writer.append([events(5)])
        *_, last = run.spool.read(ONE)
        run.spool.replace(ONE, [(last.number, b"?")])
        run.broker.away.set()
        run.lease.end()
        await run.drained()

    run = play(tmp_path, scenario)
    records = run.broker.records(ONE)
    gaps = [
        (one.first_sequence, one.last_sequence) for one in records if isinstance(one, GapRecord)
    ]
    assert gaps == [(2, 3), (5, 5)]
    assert sequences(records) == [0, 1, 3, 4, 5]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 -- it has no event
            await asyncio.sleep(0.001)


def lag_bytes(run: Run) -> int:
    return sum(lag.size_bytes for lag in run.writer.lags)


def test_who_has_much_that_is_yet_to_be_folded_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the workers have folded it; nobody else is, and a replay of it waits, too."""
    monkeypatch.setattr(partition_writer, "SPOOL_AFTER_S", 60.0)

    async def scenario(run: Run) -> None:
        writer = run.writer
        size = 2 * LAG_BYTES_FIRST // 8 // 10
        writer.append([events(number, size=size) for number in range(6)])
        assert writer.holds_back(ONE), "also before it is written"
        assert not writer.holds_back(TWO)
        assert await writer.flush(5)
        assert writer.holds_back(ONE)
        waiting = asyncio.create_task(writer.room(ONE))
        await writer.room(TWO)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        (lag,) = [lag for lag in writer.lags if lag.size_bytes]
        assert lag.folded(6, time.monotonic()) == [ONE]
        async with asyncio.timeout(5):
            await waiting
        assert lag.partition == writer.partition_of(ONE.stream)
        assert lag_bytes(run) == 0

    play(tmp_path, scenario)


def test_what_is_in_the_spool_is_not_before_the_workers_until_it_is_written(
    tmp_path: Path,
) -> None:
    async def scenario(run: Run) -> None:
        run.broker.away.clear()
        for number in range(40):
            run.writer.append([events(number)])
            await asyncio.sleep(0)
        assert run.spool.records == 40
        assert lag_bytes(run) == 0
        run.broker.failures = [KafkaError("once")]
        run.broker.away.set()
        for number in range(40, 60):
            run.writer.append([events(number)])
            await asyncio.sleep(0)
        await run.drained()
        expected = sum(
            len(encode_record(one)) + LAG_RECORD_BYTES for one in run.broker.records(ONE)
        )
        assert lag_bytes(run) == expected
        for lag in run.writer.lags:
            lag.folded(10**6, time.monotonic())
        assert lag_bytes(run) == 0

    play(tmp_path, scenario)


@pytest.mark.parametrize("how", ["told", "checked"])
def test_what_is_in_the_spool_waits_for_the_workers_and_that_of_others_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """After an outage one publisher's spool would stand before what all others send."""
    monkeypatch.setattr(partition_lag, "LAG_BYTES_FIRST", 20_000)

    async def scenario(run: Run) -> None:
        writer = run.writer
        others = (registration(instance_id=f"n-{number}").publisher for number in range(99))
        place = writer.partition_of(ONE.stream)
        other = next(one for one in others if writer.partition_of(one.stream) == place)
        run.broker.away.clear()
        for number in range(40):
            writer.append([events(number, size=200)])
            await asyncio.sleep(0)
        writer.append([events(0, publisher=other)])
        assert run.spool.records == 41, "the broker is late for both"
        run.broker.away.set()
        await until(lambda: sequences(run.broker.records(other)) == [0])
        await until(lambda: writer.holds_back(ONE))
        await asyncio.sleep(0.05)
        before = len(run.broker.records(ONE))
        assert 0 < before < 40
        assert writer.holds_back(ONE)
        writer.append([events(1, publisher=other)])
        await until(lambda: sequences(run.broker.records(other)) == [0, 1])
        assert len(run.broker.records(ONE)) == before
        assert writer.lags[place].folded(writer.ends()[place], time.monotonic()) == [ONE]
        if how == "told":
            writer.resume_held_back([ONE, other])
        else:
            await writer.check()
        await until(lambda: len(run.broker.records(ONE)) > before)

    run = play(tmp_path, scenario)
    logged = sequences(run.broker.records(ONE))
    assert logged == list(range(len(logged)))


@pytest.mark.parametrize("failures", [0, 1])
def test_what_overflows_of_one_publisher_goes_to_the_spool_and_that_of_others_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """All of it, so that its order holds: what is queued, and a copy of what is under way."""
    monkeypatch.setattr(partition_lag, "LAG_BYTES_FIRST", 10_000)
    monkeypatch.setattr(partition_writer, "SPOOL_AFTER_S", 60.0)

    async def scenario(run: Run) -> None:
        writer = run.writer
        place = writer.partition_of(ONE.stream)
        others = (registration(instance_id=f"n-{number}").publisher for number in range(99))
        other = next(one for one in others if writer.partition_of(one.stream) == place)
        run.broker.away.clear()
        writer.append([events(number, size=200) for number in range(10)])
        writer.append([events(0, publisher=other)])
        await asyncio.sleep(0.02)
        assert writer.holds_back(ONE)
        writer.let_overflow(ONE)
        writer.append([events(number, size=200) for number in range(10, 20)])
        assert run.spool.records == 20
        assert other not in run.spool
        assert lag_bytes(run) == len(encode_record(events(0, publisher=other))) + LAG_RECORD_BYTES
        run.broker.failures = [KafkaError("for a test")] * failures
        run.broker.away.set()
        await until(lambda: sequences(run.broker.records(other)) == [0])
        for _ in range(500):
            for publisher in writer.lags[place].folded(writer.ends()[place], time.monotonic()):
                writer.resume_held_back([publisher])
            if not run.spool.records and await writer.flush(1):
                break
            await asyncio.sleep(0.001)
        assert sequences(run.broker.records(ONE)) == list(range(20))
        writer.append([events(20)])
        assert not run.spool.records, "it has caught up"

    play(tmp_path, scenario)


def test_what_overflows_the_spool_is_a_loss_of_that_publisher_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_lag, "LAG_BYTES_FIRST", 10_000)
    monkeypatch.setattr(partition_writer, "SPOOL_AFTER_S", 60.0)

    async def scenario(run: Run) -> None:
        writer = run.writer
        run.broker.away.clear()
        writer.append([events(number, size=200) for number in range(10)])
        writer.append([events(0, publisher=TWO)])
        writer.let_overflow(ONE)
        writer.append([events(number, size=200) for number in range(10, 40)])
        assert writer.loss_of(ONE) is not None
        assert writer.loss_of(TWO) is None
        assert writer.delivery.dropped.keys() == {(ONE, SPOOL_FULL)}
        run.broker.away.set()
        await until(lambda: sequences(run.broker.records(TWO)) == [0])

    play(tmp_path, scenario, spool_bytes=30_000)


@pytest.mark.parametrize("withhold", [False, True])
def test_what_is_taken_back_is_not_before_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, withhold: bool
) -> None:
    monkeypatch.setattr(partition_writer, "SPOOL_AFTER_S", 60.0)

    async def scenario(run: Run) -> None:
        run.broker.away.clear()
        run.writer.append([events(number) for number in range(50)])
        await asyncio.sleep(0.02)
        assert lag_bytes(run) > 0
        await run.writer.withdraw(withhold=withhold)
        assert lag_bytes(run) == 0
        run.broker.away.set()

    play(tmp_path, scenario, spool_bytes=1000 if withhold else 2**20)


def test_what_is_too_large_for_the_topic_counts_as_the_gap_that_it_becomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_writer, "SPOOL_AFTER_S", 60.0)

    async def scenario(run: Run) -> None:
        run.broker.failures = [MessageSizeTooLargeError()]
        run.writer.append([events(0, size=10_000)])
        assert await run.writer.flush(5)
        (gap,) = run.broker.records(ONE)
        assert isinstance(gap, GapRecord)
        assert lag_bytes(run) == len(encode_record(gap)) + LAG_RECORD_BYTES

    play(tmp_path, scenario)


# Segments of memory


def tell(run: Run) -> None:
    run.writer.tell_memory(run.memory)


async def written(run: Run, count: int) -> None:
    for _ in range(500):
        if len(run.memory.in_log) >= count:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{len(run.memory.in_log)} of {count} were written")


def test_what_is_said_of_segments_is_made_as_it_is_sent_in_the_partition_of_each(
    tmp_path: Path,
) -> None:
    async def scenario(run: Run) -> None:
        run.memory.said = [memory_record(f"s-{number}") for number in range(20)]
        tell(run)
        await written(run, 20)
        assert sorted(one.segment for one in run.memory.in_log) == sorted(
            one.segment for one in run.memory.said
        )
        for partition, log in run.broker.partitions.items():
            for value in log:
                record = decode_log_record(value)
                assert isinstance(record, MemoryRecord)
                assert run.writer.partition_of_segment(record.key) == partition
        assert len(run.broker.partitions) == TOPIC.partitions
        assert run.writer.ends() == {
            number: len(log) for number, log in run.broker.partitions.items()
        }

    play(tmp_path, scenario)


def test_of_segments_nothing_waits_while_kafka_is_away_and_the_end_is_told(
    tmp_path: Path,
) -> None:
    async def scenario(run: Run) -> None:
        run.broker.failures = [KafkaError("no")] * (3 * TOPIC.partitions)
        for used in range(50):
            run.memory.said = [memory_record(used=used)]
            tell(run)
            await asyncio.sleep(0.001)
        while run.broker.failures or not run.memory.in_log:
            tell(run)
            await asyncio.sleep(0.01)
        assert run.memory.in_log[-1].used == 49
        assert not run.spool.records
        assert run.writer.delivery.queue_bytes == 0

    play(tmp_path, scenario)


def test_events_and_segments_share_a_partition_and_offsets_stay_right(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        partition = run.writer.partition_of(ONE.stream)
        segment = next(
            one
            for one in (memory_record(f"s-{number}") for number in range(100))
            if run.writer.partition_of_segment(one.key) == partition
        )
        for sequence in range(20):
            run.memory.said = [segment]
            run.writer.append([events(sequence)])
            run.writer.partitions[partition].tell_memory(run.memory)
            assert await run.writer.flush(5)
        await written(run, 1)
        assert sequences(run.broker.records(ONE)) == list(range(20))
        log = [decode_log_record(value) for value in run.broker.partitions[partition]]
        for _, record, offset in run.written:
            assert log[offset] == record

    play(tmp_path, scenario)


def test_without_a_lease_nothing_of_segments_is_written_either(tmp_path: Path) -> None:
    async def scenario(run: Run) -> None:
        run.lease.begin(owns=True)
        run.memory.said = [memory_record()]
        tell(run)
        await asyncio.sleep(0.05)
        assert run.broker.partitions == {}
        run.lease.end()
        await written(run, 1)

    play(tmp_path, scenario)


def test_a_batch_has_a_span_and_its_first_message_names_it(tmp_path: Path) -> None:
    spans = KeptSpans()

    async def scenario(run: Run) -> None:
        run.writer.append([events(number) for number in range(3)])
        await run.drained()

    run = play(tmp_path, scenario, tracer=spans.tracer)
    (kept,) = spans.take()
    named = [("traceparent", kept.traceparent.encode())]
    assert run.broker.headers == [[named, None, None]]
    partition = run.writer.partition_of(ONE.stream)
    assert kept.name == "bridge.append"
    assert kept.attributes == {
        "messaging.batch.message_count": 3,
        "messaging.destination.name": "events",
        "messaging.destination.partition.id": str(partition),
        "reprise.log": "events",
        "reprise.position": f"{partition}:2",
    }


def test_the_span_of_a_batch_that_is_refused_is_an_error(tmp_path: Path) -> None:
    spans = KeptSpans()

    async def scenario(run: Run) -> None:
        run.broker.failures = [KafkaError("for a test")]
        run.writer.append([events(0)])
        await run.drained()

    play(tmp_path, scenario, tracer=spans.tracer)
    failed = spans.take()[0]
    assert (failed.name, failed.is_error) == ("bridge.append", True)
    assert failed.attributes == {"error.type": "KafkaError"}


def test_without_tracing_and_of_what_is_no_record_there_is_no_span(tmp_path: Path) -> None:
    spans = KeptSpans()

    async def records(run: Run) -> None:
        run.writer.append([events(0)])
        await run.drained()

    run = play(tmp_path / "records", records)
    assert run.broker.headers == [[None]]

    async def memory(run: Run) -> None:
        run.memory.said = [memory_record()]
        tell(run)
        await written(run, 1)

    run = play(tmp_path / "memory", memory, tracer=spans.tracer)
    assert run.broker.headers == [[None]]
    assert spans.take() == []
