"""Topics in memory, and readers of them."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from aiokafka.errors import CorruptRecordException  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.client_types import Partition
from schemas.records import Record, encode_record

SETTINGS = KafkaSettings(bootstrap="k:1", events_partitions=1, registry_partitions=2)
TOPICS = SETTINGS.topics


class Topics:
    """Messages by partition, and readers of them."""

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], list[tuple[bytes, bytes | None]]] = {}
        self.begins: dict[tuple[str, int], int] = {}
        self.damaged: set[int] = set()  # offsets of events whose checksum fails
        self.read = 0
        self.readers: list[Reader] = []

    def append(self, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
        self.logs.setdefault((topic, partition), []).append((key, value))

    def record(self, *records: Record) -> None:
        for record in records:
            self.append(TOPICS.events.name, 0, b"k", encode_record(record))

    def reader(self, *, committed: bool) -> "Reader":
        assert not committed, "the records belong to no transaction"
        self.readers.append(Reader(self))
        return self.readers[-1]


class Reader:
    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._positions: dict[Any, int] = {}
        self.is_running = False

    async def start(self) -> None:
        self.is_running = True

    async def stop(self) -> None:
        self.is_running = False

    def assign(self, partitions: Sequence[Any]) -> None:
        self._positions = dict.fromkeys(partitions, 0)

    def seek(self, partition: Any, offset: int) -> None:
        self._positions[partition] = offset

    async def position(self, partition: Any) -> int:
        return self._positions[partition]

    async def beginning_offsets(self, partitions: Sequence[Any]) -> Mapping[Partition, int]:
        assert self.is_running
        return {Partition(*one): self._topics.begins.get(tuple(one), 0) for one in partitions}

    async def end_offsets(self, partitions: Sequence[Any]) -> Mapping[Partition, int]:
        assert self.is_running
        return {Partition(*one): len(self._topics.logs.get(tuple(one), ())) for one in partitions}

    async def getmany(
        self, *partitions: Any, timeout_ms: int, max_records: int | None = None
    ) -> Mapping[Any, Sequence[Any]]:
        found = {}
        for one in partitions:
            start = self._positions[one]
            messages = self._topics.logs.get(tuple(one), [])[start : start + (max_records or 3)]
            if one.topic == TOPICS.events.name and self._topics.damaged.intersection(
                range(start, start + len(messages))
            ):
                raise CorruptRecordException("Invalid CRC")
            self._positions[one] += len(messages)
            self._topics.read += len(messages)
            found[one] = [
                SimpleNamespace(partition=one.partition, offset=start + n, key=key, value=value)
                for n, (key, value) in enumerate(messages)
            ]
        return found
