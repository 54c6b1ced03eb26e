"""The controller over one log: what is noted, written, lost and ended, in which order."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path

import pytest

from lmcache_adapter import service as service_module
from lmcache_adapter.journal import WorkerReport
from lmcache_adapter.service import LmcacheService
from lmcache_adapter.settings import Address, Models
from lmcache_adapter.state_file import State, StateFile
from schemas.answer_states import Doubt
from schemas.errors import DiskError
from schemas.identities import PublisherKey
from schemas.records import EventsRecord, Record, ResetRecord, UnregisteredRecord
from tests.lmcache import CPU, DISK, ScriptedWorker

Scene = Callable[["Bench"], Coroutine[None, None, None]]
PUBLISHER = PublisherKey(Models().of("a").stream("a"), 0)


class FakeSink:
    """Keeps records; may refuse, or drop."""

    def __init__(self, state: Callable[[], State]) -> None:
        self.records: list[Record] = []
        self.noted: list[State] = []  # what was noted when each append came
        self.lost: list[PublisherKey] = []
        self.failure: Exception | None = None
        self._state = state

    def append(self, records: Iterable[Record]) -> None:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.noted.append(self._state())
        self.records += records

    def has_waiting(self, publisher: PublisherKey) -> bool:
        return False

    def take_lost(self) -> list[PublisherKey]:
        lost, self.lost = self.lost, []
        return lost

    def reasons(self) -> list[str]:
        return [one.reason for one in self.records if isinstance(one, ResetRecord)]


class Bench:
    """A running service."""

    def __init__(self, data: Path) -> None:
        self.file = StateFile(data)
        self.sink = FakeSink(self.file.read)
        self.service = LmcacheService(
            Address(pull_port=0, reply_port=0, heartbeat_port=0),
            Models(),
            data=data,
            sink=self.sink,
            loop=asyncio.get_running_loop(),
            take_lost=self.sink.take_lost,
        )
        sockets = self.service.sockets
        self.ports = (sockets.pull_port, sockets.reply_port, sockets.heartbeat_port)

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110 -- other threads make it so
                await asyncio.sleep(0.01)

    async def worker(self) -> ScriptedWorker:
        worker = ScriptedWorker(self.ports, "a")
        await asyncio.to_thread(worker.register)
        return worker

    def events(self) -> int:
        return sum(isinstance(one, EventsRecord) for one in self.sink.records)


def play(data: Path, scene: Scene) -> None:
    async def run() -> None:
        bench = Bench(data)
        bench.service.start()
        running = asyncio.create_task(bench.service.run())
        try:
            await scene(bench)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await bench.service.end()

    asyncio.run(run())


def test_workers_and_locations_are_noted_before_the_log_has_them(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        with await bench.worker() as worker:
            worker.admit([1])
            await bench.until(lambda: bench.events() == 1)
            worker.admit([2], DISK)
            await bench.until(lambda: bench.events() == 2)
        for noted, records in zip(bench.sink.noted[-1:], [bench.sink.records], strict=True):
            assert isinstance(records[-1], EventsRecord)
            assert noted.workers[0].locations == (CPU, DISK)

    play(tmp_path, scene)


def test_a_note_that_cannot_be_written_holds_nothing_up_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "LMCACHE_NOTE_S", 0.0)
    failures = [DiskError(action="note", path="x", detail="for a test") for _ in range(2)]
    write = StateFile.write

    def failing(file: StateFile, state: State) -> None:
        if failures and state.workers:
            raise failures.pop()
        write(file, state)

    monkeypatch.setattr(StateFile, "write", failing)

    async def scene(bench: Bench) -> None:
        with await bench.worker() as worker:
            worker.admit([1])
            await bench.until(lambda: bench.events() == 1)
            await bench.until(lambda: bench.file.read().workers)
        assert failures == []

    play(tmp_path, scene)


def test_what_the_sink_has_lost_is_written_anew(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        with await bench.worker() as worker:
            worker.admit([1])
            await bench.until(lambda: bench.events() == 1)
            bench.sink.lost = [PUBLISHER]
            await bench.until(lambda: bench.sink.reasons()[-1] == "log_lost_records")

    play(tmp_path, scene)


def test_records_that_cannot_be_handed_over_are_written_anew(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        with await bench.worker() as worker:
            worker.admit([1])
            await bench.until(lambda: bench.events() == 1)
            bench.sink.failure = RuntimeError("for a test")
            worker.admit([2])
            await bench.until(lambda: bench.sink.reasons()[-1] == "log_lost_records")
        assert bench.service.faults == 1

    play(tmp_path, scene)


def test_above_the_bound_of_what_waits_records_are_dropped_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(bench: Bench) -> None:
        with await bench.worker() as worker:
            worker.admit([1])
            await bench.until(lambda: bench.events() == 1)
            monkeypatch.setattr(service_module, "LMCACHE_WAITING_BYTES_MAX", 10)
            worker.admit(range(2, 100))
            await bench.until(lambda: bench.service.dropped_by_reason()["waiting_full"])
            monkeypatch.undo()
            await bench.until(lambda: bench.sink.reasons()[-1] == "log_lost_records")

    play(tmp_path, scene)


def test_a_worker_is_followed_behind_its_records(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        with await bench.worker() as worker:
            worker.admit([1])
            await bench.until(lambda: bench.events() == 1)
            followed = bench.service.followed[PUBLISHER]
            await bench.until(lambda: followed.doubted.doubt is None)
            assert bench.service.is_linked(PUBLISHER)
            [view] = await bench.service.workers()
            assert view.keys == 1
        await bench.until(lambda: followed.doubted.doubt is Doubt.LINK_DOWN)
        assert not bench.service.is_linked(PUBLISHER)

    play(tmp_path, scene)


def test_a_worker_that_is_unregistered_writes_nothing_until_it_comes_back(tmp_path: Path) -> None:
    async def scene(bench: Bench) -> None:
        with await bench.worker() as worker:
            worker.admit([1])
            await bench.until(lambda: bench.events() == 1)
            bench.service.forget([PUBLISHER])
            bench.service._take([WorkerReport(PUBLISHER, (), None)])  # it was on its way
            assert PUBLISHER not in bench.service.followed
            count = len(bench.sink.records)
            await bench.until(lambda: not bench.service.controller.known())
            worker.admit([2])
            await asyncio.to_thread(worker.look_up, [1])
            assert len(bench.sink.records) == count
            assert await asyncio.to_thread(worker.heartbeat)
            await bench.until(lambda: PUBLISHER in bench.service.followed)

    play(tmp_path, scene)


def test_what_was_told_is_written_at_the_end(tmp_path: Path) -> None:
    benches: list[Bench] = []

    async def scene(bench: Bench) -> None:
        benches.append(bench)
        with await bench.worker() as worker:
            worker.admit([1])
            await bench.until(lambda: bench.events() == 1)
            worker.deregister()
            await bench.until(lambda: not bench.service.controller.known())

    play(tmp_path, scene)
    assert isinstance(benches[0].sink.records[-1], UnregisteredRecord)


def test_the_next_run_knows_the_workers_and_ends_those_that_stay_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first(bench: Bench) -> None:
        with await bench.worker() as worker:
            worker.admit([1])
            await bench.until(lambda: bench.events() == 1)

    play(tmp_path, first)
    monkeypatch.setattr("lmcache_adapter.controller.controller.LMCACHE_WORKER_S", 0.0)

    async def second(bench: Bench) -> None:
        await bench.until(
            lambda: any(isinstance(one, UnregisteredRecord) for one in bench.sink.records)
        )

    play(tmp_path, second)
    assert StateFile(tmp_path).read().workers == ()
