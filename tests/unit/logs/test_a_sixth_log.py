"""The next log takes little: `alarms.py` is all of one, written, followed, recovered, bounded."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokers.broker_settings import KafkaSettings
from brokers.client_types import Partition
from brokers.errors import CorruptRecordException, KafkaError
from logs.bounds import WINDOW_LOG_S
from logs.checkpoint import write_checkpoint
from logs.declaration import EmbeddedParts
from logs.embedded import EmbeddedLog
from logs.embedded_writer import WINDOW_LOOKS
from logs.fold_follower import FollowedLog, LogAccess
from logs.interface import LogEntry
from logs.shared_condition import SharedCondition
from logs.topic_writer import TopicWriter, WrittenTopic
from schemas.clock import REAL_CLOCK, Clock
from schemas.conditions import Conditions
from schemas.errors import DiskError
from schemas.identities import Offset
from schemas.positions import LogBounds
from tests.memory_topics import until
from tests.unit.logs import alarms
from tests.unit.logs.alarms import (
    ALARMS,
    Alarm,
    AlarmFold,
    AlarmFollower,
    AlarmSource,
    EmbeddedAlarms,
)

LINES_MAX = 60
DECLARATION_LINES_MAX = 16
SETTINGS = KafkaSettings(bootstrap="k:1")
PART = Partition("reprise.alarms", 0)
PART_OF_HEALTH = "alarms"


class Topic:
    """One partition in memory, as a producer and as a consumer of it."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.begin = 0
        self.is_away = False
        self.damaged: set[int] = set()
        self.begun = 0  # by consumers
        self._next = 0

    async def prepare(self) -> None:
        """As of a topic that is there."""

    async def start(self) -> None:
        """As of either client."""

    async def stop(self) -> None:
        """As of either client."""

    def bounds(self) -> LogBounds:
        return LogBounds(self.begin, len(self.values))

    # As a producer

    def create_batch(self) -> Any:
        batch = SimpleNamespace(values=[])
        batch.append = lambda *, key, value, timestamp: batch.values.append(value) or value
        return batch

    async def send_batch(self, batch: Any, topic: str, *, partition: int) -> Any:
        assert (topic, partition) == PART
        sent = asyncio.get_running_loop().create_future()
        if self.is_away:
            sent.set_exception(KafkaError("away"))
        else:
            self.values += batch.values
            sent.set_result(SimpleNamespace(offset=0))
        return sent

    # As a consumer

    def assign(self, partitions: Sequence[Partition]) -> None:
        assert partitions == [PART]

    def seek(self, partition: Partition, offset: int) -> None:
        self._next = offset

    async def beginning_offsets(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        self.begun += 1
        return {PART: self.begin}

    async def end_offsets(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return {PART: len(self.values)}

    async def getmany(self, *, timeout_ms: int, max_records: int | None) -> dict[Partition, Any]:
        if self.is_away:
            raise KafkaError("away")
        if self._next in self.damaged:
            raise CorruptRecordException("damaged")
        if self._next >= len(self.values):
            await asyncio.sleep(0.001)
            return {}
        offset, self._next = self._next, self._next + 1
        return {PART: [SimpleNamespace(offset=offset, value=self.values[offset])]}

    async def read_past(self, start: int) -> list[LogEntry]:
        self.damaged.discard(start)
        return [LogEntry(Offset(start), b"")]


class Bench:
    """The log in the distributed form: a writer and a follower of one topic."""

    def __init__(self, checkpoint: Path) -> None:
        self.topic = Topic()
        self.conditions = Conditions(lambda: 0.0)
        condition = SharedCondition(self.conditions, PART_OF_HEALTH)
        [spec] = map(SETTINGS.topic, ALARMS.topics)
        self.source = AlarmSource(most=9)
        self.writer = TopicWriter(
            self.source,
            WrittenTopic(SETTINGS, spec, 0, is_idempotent=True, bound="the next are dropped"),
            condition,
            make_producer=lambda: cast(Any, self.topic),
            prepare=self.topic.prepare,
        )
        self.follower = AlarmFollower(
            FollowedLog(alarms.NAMED.name, SETTINGS, [spec], PART, "alarms are late"),
            LogAccess(lambda: cast(Any, self.topic), self.topic.prepare, self.topic.read_past),
            condition,
        )
        self.follower.checkpoint, self.follower.bounds = checkpoint, self.topic.bounds

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.follower.fold_of.counts)

    async def until(self, holds: Callable[[], object]) -> None:
        """Runs both until then."""
        running = [asyncio.create_task(one.run()) for one in (self.writer, self.follower)]
        try:
            await until(holds)
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    async def abandon(client: Any, timeout_s: float | None) -> None:
        """As of a producer."""

    async def stop(client: Any, *, timeout_s: float | None) -> None:
        """As of a consumer."""

    monkeypatch.setattr("logs.producer.abandon_producer", abandon)
    monkeypatch.setattr("logs.follower.stop_consumer", stop)
    monkeypatch.setattr("logs.topic_writer.KAFKA_RETRY_FIRST_S", 0.001)
    monkeypatch.setattr("logs.fold_follower.REPLICA_RETRY_S", 0.001)
    return Bench(tmp_path / "checkpoint")


def test_it_takes_few_lines() -> None:
    lines = Path(alarms.__file__).read_text().splitlines()
    code = [one for one in lines if one.strip() and not one.startswith(("from ", "import ", '"""'))]
    declaration = code.index("class _Alarms(LogDeclaration):")
    assert declaration <= LINES_MAX
    assert len(code) - declaration <= DECLARATION_LINES_MAX


# In the embedded form


def opened(
    data: Path, conditions: Conditions, most: int = 9, *, clock: Clock = REAL_CLOCK
) -> EmbeddedAlarms:
    log = EmbeddedAlarms(ALARMS, EmbeddedParts(data, conditions, clock, 1e9), most)
    log.open()
    return log


def test_it_is_written_folded_bounded_and_recovered_by_its_checkpoint(tmp_path: Path) -> None:
    conditions = Conditions(lambda: 0.0)
    first = opened(tmp_path, conditions, most=2)
    for count in (1, 2, 3):
        first.push(Alarm("door", count))
    first.writer.write()
    assert (first.written_items, first.unwritten, first.dropped) == (2, 0, 1)
    first.writer.stop()
    log = ALARMS.opened(tmp_path)
    log.append([b"junk", AlarmSource(1).encode(Alarm("roof", 5)).value])
    log.close()
    again = opened(tmp_path, conditions)
    assert (again.fold.offset, again.fold.counts) == (3, {"door": 3, "roof": 5})
    again.writer.stop()
    assert (tmp_path / "alarms" / "kept").exists()


class Waits(threading.Event):
    """Waits that are noted, and over at once."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return self.is_set()


def test_a_source_that_has_much_is_written_before_its_window_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path, Conditions(lambda: 0.0))
    log.writer._stopping = waits = Waits()
    has_much = False
    monkeypatch.setattr(EmbeddedAlarms, "has_much", property(lambda self: has_much))
    for is_busy, is_much, looks in (
        (False, False, 1),
        (False, True, 1),
        (True, False, WINDOW_LOOKS),
        (True, True, 0),
    ):
        has_much = is_much
        waits.seconds.clear()
        assert not log.writer._rest(is_busy=is_busy)
        assert len(waits.seconds) == looks
        assert sum(waits.seconds) == pytest.approx(WINDOW_LOG_S if looks else 0.0)
    waits.set()
    assert all(log.writer._rest(is_busy=is_busy) for is_busy in (False, True))
    assert not log.writer.write()
    log.push(Alarm("door", 1))
    assert log.writer.write()

    def take(source: EmbeddedAlarms) -> list[tuple[int, Alarm]]:
        return [(1, source.waiting.pop(0))] if source.waiting else []

    monkeypatch.setattr(EmbeddedAlarms, "take", take)
    monkeypatch.setattr(EmbeddedAlarms, "has_much", property(lambda self: len(self.waiting) > 1))
    for _ in range(5):
        log.push(Alarm("door", 1))
    log.writer.stop()
    assert log.written_items == 6, "all of it at the end"


def test_a_disk_that_fails_drops_counts_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise DiskError(action="append to the log", path="log", detail="no space left")

    conditions = Conditions(lambda: 0.0)
    log = opened(tmp_path, conditions)
    with monkeypatch.context() as broken:
        broken.setattr(EmbeddedLog, "append", full)
        log.push(Alarm("door", 1))
        log.writer.write()
    assert (log.written_items, log.unwritten, log.fold.counts) == (0, 1, {})
    assert conditions.has(PART_OF_HEALTH)
    log.writer.stop()


@pytest.mark.parametrize("reaches_the_disk", [True, False])
def test_a_write_in_doubt_is_in_the_fold_as_it_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reaches_the_disk: bool
) -> None:
    now = 0.0
    clock = REAL_CLOCK._replace(monotonic=lambda: now)
    ours = opened(tmp_path, Conditions(lambda: 0.0), clock=clock)
    ours.push(Alarm("hall", 1))
    ours.writer.write()
    append = EmbeddedLog.append

    def fails(log: EmbeddedLog, values: Sequence[bytes], *, now: float = 0.0) -> Offset:
        if reaches_the_disk:
            append(log, values, now=now)
        raise DiskError(action="append to the log", path="log", detail="an error after it")

    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedLog, "append", fails)
        ours.push(Alarm("hall", 10))
        ours.writer.write()
    now += 60.0
    ours.push(Alarm("hall", 100))
    ours.writer.write()
    ours.writer.stop()

    expected = 111 if reaches_the_disk else 101
    assert ours.fold.counts == {"hall": expected}
    assert (ours.written_items, ours.unwritten) == ((3, 0) if reaches_the_disk else (2, 1))
    again = opened(tmp_path, Conditions(lambda: 0.0))
    assert again.fold.counts == {"hall": expected}, "and so a restart says"
    again.writer.stop()


def test_a_damaged_one_is_set_aside(tmp_path: Path) -> None:
    opened(tmp_path, Conditions(lambda: 0.0)).writer.stop()
    for manifest in (tmp_path / "alarms" / "log").glob("MANIFEST-*"):
        manifest.write_bytes(b"\xff" * manifest.stat().st_size)
    opened(tmp_path, Conditions(lambda: 0.0)).writer.stop()
    assert len(list(tmp_path.glob("alarms/log.damaged*"))) == 1


# In the distributed form


def test_what_is_written_is_followed_and_counted_in_an_outage_too(bench: Bench) -> None:
    async def scenario() -> None:
        bench.source.push(Alarm("door", 1))
        await bench.until(lambda: bench.counts == {"door": 1})
        bench.topic.is_away = True
        bench.source.push(Alarm("door", 2))
        await bench.until(lambda: bench.conditions.has(PART_OF_HEALTH))
        assert bench.counts == {"door": 1}
        bench.topic.is_away = False
        await bench.until(lambda: bench.counts == {"door": 3})
        assert (bench.source.written_items, bench.source.unwritten) == (2, 0)
        await bench.until(lambda: not bench.conditions.has(PART_OF_HEALTH))

    asyncio.run(scenario())


def test_it_begins_with_its_checkpoint_and_reads_past_damage(bench: Bench) -> None:
    write_checkpoint(bench.follower.checkpoint, AlarmFold(1, {"door": 40}).pieces())
    bench.topic.values = [bench.source.encode(Alarm("door", one)).value for one in range(5)]
    bench.topic.damaged = {3}
    assert bench.follower.lag == 0, "nothing is known yet"
    asyncio.run(bench.until(lambda: bench.follower.next == 5))
    assert bench.counts == {"door": 40 + 2 + 4}
    assert (bench.follower.skipped, bench.follower.lag) == (1, 0)
    assert bench.topic.begun == 1, "damage costs no consumer"


def test_what_retention_took_is_begun_behind(bench: Bench) -> None:
    bench.topic.values = [bench.source.encode(Alarm("door", one)).value for one in range(5)]
    bench.topic.begin = 3
    asyncio.run(bench.until(lambda: bench.follower.next == 5))
    assert bench.counts == {"door": 3 + 4}
