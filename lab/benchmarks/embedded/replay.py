"""Captures: how fast they are taken and folded, and how large they are against the log.

In one process. The load of the ingest measurement becomes records by the bridge's sequencer and an
embedded log, as in `stages`; the log becomes a capture of records, and its messages one of frames.
Each is then folded, as `reprise replay` does. The tokens are random numbers, which compress badly:
a real prompt takes less.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from bridge.publisher.sequencer import Intake, Sequencer
from bridge.sockets.raw_message import RawMessage
from lab.benchmarks.embedded.ingest import PHASES, plan_of
from lab.benchmarks.embedded.publisher_process import phases_of
from lab.benchmarks.embedded.service import MODEL
from lab.benchmarks.embedded.stages import WINDOW_MESSAGES
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import BLOCK_SIZE, KernelName, Sizes
from lab.traffic.event_load import LoadPlan, encode_load
from logs.embedded import EmbeddedLog
from replay.as_records import CaptureRecords
from replay.capture.format import (
    CapturedPublisher,
    CaptureEntry,
    CaptureKind,
    CaptureSelection,
    Header,
    encode_frames,
)
from replay.capture.from_log import capture_log
from replay.capture.reader import Capture
from replay.capture.writer import CaptureWriter
from replay.folding import ReplayedTable, fold_capture
from schemas.limits import MIB
from schemas.records import RegisteredRecord, encode_record
from schemas.registration import VLLM, Registration
from streams.kernel import array_packer, open_kernel

BLOCKS_MAX: Final = 1_000_000
MESSAGES_PER_S: Final = 5_000

_REGISTRATION: Final = Registration(
    endpoint="tcp://127.0.0.1:1",
    kind=VLLM,
    model_name=MODEL,
    instance_id="i0",
    block_size=BLOCK_SIZE,
)


class _Cost(NamedTuple):
    seconds: float
    cpu_s: float


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    for blocks, per_event in ((sizes.wide_blocks, 64), (sizes.single_blocks, 1)):
        blocks = min(blocks, BLOCKS_MAX)
        plan = plan_of(blocks - blocks % per_event, per_event)
        figures += _measure_one(kernel, plan, sizes.runs)
    return figures


def _measure_one(kernel: KernelName, plan: LoadPlan, runs: int) -> list[Figure]:
    phases = phases_of(plan, encode_load(plan))
    payloads = [payload for load in phases for payload in load.payloads]
    moved = plan.blocks * len(PHASES)  # stored, and removed
    shape = f"{plan.blocks_per_event}-block events"
    with tempfile.TemporaryDirectory(prefix="reprise-bench-") as root:
        place = Path(root)
        records = _write_log(place, payloads)
        taken = [_timed(lambda: _capture(place)) for _ in range(runs)]
        _write_frames(place / "frames", payloads)
        figures = [
            _rate(
                f"capture of a log, {shape}: wall", "k records/s", records / 1e3, taken, cpu=False
            ),
            Figure(
                name=f"capture of records, {shape}: size",
                unit="of the log",
                runs=[(place / "records").stat().st_size / _log_bytes(place)],
                note=f"{(place / 'records').stat().st_size / MIB:.1f} MiB,"
                f" {records:,} records of {_log_bytes(place) / records / 1024:.1f} KiB",
            ),
            Figure(
                name=f"capture of frames, {shape}: size",
                unit="of the messages",
                runs=[(place / "frames").stat().st_size / sum(map(len, payloads))],
                note=f"{(place / 'frames').stat().st_size / MIB:.1f} MiB",
            ),
        ]
        for what in ("records", "frames"):
            costs = [_timed(lambda: _fold(place / what, kernel)) for _ in range(runs)]  # noqa: B023
            name = f"replay of {what}, {shape}"
            figures += [
                _rate(f"{name}: wall", "M blocks/s", moved / 1e6, costs, cpu=False),
                _rate(f"{name}: CPU", "M blocks/CPU-s", moved / 1e6, costs, cpu=True),
            ]
            if what == "records":
                figures.append(
                    _rate(f"{name}: records", "k records/s", records / 1e3, costs, cpu=False)
                )
    return figures


def _rate(name: str, unit: str, amount: float, costs: list[_Cost], *, cpu: bool) -> Figure:
    return Figure(
        name=name,
        unit=unit,
        runs=[amount / (cost.cpu_s if cpu else cost.seconds) for cost in costs],
    )


def _timed(work: Callable[[], object]) -> _Cost:
    began, cpu_s = time.monotonic(), time.process_time()
    work()
    return _Cost(time.monotonic() - began, time.process_time() - cpu_s)


def _write_log(place: Path, payloads: list[bytes]) -> int:
    """The log of a bridge that received the messages; how many records it has."""
    sequencer = Sequencer(_REGISTRATION, packer=array_packer())
    intake = Intake({_REGISTRATION.publisher: sequencer}.get)
    registered = RegisteredRecord(
        stream=_REGISTRATION.stream, dp_rank=0, bridge_time=0.0, registration=_REGISTRATION
    )
    log = EmbeddedLog(place / "data" / "log")
    log.append([encode_record(registered)])
    for start in range(0, len(payloads), WINDOW_MESSAGES):
        window = [
            RawMessage(_REGISTRATION.publisher, [b"", number.to_bytes(8, "big"), payload], 0.0)
            for number, payload in enumerate(payloads[start : start + WINDOW_MESSAGES], start)
        ]
        log.append([encode_record(one) for one in intake.process(window, float(start))])
    records = log.end_offset
    log.close()
    return records


def _log_bytes(place: Path) -> int:
    """Of its records, without RocksDB's own."""
    log = EmbeddedLog(place / "data" / "log")
    size_bytes = log.size_bytes
    log.close()
    return size_bytes


def _capture(place: Path) -> None:
    capture_log(
        place / "data", place / "records", CaptureSelection(), created_by="bench", replace=True
    )


def _write_frames(path: Path, payloads: list[bytes]) -> None:
    source = CapturedPublisher(endpoint=_REGISTRATION.endpoint, registration=_REGISTRATION)
    header = Header(
        kind=CaptureKind.FRAMES, created_at=0.0, created_by="bench", source="", publishers=(source,)
    )
    with CaptureWriter(path, header) as writer:
        for number, payload in enumerate(payloads):
            value = encode_frames([b"", number.to_bytes(8, "big"), payload])
            writer.add(CaptureEntry(0, number, number / MESSAGES_PER_S, value))


def _fold(path: Path, kernel: KernelName) -> None:
    with Capture(path) as capture:
        records = CaptureRecords(capture, array_packer())
        table = ReplayedTable(open_kernel(1337, name=kernel), records)
        assert fold_capture(records, table, total=None)
        assert not table.skipped
        assert table.kernel.stats()["entries"] == 0, "all that was stored was removed"
