"""A replica without Kafka: what its reader tells it, what the HTTP API then says."""

from collections.abc import Callable

import msgspec
import pytest

from query_api.replica.replica import Replica
from query_api.replica.snapshot import Topic, TopicPartition
from reprise.application import create_app
from reprise.metrics.roles import replica_collector
from schemas.answer_states import AnswerState, Doubt
from schemas.conditions import Level, Part
from schemas.limits import STALE_S
from schemas.registration import LMCACHE, Registration
from schemas.topics import encode_publisher, encode_registration
from streams.table.fold import Fold
from streams.table.rows.reader import RowReader
from tests.building import (
    SCOPE,
    events_record,
    heartbeat_record,
    registered_record,
    registration,
    report,
    stored,
    unregistered_record,
)
from tests.fakes import AsgiClient, FakeTable, FlushingWorker

TOKENS = list(range(12))
QUERY = {"model": "m", "block_size": 4, "token_ids": TOKENS}
PARTITIONS = {Topic.TABLE: 2, Topic.REGISTRY: 1}
TABLE_0, TABLE_1 = TopicPartition(Topic.TABLE, 0), TopicPartition(Topic.TABLE, 1)
REGISTRY = TopicPartition(Topic.REGISTRY, 0)


class Reader:
    """Stands in for the reader of Kafka: topics in memory, a clock that the test turns."""

    def __init__(self, make_fold: Callable[[], Fold]) -> None:
        self.now = 100.0
        self.replica = Replica(
            lambda: RowReader(make_fold().kernel, has_registry=True),
            PARTITIONS,
            clock=lambda: self.now,
            unix=lambda: self.now,
        )
        self.topics: dict[TopicPartition, list[tuple[bytes, bytes | None]]] = {
            place: [] for place in (TABLE_0, TABLE_1, REGISTRY)
        }
        self.events = {TopicPartition(Topic.EVENTS, number): 0 for number in range(2)}

    def check(self) -> None:
        ends = {place: len(entries) for place, entries in self.topics.items()}
        self.replica.note_ends(ends | self.events)

    def read(self) -> None:
        """All that there is, from where the copy stands."""
        snapshot = self.replica.loading
        for place, entries in self.topics.items():
            for offset in range(snapshot.next_offsets[place], len(entries)):
                if place.topic is Topic.TABLE:
                    snapshot.put_row(place, *entries[offset], as_of=self.now)
                else:
                    snapshot.registry.put(offset, *entries[offset])
            for _ in snapshot.advance(place, len(entries)):
                pass
        self.replica.note_progress()

    def register(self, one: Registration) -> None:
        self.topics[REGISTRY].append((encode_publisher(one.publisher), encode_registration(one)))


@pytest.fixture
def reader(make_fold: Callable[[], Fold]) -> Reader:
    return Reader(make_fold)


@pytest.fixture
def worker(make_fold: Callable[[], Fold]) -> FlushingWorker:
    return FlushingWorker(make_fold())


@pytest.fixture
def replica_client(reader: Reader) -> AsgiClient:
    return AsgiClient(create_app(reader.replica, FakeTable()))


FIRST = (
    registered_record(registration("a")),
    events_record(0, 0, [stored(0, [1, 2], TOKENS[:8])]),
)
SECOND = events_record(1, 1, [stored(1, [3], TOKENS[8:], parent=2)])


def test_a_replica_is_not_ready_until_every_partition_has_caught_up(
    reader: Reader, worker: FlushingWorker, replica_client: AsgiClient
) -> None:
    reply = replica_client.get("/ready")
    assert (reply.status, reply.document()["reason"]) == (503, "recovering")
    reader.topics[TABLE_0] += worker.flush(*FIRST)
    reader.register(registration("a"))
    reader.check()
    snapshot = reader.replica.loading
    for key, value in reader.topics[TABLE_0]:
        snapshot.put_row(TABLE_0, key, value, as_of=reader.now)
    for place in (TABLE_0, TABLE_1):
        for _ in snapshot.advance(place, len(reader.topics[place])):
            pass
    reader.replica.note_progress()
    reply = replica_client.get("/ready")
    assert reply.status == 503
    assert reply.document()["error"] == "reading the table: 1 records of 1 partitions are left"
    assert replica_client.post_json("/query", QUERY).status == 503
    reader.read()
    assert replica_client.get("/ready").status == 200
    assert replica_client.post_json("/query", QUERY).document()["default"]["a"]["GPU"] == 8


def test_what_was_begun_to_be_read_is_needed_to_its_end(
    reader: Reader, worker: FlushingWorker
) -> None:
    """A topic that ends before that was recreated, and would be waited for without end."""
    reader.topics[TABLE_0] += worker.flush(*FIRST)
    end = len(reader.topics[TABLE_0])
    reader.check()
    assert reader.replica.loading.needed_ends() == {TABLE_0: end, TABLE_1: 0, REGISTRY: 0}
    reader.read()
    reader.topics[TABLE_0] += worker.flush(SECOND)
    reader.read()
    assert reader.replica.current.needed_ends()[TABLE_0] == len(reader.topics[TABLE_0]) > end


def test_rows_that_came_after_the_start_are_not_waited_for(
    reader: Reader, worker: FlushingWorker
) -> None:
    reader.check()
    reader.topics[TABLE_0] += worker.flush(*FIRST)
    reader.check()
    snapshot = reader.replica.loading
    for place in (TABLE_0, TABLE_1, REGISTRY):
        for _ in snapshot.advance(place, 0):
            pass
    reader.replica.note_progress()
    assert reader.replica.ready
    lag = reader.replica.health().lag
    assert lag is not None
    assert lag.table_records == len(reader.topics[TABLE_0])


def test_answers_tell_the_position_of_every_partition(
    reader: Reader, worker: FlushingWorker, replica_client: AsgiClient
) -> None:
    reader.topics[TABLE_1] += worker.flush(*FIRST)
    reader.check()
    reader.read()
    reply = replica_client.post_json("/query", QUERY)
    assert reply.headers["reprise-position"] == "0:-1,1:1"
    assert reply.headers["reprise-state"] == "unconfirmed"
    reader.topics[TABLE_1] += worker.flush(SECOND)
    reader.read()
    reply = replica_client.post_json("/query", QUERY)
    assert reply.headers["reprise-position"] == "0:-1,1:2"
    assert replica_client.get("/health").document()["position"] == "0:-1,1:2"
    assert replica_client.get("/digest").document()["position"] == "0:-1,1:2"


def test_every_document_has_the_same_form_as_over_the_fold_itself(
    reader: Reader, worker: FlushingWorker, replica_client: AsgiClient
) -> None:
    reader.topics[TABLE_0] += worker.flush(*FIRST, SECOND)
    reader.register(registration("a"))
    reader.check()
    reader.read()
    direct = FakeTable(worker.fold.kernel)
    direct.registrations = {registration("a").publisher: registration("a")}
    direct.states = dict(worker.fold.publishers)
    direct.at = reader.replica.positions()
    direct.role = "serve"
    direct.answer_state = AnswerState.UNCONFIRMED
    direct.lag = reader.replica.health().lag
    client = AsgiClient(create_app(direct, direct))
    for path in ("/digest", "/global_view", "/health", "/ready"):
        assert replica_client.get(path) == client.get(path)
    for send in (AsgiClient.post_json, AsgiClient.post_msgpack):
        assert send(replica_client, "/query", QUERY) == send(client, "/query", QUERY)
    (service,) = replica_client.get("/services").document()["services"]
    (expected,) = client.get("/services").document()["services"]
    unknown = {"Connected": None, "Activity": "", "ActivitySince": 0.0}
    assert service == expected | unknown | {"Reason": "not_followed"}
    assert service["Sequence"] == 1


def test_answers_are_stale_without_an_answer_of_kafka_and_not_once_it_is_back(
    reader: Reader, worker: FlushingWorker
) -> None:
    replica = reader.replica
    reader.topics[TABLE_0] += worker.flush(*FIRST)
    reader.check()
    reader.read()
    assert replica.state(SCOPE) is AnswerState.UNCONFIRMED
    replica.note_unreachable("away")
    assert replica.state(SCOPE) is AnswerState.STALE
    assert (replica.ready, replica.health().problem) == (True, "away")
    reader.now += 60
    lag = replica.health().lag
    assert lag is not None
    assert (lag.seconds, lag.reachable) == (60.0, False)
    reader.check()
    assert replica.state(SCOPE) is AnswerState.UNCONFIRMED
    assert replica.health().problem == ""


def test_what_cannot_be_read_while_kafka_answers_is_told_until_it_is_read(
    reader: Reader, worker: FlushingWorker
) -> None:
    replica = reader.replica
    reader.topics[TABLE_0] += worker.flush(*FIRST)
    reader.check()
    reader.read()
    replica.note_read_failure("a batch fails its checksum")
    reader.check()
    (condition,) = replica.health().conditions
    assert (condition.part, condition.level) == (Part.TABLE, Level.DEGRADED)
    assert replica.ready
    replica.note_read()
    assert replica.health().conditions == ()


def test_answers_become_stale_by_themselves_where_nobody_checks_any_more(
    reader: Reader, worker: FlushingWorker
) -> None:
    reader.check()
    reader.read()
    reader.now += STALE_S - 0.1
    assert reader.replica.state(SCOPE) is AnswerState.EXACT
    reader.now += 0.1
    assert reader.replica.state(SCOPE) is AnswerState.STALE


def test_records_that_no_row_covers_make_answers_stale_in_time(
    reader: Reader, worker: FlushingWorker
) -> None:
    reader.topics[TABLE_0] += worker.flush(*FIRST)
    reader.events[TopicPartition(Topic.EVENTS, 0)] = 2
    reader.check()
    reader.read()
    reader.events[TopicPartition(Topic.EVENTS, 0)] = 3
    for _ in range(int(STALE_S)):
        assert reader.replica.state(SCOPE) is AnswerState.UNCONFIRMED
        reader.now += 1
        reader.check()
    assert reader.replica.state(SCOPE) is AnswerState.STALE
    lag = reader.replica.health().lag
    assert lag is not None
    assert (lag.source_records, lag.seconds) == (1, STALE_S)
    reader.topics[TABLE_0] += worker.flush(SECOND)
    reader.read()
    assert reader.replica.state(SCOPE) is AnswerState.UNCONFIRMED


def test_while_another_copy_is_made_the_old_one_answers_stale(
    reader: Reader, make_fold: Callable[[], Fold]
) -> None:
    reader.topics[TABLE_0] += FlushingWorker(make_fold()).flush(*FIRST)
    reader.check()
    reader.read()
    replica = reader.replica
    reader.replica.reload()
    reader.topics[TABLE_0] = [*FlushingWorker(make_fold()).flush(*FIRST, SECOND)]
    reader.check()
    assert replica.ready
    (condition,) = replica.health().conditions
    assert (condition.part, condition.level) == (Part.RECOVERY, Level.DEGRADED)
    assert replica.state(SCOPE) is AnswerState.STALE
    assert str(replica.positions()[0]) == "0:1"
    assert "reading the table" in replica.health().problem
    reader.read()
    assert replica.state(SCOPE) is AnswerState.UNCONFIRMED
    assert str(replica.positions()[0]) == "0:2"
    assert replica.rebuilds == 1


def test_a_table_topic_that_was_lost_is_not_answered_from_before_it_is_written_again(
    reader: Reader, worker: FlushingWorker, make_fold: Callable[[], Fold]
) -> None:
    reader.topics[TABLE_0] += worker.flush(*FIRST)
    reader.events[TopicPartition(Topic.EVENTS, 0)] = 2
    reader.check()
    reader.read()
    replica = reader.replica
    before = replica.current
    reader.topics[TABLE_0] = []
    replica.reload()
    reader.check()
    reader.read()
    assert replica.current is before
    assert replica.state(SCOPE) is AnswerState.STALE
    assert "waiting for the workers" in replica.health().problem
    reader.topics[TABLE_0] += FlushingWorker(make_fold()).flush(*FIRST)
    reader.check()
    reader.read()
    assert replica.current is not before
    assert replica.state(SCOPE) is AnswerState.UNCONFIRMED
    assert replica.health().problem == ""


def test_where_the_events_were_lost_too_nothing_more_is_waited_for(
    reader: Reader, worker: FlushingWorker
) -> None:
    reader.topics[TABLE_0] += worker.flush(*FIRST)
    reader.events[TopicPartition(Topic.EVENTS, 0)] = 2
    reader.check()
    reader.read()
    before = reader.replica.current
    reader.topics[TABLE_0] = []
    reader.events[TopicPartition(Topic.EVENTS, 0)] = 0
    reader.replica.reload()
    reader.check()
    reader.read()
    assert reader.replica.current is not before


def test_a_written_entry_that_was_read_already_changes_nothing(reader: Reader) -> None:
    one, moved = registration("a"), registration("a", port=6000)
    reader.register(one)
    reader.register(moved)
    reader.check()
    reader.read()
    snapshot = reader.replica.current
    snapshot.put_written(REGISTRY, 0, one.publisher, one)
    assert snapshot.registry.registrations == {one.publisher: moved}
    snapshot.put_written(REGISTRY, 2, one.publisher, None)
    assert snapshot.registry.registrations == {}


def test_metrics_tell_lag_rows_and_publishers(
    reader: Reader, worker: FlushingWorker, replica_client: AsgiClient
) -> None:
    reader.replica.metrics.register(replica_collector(reader.replica))
    reader.topics[TABLE_0] += worker.flush(*FIRST)
    reader.register(registration("a"))
    reader.check()
    reader.read()
    reader.events[TopicPartition(Topic.EVENTS, 1)] = 4
    reader.check()

    def value(name: str, **labels: str) -> float | None:
        return reader.replica.metrics.get_sample_value(name, labels)

    assert value("reprise_ready") == 1.0
    assert value("reprise_kafka_reachable") == 1.0
    assert value("reprise_source_lag_records") == 4.0
    assert value("reprise_table_lag_records") == 0.0
    assert value("reprise_table_folded_offset", partition="0") == 1.0
    assert value("reprise_registry_publishers") == 1.0
    assert value("reprise_index_entries") == 2.0
    publisher = {"tenant": "default", "instance": "a", "model": "m", "dp_rank": "0"}
    assert value("reprise_publisher_folded_sequence", **publisher) == 0.0
    assert "reprise_table_lag_seconds" in replica_client.get("/metrics").body.decode()


# Who is confirmed

NOT_LISTED = registration("b")


class Beating:
    """A bridge that confirms the publisher `a`, a worker that folds it, a replica that reads."""

    def __init__(self, reader: Reader, worker: FlushingWorker) -> None:
        self.reader = reader
        self.worker = worker
        self.events = 0
        reader.register(registration("a"))
        self.write(*FIRST)
        self.read()

    def write(self, *records: bytes) -> None:
        self.events += len(records)
        self.reader.events[TopicPartition(Topic.EVENTS, 0)] = self.events
        self.reader.check()
        self.reader.topics[TABLE_0] += self.worker.flush(*records)

    def beat(self, uptime: float, reason: str | None = "", *, bridge: str = "one") -> None:
        reports = [] if reason is None else [report(registration("a"), reason)]
        self.write(heartbeat_record(bridge, uptime, reports))

    def read(self) -> None:
        self.reader.check()
        self.reader.read()

    def state(self) -> AnswerState:
        return self.reader.replica.state(SCOPE)


@pytest.fixture
def beating(reader: Reader, worker: FlushingWorker) -> Beating:
    return Beating(reader, worker)


def test_a_publisher_is_confirmed_from_the_second_heartbeat_on_for_as_long_as_they_come(
    beating: Beating, reader: Reader
) -> None:
    assert beating.state() is AnswerState.UNCONFIRMED
    beating.beat(1.0)
    beating.read()
    assert beating.state() is AnswerState.UNCONFIRMED, "it may be of any age"
    for uptime in range(2, 9):
        reader.now += 1
        beating.beat(float(uptime), None)
        beating.read()
        assert beating.state() is AnswerState.EXACT
    for _ in range(3):  # the last one may have been written at the look before it was found
        reader.now += 1
        beating.read()
        assert beating.state() is AnswerState.EXACT
    reader.now += 1
    beating.read()
    assert beating.state() is AnswerState.UNCONFIRMED
    standing = reader.replica.standing(registration("a").publisher)
    assert (standing.state, standing.reason) == (AnswerState.UNCONFIRMED, Doubt.NO_HEARTBEAT)


def test_a_heartbeat_that_was_held_up_counts_from_when_it_was_written(
    beating: Beating, reader: Reader
) -> None:
    for uptime in (1.0, 2.0):
        beating.beat(uptime)
        beating.read()
        reader.now += 1
    assert beating.state() is AnswerState.EXACT
    reader.now += 20
    beating.beat(3.0)  # written 19 s ago by a bridge that was paused then
    beating.read()
    assert beating.state() is AnswerState.UNCONFIRMED
    beating.beat(23.0)
    beating.read()
    assert beating.state() is AnswerState.EXACT


def test_what_the_bridge_says_of_a_publisher_is_its_state(beating: Beating, reader: Reader) -> None:
    for uptime, reason in ((1.0, "link_down"), (2.0, "link_down"), (3.0, ""), (4.0, "later_word")):
        beating.beat(uptime, reason)
        beating.read()
        confirmed = reason == ""
        assert (beating.state() is AnswerState.EXACT) == confirmed
    publisher = registration("a").publisher
    assert reader.replica.standing(publisher).reason == Doubt.CATCHING_UP, "of a newer bridge"
    (standing,) = reader.replica.instance_standings(SCOPE).values()
    assert standing.state is AnswerState.UNCONFIRMED


def test_whoever_the_registry_and_the_table_do_not_both_have_is_unconfirmed(
    beating: Beating, reader: Reader
) -> None:
    for uptime in (1.0, 2.0):
        beating.beat(uptime)
        beating.read()
    assert beating.state() is AnswerState.EXACT
    reader.register(NOT_LISTED)
    beating.read()
    assert beating.state() is AnswerState.UNCONFIRMED, "nobody follows it yet"
    reader.topics[REGISTRY].append((encode_publisher(NOT_LISTED.publisher), None))
    beating.read()
    assert beating.state() is AnswerState.EXACT
    reader.topics[REGISTRY].append((encode_publisher(registration("a").publisher), None))
    beating.read()
    assert beating.state() is AnswerState.UNCONFIRMED, "its bridge has still to give it up"


def test_a_complete_heartbeat_gives_up_whom_it_does_not_name(
    beating: Beating, reader: Reader
) -> None:
    for uptime in (1.0, 2.0):
        beating.beat(uptime)
        beating.read()
    beating.write(heartbeat_record("two", 1.0, [], complete=True))
    beating.write(heartbeat_record("two", 1.5, [report(registration("a"), Doubt.NOT_FOLLOWED)]))
    beating.read()
    assert beating.state() is AnswerState.EXACT, "it is not that bridge's"
    beating.write(heartbeat_record("one", 3.0, [], complete=True))
    beating.read()
    assert beating.state() is AnswerState.UNCONFIRMED


def test_whoever_registers_itself_is_listed_by_the_table_alone(
    beating: Beating, reader: Reader
) -> None:
    worker = msgspec.structs.replace(registration("worker"), kind=LMCACHE)
    beating.write(registered_record(worker))
    beating.read()
    listed = [one.registration for one in reader.replica.services()]
    assert worker in listed
    beating.write(unregistered_record(worker))
    beating.read()
    assert worker not in [one.registration for one in reader.replica.services()]
