"""What goes wrong with a follower has one place each; its consumer is stopped in any case."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokers.client_types import Consumer, Partition
from brokers.errors import CorruptRecordException, KafkaError, OffsetOutOfRangeError
from logs.attempts import LogLostError, StalledError
from logs.follower import Follower, Messages
from schemas.errors import ConfigurationError, StorageError
from tests.memory_topics import until

PART = Partition("t", 0)


class Scripted(Follower):
    """Follows a consumer whose polls the test gives, and notes what it is told."""

    def __init__(self, *polls: Exception | Sequence[int], look_s: float | None = None) -> None:
        super().__init__(
            poll_ms=10, records_max=7, retry_first_s=0.001, retry_max_s=0.001, look_s=look_s
        )
        self.polls = list(polls)
        self.told: list[str] = []
        self.taken: list[int] = []
        self.consumers: list[Scripted] = []
        self.failing_prepare: list[Exception] = []
        self.looked = 0

    # As a consumer

    async def start(self) -> None:
        self.told.append("start")

    async def stop(self) -> None:
        self.told.append("stop")

    async def getmany(self, *, timeout_ms: int, max_records: int | None) -> dict[Partition, Any]:
        assert (timeout_ms, max_records) == (10, 7)
        if not self.polls:
            await asyncio.sleep(0.001)
            return {}
        poll = self.polls.pop(0)
        if isinstance(poll, Exception):
            raise poll
        return {PART: [SimpleNamespace(offset=one) for one in poll]}

    # As a user

    async def prepare(self) -> None:
        if self.failing_prepare:
            raise self.failing_prepare.pop()

    def make_consumer(self) -> Consumer:
        return cast(Consumer, self)

    async def begin(self, consumer: Consumer) -> None:
        self.told.append("begin")

    async def take(self, messages: Messages) -> None:
        self.taken += [message.offset for message in messages[PART]]

    async def look(self, consumer: Consumer) -> None:
        self.looked += 1
        if self.looked == 2:
            raise StalledError("no answer")

    async def left(self) -> None:
        self.told.append("left")

    async def pause(self) -> None:
        self.told.append("pause")
        await super().pause()

    def lost(self, error: LogLostError) -> bool:
        self.told.append("lost")
        return True

    def refused(self, error: ConfigurationError) -> bool:
        self.told.append("refused")
        return "for good" in str(error)

    def away(self, error: Exception) -> None:
        self.told.append("away")

    def disk_failed(self, error: StorageError) -> None:
        self.told.append("disk")

    def failed(self, error: Exception) -> None:
        self.told.append("failed")


def play(follower: Scripted, holds: Callable[[], object]) -> list[str]:
    """What it is told until then; at its end its consumer is stopped."""

    async def run() -> None:
        running = asyncio.create_task(follower.run())
        try:
            await until(lambda: running.done() or holds())
        finally:
            running.cancel()
            await asyncio.wait({running})

    asyncio.run(run())
    return follower.told


ROUND = ["start", "begin"]
END = ["stop", "left"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KafkaError("away"), ["away", "pause"]),
        (TimeoutError(), ["away", "pause"]),
        (OSError("refused"), ["away", "pause"]),
        (CorruptRecordException("bad"), ["away", "pause"]),
        (OffsetOutOfRangeError({PART: 7}), ["lost"]),
        (LogLostError("another one"), ["lost"]),
        (ConfigurationError("of another shape"), ["refused", "pause"]),
        (StorageError("disk full"), ["disk", "pause"]),
        (ZeroDivisionError(), ["failed", "pause"]),
    ],
)
def test_each_fault_is_told_in_one_place_and_another_consumer_reads_on(
    error: Exception, told: list[str]
) -> None:
    follower = Scripted([1, 2], error, [3])
    assert play(follower, lambda: follower.taken == [1, 2, 3]) == [
        *ROUND,
        *END,
        *told,
        *ROUND,
        *END,
    ]


def test_what_is_refused_for_good_ends_it() -> None:
    follower = Scripted(ConfigurationError("refused for good"), [1])
    assert play(follower, lambda: False) == [*ROUND, *END, "refused"]
    assert follower.taken == []


def test_where_nothing_can_be_prepared_there_is_no_consumer() -> None:
    follower = Scripted([1])
    follower.failing_prepare = [KafkaError("away")]
    told = play(follower, lambda: follower.taken)
    assert told == ["left", "away", "pause", *ROUND, *END]


def test_a_look_that_finds_it_standing_still_ends_the_attempt() -> None:
    follower = Scripted(look_s=0.001)
    assert play(follower, lambda: follower.looked >= 3) == [
        *(*ROUND, *END, "away", "pause"),
        *(*ROUND, *END),
    ]
