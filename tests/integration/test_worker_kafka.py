"""A worker in this process on a real broker: its group, and what becomes of its app."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]
from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.errors import KafkaError
from brokers.topics import ensure_topics
from schemas.identities import StreamKey
from schemas.topics import encode_stream
from streams.table.store import TableStore
from streams.worker import app as app_module
from streams.worker import runner as runner_module
from streams.worker.app import WorkerApp
from streams.worker.runner import LoopSpoiledError
from streams.worker.tables import PartitionTables
from streams.worker.worker import FoldWorker
from streams.worker.worker_settings import StreamsSettings
from tests.building import STREAM, events_record, stored

pytestmark = pytest.mark.timeout(120)

SESSION_S = 6.0
WAIT_S = 60.0


class Watched:
    """A worker, the apps that it has made, and the partitions that they were given."""

    def __init__(self, kafka: KafkaSettings, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka = kafka
        self.apps: list[WorkerApp] = []
        self.assigned: list[set[int]] = []
        self._produced = 0
        settings = StreamsSettings(kafka=kafka, data=data, seed=1337, session_timeout_s=SESSION_S)
        self.worker = FoldWorker(settings)
        self._watch(monkeypatch)

    def _watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assign = PartitionTables.assign
        watched = self

        async def seen(tables: PartitionTables, partitions: set[int]) -> bool:
            watched.assigned.append(set(partitions))
            return await assign(tables, partitions)

        class Seen(WorkerApp):
            def __init__(self, *args: object, **options: object) -> None:
                super().__init__(*args, **options)  # type: ignore[arg-type]
                watched.apps.append(self)

        monkeypatch.setattr(PartitionTables, "assign", seen)
        monkeypatch.setattr(runner_module, "WorkerApp", Seen)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        running = asyncio.create_task(self.worker.run())
        try:
            yield running
        finally:
            self.worker.stop()
            await asyncio.wait((running,))

    async def until_covered(self) -> None:
        """Until the group has committed all of the events, which only a member can."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.bootstrap)
        await admin.start()
        try:
            async with asyncio.timeout(WAIT_S):
                while (committed := await self._committed(admin)) != self._produced:
                    assert committed < self._produced, "no more than there is"
                    await asyncio.sleep(0.1)
        finally:
            await admin.close()

    async def _committed(self, admin: AIOKafkaAdminClient) -> int:
        """The sum over the partitions; 0 where a new broker has no groups yet."""
        try:
            committed = await admin.list_consumer_group_offsets(self.kafka.group("streams"))
        except KafkaError:
            return 0
        return sum(max(one.offset, 0) for one in committed.values())

    async def until_made(self, apps: int) -> None:
        await until(lambda: len(self.apps) == apps)

    async def produce(self, values: list[bytes | None]) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.kafka.bootstrap)
        await producer.start()
        try:
            for value in values:
                topic, key = self.kafka.topics.events.name, encode_stream(_stream(self._produced))
                await producer.send_and_wait(topic, key=key, value=value)
                self._produced += 1
        finally:
            await producer.stop()


@pytest.fixture
def watched(
    kafka_settings: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Watched:
    return Watched(kafka_settings, tmp_path / "data", monkeypatch)


def _stream(number: int) -> StreamKey:
    return STREAM._replace(instance_id=f"i{number % 6}")


def records(count: int, start: int = 0) -> list[bytes | None]:
    return [
        events_record(n // 6, n // 6, [stored(n // 6, [n + 1], range(4))], stream=_stream(n))
        for n in range(start, start + count)
    ]


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 -- of another thread
            await asyncio.sleep(0.05)


def test_a_worker_that_loads_for_longer_than_its_session_stays_in_the_group(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed, loaded_by = TableStore.seed, []

    def slow(store: TableStore) -> int | None:
        """The first thing that loading reads."""
        loaded_by.append(threading.current_thread())
        time.sleep(1.5 * SESSION_S)
        return seed(store)

    monkeypatch.setattr(TableStore, "seed", slow)

    async def scenario() -> None:
        await ensure_topics(watched.kafka)
        await watched.produce(records(60))
        async with watched.running():
            await watched.until_covered()
            assert watched.assigned == [{0, 1}]
            assert len(watched.apps) == 1

    asyncio.run(scenario())
    assert len(loaded_by) == 2
    assert threading.main_thread() not in loaded_by


def test_the_group_commits_each_batch_at_once_tombstones_and_garbage_included(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bridges look at what it commits."""
    monkeypatch.setattr(app_module, "WORKER_COMMIT_S", 3600.0)

    async def scenario() -> None:
        await ensure_topics(watched.kafka)
        await watched.produce([*records(20), None, b"", b"\xc1", *records(20, start=20)])
        async with watched.running():
            await watched.until_covered()
            for number in range(2):
                await watched.produce(records(12, start=40 + 12 * number))
                await watched.until_covered()
        tables = watched.worker.tables
        assert tables is not None
        assert tables.counters == {"records": 67, "skipped_malformed_record": 3}
        assert watched.worker.restarts == 0

    asyncio.run(scenario())


def test_after_a_crash_of_faust_a_new_app_folds_on_and_nothing_of_the_old_one_is_left(
    watched: Watched,
) -> None:
    async def scenario() -> None:
        await ensure_topics(watched.kafka)
        async with watched.running():
            for crashes, where in enumerate(("fetch", "thread")):
                await watched.produce(records(12, start=12 * crashes))
                await watched.until_covered()
                assert watched.worker.crashes == watched.worker.restarts == crashes
                await crash(watched.apps[-1], where)
                await watched.until_made(crashes + 2)
                assert watched.apps[-2].outcome.has_left
            await watched.until_covered()
        # A client's connection ends with the next passes of the loop.
        try:
            await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        except TimeoutError:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            pytest.fail(f"still there: {left}")

    asyncio.run(scenario())


def test_where_something_of_a_crashed_app_stays_the_worker_ends(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "WORKER_CLEAN_S", 0.1)
    going_on = asyncio.Event()

    async def stubborn() -> None:
        while not going_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await going_on.wait()

    async def scenario() -> None:
        await ensure_topics(watched.kafka)
        async with watched.running() as running:
            await until(lambda: watched.assigned)
            left = asyncio.create_task(stubborn())
            try:
                await crash(watched.apps[-1], "app")
                with pytest.raises(LoopSpoiledError, match=r"\(boom\), and 1 of its"):
                    await running
            finally:
                going_on.set()
                await left

    asyncio.run(scenario())


async def crash(app: WorkerApp, where: str) -> None:
    """As Faust does by itself where one of its services gets an error."""
    error = ValueError("boom")
    if where == "app":
        await app.crash(error)
    elif where == "fetch":
        await app._fetcher.crash(error)
    else:
        thread = app.consumer._thread  # type: ignore[attr-defined]
        crashing = asyncio.run_coroutine_threadsafe(thread.crash(error), thread.thread_loop)
        await asyncio.wrap_future(crashing)
