"""Who may write a partition of the table topic, on a real broker: the owner that took it last."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from brokers.topics import ensure_topics
from schemas.errors import TableLostError, TableTooLargeError
from schemas.identities import ModelContext
from streams.table import topic as table_topic
from streams.table.rows import format as rows
from streams.table.rows.format import RowKind, RowPlace, RowWrite
from streams.table.topic import KafkaTableTopic
from streams.table.topic_interface import TopicRow

pytestmark = pytest.mark.timeout(120)

CONTEXT = ModelContext("t", "m", "", 16, "", "i")
T = TypeVar("T")


def owner(kafka: KafkaSettings, **bounds: int) -> KafkaTableTopic:
    name = kafka.topics.table.name
    return KafkaTableTopic(client_options(kafka), name, 0, transactional_id=f"{name}.0", **bounds)


SMALL_BATCHES = {"batch_bytes_max": 20_000}
COVERED = RowWrite(rows.COVERED_KEY, rows.encode_row(RowKind.DELTA, 9, b"name"))


def flush(name: str, count: int = 3, size: int = 10) -> list[RowWrite]:
    return [*(RowWrite(f"{name}-{n}".encode(), bytes(size)) for n in range(count - 1)), COVERED]


def chunk(n: int, size: int) -> RowWrite:
    key = rows.row_key(RowPlace(CONTEXT, 1, n))
    return RowWrite(key, rows.encode_row(RowKind.CHUNK, 9, random.Random(n).randbytes(size)))


def placed(row: RowWrite, offset: int) -> bytes | None:
    """The row's value as it stands in the topic."""
    if row.key != rows.COVERED_KEY or row.value is None:
        return row.value
    return rows.with_expected_offset(row.value, offset)


async def read(topic: KafkaTableTopic, start: int = 0) -> list[TopicRow]:
    return [row async for batch in topic.read(start) for row in batch]


def run(kafka: KafkaSettings, work: Coroutine[Any, Any, T]) -> T:
    asyncio.run(ensure_topics(kafka))
    return asyncio.run(work)


def test_flushes_are_read_back_where_they_were_written_also_beyond_one_batch(
    kafka_settings: KafkaSettings,
) -> None:
    """As a transaction, behind which the next one goes on."""

    async def work() -> None:
        topic = owner(kafka_settings, **SMALL_BATCHES)
        await topic.take()
        written = [*flush("a"), RowWrite(b"a-0", None), *flush("b", 1)]
        offsets = await topic.write(written[:3]) + await topic.write(written[3:])
        assert [tuple(row) for row in await read(topic)] == [
            (offset, row.key, placed(row, offset))
            for offset, row in zip(offsets, written, strict=True)
        ]
        assert await read(topic, offsets[-1] + 1) == []
        offsets += await topic.write(flush("large", 30, size=1_000))
        offsets += await topic.write(flush("b"))
        assert [row.offset for row in await read(topic)] == offsets
        assert await topic.take(), "nobody else has written"
        await topic.stop()

    run(kafka_settings, work())


def test_chunks_beyond_one_batch_go_before_the_rest_which_is_one_batch(
    kafka_settings: KafkaSettings,
) -> None:
    async def work() -> None:
        topic = owner(kafka_settings, **SMALL_BATCHES, transaction_bytes_max=0)
        await topic.take()
        chunks = [chunk(n, 4_000) for n in range(20)]
        written = flush("mark")
        offsets = await topic.write(written, chunks)
        found = await read(topic)
        assert [row.offset for row in found[20:]] == offsets
        assert [row[1:] for row in found] == [
            (row.key, placed(row, at.offset))
            for row, at in zip([*chunks, *written], found, strict=True)
        ]
        offsets += await topic.write(flush("b"))
        assert offsets[-3] == offsets[-4] + 1, "no mark of a transaction stands between"
        await topic.stop()

    run(kafka_settings, work())


def test_rows_that_count_together_beyond_a_transaction_say_what_to_do(
    kafka_settings: KafkaSettings,
) -> None:
    async def work() -> None:
        topic = owner(kafka_settings, **SMALL_BATCHES, transaction_bytes_max=2 * 2**20)
        await topic.take()
        with pytest.raises(TableTooLargeError, match=r"at most `2097152` bytes of rows"):
            await topic.write(flush("a", 2_200, size=1_000))
        offsets = await topic.write(flush("b"))
        assert [row.offset for row in await read(topic)] == offsets
        await topic.stop()

    run(kafka_settings, work())


def test_an_owner_that_was_replaced_writes_nothing_more(kafka_settings: KafkaSettings) -> None:
    async def work(size: int) -> None:
        old = owner(kafka_settings, **SMALL_BATCHES)
        new = owner(kafka_settings, **SMALL_BATCHES)
        await old.take()
        earlier = [row.offset for row in await read(old)]
        before = earlier + await old.write(flush("old"))
        await new.take()
        with pytest.raises(TableLostError):
            await old.write(flush("late", 30, size=size))
        # A refused transaction has taken the partition; the new owner is told, and takes it again.
        try:
            after = await new.write(flush("new"))
        except TableLostError:
            assert size == 1_000
            assert not await new.take()
            after = await new.write(flush("new"))
        assert [row.offset for row in await read(new)] == before + after
        await old.stop()
        await new.stop()

    for size in (10, 1_000):  # one batch, a transaction
        run(kafka_settings, work(size))


def test_an_owner_is_told_that_another_had_the_partition_meanwhile(
    kafka_settings: KafkaSettings,
) -> None:
    async def work() -> None:
        first, second = owner(kafka_settings), owner(kafka_settings)
        await first.take()
        await first.write(flush("a"))
        assert await first.take(), "it is still alone"
        await second.take()
        await second.stop()
        assert not await first.take()
        await first.stop()

    run(kafka_settings, work())


def test_an_owner_renews_its_claim_before_the_broker_forgets_it(
    kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        first, second = owner(kafka_settings), owner(kafka_settings)
        await first.take()
        offsets = await first.write(flush("a"))
        monkeypatch.setattr(table_topic, "TABLE_RETAKE_S", -1.0)
        offsets += await first.write(flush("b"))
        assert offsets[3] == offsets[2] + 2, "a mark stands between"
        await second.take()
        with pytest.raises(TableLostError):
            await first.write(flush("late"))
        assert [row.offset for row in await read(second)] == offsets
        await first.stop()
        await second.stop()

    run(kafka_settings, work())


def test_a_flush_into_a_topic_that_was_made_anew_beneath_its_owner_does_not_count(
    kafka_settings: KafkaSettings,
) -> None:
    async def work() -> None:
        topic = owner(kafka_settings)
        await topic.take()
        await topic.write(flush("a"))
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_settings.servers)
        await admin.start()
        await admin.delete_topics([kafka_settings.topics.table.name])
        while kafka_settings.topics.table.name in await admin.list_topics():  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # brokers learn of it one by one
        await admin.close()
        await ensure_topics(kafka_settings)
        with pytest.raises(TableLostError, match="another topic"):
            await topic.write(flush("b"))
        *_, covered = await read(topic)
        assert (covered.key, covered.value) == (rows.COVERED_KEY, b"")
        await topic.stop()

    run(kafka_settings, work())
