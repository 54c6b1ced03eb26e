"""A worker's table through crashes, lost disks and lost topics; its followers at any compaction."""

import asyncio
import random
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logs.interface import LogEntry
from schemas.errors import TableLostError
from schemas.identities import Offset
from schemas.positions import LogBounds
from schemas.registration import Registration
from streams.table.fold import Fold
from streams.table.recovery import RecoveryAction
from streams.table.rows.reader import RowReader
from streams.table.table import Table
from tests.building import cleared, events_record, registered_record, stored
from tests.kills import Kill, Killed, kills
from tests.property.test_recovery_equals_never_crashing import (
    IDLE_RECORDS,
    MEMORY,
    POOLED_KINDS,
    RETIRED,
    Item,
    assert_nothing_wrong_is_exact,
    histories,
    records_of,
    straight,
)
from tests.slices import SLICES, WHOLE, sliced
from tests.unit.streams.table_topic import MemoryTopic

pytestmark = pytest.mark.timeout(600)

T = TypeVar("T")
FAULTS = [
    "flush",
    "flush",
    "abort",
    "disk",
    "topic",
    "both",
    "takeover",
    "before",
    "after",
    "chunks",
    "clean",
    "again",
    "spoil",
    "kill",
    "kill",
]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def state(one: Fold | RowReader) -> object:
    return (
        one.kernel.contexts(),
        one.kernel.scopes(),
        one.publishers,
        one.ledgers.current if isinstance(one, Fold) else one.ledgers,
        one.registrations,
    )


class World:
    """A log of events, a table topic, a worker and a follower that never rests."""

    def __init__(
        self,
        directory: Path,
        make_fold: Callable[[], Fold],
        seed: int,
        *,
        generation_min_bytes: int = 0,
        kill: Kill | None = None,
    ) -> None:
        self.directory = directory
        self.kill = kill or Kill()
        self.first = 0
        self.generation_min_bytes = generation_min_bytes
        self.make_fold = make_fold
        self.rng = random.Random(seed)
        self.events: list[bytes] = []
        self.topic = MemoryTopic()
        self.names = 0
        self.disk = 0
        self.live = RowReader(make_fold().kernel)
        self.followed = 0
        self.open()
        self.live.caught_up(0)

    def open(self) -> None:
        self.owned = self.topic.open()
        self.table = Table(
            self.directory / f"disk-{self.disk}",
            self.make_fold,
            self.owned,
            make_name=self.name,
            generation_min_bytes=self.generation_min_bytes,
        )
        bounds = LogBounds(self.first, len(self.events))
        self.plan = run(self.table.open(bounds, now=0.0))
        self.fold()

    def name(self) -> bytes:
        self.names += 1
        return bytes([self.names])

    def fold(self) -> None:
        start = self.table.next_offset
        entries = [
            LogEntry(Offset(start + place), value)
            for place, value in enumerate(self.events[start:])
        ]
        self.table.apply(entries)

    def flush(self) -> None:
        run(self.table.flush(now=0.0))
        self.followed = self.topic.follow(self.live, self.followed)

    def fault(self, name: str) -> None:
        alive = {
            "flush": self.flush,
            "clean": lambda: self.topic.compact(self.rng),
            "again": self.take_again,
            "kill": self.die,
            "retire": self.retire,
        }
        if name in alive:
            alive[name]()
            return
        if name in ("before", "after", "chunks"):
            self.owned.fails = name
            unflushed = self.table.fold.offset != self.table.flushed
            try:
                run(self.table.flush(now=0.0))
            except TableLostError:
                assert unflushed
            else:
                assert name == "chunks" or not unflushed
        self.restart(name)

    def take_again(self) -> None:
        assert run(self.table.take_again())

    def restart(self, name: str) -> None:
        old = self.table
        if name == "takeover":
            self.disk += 1
            self.open()
            if old.fold.offset != old.flushed:
                with pytest.raises(TableLostError):
                    run(old.flush(now=0.0))
            old.close()
            return
        old.close()
        if name in ("disk", "both"):
            shutil.rmtree(self.directory / f"disk-{self.disk}")
        if name in ("topic", "both"):
            self.topic.lose()
            self.followed = 0
        if name == "spoil":
            self.topic.spoil()
        self.open()

    def die(self) -> None:
        """Somewhere in a flush, and somewhere in the opening and the first flush after it."""
        self.kill.left = self.rng.randrange(8)
        killed = self.is_killed_in(self.flush)
        with self.kill.asleep():
            self.table.close()
            if not killed and self.rng.random() < 0.3:
                self.topic.spoil()
        if self.is_killed_in(self.open_and_flush):
            with self.kill.asleep():
                self.table.close()
                self.open()
        self.kill.left = None

    def open_and_flush(self) -> None:
        self.open()
        self.flush()

    @staticmethod
    def is_killed_in(work: Callable[[], None]) -> bool:
        try:
            work()
        except Killed:
            return True
        return False

    def retire(self) -> None:
        """The events lose a beginning, of which the table may not have all; bridges write again who
        is registered.
        """
        self.first = self.rng.randint(self.first, len(self.events))
        self.events += map(registered_record, self.registered)
        self.fold()

    @property
    def registered(self) -> list[Registration]:
        known = self.table.fold.registrations.values()
        return [one.registration for one in known]


@settings(max_examples=50)
@given(
    histories() | histories(POOLED_KINDS),
    st.lists(st.sampled_from(FAULTS), max_size=12),
    st.integers(0, 2**32),
    st.sampled_from(SLICES),
)
def test_any_faults_give_the_fresh_fold_to_worker_and_followers(
    make_fold: Callable[[], Fold], history: list[Item], faults: list[str], seed: int, entries: int
) -> None:
    records = records_of(history)
    truth = straight(records, make_fold)
    memory = MEMORY if MEMORY.is_dir() else None
    with sliced(entries), TemporaryDirectory(dir=memory) as directory, kills() as kill:
        minimum = (seed % 2) * 2**20
        world = World(Path(directory), make_fold, seed, generation_min_bytes=minimum, kill=kill)
        due = {world.rng.randrange(len(records)): fault for fault in faults}
        for place, record in enumerate(records):
            world.events.append(record)
            world.fold()
            if place in due:
                world.fault(due[place])
            elif entries < WHOLE:
                world.flush()
        world.flush()
        assert state(world.table.fold) == state(truth)
        assert state(world.live) == state(truth)
        for _ in range(3):
            cold = RowReader(make_fold().kernel)
            world.topic.follow(cold)
            cold.caught_up(0)
            assert state(cold) == state(truth)
            assert cold.covered(0) == len(records) - 1
            assert not cold.take_skipped()
            world.topic.compact(world.rng)
        world.table.close()


ENDS = ["abort", "both", "spoil", "flush", "kill"]


@settings(max_examples=50)
@given(histories(RETIRED), st.lists(st.sampled_from(["retire", *ENDS]), max_size=12), st.integers())
def test_what_the_events_no_longer_prove_is_never_called_exact(
    make_fold: Callable[[], Fold], history: list[Item], faults: list[str], seed: int
) -> None:
    records = [*IDLE_RECORDS, *records_of(history)]
    truth = straight(records, make_fold)
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory, kills() as kill:
        world = World(Path(directory), make_fold, seed, kill=kill)
        due = {world.rng.randrange(len(records)): fault for fault in faults}
        for place, record in enumerate(records):
            world.events.append(record)
            world.fold()
            if place in due:
                world.fault(due[place])
        for end in ["retire", world.rng.choice(ENDS), "flush"]:
            world.fault(end)
        for told in (world.table.fold, world.live):
            assert_nothing_wrong_is_exact(told, truth)
        assert world.live.publishers == world.table.fold.publishers
        assert world.live.ledgers == world.table.fold.ledgers.current
        world.table.close()


@settings(max_examples=30)
@given(histories() | histories(POOLED_KINDS))
def test_the_three_recoveries_give_one_table(
    make_fold: Callable[[], Fold], history: list[Item]
) -> None:
    records = records_of(history)
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        world = World(Path(directory), make_fold, 0)
        for record in records:
            world.events.append(record)
            world.fold()
            world.flush()
        expected = state(world.table.fold)
        for fault, action in [
            ("abort", RecoveryAction.RESUME),
            ("disk", RecoveryAction.RESUME),
            ("topic", RecoveryAction.PUBLISH),
            ("both", RecoveryAction.REBUILD),
        ]:
            world.fault(fault)
            assert world.plan.action is action
            assert state(world.table.fold) == expected
            world.flush()
        world.table.close()


def test_a_rebuilt_topic_takes_nothing_from_a_generation_of_the_lost_one(
    make_fold: Callable[[], Fold], tmp_path: Path
) -> None:
    world = World(tmp_path, make_fold, 0)
    history = [
        events_record(0, 0, [stored(0, [3], range(12, 16))]),
        events_record(1, 1, [stored(1, [3], range(12, 16)) for _ in range(20)]),
        events_record(2, 2, [cleared(2)]),
    ]
    for record in history[:2]:
        world.events.append(record)
        world.fold()
        world.flush()
    assert world.table.generations
    world.events.append(history[2])
    world.fault("both")
    world.flush()
    assert state(world.live) == state(straight(history, make_fold))
    assert world.live.counters["resets"] == 1
    world.table.close()


def test_a_table_that_cannot_be_used_leaves_no_row_to_the_one_built_after_it(
    make_fold: Callable[[], Fold], tmp_path: Path
) -> None:
    world = World(tmp_path, make_fold, 0, generation_min_bytes=2**20)
    history = [events_record(n, n, [stored(n, [n + 1], range(4 * n, 4 * n + 4))]) for n in range(5)]
    for record in history:
        world.events.append(record)
        world.fold()
        world.flush()
    history.append(events_record(5, 5, [cleared(5)]))
    world.events.append(history[-1])
    world.fault("spoil")
    assert world.plan.action is RecoveryAction.REBUILD
    world.flush()
    cold = RowReader(make_fold().kernel)
    world.topic.follow(cold)
    cold.caught_up(0)
    assert state(cold) == state(straight(history, make_fold))
    assert not cold.take_skipped()
    world.table.close()
