"""The write path in this process, over a real log whose disk fails when it is told to."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bridge.sockets.raw_message import RawMessage
from logs.embedded import EmbeddedLog
from reprise.settings import Settings
from schemas.errors import NotRegisteredError, StorageError
from schemas.identities import Offset
from schemas.positions import Cursor
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.table import Table
from tests.processes import until
from tests.unit.bridge.messages import frames_of, registration
from tests.unit.reprise.embedded.writing import WritePath, write_path

ONE = registration(endpoint="tcp://127.0.0.1:9")
TWO = registration(endpoint="tcp://127.0.0.1:10", instance_id="w-2")
WAIT_S = 20.0


class FaultyLog(EmbeddedLog):
    full = False
    syncs = 0

    def sync(self) -> None:
        super().sync()
        self.syncs += 1

    def append(self, values: Sequence[bytes], *, now: float = 0.0) -> Offset:
        if self.full:
            raise StorageError("no space left, for a test")
        return super().append(values, now=now)


class HaltingFold(Fold):
    """Ends its thread when it is told to."""

    halt = False

    def apply(self, offset: Offset, encoded: bytes) -> None:
        if self.halt:
            raise SystemExit
        super().apply(offset, encoded)


def opened(directory: Path) -> WritePath:
    log = FaultyLog(directory / "log")
    return write_path(
        Settings(data=directory),
        log,
        Table(
            directory / "table",
            lambda: HaltingFold(open_kernel(1337, name="reference")),
            log=log,
        ),
    )


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritePath]:
    monkeypatch.setattr("logs.waiting_appends.LOG_RETRY_S", 0.01)
    running = opened(tmp_path)
    running.thread.start()
    until(lambda: running.conditions.ready, what="recovery")
    yield running
    running.thread.stop()


def log_of(write: WritePath) -> FaultyLog:
    assert isinstance(write.log, FaultyLog)
    return write.log


def receive(write: WritePath, first: int, last: int) -> None:
    write.intake.pump.inbox.put(
        [
            RawMessage(
                ONE.publisher,
                frames_of([1.0 + number, [["BlockRemoved", [number]]], 0], number),
                0.0,
            )
            for number in range(first, last + 1)
        ]
    )


def until_folded(write: WritePath, sequence: int) -> None:
    def holds() -> bool:
        state = write.fold.publishers.get(ONE.publisher)
        return state is not None and state.cursor == Cursor(1, sequence)

    until(holds, what=f"batch {sequence} is folded")


def test_a_full_disk_refuses_commands_folds_nothing_and_loses_nothing(write: WritePath) -> None:
    assert write.intake.register(ONE).result(WAIT_S) == [ONE]
    receive(write, 0, 4)
    until_folded(write, 4)
    log = log_of(write)
    log.full = True
    end = log.end_offset
    receive(write, 5, 6)
    until(lambda: not write.intake.sink.is_ready, what="a failed append")
    receive(write, 7, 9)
    assert "no space left" in write.conditions.problem
    for refused in (write.intake.register(TWO), write.intake.unregister(lambda _: True, "key")):
        with pytest.raises(StorageError, match="no space left"):
            refused.result(WAIT_S)
    assert (log.end_offset, write.fold.offset) == (end, end - 1)
    assert len(write.intake.pump.inbox) == 3
    log.full = False
    until_folded(write, 9)
    until(lambda: not write.conditions.problem, what="the end of the problem")
    assert write.intake.register(TWO).result(WAIT_S) == [TWO]
    assert write.fold.counters["log_holes"] == write.fold.counters["gaps"] == 0
    assert write.thread.faults == 0


def test_the_log_is_synced_as_often_as_is_promised(write: WritePath) -> None:
    """Twenty times a second; machines are shared, so a twentieth of that is enough here."""
    assert Settings(data=Path("data")).log_sync_s == 0.05
    began, before = time.monotonic(), log_of(write).syncs
    until(lambda: log_of(write).syncs >= before + 5, what="five syncs", timeout_s=10)
    assert time.monotonic() - began < 5


def test_a_registration_that_waits_for_the_disk_is_made_when_there_is_room(
    write: WritePath,
) -> None:
    log_of(write).full = True
    waiting = write.intake.register(ONE)
    until(lambda: not write.intake.sink.is_ready, what="a failed append")
    with pytest.raises(StorageError, match="no space left"):
        write.intake.register(TWO).result(WAIT_S)
    log_of(write).full = False
    assert waiting.result(WAIT_S) == [ONE]
    assert write.fold.registrations.keys() == {ONE.publisher}


def test_what_was_received_before_the_stop_is_there_after_a_start(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.thread.start()
    assert first.intake.register(ONE).result(WAIT_S) == [ONE]
    receive(first, 0, 5000)
    first.thread.stop()
    second = opened(tmp_path)
    second.thread.start()
    try:
        until(lambda: second.conditions.ready, what="recovery")
        assert second.fold.publishers[ONE.publisher].cursor == Cursor(1, 5000)
        receive(second, 5001, 5001)
        until_folded(second, 5001)
        assert second.intake.unregister(lambda one: one == ONE, "key").result(WAIT_S) == [ONE]
        with pytest.raises(NotRegisteredError):
            second.intake.unregister(lambda one: one == ONE, "key").result(WAIT_S)
    finally:
        second.thread.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_end_of_the_fold_ends_the_write_path_and_is_told(write: WritePath) -> None:
    write.intake.register(ONE).result(WAIT_S)
    assert isinstance(write.fold, HaltingFold)
    write.fold.halt = True
    receive(write, 0, 0)
    until(lambda: "fold thread failed" in write.conditions.problem, what="the end of the fold")
    receive(write, 1, 1)
    until(lambda: not write.thread._thread.is_alive(), what="the end of the write path")
    with pytest.raises(StorageError, match="stopping"):
        write.intake.register(TWO).result(WAIT_S)


def test_a_service_that_was_never_started_closes_what_it_opened(tmp_path: Path) -> None:
    opened(tmp_path).thread.stop()
    again = opened(tmp_path)
    with pytest.raises(StorageError):
        opened(tmp_path)
    again.thread.stop()
