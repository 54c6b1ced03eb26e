"""The codecs of Kafka's client on what Reprise writes: CPU time to write and to read, and size.

Batches are built as a producer builds them, of records and of table rows. Hashes are random, as
engines' are. Tokens are drawn by Zipf's law from a vocabulary of 128K, as those of text: rank r has
a weight of 1/r. `zstd` is at level 1, as Reprise writes it, `zstd 3` as the client would, and `lz4`
at level 9, which it has no option for.
"""

import random
from array import array
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Final

import aiokafka.codec as codecs  # type: ignore[import-untyped]
import msgspec
from aiokafka.record.default_records import (  # type: ignore[import-untyped]
    DefaultRecordBatchBuilder,
)

from brokers.client_internals import zstd_encode_lightly
from brokers.clients import CODEC
from lab.benchmarks.distributed.table_rows import TableRows
from lab.benchmarks.index.blocks import Chain, stored_events, stream_of
from lab.benchmarks.report.figures import Figure, thread_seconds
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, KernelName, Sizes
from schemas.events import encode_events
from schemas.limits import KAFKA_BATCH_BYTES, MIB
from schemas.records import EventsRecord, encode_record
from schemas.topics import encode_stream

_VOCABULARY: Final = 128_000
_CHAIN_BLOCKS: Final = 64
_PER_EVENT: Final = 8

Message = tuple[bytes, bytes | None]
Encode = Callable[[bytes], bytes]

_CODECS: Final[dict[str, tuple[Encode, Encode]]] = {
    "none": (bytes, bytes),
    "snappy": (codecs.snappy_encode, codecs.snappy_decode),
    "lz4": (codecs.lz4_encode, codecs.lz4_decode),
    "zstd": (zstd_encode_lightly, codecs.zstd_decode),
    "zstd 3": (codecs.zstd_encode, codecs.zstd_decode),
}


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    """Figures of each codec for single records, for full batches of them, and for rows."""
    records = list(_records(sizes.apply_blocks))
    table = TableRows(kernel, 0)
    rows = [
        [(row.key, row.value) for row in table.flush(stored_events(chain, _PER_EVENT))]
        for chain in text_chains(sizes.apply_blocks)
    ]
    batches = {
        "record": [batch_body([record]) for record in records],
        "1 MiB of records": [batch_body(some) for some in _grouped(records)],
        "flush of rows": [batch_body(flush) for flush in rows],
    }
    figures: list[Figure] = []
    for what, bodies in batches.items():
        for name in _CODECS:
            figures += _figures(what, bodies, name, sizes.runs)
    return figures


def _figures(what: str, bodies: list[bytes], name: str, runs: int) -> Iterator[Figure]:
    encode, decode = _CODECS[name]
    encoded = [encode(body) for body in bodies]
    written_mib = sum(map(len, bodies)) / MIB
    chosen = "what Reprise writes" if name == CODEC else ""
    label = f"{name}, {what} of {sum(map(len, bodies)) // len(bodies):,} bytes"
    ratio = sum(map(len, encoded)) / sum(map(len, bodies))
    yield Figure(name=f"size, {label}", unit="of 1", runs=[ratio], note=chosen)
    for verb, work, inputs in (("write", encode, bodies), ("read", decode, encoded)):
        seconds = [thread_seconds(lambda w=work, i=inputs: _all(w, i)) for _ in range(runs)]  # type: ignore[misc]
        per_mib = [1e3 * one / written_mib for one in seconds]
        yield Figure(name=f"{verb}, {label}", unit="ms/MiB", runs=per_mib, note=chosen)


def _all(work: Encode, inputs: list[bytes]) -> None:
    for one in inputs:
        work(one)


def text_chains(blocks: int) -> Iterator[Chain]:
    """Prompts whose tokens are as frequent as those of text."""
    numbers = random.Random(SEED)
    weights = list(accumulate(1 / rank for rank in range(1, _VOCABULARY + 1)))
    for _ in range(0, blocks, _CHAIN_BLOCKS):
        tokens = numbers.choices(
            range(_VOCABULARY), cum_weights=weights, k=_CHAIN_BLOCKS * BLOCK_SIZE
        )
        yield Chain(numbers.randbytes(8 * _CHAIN_BLOCKS), array("I", tokens).tobytes())


def _records(blocks: int) -> Iterator[Message]:
    stream = stream_of("i0")
    for sequence, chain in enumerate(text_chains(blocks)):
        events = stored_events(chain, _PER_EVENT)
        record = EventsRecord(
            stream=stream,
            dp_rank=0,
            bridge_time=1.7e9 + sequence,
            incarnation=1,
            first_sequence=sequence,
            last_sequence=sequence,
            engine_time=1.7e9 + sequence,
            events=msgspec.Raw(encode_events([*events])),
        )
        yield encode_stream(stream), encode_record(record)


def _grouped(records: list[Message]) -> Iterator[list[Message]]:
    group: list[Message] = []
    for record in records:
        if sum(len(value or b"") for _, value in [*group, record]) > KAFKA_BATCH_BYTES and group:
            yield group
            group = []
        group.append(record)
    yield group


def batch_body(messages: list[Message]) -> bytes:
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
    return bytes(builder.build())[61:]
