import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from logs.embedded import EmbeddedLog
from reprise.embedded.fold_thread import FoldThread
from schemas.conditions import Conditions
from schemas.errors import DiskError, StorageError
from schemas.events import ClearedBlocks
from schemas.identities import Offset
from schemas.limits import FOLD_TURN_BYTES_MAX, MAINTAINED_ENTRIES
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.store import TableStore
from streams.table.table import Table
from tests.building import SCOPE, events_record, stored
from tests.fakes import PoisonedKernel
from tests.processes import until
from tests.spans import ROUTER_SPAN, TRACE, TRACEPARENT, KeptSpans


class Panic(BaseException):
    """As a panic of the kernel arrives: no `Exception`."""


class PanickingFold(Fold):
    def apply(self, offset: Offset, encoded: bytes) -> None:
        raise Panic("for a test")


def opened(path: Path, log: EmbeddedLog, make_fold: Callable[[], Fold]) -> Table:
    return Table(path / "table", make_fold, log=log)


def reference() -> Fold:
    return Fold(open_kernel(1337, name="reference"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_end_of_the_thread_is_told_and_nobody_waits_for_ever(
    tmp_path: Path, log: EmbeddedLog
) -> None:
    conditions = Conditions(time.time)
    table = opened(tmp_path, log, lambda: PanickingFold(open_kernel(1337, name="reference")))
    folding = FoldThread(table, flush_s=0.01, conditions=conditions)
    folding.start()
    folding.submit(Offset(0), [b"record"])
    with pytest.raises(StorageError, match="has ended"):
        folding.wait()
    assert "Panic" in conditions.problem
    with pytest.raises(StorageError, match="has ended"):
        folding.submit(Offset(1), [b"record"])
    folding.stop()
    table.close()


def test_stopping_folds_and_flushes_what_was_submitted(tmp_path: Path, log: EmbeddedLog) -> None:
    table = opened(tmp_path, log, reference)
    folding = FoldThread(table, flush_s=60.0, conditions=Conditions(time.time))
    folding.start()
    record = events_record(0, 0, [stored(0, [1], range(4))])
    folding.submit(log.append([record]), [record])
    folding.stop()
    assert folding.fold.offset == 0
    assert folding.flushed_offset == 0
    table.close()


def test_little_waits_behind_what_is_being_folded(tmp_path: Path, log: EmbeddedLog) -> None:
    """So what is submitted next is folded soon; the thread is never left without anything."""
    steps = threading.Semaphore(0)

    class SteppedFold(Fold):
        def apply(self, offset: Offset, encoded: bytes) -> None:
            steps.acquire()
            super().apply(offset, encoded)

    table = opened(tmp_path, log, lambda: SteppedFold(open_kernel(1337, name="reference")))
    folding = FoldThread(table, flush_s=60.0, conditions=Conditions(time.time))
    folding.start()
    assert folding.is_idle
    blocks = 2 * FOLD_TURN_BYTES_MAX // 3 // 24
    submitted: list[Offset] = []

    def submit() -> None:
        for number in range(4):
            hashes = range(number * blocks + 1, (number + 1) * blocks + 1)
            record = events_record(number, number, [stored(number, hashes, range(4 * blocks))])
            first = log.append([record])
            folding.submit(first, [record])
            submitted.append(first)

    submitting = threading.Thread(target=submit, daemon=True)
    submitting.start()
    until(lambda: len(submitted) == 2, what="one being folded, and one behind it")
    time.sleep(0.05)
    assert submitted == [0, 1]
    assert not folding.is_idle
    steps.release()
    until(lambda: len(submitted) == 3, what="room for the next one")
    steps.release(3)
    submitting.join()
    folding.wait()
    assert folding.is_idle
    assert folding.fold.offset == 3
    folding.stop()
    table.close()


def test_what_a_large_clear_left_is_released_while_nothing_comes(
    tmp_path: Path, log: EmbeddedLog
) -> None:
    table = opened(tmp_path, log, lambda: Fold(open_kernel(1337, cleared_at_once=0)))
    folding = FoldThread(table, flush_s=60.0, conditions=Conditions(time.time))
    folding.start()
    kernel = folding.fold.kernel
    blocks = MAINTAINED_ENTRIES + 1
    records = [
        events_record(0, 0, [stored(0, range(1, blocks + 1), range(4 * blocks))]),
        events_record(1, 1, [ClearedBlocks(sequence=1)]),
    ]
    folding.submit(log.append(records), records)
    folding.wait()
    assert (kernel.counters()["cleared"], kernel.stats()["entries"]) == (blocks, 0)
    for _ in range(1000):
        if not kernel.release_left(0):
            break
        time.sleep(0.01)
    assert kernel.release_left(0) == 0
    folding.stop()
    table.close()


def test_an_error_nobody_foresaw_is_counted_and_told_by_the_publisher_alone(
    tmp_path: Path, log: EmbeddedLog
) -> None:
    table = opened(tmp_path, log, lambda: Fold(PoisonedKernel.around(open_kernel(1337))))
    conditions = Conditions(time.time)
    folding = FoldThread(table, flush_s=60.0, conditions=conditions)
    folding.start()
    records = [
        events_record(0, 0, [stored(0, [1], range(4), lora_name="poison")]),
        events_record(1, 1, [stored(1, [2], range(4))]),
    ]
    folding.submit(log.append(records), records)
    folding.wait()
    assert (folding.fold.offset, folding.faults, conditions.problem) == (1, 1, "")
    assert folding.fold.states.is_degraded(SCOPE)
    folding.stop()
    table.close()


def test_a_flush_that_fails_is_told_and_tried_again(
    tmp_path: Path, log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = opened(tmp_path, log, reference)
    conditions = Conditions(time.time)
    failed = threading.Event()
    told: list[str] = []
    commit = TableStore.commit

    def fails(*_: object) -> None:
        failed.set()
        told.append(conditions.problem)
        raise DiskError(action="write", path="table", detail="full")

    monkeypatch.setattr(TableStore, "commit", fails)
    folding = FoldThread(table, flush_s=0.01, conditions=conditions)
    folding.start()
    record = events_record(0, 0, [stored(0, [1], range(4))])
    folding.submit(log.append([record]), [record])
    assert failed.wait(30.0)
    monkeypatch.setattr(TableStore, "commit", commit)
    folding.stop()
    assert told
    assert (folding.flushed_offset, conditions.problem) == (0, "")
    table.close()


def test_a_fold_has_one_span_below_the_one_that_appended(tmp_path: Path, log: EmbeddedLog) -> None:
    spans = KeptSpans()
    table = opened(tmp_path, log, reference)
    folding = FoldThread(table, flush_s=60.0, conditions=Conditions(time.time), tracer=spans.tracer)
    folding.start()
    records = [events_record(0, number, [stored(0, [number], range(4))]) for number in range(3)]
    folding.submit(log.append(records), records, TRACEPARENT)
    folding.mark(1.0)  # which is no batch
    folding.wait()
    folding.stop()
    table.close()
    (kept,) = spans.take()
    assert (kept.name, kept.trace, kept.parent) == ("worker.fold", TRACE, ROUTER_SPAN)
    assert kept.links == [(TRACE, ROUTER_SPAN)]
    assert kept.attributes == {
        "messaging.batch.message_count": 3,
        "reprise.log": "events",
        "reprise.position": "0:2",
    }
