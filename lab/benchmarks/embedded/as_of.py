"""Queries as of the past: what they take, by how far back they ask.

Eight instances store 20,000 blocks a second together and remove as many, oldest first, once they
hold what they can: the log, the table and the history of a service, on this disk, by a clock of
their own. Then 8K tokens are asked as of some moments back, each in a scope that no answer before
it has loaded.
"""

import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from lab.benchmarks.index.blocks import (
    SCOPE,
    Chain,
    chains,
    removed_events,
    stored_events,
    stream_of,
)
from lab.benchmarks.index.hashing import prefix_hashes
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import SEED, Sizes
from logs.embedded import EmbeddedLog
from logs.interface import LogEntry
from query_api.ports import PastQuestion
from schemas.events import BlockEvent, encode_events
from schemas.positions import Position
from schemas.records import EventsRecord, RegisteredRecord, encode_record
from schemas.registration import VLLM, Registration
from streams.history.past_fold import Blocks, Past
from streams.history.past_tables import PastTables
from streams.history.recorder import HistoryRecorder
from streams.history.store import HistoryStore
from streams.kernel import open_kernel
from streams.kernel.interface import Kernel
from streams.table.driver import FlushPace, FoldDriver, recover
from streams.table.fold import Fold
from streams.table.table import Table
from streams.table.threads import run_without_loop

RATE: Final = 20_000
INSTANCES: Final = 8
EVENT_BLOCKS: Final = 64
CHAIN_BLOCKS: Final = 512
PROMPT_TOKENS: Final = 8192
BACK_S: Final = (1, 60, 600)
ASKED: Final = 3


class Clock:
    """Seconds as the blocks say."""

    now = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now


def measure(sizes: Sizes) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="reprise-bench-") as directory:
        past, positions = _lived(Path(directory), sizes)
        asked = PastQuestion(SCOPE.tenant_id, SCOPE.model_name, SCOPE.block_size)
        figures = []
        for back_s in (one for one in BACK_S if one < len(positions)):
            took_ms = []
            for turn in range(ASKED):
                offset, chain = positions[-1 - back_s - turn]
                past.forget()
                began = time.perf_counter()
                blocks = Blocks(prefix_hashes(chain.prompt(PROMPT_TOKENS)), "")
                then = [Position(0, offset)]
                table = past.as_of(then, asked.includes, name=asked, blocks=blocks)
                found = table.kernel.query(SCOPE, chain.prompt(PROMPT_TOKENS), (), None)
                took_ms.append(1e3 * (time.perf_counter() - began))
                assert max(match.longest for match in found) == PROMPT_TOKENS, "it was held then"
            name = f"8K tokens as of {back_s:,} s before"
            figures.append(Figure(name=name, unit="ms", runs=took_ms))
    return figures


def _lived(path: Path, sizes: Sizes) -> tuple[PastTables, list[tuple[int, Chain]]]:
    """What a service leaves on the disk: the past, and of each second the last offset, and a chain
    that was held then.
    """
    clock = Clock()
    log = EmbeddedLog(path / "log")
    store = HistoryStore(path / "history")
    history = HistoryRecorder(store, seed=1337, clock=clock)
    table = Table(path / "table", lambda: Fold(open_kernel(1337)), log=log, history=history)
    recover(table, log)
    driver = FoldDriver(table, pace=FlushPace(flush_s=0.05), clock=clock)
    for instance in range(INSTANCES):
        record = registered(f"instance-{instance}")
        run_without_loop(driver.fold([LogEntry(log.append([record]), record)]))
    positions: list[tuple[int, Chain]] = []
    for second, records, chain in _records(sizes.past_blocks, sizes.past_s):
        clock.now = float(second)
        for record in records:
            clock.now += 1.0 / len(records)
            offset = log.append([record], now=clock.now)
            run_without_loop(driver.fold([LogEntry(offset, record)]))
            run_without_loop(driver.flush_if_due())
            while driver.needs_maintenance:
                run_without_loop(driver.maintain())
        positions.append((table.fold.offset, chain))
    run_without_loop(driver.flush())
    history.flush()

    def make_kernel() -> Kernel:
        return open_kernel(1337)

    return PastTables([Past(store, lambda: log, make_kernel)], make_kernel), positions


def _sequenced(events: list[BlockEvent], sequence: int) -> msgspec.Raw:
    numbered = [msgspec.structs.replace(event, sequence=sequence) for event in events]
    return msgspec.Raw(encode_events(numbered))


def registered(instance_id: str) -> bytes:
    """The record of its registration."""
    registration = Registration(
        endpoint=f"tcp://127.0.0.1:{5000 + int(instance_id.rpartition('-')[2])}",
        kind=VLLM,
        model_name=SCOPE.model_name,
        instance_id=instance_id,
        block_size=SCOPE.block_size,
    )
    return encode_record(
        RegisteredRecord(
            stream=registration.stream, dp_rank=0, bridge_time=0.0, registration=registration
        )
    )


def _records(live_blocks: int, seconds: int) -> Iterator[tuple[int, list[bytes], Chain]]:
    """Of each second: the records, and the chain that was stored last."""
    held: deque[tuple[int, Chain]] = deque()
    held_blocks, turn = 0, 0
    sequences = [0] * INSTANCES
    random = Random(SEED)
    for second in range(seconds):
        records: list[bytes] = []
        stored = 0
        while stored < RATE:
            instance = turn % INSTANCES
            (chain,) = chains(CHAIN_BLOCKS, random.getrandbits(32), CHAIN_BLOCKS)
            turn += 1
            events: list[BlockEvent] = []
            if held_blocks + CHAIN_BLOCKS > live_blocks:
                instance, oldest = held.popleft()
                events += removed_events(oldest, EVENT_BLOCKS)
                held_blocks -= CHAIN_BLOCKS
            events += stored_events(chain, EVENT_BLOCKS)
            held.append((instance, chain))
            held_blocks += CHAIN_BLOCKS
            stored += CHAIN_BLOCKS
            sequence = sequences[instance]
            sequences[instance] += 1
            record = EventsRecord(
                stream=stream_of(f"instance-{instance}"),
                dp_rank=0,
                bridge_time=float(second),
                incarnation=1,
                first_sequence=sequence,
                last_sequence=sequence,
                engine_time=float(second),
                events=_sequenced(events, sequence),
            )
            records.append(encode_record(record))
        yield second, records, chain
