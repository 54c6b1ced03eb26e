"""A snapshot by itself: what it says of how far it is."""

import pytest

from query_api.ports import Lag
from query_api.replica.snapshot import Snapshot, Topic, TopicPartition
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.rows.format import OWNER_KEY
from streams.table.rows.reader import RowReader
from tests.building import registered_record, registration
from tests.fakes import FlushingWorker

TABLE_0, TABLE_1 = TopicPartition(Topic.TABLE, 0), TopicPartition(Topic.TABLE, 1)
REGISTRY = TopicPartition(Topic.REGISTRY, 0)
EVENTS = {TopicPartition(Topic.EVENTS, 0): 5, TopicPartition(Topic.EVENTS, 1): 0}
ENDS = {TABLE_0: 3, TABLE_1: 0, REGISTRY: 2} | EVENTS


@pytest.fixture
def snapshot() -> Snapshot:
    return Snapshot(
        lambda: RowReader(open_kernel(1337, name="reference"), has_registry=True),
        {Topic.TABLE: 2, Topic.REGISTRY: 1},
    )


def advance(snapshot: Snapshot, place: TopicPartition, next_offset: int) -> None:
    for _ in snapshot.advance(place, next_offset):
        pass


def test_before_it_is_known_where_the_topics_end_nothing_is_complete_or_asked_of_them(
    snapshot: Snapshot,
) -> None:
    assert (snapshot.complete, snapshot.registry_complete) == (False, False)
    assert not snapshot.has_caught_up(TABLE_0)
    assert snapshot.needed_ends() == {TABLE_0: 0, TABLE_1: 0, REGISTRY: 0}
    assert snapshot.lag(100.0, reachable=True) == Lag(0, 0, 0.0, reachable=True)


def test_it_is_complete_once_every_partition_was_read_to_where_it_ended(
    snapshot: Snapshot,
) -> None:
    snapshot.begin(100.0, ENDS)
    advance(snapshot, TABLE_0, 1)
    advance(snapshot, TABLE_1, 0)
    advance(snapshot, REGISTRY, 1)
    assert [snapshot.has_caught_up(place) for place in snapshot.next_offsets] == [
        False,
        True,
        False,
    ]
    assert snapshot.progress() == "reading the table: 3 records of 2 partitions are left"
    assert not snapshot.registry_complete
    advance(snapshot, REGISTRY, 2)
    assert (snapshot.registry_complete, snapshot.complete) == (True, False)
    advance(snapshot, TABLE_0, 3)
    assert snapshot.complete


def test_its_rows_say_how_old_it_is_but_not_those_written_before_anything_was_folded(
    snapshot: Snapshot,
) -> None:
    snapshot.begin(100.0, ENDS)
    snapshot.put_row(TABLE_0, OWNER_KEY, None, as_of=10.0)
    assert snapshot.lag(100.0, reachable=True).seconds == 0.0
    worker = FlushingWorker(Fold(open_kernel(1337, name="reference")))
    for key, value in worker.flush(registered_record(registration("a"))):
        snapshot.put_row(TABLE_0, key, value, as_of=40.0)
    assert snapshot.lag(100.0, reachable=True).seconds == 60.0


def test_rows_that_come_again_for_a_position_leave_the_table_settled_there(
    snapshot: Snapshot,
) -> None:
    snapshot.begin(100.0, ENDS)
    worker = FlushingWorker(Fold(open_kernel(1337, name="reference")))
    rows = worker.flush(registered_record(registration("a")))
    for next_offset in (3, 6):
        for key, value in rows:
            snapshot.put_row(TABLE_0, key, value, as_of=40.0)
        if next_offset > 3:
            assert snapshot.table.kernel.settled() is None
        advance(snapshot, TABLE_0, next_offset)
        settled = snapshot.table.kernel.settled()
        assert settled is not None
        assert settled[1] == [(0, 0), (1, -1)]
