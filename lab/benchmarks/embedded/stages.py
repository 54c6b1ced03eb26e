"""Where the CPU of a block goes: the stages of the write path, each on its own.

In one process and thread, on the data of the ingest measurement, in windows like those that the
service makes under load. Each stage counts the calling thread's CPU; what ZeroMQ's and RocksDB's
own threads spend meanwhile is one more figure. What the service spends beyond the sum is threads
waiting for each other, caches they take from each other, and HTTP.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import zmq

from bridge.publisher.sequencer import Intake, Sequencer
from bridge.sockets.connection import PublisherConnection
from bridge.sockets.inbox import Inbox
from bridge.sockets.raw_message import RawMessage
from bridge.sockets.reader import open_reader
from lab.benchmarks.embedded.ingest import PHASES, plan_of
from lab.benchmarks.embedded.publisher_process import phases_of
from lab.benchmarks.embedded.service import MODEL
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import BLOCK_SIZE, KernelName, Sizes
from lab.traffic.event_load import Load, LoadPlan, LoadPublisher, encode_load
from logs.embedded import EmbeddedLog
from logs.interface import LogEntry
from schemas.identities import Offset
from schemas.records import encode_record
from schemas.registration import VLLM, Registration
from streams.kernel import array_packer, open_kernel, socket_reader
from streams.table.fold import Fold
from streams.table.table import Table
from streams.table.threads import run_without_loop

T = TypeVar("T")

BLOCKS_MAX: Final = 262_144
WINDOW_MESSAGES: Final = 256
FLUSH_BLOCKS: Final = 131_072
RECEIVE_S: Final = 60.0


class Clock:
    """CPU seconds by stage, and those of other threads meanwhile."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = time.process_time() - time.thread_time()

    def time(self, stage: str, work: Callable[[], T]) -> T:
        """Adds this thread's CPU of the call."""
        started = time.thread_time()
        result = work()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.thread_time() - started
        return result

    def stop(self) -> dict[str, float]:
        """All stages; the other threads' part comes last."""
        others = time.process_time() - time.thread_time() - self._started
        return self.seconds | {"other threads (ZeroMQ, RocksDB)": max(others, 0.0)}


class Pipeline:
    """The write path's parts, as `reprise.embedded` puts them together, without its threads."""

    def __init__(self, kernel: KernelName, root: Path, endpoint: str) -> None:
        self._registration = Registration(
            endpoint=endpoint,
            kind=VLLM,
            model_name=MODEL,
            instance_id="i0",
            block_size=BLOCK_SIZE,
        )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connection = PublisherConnection(
            self._context, self._registration, reader=open_reader(socket_reader)
        )
        self._inbox = Inbox()
        sequencer = Sequencer(self._registration, packer=array_packer())
        self._intake = Intake({self._registration.publisher: sequencer}.get)
        self._log = EmbeddedLog(root / "log")
        self._table = Table(
            root / "table", lambda: Fold(open_kernel(1337, name=kernel)), log=self._log
        )

    @property
    def fold(self) -> Fold:
        """The table's state."""
        return self._table.fold

    def run(self, load: Load, clock: Clock) -> None:
        """Takes a load, which was sent, through all stages."""
        messages = self._receive(len(load.payloads), clock)
        blocks_per_message = (load.stored_blocks + load.removed_blocks) / len(messages)
        flush_messages = int(FLUSH_BLOCKS / blocks_per_message)
        since_flush = 0
        for start in range(0, len(messages), WINDOW_MESSAGES):
            window = messages[start : start + WINDOW_MESSAGES]
            self._ingest(window, clock)
            since_flush += len(window)
            if since_flush >= flush_messages:
                since_flush = 0
                self._flush(clock)
        self._flush(clock)

    def _receive(self, count: int, clock: Clock) -> list[RawMessage]:
        messages: list[RawMessage] = []
        end = time.monotonic() + RECEIVE_S
        while len(messages) < count:
            received = clock.time("receive", self._connection.receive)
            if not received:
                if time.monotonic() > end:
                    raise TimeoutError(f"Expected {count} messages, got {len(messages)}")
                time.sleep(0.005)
                continue
            clock.time("hand over", lambda: self._inbox.put(received))  # noqa: B023
            taken = clock.time("hand over", lambda: self._inbox.take(WINDOW_MESSAGES * 4))
            messages += taken
        return messages

    def _ingest(self, window: Sequence[RawMessage], clock: Clock) -> None:
        records = clock.time("decode, pack", lambda: self._intake.process(window, 1.7e9))
        encoded = clock.time("record encode", lambda: [encode_record(one) for one in records])
        offset = clock.time("log append", lambda: self._log.append(encoded, now=1.7e9))

        def fold() -> None:
            entries = (LogEntry(Offset(at), value) for at, value in enumerate(encoded, offset))
            assert not self._table.apply(entries)

        clock.time("fold", fold)

    def _flush(self, clock: Clock) -> None:
        clock.time("log sync", self._log.sync)
        clock.time("table flush", lambda: run_without_loop(self._table.flush(now=0.0)))

    def close(self) -> None:
        """Closes sockets and databases."""
        self._connection.close()
        self._context.term()
        self._log.close()
        self._table.close()


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    figures = []
    for blocks, per_event in ((sizes.wide_blocks, 64), (sizes.single_blocks, 1)):
        blocks = min(blocks, BLOCKS_MAX)
        plan = plan_of(blocks - blocks % per_event, per_event)
        phases = phases_of(plan, encode_load(plan))
        runs = [run_once(kernel, plan, phases) for _ in range(sizes.runs)]
        for phase in PHASES:
            figures += _figures([run[phase] for run in runs], phase, plan)
    return figures


def _figures(runs: list[dict[str, float]], phase: str, plan: LoadPlan) -> list[Figure]:
    shape = f"{phase}, {plan.blocks_per_event}-block events"
    by_stage = {stage: [1e9 * run[stage] / plan.blocks for run in runs] for stage in runs[0]}
    by_stage["sum"] = [sum(values) for values in zip(*by_stage.values(), strict=True)]
    return [
        Figure(name=f"{shape}: {stage}", unit="ns/block", runs=values)
        for stage, values in by_stage.items()
    ]


def run_once(
    kernel: KernelName, plan: LoadPlan, phases: Sequence[Load]
) -> dict[str, dict[str, float]]:
    """CPU seconds by phase and stage, through new databases."""
    publisher = LoadPublisher()
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="reprise-bench-") as root:
        pipeline = Pipeline(kernel, Path(root), publisher.endpoint)
        if not publisher.wait_for_subscriber(RECEIVE_S):
            raise TimeoutError(f"Expected a subscriber within {RECEIVE_S:.0f} s")
        for phase, load in zip(PHASES, phases, strict=True):
            publisher.send(load)
            clock = Clock()
            pipeline.run(load, clock)
            found[phase] = clock.stop()
            expected = plan.blocks if phase == "stored" else 0
            assert pipeline.fold.kernel.stats()["entries"] == expected, "nothing is lost"
        pipeline.close()
    publisher.close(0)
    return found
