"""Small topics in memory: readers that wait for messages, and producers that may fail. One loop."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Self

import pytest

from brokers.client_types import Partition
from brokers.clients import partition_of
from brokers.errors import KafkaError
from schemas.errors import ConfigurationError


async def until(holds: Callable[[], object], *, within_s: float = 20.0) -> None:
    """Waits for what the tasks of the loop, or other threads, will have done."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 -- nothing tells when
            await asyncio.sleep(0.005)


class MemoryTopics:
    """A broker, as far as `logs.recent` and single messages need one.

    Attributes:
        logs: of each partition, its messages.
        is_away: nothing is answered, and readers end.
        is_refusing: nothing is written.
        damaged: what reading raises, once each.
    """

    def __init__(self, *topics: str, partitions: int = 2) -> None:
        self.logs: dict[Partition, list[SimpleNamespace]] = {}
        self.is_away = self.is_refusing = False
        self.damaged: list[Exception] = []
        self.news = asyncio.Event()
        self._partitions = partitions
        for topic in topics:
            self.make(topic)

    def make(self, topic: str) -> None:
        for number in range(self._partitions):
            self.logs.setdefault(Partition(topic, number), [])

    def put(self, topic: str, key: bytes, value: bytes | None, age_s: float = 0.0) -> None:
        place = Partition(topic, partition_of(key, self._partitions))
        log = self.logs[place]
        written_ms = round(1000 * (time.time() - age_s))
        message = {"partition": place.partition, "offset": len(log), "timestamp": written_ms}
        log.append(SimpleNamespace(**message, key=key, value=value))
        self.news.set()

    def values(self, topic: str) -> list[bytes]:
        found = [log for place, log in self.logs.items() if place.topic == topic]
        return [message.value for log in found for message in log]

    def go_away(self) -> None:
        self.is_away = True
        self.news.set()

    def check(self) -> None:
        if self.is_away:
            raise KafkaError("away")

    # In the place of functions of `brokers`

    def install(self, monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
        """Followers of recent messages read from here; these modules make topics here, and the
        commands write here.
        """
        for module in ("logs.follower", "logs.producer"):
            monkeypatch.setattr(f"{module}.start_client", self._start)
        monkeypatch.setattr("logs.follower.stop_consumer", self._stop)
        monkeypatch.setattr("logs.recent.count_partitions", self.count_partitions)
        for module in ("logs.recent", "lmcache_adapter.commands.topics"):
            monkeypatch.setattr(f"{module}.Clients", lambda options: self)
        for module in modules:
            monkeypatch.setattr(f"{module}.ensure_topics", self.ensure_topics)

    async def _start(self, client: Any) -> None:
        self.check()

    async def _stop(self, client: Any, *, timeout_s: float | None) -> None:
        """As of a consumer."""

    async def ensure_topics(self, settings: Any, outage: Any = None, *, specs: Any) -> None:
        self.check()
        for spec in specs:
            self.make(spec.name)

    async def count_partitions(self, options: Any, topic: str) -> int:
        self.check()
        count = sum(place.topic == topic for place in self.logs)
        if not count:
            raise ConfigurationError("no such topic")
        return count

    def reader(self, *, committed: bool) -> "MemoryReader":
        return MemoryReader(self)

    def command_producer(self) -> Self:
        return self

    async def stop(self) -> None:
        """As a producer's."""

    async def send_and_wait(self, topic: str, *, key: bytes, value: bytes | None) -> None:
        self.check()
        if self.is_refusing:
            raise KafkaError("refused")
        self.put(topic, key, value)


class MemoryReader:
    """A consumer in no group."""

    def __init__(self, topics: MemoryTopics) -> None:
        self._topics = topics
        self._at: dict[Partition, int] = {}

    def assign(self, partitions: Sequence[Partition]) -> None:
        self._at = dict.fromkeys(partitions, 0)

    def seek(self, partition: Partition, offset: int) -> None:
        self._at[partition] = offset

    async def position(self, partition: Partition) -> int:
        return self._at[partition]

    async def beginning_offsets(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        return {one: len(self._topics.logs[one]) for one in partitions}

    async def offsets_for_times(self, times: Mapping[Partition, int]) -> Mapping[Partition, Any]:
        found: dict[Partition, Any] = {}
        for place, since in times.items():
            later = [one for one in self._topics.logs[place] if one.timestamp >= since]
            found[place] = later[0] if later else None
        return found

    async def getmany(
        self, *, timeout_ms: int, max_records: int | None
    ) -> Mapping[Partition, Sequence[Any]]:
        while True:
            self._topics.check()
            if self._topics.damaged:
                raise self._topics.damaged.pop()
            found = {}
            for place, at in self._at.items():
                messages = self._topics.logs[place][at:]
                if messages:
                    found[place] = messages
                    self._at[place] = at + len(messages)
            if found:
                return found
            self._topics.news.clear()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._topics.news.wait()
            except TimeoutError:
                return {}
