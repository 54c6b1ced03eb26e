"""A replica follows the routing log from its last checkpoint, wherever it is cut off."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokers.broker_settings import KafkaSettings
from brokers.client_types import Partition
from brokers.errors import CorruptRecordException, KafkaError
from logs.fold_follower import LogAccess
from logs.interface import LogEntry
from logs.shared_condition import SharedCondition
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.unbooked_load import TypicalRequest
from routing.fold.fold import RoutingFold
from routing.log.reader import RoutingReader
from routing.log.recovery import RecoveredFold, place_fold
from schemas.codec import decode_routing
from schemas.conditions import Conditions, Part
from schemas.errors import ConfigurationError
from schemas.identities import Offset
from schemas.positions import LogBounds
from schemas.routing_records import RoutingRecord, encode_routing
from tests.routing import NOW, RUN, TARGET, decision, decisions, outcome, outcomes

SETTINGS = KafkaSettings(bootstrap="k:1")
PART = Partition("reprise.routing", 0)
OTHER = RUN + 1


class Log:
    """The topic, its checkpoint, and a consumer of it."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.begin = 0
        self.checkpoint = RoutingFold()
        self.failures: list[Exception] = []
        self.is_refusing = False
        self.recoveries = 0
        self.corrupt: set[int] = set()
        self._next = 0

    def append(self, *records: RoutingRecord | bytes) -> None:
        self.values += [one if isinstance(one, bytes) else encode_routing(one) for one in records]

    def keep(self) -> None:
        """A checkpoint of what there is."""
        self.checkpoint = self.fold()

    def fold(self) -> RoutingFold:
        fold = RoutingFold.load(self.checkpoint.dump())
        for offset, value in enumerate(self.values):
            fold.apply(offset, decode_routing(value))
        return fold

    # In place of Kafka

    async def prepare(self) -> None:
        if self.is_refusing:
            raise ConfigurationError("the topic is of another shape")

    async def recover(self) -> RecoveredFold:
        self.recoveries += 1
        fold = RoutingFold.load(self.checkpoint.dump())
        return place_fold(fold, LogBounds(Offset(self.begin), Offset(len(self.values))))

    async def read_past(self, start: int) -> list[LogEntry]:
        found = []
        for offset in range(start, len(self.values)):
            value = b"" if offset in self.corrupt else self.values[offset]
            found.append(LogEntry(Offset(offset), value))
        self.corrupt.clear()
        return found

    async def start(self) -> None:
        """As a consumer's."""

    async def stop(self) -> None:
        """As a consumer's."""

    def assign(self, partitions: Sequence[Partition]) -> None:
        assert partitions == [PART]

    def seek(self, partition: Partition, offset: int) -> None:
        self._next = offset

    async def beginning_offsets(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return {PART: self.begin}

    async def end_offsets(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return {PART: len(self.values)}

    async def getmany(self, *, timeout_ms: int, max_records: int) -> dict[Partition, Any]:
        if self.failures:
            raise self.failures.pop(0)
        if self._next in self.corrupt:
            raise CorruptRecordException("damaged")
        if self._next >= len(self.values):
            await asyncio.sleep(0.001)
            return {}
        offset, self._next = self._next, self._next + 1
        return {PART: [SimpleNamespace(offset=offset, value=self.values[offset])]}


class Reader(RoutingReader):
    """Of that log."""

    log: Log

    async def recovered(self) -> RecoveredFold:
        return await self.log.recover()


class Following:
    """A reader, what it keeps up to date, and its log."""

    def __init__(self) -> None:
        self.log = Log()
        self.live, self.queue = LiveLoad(), RoutingQueue()
        self.folded = self.live.folded
        self.conditions = Conditions(lambda: 0.0)
        self.reader = Reader(
            SETTINGS,
            cast(Any, {}),
            self.live,
            self.queue,
            SharedCondition(self.conditions, Part.ROUTING),
            access=LogAccess(lambda: cast(Any, self.log), self.log.prepare, self.log.read_past),
            clock=lambda: NOW,
        )
        self.reader.log = self.log

    @property
    def digest(self) -> str:
        return self.folded.read(lambda fold: fold.digest)

    @property
    def under_way(self) -> int:
        return self.live.counts()["under_way"]

    async def until(self, holds: Any) -> None:
        """Runs it until then."""
        running = asyncio.create_task(self.reader.run())
        try:
            async with asyncio.timeout(20):
                while not holds():
                    assert not running.done()
                    await asyncio.sleep(0.001)
        finally:
            running.cancel()
            await asyncio.wait({running})

    def is_there(self) -> bool:
        return self.reader.is_following and self.reader.next == len(self.log.values)


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> Following:
    async def stop(consumer: Any, *, timeout_s: float | None) -> None:
        await consumer.stop()

    async def start(consumer: Any) -> None:
        await consumer.start()

    monkeypatch.setattr("logs.follower.stop_consumer", stop)
    monkeypatch.setattr("logs.follower.start_client", start)
    monkeypatch.setattr("logs.fold_follower.REPLICA_RETRY_S", 0.001)
    monkeypatch.setattr("logs.fold_follower.LAG_CHECK_S", 0.005)
    return Following()


def test_it_begins_with_the_checkpoint_and_folds_what_is_behind_it(following: Following) -> None:
    log = following.log
    log.append(decisions(0, 1, run=OTHER), outcomes(0, run=OTHER))
    log.keep()
    log.append(decisions(2, run=OTHER))
    log.values[0] = log.values[1] = b"not read"
    asyncio.run(following.until(following.is_there))
    assert following.reader.skipped == 0
    assert following.under_way == 2
    assert following.live.knows_run(OTHER)
    assert following.folded.offset == 2


def test_what_was_decided_here_before_stays(following: Following) -> None:
    following.live.book(RUN, decision(0))
    following.live.book(RUN, decision(1))
    following.live.report(RUN, outcome(0))
    following.log.append(decisions(0, run=OTHER), decisions(0))
    asyncio.run(following.until(following.is_there))
    # Of this service the log has yet to bring the end of the first one, and the second.
    assert following.under_way == 2
    assert following.live.carried([TARGET], NOW, TypicalRequest(0.0, 0.0, 0.0), {})[0].requests == 2


def test_what_comes_later_is_followed_and_what_comes_back_changes_nothing(
    following: Following,
) -> None:
    async def scenario() -> None:
        following.live.book(RUN, decision(0))

        def begun() -> bool:
            if following.reader.is_following and not following.log.values:
                following.live.report(RUN, outcome(0, "first_token"))
                following.log.append(
                    decisions(0), outcomes(0, event="first_token"), decisions(0, run=OTHER)
                )
            return bool(following.log.values) and following.is_there()

        await following.until(begun)

    asyncio.run(scenario())
    assert following.under_way == 2
    assert following.live.counts()["repeated"] == 0
    assert following.digest == following.log.fold().digest


def test_a_record_that_cannot_be_used_is_skipped_and_counted(following: Following) -> None:
    newer = encode_routing(decisions(7)).replace(b"\xa7version\x01", b"\xa7version\x7f")
    following.log.append(decisions(0), b"\xc1", newer, decisions(1))
    asyncio.run(following.until(following.is_there))
    assert (following.reader.skipped, following.under_way) == (2, 2)


def test_what_is_damaged_on_the_brokers_disk_is_read_past(following: Following) -> None:
    following.log.append(decisions(0), decisions(1), decisions(2))
    following.log.corrupt = {1}
    asyncio.run(following.until(following.is_there))
    assert (following.reader.skipped, following.under_way) == (1, 2)


def test_while_kafka_is_away_a_condition_says_so_and_it_goes_on_where_it_was(
    following: Following,
) -> None:
    following.log.append(decisions(0))
    asyncio.run(following.until(following.is_there))
    assert not following.conditions.has(Part.ROUTING)
    following.log.failures = [KafkaError("away")]
    asyncio.run(following.until(lambda: "cannot read" in following.conditions.problem))
    assert following.conditions.ready
    following.log.append(outcomes(0))
    asyncio.run(following.until(following.is_there))
    assert (following.under_way, following.log.recoveries) == (0, 1)
    assert not following.conditions.has(Part.ROUTING)


def test_topics_that_cannot_be_used_are_tried_again(following: Following) -> None:
    following.log.is_refusing = True
    asyncio.run(following.until(lambda: "another shape" in following.conditions.problem))
    following.log.is_refusing = False
    asyncio.run(following.until(following.is_there))
    assert not following.conditions.has(Part.ROUTING)


def test_a_log_that_lost_what_follows_is_read_again_from_its_checkpoint(
    following: Following,
) -> None:
    following.log.append(decisions(0))
    asyncio.run(following.until(following.is_there))
    following.log.append(decisions(1), outcomes(0))
    following.log.keep()
    following.log.begin = 3
    following.log.append(decisions(2))
    asyncio.run(following.until(following.is_there))
    assert (following.log.recoveries, following.under_way) == (2, 2)
    assert following.digest == following.log.fold().digest


def test_another_log_of_that_name_is_folded_from_its_beginning_and_what_was_under_way_stays(
    following: Following,
) -> None:
    following.log.append(decisions(0), decisions(1), decisions(2))
    following.log.keep()
    asyncio.run(following.until(following.is_there))

    async def scenario() -> None:
        def replaced() -> bool:
            if len(following.log.values) == 3:
                following.log.values = [encode_routing(decisions(0, run=OTHER))]
            return following.log.recoveries == 2 and following.is_there()

        await following.until(replaced)

    asyncio.run(scenario())
    assert following.under_way == 4
