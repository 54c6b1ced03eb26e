"""Faust as the worker overrides it: most of the names are private, and may go in any release."""

import asyncio
import importlib.metadata
import inspect
import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import faust
import pytest
from aiokafka import TopicPartition  # type: ignore[import-untyped]
from faust.app.base import BootStrategy
from faust.streams import Stream
from faust.tables.manager import TableManager
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode.threads import WorkerThread

from brokers.client_types import Partition
from brokers.errors import DamagedPartitionError, KafkaError
from logs.interface import LogEntry, TracedEntry
from schemas.folded_work import FoldedWork, encode_work
from schemas.identities import Offset
from streams.worker import app
from tests.spans import TRACEPARENT

REPOSITORY = Path(__file__).parents[4]
OVERRIDDEN = [
    (app._Daemon, WorkerThread),
    (app._Thread, driver.AIOKafkaConsumerThread),
    (app._Consumer, driver.Consumer),
    (app._Transport, driver.Transport),
    (app._Tables, TableManager),
    (app._Stream, Stream),
    (app._Boot, BootStrategy),
    (app.WorkerApp, faust.App),
]
OWN = {
    "_Daemon.__init__",
    "_Tables._open",
    "_Consumer.__init__",
    "_Consumer._read_past",
    "_Consumer._take_read",
    "_Consumer.commit_covered",
    "WorkerApp.__init__",
    "WorkerApp._end",
    "WorkerApp._fold",
    "WorkerApp._places",
    "WorkerApp._started_or_failed",
    "WorkerApp._tell_folded",
    "WorkerApp._watch",
    "WorkerApp.new_consumer",
    "WorkerApp.open_tables",
    "WorkerApp.run",
}
"""Names that are not Faust's, and must not become so."""

CALLED = [
    (driver.AIOKafkaConsumerThread, "_ensure_consumer", ["self"]),
    (driver.Consumer, "assignment", ["self"]),
    (driver.Consumer, "position", ["self", "tp"]),
    (driver.Consumer, "seek_wait", ["self", "partitions"]),
    (TableManager, "_update_channels", ["self"]),
    (Stream, "take_events", ["self", "max_", "within"]),
]


def functions_of(cls: type) -> dict[str, object]:
    return {name: one for name, one in vars(cls).items() if inspect.isfunction(one)}


@pytest.mark.parametrize(("ours", "base"), OVERRIDDEN, ids=lambda one: one.__qualname__)
def test_what_is_overridden_is_there_with_the_same_parameters(ours: type, base: type) -> None:
    assert base in ours.__mro__
    for name, function in functions_of(ours).items():
        if f"{ours.__name__}.{name}" in OWN:
            continue
        theirs = getattr(base, name, None)
        assert theirs is not None, f"{base.__name__} has no {name}"
        expected = _shape(theirs)
        assert _shape(function) == expected, f"{base.__name__}.{name}{expected}"
        assert _is_async(function) == _is_async(theirs), f"{base.__name__}.{name}"


def test_what_is_ours_hides_nothing_of_the_bases() -> None:
    known = {(ours.__name__, base) for ours, base in OVERRIDDEN}
    for qualified in OWN:
        class_, _, name = qualified.partition(".")
        if name == "__init__":
            continue
        (base,) = [base for ours, base in known if ours == class_]
        assert not hasattr(base, name), qualified


@pytest.mark.parametrize(("cls", "name", "parameters"), CALLED)
def test_what_is_called_is_there(cls: type, name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(cls, name)).parameters) == parameters


def test_what_is_read_is_there() -> None:
    assert hasattr(driver.Transport, "Consumer")
    assert driver.AIOKafkaConsumerThread.Worker is WorkerThread
    assert "_read_offset" in inspect.getsource(driver.AIOKafkaConsumerThread)
    assert "generation_id=self.app.consumer_generation_id" in inspect.getsource(driver.Consumer)


@pytest.mark.parametrize("package", ["faust-streaming", "mode-streaming", "aiokafka"])
def test_what_is_installed_is_what_is_pinned(package: str) -> None:
    pins = (REPOSITORY / "constraints.txt").read_text()
    found = re.search(rf"^{package}==(\S+)$", pins, re.MULTILINE)
    assert found is not None
    assert importlib.metadata.version(package) == found[1]


WORK = FoldedWork(3, 180_000, 0.004)


class Committing:
    """What `_Thread._commit` asks of itself: three partitions, and how far their tables are."""

    def __init__(self, covered: dict[int, int], failure: Exception | None = None) -> None:
        self.committed: list[dict[TP, tuple[int, str]]] = []
        owner = SimpleNamespace(covered=covered.get, last_work={0: WORK}.get)
        self.app = SimpleNamespace(owner=owner)
        self._failure = failure

    def assignment(self) -> set[TP]:
        return {TP("events", number) for number in range(3)}

    def _ensure_consumer(self) -> "Committing":
        return self

    async def commit(self, offsets: dict[TP, tuple[int, str]]) -> None:
        # As aiokafka does:
        if not offsets:
            raise ValueError(offsets)
        if not all(isinstance(part, TopicPartition) for part in offsets):
            raise TypeError("Key should be TopicPartition instance")
        if self._failure is not None:
            raise self._failure
        self.committed.append(offsets)


ACKED = {TP("events", number): 10 for number in (0, 1, 3)}


def committed_by(thread: Committing) -> bool:
    return asyncio.run(app._Thread._commit(thread, ACKED))  # type: ignore[arg-type]


def test_what_open_tables_cover_is_committed_whatever_was_acked() -> None:
    thread = Committing({0: 7, 1: 12, 3: 9})
    assert committed_by(thread)
    said = encode_work(WORK)
    assert thread.committed == [{TP("events", 0): (7, said), TP("events", 1): (12, "")}]


def test_while_no_table_is_open_nothing_is_committed_and_nothing_fails() -> None:
    thread = Committing({})
    assert not committed_by(thread)
    assert thread.committed == []


class Acked:
    """What `_Consumer._new_offset` asks of itself."""

    def __init__(self, *offsets: int) -> None:
        self._acked = {TP("events", 0): list(offsets)}
        self._acked_index = {TP("events", 0): set(offsets)}

    def new_offset(self) -> int | None:
        return app._Consumer._new_offset(self, TP("events", 0))  # type: ignore[arg-type]


def test_what_was_acked_is_told_once_whatever_lies_between_and_nothing_of_it_is_kept() -> None:
    acked = Acked(17, 3, 40)
    assert acked.new_offset() == 41
    assert acked.new_offset() is None
    assert acked._acked == {TP("events", 0): []}
    assert acked._acked_index == {TP("events", 0): set()}


def test_between_messages_of_many_records_there_is_no_gap() -> None:
    """Faust would keep a tree of them for each partition, and sort it with each message."""
    consumer = SimpleNamespace(_gap=defaultdict(list))
    asyncio.run(app._Consumer._add_gap(consumer, TP("events", 0), 4, 17))  # type: ignore[arg-type]
    assert not consumer._gap


@pytest.mark.parametrize("failure", [KafkaError("rebalancing"), OSError("away")])
def test_a_commit_that_fails_is_left_to_the_next_one(failure: Exception) -> None:
    assert not committed_by(Committing({0: 7}, failure))


class Threaded(app._Thread):
    """Whose calls are answered by nobody."""

    def __init__(self, *, crashed: bool) -> None:
        self.called = 0
        self._crashed = asyncio.Event()  # type: ignore[assignment]
        if crashed:
            self._crashed.set()

    async def call_thread(self, *_: object, **__: object) -> None:
        self.called += 1
        await asyncio.Event().wait()


@pytest.mark.parametrize("crashed", [False, True])
def test_a_commit_ends_though_the_thread_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, crashed: bool
) -> None:
    monkeypatch.setattr(app, "WORKER_COMMIT_S", 0.01)

    async def run() -> None:
        thread = Threaded(crashed=crashed)
        assert not await thread.commit(ACKED)
        assert thread.called == (not crashed)

    asyncio.run(run())


def _shape(function: object) -> list[tuple[str, object, bool]]:
    """Names and kinds of the parameters, and which may be left out."""
    assert callable(function)
    return [
        (one.name, one.kind, one.default is not inspect.Parameter.empty)
        for one in inspect.signature(function).parameters.values()
    ]


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function)


class Damaged:
    """What `_Consumer._getmany` asks of others: partition 0 is damaged from 3 to 4 and has 5, and
    partition 1 always has something.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, found: "asyncio.Future[list[LogEntry]]"):
        self.place = 3
        self.sought: list[dict[TP, int]] = []
        self.consumer = app._Consumer.__new__(app._Consumer)
        self.consumer._reading = {}
        self.consumer._read_offset = {}
        owner = SimpleNamespace(read_past=lambda *_: found)
        self.consumer.app = SimpleNamespace(owner=owner)  # type: ignore[assignment]
        monkeypatch.setattr(driver.Consumer, "_getmany", self.fetch)
        monkeypatch.setattr(app._Consumer, "assignment", lambda _: {FIRST, SECOND})
        monkeypatch.setattr(app._Consumer, "position", self.position)
        monkeypatch.setattr(app._Consumer, "seek_wait", self.seek)
        self.told = 0

    async def fetch(self, active: set[TP], *_: float) -> dict[TP, list[object]]:
        self.told += 1
        if FIRST in active and self.told % 2:
            raise DamagedPartitionError(Partition(*FIRST), self.place, None)
        return {SECOND: [SimpleNamespace(offset=self.told, value=b"", headers=())]}

    async def position(self, tp: TP) -> int:
        return self.place

    async def seek(self, offsets: dict[TP, int]) -> None:
        self.sought.append(offsets)


FIRST, SECOND = TP("events", 0), TP("events", 1)
BEHIND = [LogEntry(Offset(3), b""), LogEntry(Offset(4), b""), LogEntry(Offset(5), b"x")]


def test_the_others_go_on_while_damage_is_read_past(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        found = asyncio.get_running_loop().create_future()
        seen = Damaged(monkeypatch, found)
        given = [await seen.consumer._getmany({FIRST, SECOND}, 1.0) for _ in range(6)]
        assert [list(one) for one in given] == [[], [SECOND]] * 3
        found.set_result(BEHIND)
        given = [await seen.consumer._getmany({SECOND}, 1.0) for _ in range(2)]
        assert [list(one) for one in given] == [[SECOND]] * 2, "what is given of others is lost"
        assert seen.sought == []
        ((message,),) = (await seen.consumer._getmany({FIRST, SECOND}, 1.0)).values()
        assert (message.offset, message.value) == (3, BEHIND)
        assert seen.sought == [{FIRST: 6}]
        assert seen.consumer._read_offset == {FIRST: 3}

    asyncio.run(scenario())


def test_what_was_read_where_the_partition_stood_before_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        found = asyncio.get_running_loop().create_future()
        seen = Damaged(monkeypatch, found)
        await seen.consumer._getmany({FIRST, SECOND}, 1.0)
        found.set_result(BEHIND)
        seen.place = 2  # its table was opened anew
        assert await seen.consumer._getmany({FIRST, SECOND}, 1.0) == {}
        assert (seen.sought, seen.consumer._reading) == ([], {})

    asyncio.run(scenario())


def test_records_that_came_together_are_few_messages_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "WORKER_MESSAGE_BYTES", 10)
    sizes = [4, 6, 1, 30, 0, 10, 1]
    entries = [LogEntry(Offset(3 + place), b"x" * size) for place, size in enumerate(sizes)]
    messages = app._together(FIRST, entries)
    assert [[len(entry.value) for entry in message.value] for message in messages] == [
        [4, 6],
        [1],
        [30],
        [0, 10],
        [1],
    ]
    assert [entry for message in messages for entry in message.value] == entries
    assert [message.offset for message in messages] == [3, 5, 6, 7, 9]
    assert app._together(FIRST, []) == []


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([("traceparent", TRACEPARENT.encode())], TRACEPARENT),
        ([("other", b"x"), ("traceparent", TRACEPARENT.encode())], TRACEPARENT),
        ([("traceparent", b"no context \xff")], None),
        ([("traceparent", None)], None),
        ([("other", TRACEPARENT.encode())], None),
        ([], None),
    ],
)
def test_a_record_says_which_span_wrote_it(
    headers: list[tuple[str, bytes | None]], found: str | None
) -> None:
    entry = app._entry(SimpleNamespace(offset=3, value=b"x", headers=headers))
    assert entry == LogEntry(Offset(3), b"x")
    assert (entry.traceparent if isinstance(entry, TracedEntry) else None) == found
