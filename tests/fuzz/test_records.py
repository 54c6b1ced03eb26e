"""Hostile records through everything that reads a topic, in process and at full speed.

Beside them stand the good records of one publisher, whose state must be as without the others.
"""

import asyncio
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.delivery.lease import Lease
from bridge.membership.cursors import Cursors
from bridge.membership.registry_reader import RegistryPartition, RegistryReader
from brokers.clients import Clients
from logs.interface import LogEntry
from query_api.replica.replica import Replica
from query_api.replica.snapshot import Topic, TopicPartition
from query_api.replica.topic_reader import TopicReader
from schemas.identities import Offset
from schemas.limits import KIB, MIB
from schemas.positions import LogBounds
from schemas.topics import CursorNote, encode_note, encode_publisher, encode_registration
from streams.kernel import open_kernel
from streams.kernel.interface import Kernel
from streams.table.driver import FlushPace, FoldDriver
from streams.table.fold import Fold
from streams.table.rows.reader import RowReader
from streams.table.table import Table
from streams.table.threads import run_without_loop
from tests.building import events_record, registered_record, registration, stored
from tests.fakes import FlushingWorker
from tests.fuzz.records import Entry, Records
from tests.unit.bridge.membership.topics import SETTINGS, TOPICS, Topics

pytestmark = pytest.mark.timeout(1800)

RECORDS = 100_000  # of each topic
GOOD_ONE_IN = 500
GROWTH_BYTES_MAX = 256 * MIB  # of records that are read, folded, and dropped or kept within bounds
GOOD = registration("a")
GOOD_KEY = encode_publisher(GOOD.publisher)


class Bounded:
    """What reading may cost from `begin` on, and the seed where anything fails."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._before = 0
        self.records = Records(seed)

    def __enter__(self) -> "Bounded":
        self.begin()
        return self

    def begin(self) -> None:
        """What was made until now is the test's."""
        self._before = peak_bytes()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            error.add_note(f"--seed {self._seed}")
            return
        grown = peak_bytes() - self._before
        assert grown < GROWTH_BYTES_MAX, f"{grown} bytes, --seed {self._seed}"


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB


def good_record(number: int) -> bytes:
    if number == 0:
        return registered_record(GOOD)
    block = number % 50
    return events_record(
        number - 1, number - 1, [stored(number - 1, [block], range(4 * block, 4 * block + 4))]
    )


def mixed(count: int, poison: Callable[[], Any], good: Callable[[int], Any]) -> Iterator[Any]:
    """So many hostile ones, and good ones between them; the last one is good."""
    for number in range(count + 1):
        if number % GOOD_ONE_IN == 0 or number == count:
            yield good(-(-number // GOOD_ONE_IN))
        else:
            yield poison()


def make_fold() -> Fold:
    return Fold(open_kernel(1337))


def digest(kernel: Kernel, instance_id: str) -> int:
    (found,) = [one for one in kernel.contexts() if one.context.instance_id == instance_id]
    return found.digest


def expected_fold(count: int) -> Fold:
    """Of the good records alone."""
    fold = make_fold()
    for number in range(-(-count // GOOD_ONE_IN) + 1):
        fold.apply(Offset(number), good_record(number))
    return fold


def test_events_for_a_worker(seed: int, scaled: Callable[[int], int], tmp_path: Path) -> None:
    """What is folded is also stored, and read again as it was."""
    count = scaled(RECORDS)
    with Bounded(seed) as bound:
        table = Table(tmp_path / "table", make_fold)
        run_without_loop(table.open(LogBounds(0, 0), now=0.0))
        driver = FoldDriver(table, pace=FlushPace(flush_s=0.05))
        values = mixed(count, bound.records.event, good_record)
        for offset, value in enumerate(values):
            run_without_loop(driver.fold([LogEntry(Offset(offset), value)]))
            run_without_loop(driver.flush_if_due())
        run_without_loop(driver.flush())
        fold, good = table.fold, expected_fold(count)
        assert driver.faults == 0
        assert fold.offset == count
        assert fold.publishers[GOOD.publisher] == good.publishers[GOOD.publisher]
        assert digest(fold.kernel, "a") == digest(good.kernel, "a")
        skipped = sum(n for name, n in driver.counters.items() if name.startswith("skipped_"))
        assert count / 4 < skipped < count
        digests = {one.context: one.digest for one in fold.kernel.contexts()}
        table.close()
        again = Table(tmp_path / "table", make_fold)
        run_without_loop(again.open(LogBounds(0, count + 1), now=0.0))
        found = {one.context: one.digest for one in again.fold.kernel.contexts()}
        again.close()
        assert {context: one for context, one in found.items() if one} == {
            context: one for context, one in digests.items() if one
        }


def test_events_and_cursors_for_a_bridge(seed: int, scaled: Callable[[int], int]) -> None:
    count = scaled(RECORDS)
    with Bounded(seed) as bound:
        topics = Topics()
        good = good_note(count)
        for key, value in mixed(count, bound.records.cursor, lambda _: good):
            topics.append(TOPICS.cursors.name, 0, key, value)
        for value in mixed(count, bound.records.event, good_record):
            topics.append(TOPICS.events.name, 0, b"k", value)
        bound.begin()
        cursors = Cursors(cast(Clients, topics), TOPICS)
        asyncio.run(cursors.load([0]))
        homes = dict.fromkeys([one for one in cursors.known(0)], 0)
        found = asyncio.run(cursors.recover(homes))
        assert cursors.skipped.faults == 0
        assert cursors.skipped.total() > count / 4
        last = -(-count // GOOD_ONE_IN) - 1
        assert found[GOOD.publisher].cursor.sequence == last


def good_note(count: int) -> Entry:
    return GOOD_KEY, encode_note(CursorNote(incarnation=1, sequence=-1, partition=0, offset=0))


class Owner:
    """Nobody; the reader has no partition that is read to its end."""


def test_registry_for_a_bridge(seed: int, scaled: Callable[[int], int]) -> None:
    with Bounded(seed) as bound:
        reader = RegistryReader(
            cast(Clients, None), SETTINGS, cast(Any, Owner()), Lease(), session_s=10.0
        )
        partition = reader._owned[0] = RegistryPartition()
        good = GOOD_KEY, encode_registration(GOOD)
        for message in messages(mixed(scaled(RECORDS), bound.records.registry, lambda _: good)):
            reader._take(message)
        assert reader.skipped.faults == 0
        assert reader.skipped.total() > 0
        assert partition.publishers[GOOD.publisher] == GOOD


def messages(entries: Iterable[Entry]) -> Iterator[Any]:
    now = int(time.time() * 1000)
    for offset, (key, value) in enumerate(entries):
        yield SimpleNamespace(partition=0, offset=offset, timestamp=now, key=key, value=value)


def good_rows() -> Callable[[int], list[Entry]]:
    """The rows of one flush for each record."""
    worker = FlushingWorker(make_fold(), table=b"t")
    return lambda number: [(row.key, row.value) for row in worker.flush(good_record(number))]


def test_table_for_a_reader_of_rows(seed: int, scaled: Callable[[int], int]) -> None:
    count = scaled(RECORDS)
    with Bounded(seed) as bound:
        reader = RowReader(open_kernel(1337))
        rows = mixed(count, lambda: [bound.records.row()], good_rows())
        for number, entries in enumerate(rows):
            for key, value in entries:
                reader.put(0, key, value)
            if number == count // 10:
                reader.caught_up(0)
            reader.take_skipped()
        check_rows(reader, count)
        assert reader.counters["corrupt_rows"] > count / 10


def check_rows(reader: RowReader, count: int) -> None:
    good = expected_fold(count)
    assert digest(reader.kernel, "a") == digest(good.kernel, "a")
    assert reader.publishers[GOOD.publisher] == good.publishers[GOOD.publisher]
    assert reader.registrations[GOOD.publisher].registration == GOOD


def test_table_and_registry_for_a_replica(seed: int, scaled: Callable[[int], int]) -> None:
    count = scaled(RECORDS)
    partitions = {Topic.TABLE: 1, Topic.REGISTRY: 1}
    with Bounded(seed) as bound:
        replica = Replica(lambda: RowReader(open_kernel(1337)), partitions)
        no = cast(Any, None)
        reader = TopicReader(SETTINGS, cast(Any, {}), replica, prepare=no, when_refused=no)
        snapshot = replica.loading
        table, registry = TopicPartition(Topic.TABLE, 0), TopicPartition(Topic.REGISTRY, 0)
        flushes = list(mixed(count, lambda: [bound.records.row(contexts=False)], good_rows()))
        rows = list(messages(entry for flush in flushes for entry in flush))
        good = GOOD_KEY, encode_registration(GOOD)
        entries = list(messages(mixed(count, bound.records.registry, lambda _: good)))
        # Caught up from the first flush on: a spoilt `covered` row before that has all reread.
        ends = {table: len(flushes[0]), registry: len(entries)}
        bound.begin()
        snapshot.begin(time.monotonic(), ends | {TopicPartition(Topic.EVENTS, 0): 0})
        asyncio.run(read(reader, replica, registry, entries))
        asyncio.run(read(reader, replica, table, rows[: ends[table]]))
        asyncio.run(read(reader, replica, table, rows[ends[table] :]))
        assert replica.internal_errors == 0
        assert snapshot.registry.registrations[GOOD.publisher] == GOOD
        assert replica.entries_skipped > 0
        check_rows(snapshot.table, count)


async def read(
    reader: TopicReader, replica: Replica, place: TopicPartition, entries: list[Any]
) -> None:
    for begin in range(0, len(entries), 500):
        await reader._apply(place, entries[begin : begin + 500])
        replica.note_progress()
