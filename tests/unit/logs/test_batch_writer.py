"""What becomes of the one batch that is under way, and of the producer that was used for it."""

import asyncio
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokers.client_types import Batch
from brokers.errors import KafkaError
from logs.batch_writer import BatchWriter
from logs.producer import ReplaceableProducer
from schemas.errors import StorageError
from tests.memory_topics import until


class Broker:
    """Makes producers; each batch stays under way until the test ends that."""

    def __init__(self) -> None:
        self.starts = 0
        self.sent: list[tuple[list[int], asyncio.Future[Any]]] = []

    async def start(self) -> None:
        self.starts += 1

    def create_batch(self) -> list[int]:
        return []

    async def send_batch(self, batch: list[int], topic: str, *, partition: int) -> Any:
        sent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.sent.append((list(batch), sent))
        return sent


class Numbers(BatchWriter):
    """Writes numbers that wait, two at a time."""

    def __init__(self, broker: Broker) -> None:
        producer = ReplaceableProducer(lambda: cast(Any, broker))
        super().__init__(producer, "t", 0, retry_first_s=0.001, retry_max_s=0.001, late_s=0.005)
        self.waiting: deque[int] = deque()
        self.failures: list[Exception] = []
        self.told: list[str] = []

    def fill(self, batch: Batch) -> bool:
        if self.failures:
            raise self.failures.pop()
        cast(Any, batch).extend(list(self.waiting)[:2])
        return bool(self.waiting)

    async def wait(self) -> None:
        await asyncio.sleep(0.001)

    def written(self, offset: int) -> None:
        self.told.append(f"written at {offset}")
        for _ in range(min(len(self.waiting), 2)):
            self.waiting.popleft()

    async def late(self) -> None:
        self.told.append("late")

    def away(self, error: Exception) -> None:
        self.told.append("away")

    def disk_failed(self, error: StorageError) -> None:
        self.told.append("disk failed")

    def failed(self, error: Exception) -> None:
        self.told.append("failed")


@pytest.fixture(autouse=True)
def _abandon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def abandon(producer: Any, timeout_s: float) -> None: ...

    monkeypatch.setattr("logs.producer.abandon_producer", abandon)


def play(scenario: Callable[[Numbers, Broker], Any]) -> Numbers:
    async def run() -> Numbers:
        broker = Broker()
        numbers = Numbers(broker)
        await scenario(numbers, broker)
        return numbers

    return asyncio.run(run())


async def cancel(running: "asyncio.Task[None]") -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_what_is_under_way_when_it_is_cancelled_is_waited_for_next_and_not_sent_again() -> None:
    async def scenario(numbers: Numbers, broker: Broker) -> None:
        numbers.waiting.extend([1, 2, 3])
        running = asyncio.create_task(numbers.run())
        await until(lambda: bool(broker.sent))
        await cancel(running)
        broker.sent[0][1].set_result(SimpleNamespace(offset=7))
        assert await numbers.write_batch()
        assert [batch for batch, _ in broker.sent] == [[1, 2]]
        assert list(numbers.waiting) == [3]

    assert play(scenario).told == ["written at 7"]


def test_it_is_said_that_a_batch_is_late_for_as_long_as_it_is() -> None:
    async def scenario(numbers: Numbers, broker: Broker) -> None:
        numbers.waiting.append(1)
        running = asyncio.create_task(numbers.run())
        await until(lambda: numbers.told.count("late") == 2)
        broker.sent[0][1].set_result(SimpleNamespace(offset=0))
        await until(lambda: "written at 0" in numbers.told)
        await cancel(running)
        assert len(broker.sent) == 1

    play(scenario)


def test_a_batch_that_failed_is_sent_again_by_another_producer() -> None:
    async def scenario(numbers: Numbers, broker: Broker) -> None:
        numbers.waiting.append(1)
        running = asyncio.create_task(numbers.run())
        await until(lambda: bool(broker.sent))
        broker.sent[0][1].set_exception(KafkaError("for a test"))
        await until(lambda: len(broker.sent) == 2)
        await cancel(running)
        assert ([batch for batch, _ in broker.sent], broker.starts) == ([[1], [1]], 2)

    assert [one for one in play(scenario).told if one != "late"] == ["away"]


def test_a_failing_disk_of_the_user_costs_no_producer_what_others_send_by_it() -> None:
    async def scenario(numbers: Numbers, broker: Broker) -> None:
        numbers.waiting.append(1)
        numbers.failures.append(StorageError("for a test"))
        running = asyncio.create_task(numbers.run())
        await until(lambda: bool(broker.sent))
        await cancel(running)
        assert broker.starts == 1

    assert [one for one in play(scenario).told if one != "late"] == ["disk failed"]
