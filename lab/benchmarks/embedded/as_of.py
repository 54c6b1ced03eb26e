"""Queries as of the past: what they take, by how far back they ask, and what a history costs.

Eight instances store 20,000 blocks a second together and remove as many, oldest first, once they
hold what they can: the log, the table and the history of a service, on this disk, by a clock of
their own. Then 8K tokens are asked as of some moments back, each in a scope that no answer before
it has loaded. The same once more without a history, for what it costs to keep one.
"""

import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

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
from lab.benchmarks.sizes import SEED, KernelName, Sizes
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
from streams.table.history_interface import NO_HISTORY, RowHistory
from streams.table.table import Table
from streams.table.threads import run_without_loop

RATE: Final = 20_000
INSTANCES: Final = 8
EVENT_BLOCKS: Final = 64
CHAIN_BLOCKS: Final = 512
PROMPT_TOKENS: Final = 8192
BACK_S: Final = (1, 60, 600, 3600)
ASKED: Final = 3


class Clock:
    """Seconds as the blocks say."""

    now = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now


class _Kept(NamedTuple):
    """What a service leaves on the disk.

    Attributes:
        positions: the last offset at each whole second, and a chain that was held then.
        cpu_s: of folding and writing all of it.
    """

    past: PastTables | None
    positions: list[tuple[int, Chain]]
    cpu_s: float
    blocks: int
    history_bytes: int
    log_bytes: int


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="reprise-bench-") as directory:
        kept = _live(Path(directory), kernel, sizes, with_history=True)
        figures += _asked(kept)
    with tempfile.TemporaryDirectory(prefix="reprise-bench-") as directory:
        plain = _live(Path(directory), kernel, sizes, with_history=False)
    for name, one in (("with a history", kept), ("without one", plain)):
        figures.append(
            Figure(
                name=f"log, fold and table of a block, {name}: CPU",
                unit="ns",
                runs=[1e9 * one.cpu_s / one.blocks],
                note="half stored, half removed",
            )
        )
    figures.append(
        Figure(
            name="a history's size, times the log's",
            unit="x",
            runs=[kept.history_bytes / kept.log_bytes],
            note=f"{kept.log_bytes / 1e6:,.0f} MB of log",
        )
    )
    return figures


def _asked(kept: _Kept) -> list[Figure]:
    past = kept.past
    assert past is not None
    asked = PastQuestion(SCOPE.tenant_id, SCOPE.model_name, SCOPE.block_size)
    figures = []
    for back_s in BACK_S:
        if back_s >= len(kept.positions):
            continue
        took_ms = []
        for turn in range(ASKED):
            offset, chain = kept.positions[-1 - back_s - turn]
            past.forget()
            began = time.perf_counter()
            blocks = Blocks(prefix_hashes(chain.prompt(PROMPT_TOKENS)), "")
            table = past.as_of([Position(0, offset)], asked.includes, name=asked, blocks=blocks)
            found = table.kernel.query(SCOPE, chain.prompt(PROMPT_TOKENS), b"", None)
            took_ms.append(1e3 * (time.perf_counter() - began))
            assert max(match.longest for match in found) == PROMPT_TOKENS, "it was held then"
        figures.append(Figure(name=f"8K tokens as of {back_s:,} s before", unit="ms", runs=took_ms))
    offset, chain = kept.positions[-1]
    blocks = Blocks(prefix_hashes(chain.prompt(PROMPT_TOKENS)), "")
    past.as_of([Position(0, offset)], asked.includes, name=asked, blocks=blocks)
    took_ms = []
    for _ in range(ASKED):
        began = time.perf_counter()
        table = past.as_of([Position(0, offset)], asked.includes, name=asked, blocks=blocks)
        table.kernel.query(SCOPE, chain.prompt(PROMPT_TOKENS), b"", None)
        took_ms.append(1e3 * (time.perf_counter() - began))
    return [*figures, Figure(name="the same position again", unit="ms", runs=took_ms)]


def _live(path: Path, kernel: KernelName, sizes: Sizes, *, with_history: bool) -> _Kept:
    clock = Clock()
    log = EmbeddedLog(path / "log")
    history: RowHistory = NO_HISTORY
    store = None
    if with_history:
        store = HistoryStore(path / "history")
        history = HistoryRecorder(store, seed=1337, clock=clock)
    table = Table(
        path / "table", lambda: Fold(open_kernel(1337, name=kernel)), log=log, history=history
    )
    recover(table, log)
    driver = FoldDriver(table, pace=FlushPace(flush_s=0.05), clock=clock)
    for instance in range(INSTANCES):
        record = registered(f"instance-{instance}")
        run_without_loop(driver.fold([LogEntry(log.append([record]), record)]))
    positions: list[tuple[int, Chain]] = []
    blocks = 0
    began = time.process_time()
    for second, records, chain in _records(sizes.past_blocks, sizes.past_s):
        clock.now = float(second)
        for record, count in records:
            clock.now += 1.0 / len(records)
            offset = log.append([record], now=clock.now)
            run_without_loop(driver.fold([LogEntry(offset, record)]))
            run_without_loop(driver.flush_if_due())
            while driver.needs_maintenance:
                run_without_loop(driver.maintain())
            blocks += count
        positions.append((table.fold.offset, chain))
    run_without_loop(driver.flush())
    history.flush()
    cpu_s = time.process_time() - began
    past = None
    if store is not None:

        def make_kernel() -> Kernel:
            return open_kernel(1337, name=kernel)

        past = PastTables([Past(store, lambda: log, make_kernel)], make_kernel)
    size = sum(file.stat().st_size for file in (path / "history").glob("*.*"))
    return _Kept(past, positions, cpu_s, blocks, size, log.size_bytes)


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


def _records(
    live_blocks: int, seconds: int
) -> Iterator[tuple[int, list[tuple[bytes, int]], Chain]]:
    """Of each second: the records with their blocks, and the chain that was stored last."""
    held: deque[tuple[int, Chain]] = deque()
    held_blocks, turn = 0, 0
    sequences = [0] * INSTANCES
    random = Random(SEED)
    for second in range(seconds):
        records: list[tuple[bytes, int]] = []
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
            blocks = sum(len(event.hashes) // 8 for event in events if hasattr(event, "hashes"))
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
            records.append((encode_record(record), blocks))
        yield second, records, chain
