"""Single messages: answered once the topic has them, or insisted on."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokers.errors import KafkaError
from logs.entry_writer import EntryWriter


class Broker:
    """Makes producers, and has what they wrote; `failures` are given to the next entries."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, bytes, bytes | None]] = []
        self.failures: list[Exception] = []
        self.starts = self.stops = 0
        self.is_away = False

    async def start(self) -> None:
        if self.is_away:
            raise KafkaError("away")
        self.starts += 1

    async def stop(self) -> None:
        self.stops += 1

    async def send_and_wait(self, topic: str, *, key: bytes, value: bytes | None) -> Any:
        if self.failures:
            raise self.failures.pop()
        self.entries.append((topic, key, value))
        return SimpleNamespace(partition=0, offset=len(self.entries) - 1)


def writer_of(broker: Broker) -> EntryWriter:
    return EntryWriter(lambda: cast(Any, broker))


def test_one_producer_is_started_with_the_first_and_stopped_at_the_end() -> None:
    broker = Broker()

    async def run() -> None:
        writer = writer_of(broker)
        await writer.close()
        written = await asyncio.gather(
            *(writer.write("t", key=b"k", value=value) for value in (b"1", None))
        )
        assert [one.offset for one in written] == [0, 1]
        await writer.close()

    asyncio.run(run())
    assert broker.entries == [("t", b"k", b"1"), ("t", b"k", None)]
    assert (broker.starts, broker.stops) == (1, 1)


def test_one_that_cannot_be_started_is_stopped_and_the_next_is_another() -> None:
    broker = Broker()

    async def run() -> None:
        writer = writer_of(broker)
        broker.is_away = True
        with pytest.raises(KafkaError):
            await writer.open()
        broker.is_away = False
        await writer.write("t", key=b"k", value=b"1")

    asyncio.run(run())
    assert (broker.starts, broker.stops, len(broker.entries)) == (1, 1, 1)


def test_an_entry_is_insisted_on_until_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logs.entry_writer.KAFKA_RETRY_FIRST_S", 0.001)
    broker, told = Broker(), list[str]()
    broker.failures = [KafkaError("away"), TimeoutError("away")]
    asyncio.run(
        writer_of(broker).insist(
            "t",
            key=b"k",
            value=lambda: b"1" if len(broker.entries) < 2 else None,
            again_s=0.001,
            failed=lambda error: told.append(str(error)),
        )
    )
    assert (len(broker.entries), len(told)) == (2, 2)
