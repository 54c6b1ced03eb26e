"""Topics that are read whole: from where, and on after an outage, each message once."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from brokers.client_types import Message, Partition
from brokers.errors import DamagedPartitionError, KafkaError
from logs.recent import RecentFollower
from schemas.errors import ConfigurationError
from tests.memory_topics import MemoryTopics, until

KEY = b"k"


class Kept(RecentFollower):
    """Keeps what it is given, and what it is told of."""

    def __init__(self, since_s: float) -> None:
        super().__init__(cast(Any, {}), ["t"], since=time.time() - since_s, poll_ms=10)
        self.taken: list[bytes | None] = []
        self.told: list[Exception] = []

    def take_message(self, topic: str, message: Message) -> None:
        assert topic == "t"
        self.taken.append(message.value)

    def refused(self, error: ConfigurationError) -> None:
        self.told.append(error)

    def away(self, error: Exception) -> None:
        self.told.append(error)

    def failed(self, error: Exception) -> None:
        raise error


class Bench:
    """A reader of topic `t`, and what it has taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, since_s: float) -> None:
        self.topics = MemoryTopics("t")
        self.topics.install(monkeypatch)
        monkeypatch.setattr("logs.recent.KAFKA_RETRY_FIRST_S", 0.01)
        self.following = Kept(since_s)
        self.taken = self.following.taken
        self.running: asyncio.Task[None] | None = None

    def put(self, value: bytes, age_s: float = 0.0) -> None:
        self.topics.put("t", KEY, value, age_s)

    async def begin(self) -> None:
        self.running = asyncio.create_task(self.following.run())
        async with asyncio.timeout(10):
            await self.following.caught_up.wait()

    async def until(self, count: int) -> None:
        await until(lambda: len(self.taken) >= count)

    async def end(self) -> None:
        assert self.running is not None
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


Scene = Callable[[Bench], Coroutine[Any, Any, None]]


def play(monkeypatch: pytest.MonkeyPatch, scene: Scene, since_s: float = 0.0) -> Bench:
    async def run() -> Bench:
        bench = Bench(monkeypatch, since_s)
        await scene(bench)
        await bench.end()
        return bench

    return asyncio.run(run())


def test_nothing_that_was_there_before_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        bench.put(b"old", age_s=1)
        await bench.begin()
        bench.put(b"new")
        await bench.until(1)

    assert play(monkeypatch, scene).taken == [b"new"]


def test_what_is_young_enough_is_read_before_it_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(bench: Bench) -> None:
        bench.put(b"old", age_s=100)
        bench.put(b"young", age_s=10)
        await bench.begin()
        assert bench.taken == [b"young"]

    play(monkeypatch, scene, since_s=60)


def test_after_an_outage_it_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin()
        bench.put(b"1")
        await bench.until(1)
        bench.topics.go_away()
        await until(lambda: bench.following.told)
        assert isinstance(bench.following.told[0], KafkaError)
        assert not bench.following.caught_up.is_set()
        bench.put(b"2")
        bench.topics.is_away = False
        bench.put(b"3")
        await bench.until(3)

    assert play(monkeypatch, scene).taken == [b"1", b"2", b"3"]


def test_another_topic_of_that_name_is_read_from_its_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(bench: Bench) -> None:
        await bench.begin()
        for value in (b"1", b"2", b"3"):
            bench.put(value)
        await bench.until(3)
        await bench.end()
        for log in bench.topics.logs.values():
            log.clear()
        bench.put(b"anew")
        await bench.begin()
        await bench.until(4)

    assert play(monkeypatch, scene).taken[-1] == b"anew"


def test_damage_is_passed_over_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        bench.put(b"bad")
        bench.put(b"good")
        place = next(place for place, log in bench.topics.logs.items() if log)
        bench.topics.damaged.append(DamagedPartitionError(place, 0, None))
        await bench.begin()
        assert bench.taken == [b"good"]
        assert bench.following.damaged_places == 1

    play(monkeypatch, scene, since_s=60)


def test_a_topic_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        bench.topics.logs = {Partition("other", 0): []}
        bench.running = asyncio.create_task(bench.following.run())
        await until(lambda: bench.following.told)
        assert isinstance(bench.following.told[0], ConfigurationError)
        bench.topics.make("t")
        await bench.following.caught_up.wait()

    play(monkeypatch, scene)
