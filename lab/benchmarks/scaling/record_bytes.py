"""Bytes of Kafka's log that a record takes, and each block that it stores, and removes.

    python -m lab.benchmarks.scaling.record_bytes

Records are encoded as a bridge does, and compressed as its producer does, in batches of eight: few
records wait for one another where publishers seldom send. Tokens are drawn by Zipf's law from a
vocabulary of 128K, as those of text: rank r has a weight of 1/r. Hashes are random. What a
record takes whatever it has is told from records of 1 and of 64 blocks.
"""

import random
from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import msgspec
from aiokafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatchBuilder,
)

from brokers.client_internals import zstd_encode_lightly
from lab.benchmarks.index.blocks import Chain, stored_events, stream_of
from lab.benchmarks.sizes import BLOCK_SIZE, SEED
from schemas.events import BlockEvent, RemovedBlocks, encode_events
from schemas.limits import MIB
from schemas.records import EventsRecord, encode_record
from schemas.topics import encode_stream

CHAINS = 64
CHAIN_BLOCKS = 64
BATCH_RECORDS = 8
BATCH_HEADER_BYTES = 61
VOCABULARY = 128_000

_Message = tuple[bytes, bytes | None]


class RecordBytes(NamedTuple):
    """Compressed bytes of a record without blocks, of a stored and of a removed block."""

    record: float
    stored: float
    removed: float


def measure() -> RecordBytes:
    """From records that only store, and records that only remove. Takes a second."""
    few, many = _mean_bytes(_stored(1)), _mean_bytes(_stored(CHAIN_BLOCKS))
    stored = (many - few) / (CHAIN_BLOCKS - 1)
    few_removed, many_removed = _mean_bytes(_removed(1)), _mean_bytes(_removed(CHAIN_BLOCKS))
    return RecordBytes(few - stored, stored, (many_removed - few_removed) / (CHAIN_BLOCKS - 1))


def _stored(blocks: int) -> Iterator[list[BlockEvent]]:
    for chain in _text_chains(CHAINS * CHAIN_BLOCKS):
        yield list(stored_events(chain, blocks)[:1])


def _removed(blocks: int) -> Iterator[list[BlockEvent]]:
    for chain in _text_chains(CHAINS * CHAIN_BLOCKS):
        [event] = stored_events(chain, CHAIN_BLOCKS)
        yield [RemovedBlocks(sequence=0, hashes=event.hashes[: 8 * blocks], medium=event.medium)]


def _mean_bytes(events: Iterator[list[BlockEvent]]) -> float:
    messages = [_message(number, some) for number, some in enumerate(events)]
    batches = [
        messages[first : first + BATCH_RECORDS] for first in range(0, len(messages), BATCH_RECORDS)
    ]
    sizes = [BATCH_HEADER_BYTES + len(zstd_encode_lightly(_batch_body(batch))) for batch in batches]
    return sum(sizes) / len(messages)


def _message(number: int, events: list[BlockEvent]) -> _Message:
    stream = stream_of(f"instance-{number}")
    record = EventsRecord(
        stream=stream,
        dp_rank=0,
        bridge_time=1.7e9 + number,
        incarnation=1,
        first_sequence=number,
        last_sequence=number,
        engine_time=1.7e9 + number,
        events=msgspec.Raw(encode_events(events)),
    )
    return encode_stream(stream), encode_record(record)


def _text_chains(blocks: int) -> Iterator[Chain]:
    """Prompts whose tokens are as frequent as those of text."""
    numbers = random.Random(SEED)
    weights = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))
    for _ in range(0, blocks, CHAIN_BLOCKS):
        tokens = numbers.choices(
            range(VOCABULARY), cum_weights=weights, k=CHAIN_BLOCKS * BLOCK_SIZE
        )
        yield Chain(numbers.randbytes(8 * CHAIN_BLOCKS), array("I", tokens).tobytes())


def _batch_body(messages: list[_Message]) -> bytes:
    """What a codec is given: the messages of a batch behind its header."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=1,
        producer_epoch=1,
        base_sequence=0,
        batch_size=64 * MIB,
    )
    for place, (key, value) in enumerate(messages):
        builder.append(place, 0, key, value, [])
    return bytes(builder.build())[BATCH_HEADER_BYTES:]


if __name__ == "__main__":
    for name, size in measure()._asdict().items():
        print(f"{name}: {size:.1f} bytes")
