"""However flushes of partitions reach two replicas, and whenever these are asked: each answer that
was kept is what the events give again at its vector, pools of other partitions included.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from query_api.http.requests.queries import Query
from query_api.replica.snapshot import Snapshot, Topic, TopicPartition
from schemas.answer_records import encode_answers
from schemas.events import BlockEvent
from schemas.identities import Medium, StreamKey
from streams.audit.queue import open_audit_queue
from streams.audit.topics_verification import TopicsVerification
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.rows.format import COVERED_KEY, RowWrite
from streams.table.rows.reader import RowReader
from tests.building import (
    BLOCK,
    cleared,
    events_record,
    prefix_hashes,
    registered_record,
    registration,
    removed,
    stored,
    u32s,
    unregistered_record,
)
from tests.fakes import FlushingWorker
from tests.property.test_audited_answers_verify import Asker, Probed
from tests.property.test_recovery_equals_never_crashing import tokens_of
from tests.unit.streams.audit.test_topics_verification import Entries

SEED = 1337
PARTITIONS = 3
INSTANCES = ("a", "b", "c", "pool")
"""Instance n is in partition n % PARTITIONS, so a pool is beside `a` and not beside the others."""

CHAINS = st.lists(st.integers(1, 2), min_size=1, max_size=3)


class Step(NamedTuple):
    """What happens next: to an instance, a partition or a replica, and how."""

    what: str
    number: int
    chain: list[int]
    amount: int


STEPS = st.builds(
    Step,
    st.sampled_from(
        ["stored"] * 6
        + ["flush", "read", "ask"] * 4
        + ["removed", "removed", "cleared", "registered", "unregistered", "restart"]
    ),
    st.integers(0, 11),
    CHAINS,
    st.integers(1, 12),
)


class Deployment:
    """Workers and replicas, without a broker."""

    def __init__(self, make_fold: Callable[[], Fold], asked: list[Query]) -> None:
        self.events: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.rows: list[list[RowWrite]] = [[] for _ in range(PARTITIONS)]
        self.answers: list[list[bytes]] = [[], []]
        self.given = self.kept = self.unsettled = 0
        self._make_fold = make_fold
        self._asked = asked
        self._pending: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._workers = [
            FlushingWorker(Fold(open_kernel(SEED, name="reference"))) for _ in range(PARTITIONS)
        ]
        self._sequences = [-1] * len(INSTANCES)
        self._runs = 0
        self._replicas = [self._started(), self._started()]

    def live_through(self, step: Step) -> None:
        number = step.number
        replica = number % 2
        match step.what:
            case "flush":
                self._flush(number % PARTITIONS)
            case "read":
                self._read(self._replicas[replica], number % PARTITIONS, step.amount)
            case "ask":
                snapshot, asker = self._replicas[replica]
                asker.ask(snapshot.table.kernel)
            case "restart":
                self._end(replica)
                self._replicas[replica] = self._started()
            case _:
                self._append(step)

    def end(self) -> None:
        for partition in range(PARTITIONS):
            self._flush(partition)
        for number, replica in enumerate(self._replicas):
            for partition in range(PARTITIONS):
                self._read(replica, partition, len(self.rows[partition]))
            replica[1].ask(replica[0].table.kernel)
            self._end(number)

    # Engines and workers

    def _append(self, step: Step) -> None:
        number = step.number % len(INSTANCES)
        name = INSTANCES[number]
        stream = StreamKey("default", "m", BLOCK, "", name)
        tokens = [token for block in step.chain for token in tokens_of(block)]
        hashes = prefix_hashes(tokens)
        events: list[BlockEvent] = []
        sequence = self._sequences[number] + 1
        match step.what:
            case "registered":
                record = registered_record(registration(name))
            case "unregistered":
                record = unregistered_record(registration(name))
                self._sequences[number] = -1
            case "removed":
                events = [removed(sequence, hashes[-1:])]
            case "cleared":
                events = [cleared(sequence)]
            case _:
                is_pool = name == "pool"
                medium = Medium.CPU if is_pool or step.amount % 3 == 0 else Medium.GPU
                events = [stored(sequence, hashes, tokens, medium=medium, shared=is_pool)]
        if events:
            self._sequences[number] = sequence
            record = events_record(sequence, sequence, events, stream=stream)
        self.events[number % PARTITIONS].append(record)
        self._pending[number % PARTITIONS].append(record)

    def _flush(self, partition: int) -> None:
        pending, self._pending[partition] = self._pending[partition], []
        if pending:
            self.rows[partition] += self._workers[partition].flush(*pending)

    # Replicas

    def _started(self) -> tuple[Snapshot, Asker]:
        """One that has read all that there is."""
        asker = Asker(open_audit_queue(1.0), self._asked)

        def make_table() -> RowReader:
            kernel = self._make_fold().kernel
            kernel.audit_into(asker.queue)
            probed: Any = Probed(kernel, asker)
            return RowReader(probed, has_registry=True)

        snapshot = Snapshot(make_table, {Topic.TABLE: PARTITIONS, Topic.REGISTRY: 1})
        ends = {
            TopicPartition(Topic.TABLE, partition): len(rows)
            for partition, rows in enumerate(self.rows)
        }
        unread = {TopicPartition(Topic.EVENTS, partition): 0 for partition in range(PARTITIONS)}
        snapshot.begin(0.0, ends | unread | {TopicPartition(Topic.REGISTRY, 0): 0})
        for place, end in ends.items():
            self._read((snapshot, asker), place.partition, end)
        asker.queue.take()  # it answers nothing before it is complete
        self.unsettled -= asker.queue.counts()[2]
        self.kept -= asker.queue.counts()[0]
        self.given -= asker.given
        return snapshot, asker

    def _read(self, replica: tuple[Snapshot, Asker], partition: int, count: int) -> None:
        snapshot, asker = replica
        place = TopicPartition(Topic.TABLE, partition)
        at = snapshot.next_offsets[place]
        for key, value in self.rows[partition][at : at + count]:
            snapshot.put_row(place, key, value, as_of=0.0)
            if key == COVERED_KEY:
                asker.ask(snapshot.table.kernel)
        for _ in snapshot.advance(place, min(at + count, len(self.rows[partition]))):
            pass

    def _end(self, number: int) -> None:
        asker = self._replicas[number][1]
        self._runs += 1
        self.answers[number] += [
            encode_answers(self._runs, SEED, *chunk, replica=f"replica:{number}")
            for chunk in asker.queue.take()
        ]
        kept, dropped, unsettled = asker.queue.counts()
        assert dropped == 0
        self.kept += kept
        self.unsettled += unsettled
        self.given += asker.given


@st.composite
def queries(draw: st.DrawFn) -> Query:
    tokens = [token for block in draw(CHAINS) for token in tokens_of(block)]
    instance_id = draw(st.sampled_from([None, None, "a", "nobody"]))
    return Query("m", BLOCK, u32s([*tokens, 1]), instance_id=instance_id)


@settings(max_examples=150)
@given(st.lists(STEPS, min_size=5, max_size=60), st.lists(queries(), min_size=1, max_size=5))
def test_every_answer_of_two_replicas_is_what_the_events_give(
    make_fold: Callable[[], Fold], steps: list[Step], asked: list[Query]
) -> None:
    deployment = Deployment(make_fold, asked)
    for step in steps:
        deployment.live_through(step)
    deployment.end()
    assert deployment.kept + deployment.unsettled == deployment.given
    verification = TopicsVerification(
        [Entries(values) for values in deployment.answers],
        [Entries(values) for values in deployment.events],
    )
    found = asyncio.run(verification.run())
    assert found.shown == []
    assert (found.answers, found.agreed) == (deployment.kept, deployment.kept)
    assert found.agreed > 0, "the last answers were given at a position"
