"""Rows of the table topic as a worker would write them, without bridge, events or worker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable

import msgspec
from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from lab.benchmarks.index.blocks import MODEL, stream_of
from lab.benchmarks.sizes import BLOCK_SIZE
from schemas.events import RemovedBlocks, StoredBlocks, encode_events
from schemas.identities import Offset
from schemas.limits import MAINTAINED_ENTRIES
from schemas.records import EventsRecord, RegisteredRecord, encode_record
from schemas.registration import VLLM, Registration
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.rows.format import RowWrite
from streams.table.rows.writer import RowWriter
from streams.table.table import TOPIC_GENERATION_DELTAS, TOPIC_GENERATION_MIN_BYTES
from streams.table.topic import KafkaTableTopic

SEED_OF_HASHES = 1337
_FILLERS_AT_ONCE = 1000


class TableRows:
    """Folds events of one instance, and gives the rows of each flush, rewritings included."""

    def __init__(self, partition: int) -> None:
        self.fold = Fold(open_kernel(SEED_OF_HASHES))
        self._writer = RowWriter(
            generation_min_bytes=TOPIC_GENERATION_MIN_BYTES,
            generation_deltas=TOPIC_GENERATION_DELTAS,
            table=b"bench%03d" % partition,
        )
        self._sequence = -1
        self._registration = Registration(
            endpoint=f"tcp://127.0.0.1:{20_000 + partition}",
            kind=VLLM,
            model_name=MODEL,
            instance_id=f"i{partition}",
            block_size=BLOCK_SIZE,
        )
        self._stream = stream_of(f"i{partition}")
        self._apply(
            encode_record(
                RegisteredRecord(
                    stream=self._stream,
                    dp_rank=0,
                    bridge_time=0.0,
                    registration=self._registration,
                )
            )
        )

    @property
    def records(self) -> int:
        """How many records were folded."""
        return int(self.fold.offset) + 1

    def _apply(self, record: bytes) -> None:
        skipped = self.fold.apply(Offset(self.fold.offset + 1), record)
        assert skipped is None, skipped

    def flush(self, events: Iterable[StoredBlocks | RemovedBlocks]) -> list[RowWrite]:
        """Folds one record with these events, and flushes."""
        self._sequence += 1
        numbered = [msgspec.structs.replace(event, sequence=self._sequence) for event in events]
        self._apply(
            encode_record(
                EventsRecord(
                    stream=self._stream,
                    dp_rank=0,
                    bridge_time=0.0,
                    incarnation=1,
                    first_sequence=self._sequence,
                    last_sequence=self._sequence,
                    engine_time=0.0,
                    events=msgspec.Raw(encode_events([*numbered])),
                )
            )
        )
        flush = self._writer.flush(self.fold, self.fold.take_changes())
        written = flush.rest()
        self._writer.note(flush)
        self._writer.find_heavy(self.fold, flush)
        while (rewriting := self._writer.begin_rewriting(self.fold)) is not None:
            while rewriting.has_chunk:
                rewriting.step(MAINTAINED_ENTRIES)
            covers = flush.changes.offset
            written += [*rewriting.rest(), *self._writer.switch(rewriting, covers)]
            self._writer.note_rewritten(rewriting)
        return written


@contextlib.asynccontextmanager
async def opened_topic(kafka: KafkaSettings, partition: int) -> AsyncIterator[KafkaTableTopic]:
    """One partition of the table topic, to be written as a worker writes it."""
    name = kafka.topics.table.name
    topic = KafkaTableTopic(
        client_options(kafka), name, partition, transactional_id=f"{name}.{partition}"
    )
    await topic.take()
    try:
        yield topic
    finally:
        await topic.stop()


async def fill_events(kafka: KafkaSettings, partition: int, count: int) -> None:
    """Puts as many messages into `events` as the rows cover; nobody reads them again."""
    producer = AIOKafkaProducer(**client_options(kafka), acks="all")
    await producer.start()
    try:
        for start in range(0, count, _FILLERS_AT_ONCE):
            sent = [
                await producer.send(kafka.topics.events.name, b"-", partition=partition)
                for _ in range(min(_FILLERS_AT_ONCE, count - start))
            ]
            await asyncio.gather(*sent)
    finally:
        await producer.stop()
