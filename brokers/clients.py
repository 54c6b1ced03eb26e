"""Every client of Kafka, made in one place: what they have in common, and what differs with reason.

    client            writes or reads               what differs, and why
    ----------------  ----------------------------  ------------------------------------------------
    producer          events, cursors               -
    fenced_producer   flushes of a table            its epoch is another's; a batch is a whole flush
    answers_producer  answers that are kept         not compressed: most of an answer is hashes
    epoch_producer    whole tables                  transactional: only that gives a new epoch, and
                                                    makes more than one batch count together
    entry_producer    registry entries              not idempotent: such a producer never gives an
                                                    entry up, and what was refused would take
                                                    effect later
    command_producer  commands, their results       as entry_producer, and gives up sooner: so late
                                                    nobody executes one
    reader            any topic, from an offset     committed or not: only a table has transactions
    log_reader        stretches of the events       a fetch at the end waits next to no time, for
                                                    it holds up the fetch of the next stretch
    replica_reader    table and registry            no reset: an offset that is gone is an error;
                                                    small fetches: queries share the process
    member            registry, as a bridge         a short rebalance: a bridge hands over at once
    worker_consumer   events, as a worker           a long rebalance: tables are opened within it
    admin             topics                        -

All producers wait for all replicas in sync, and send at once: their users pack batches. No
consumer commits by itself.
"""

from collections.abc import Callable
from typing import Any, Final, cast

from aiokafka import (  # type: ignore[import-untyped]
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
)
from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]
from aiokafka.coordinator.assignors.sticky.sticky_assignor import (  # type: ignore[import-untyped]
    StickyPartitionAssignor,
)
from aiokafka.partitioner import DefaultPartitioner  # type: ignore[import-untyped]

from brokers.client_internals import (
    adopt_epoch,
    check_fetches,
    compress_lightly,
    epoch_of,
    expect_every_offset,
    forbid_topic_creation,
)
from brokers.client_types import (
    Consumer,
    EntryProducer,
    Epoch,
    EpochProducer,
    Partition,
    Producer,
    RebalanceListener,
)
from brokers.options import ClientOptions
from schemas.limits import (
    BRIDGE_FLUSH_S,
    BRIDGE_LEAVE_S,
    HEARTBEATS_PER_SESSION,
    KAFKA_ATTEMPT_MS,
    KAFKA_BATCH_BYTES,
    KAFKA_MESSAGE_MAX_BYTES,
    KAFKA_REQUEST_MS,
    MIB,
    REGISTRY_ENTRY_MS,
    SESSION_MIN_S,
)

KAFKA_FETCH_BYTES_MAX: Final = 32 * MIB  # of one answer to a consumer, all partitions together

# Waits of the clients. Past any of them the broker counts as away: the condition `kafka`.
KAFKA_METADATA_MS: Final = 30_000  # how often a client asks who leads, where no error makes it
REPLICA_REQUEST_MS: Final = 10_000  # of a replica; shorter: answers say by then they are stale
COMMAND_ENTRY_MS: Final = 3_000  # a command or its result is given up: so late nobody executes it
READ_FETCH_WAIT_MS: Final = 100  # at the end of a partition a fetch waits in vain for this long
LOG_FETCH_WAIT_MS: Final = 5  # the same, where another stretch is asked for next

# A member that sends no heartbeat for a session loses its partitions to the others.
HEARTBEAT_MIN_MS: Final = 100  # between two heartbeats of a member, however short its session is
BRIDGE_HEARTBEAT_MAX_MS: Final = 500  # a member that joins or leaves is noticed within this
BRIDGE_POLL_INTERVAL_MS: Final = 300_000  # a bridge that polls less often leaves its group
BRIDGE_REBALANCE_MIN_MS: Final = 10_000  # for the other bridges to flush and hand over
BRIDGE_REQUEST_MIN_MS: Final = 20_000  # a join waits for the others' rebalance
WORKER_REBALANCE_MS: Final = 300_000  # for the workers of a group to open their tables
WORKER_REQUEST_MIN_MS: Final = 40_000  # a worker's join waits for the others' rebalance
TABLE_TRANSACTION_MS: Final = 120_000  # after it the broker itself ends a transaction

REPLICA_FETCH_BYTES_MAX: Final = 16 * MIB  # read from Kafka and not applied yet

assert KAFKA_MESSAGE_MAX_BYTES <= KAFKA_FETCH_BYTES_MAX, "the largest message must be fetchable"
assert 1000 * SESSION_MIN_S / HEARTBEATS_PER_SESSION > HEARTBEAT_MIN_MS, (
    "a member must send several heartbeats in the shortest session"
)
assert 1000 * (BRIDGE_FLUSH_S + 2 * BRIDGE_LEAVE_S) < BRIDGE_REBALANCE_MIN_MS, (
    "a bridge flushes, and drops what it could not, within a rebalance"
)
assert WORKER_REBALANCE_MS > TABLE_TRANSACTION_MS, (
    "a table is opened within a rebalance, and may wait for a dead worker's transaction"
)
assert KAFKA_REQUEST_MS < TABLE_TRANSACTION_MS, "one slow request must not end a transaction"

CODEC: Final = "zstd"
"""Of everything that is written. Consumers undo any codec, so this may change at any time.

The smallest at a tolerable cost (`python -m lab.benchmarks --only codec`), at level 1
(`compress_lightly`): the client's own, 3, takes 1.2 to 2.3 times as long for the same size. What is
kept for a week, copied and sent shrinks to a half. CPU in ms for each MiB written and read, and the
size, on records one by one, records by the MiB, and small flushes:

    zstd     6 / 3    0.58        4 / 1   0.51       11 / 6   0.76
    zstd 3   8 / 3    0.58        8 / 1   0.52       13 / 6   0.74
    lz4      23 / 2   0.73       63 / 1   0.61       27 / 4   0.83      at level 9: no option for it
    snappy   3 / 1    0.77        3 / 1   0.71        3 / 1   0.81
"""

_PRODUCER: Final[dict[str, Any]] = {
    "acks": "all",
    "compression_type": CODEC,
    "linger_ms": 0,
    "max_request_size": KAFKA_MESSAGE_MAX_BYTES,
    "metadata_max_age_ms": KAFKA_METADATA_MS,
    "request_timeout_ms": KAFKA_REQUEST_MS,
}
_CONSUMER: Final[dict[str, Any]] = {
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "fetch_max_bytes": KAFKA_FETCH_BYTES_MAX,
    "group_id": None,
    "isolation_level": "read_uncommitted",
    "max_partition_fetch_bytes": KAFKA_MESSAGE_MAX_BYTES,
    "metadata_max_age_ms": KAFKA_METADATA_MS,
    "request_timeout_ms": KAFKA_REQUEST_MS,
}

forbid_topic_creation()
check_fetches()
compress_lightly()


class Clients:
    """Makes clients for one deployment; none of them is started."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options

    # Producers

    def producer(self) -> Producer:
        """Writes each batch once, in the order in which it was given."""
        return cast(
            Producer,
            AIOKafkaProducer(
                **self._options,
                **_PRODUCER,
                enable_idempotence=True,
                max_batch_size=KAFKA_BATCH_BYTES,
            ),
        )

    def answers_producer(self) -> Producer:
        """As `producer`, for what no codec makes smaller."""
        changed = {"compression_type": None, "max_batch_size": KAFKA_BATCH_BYTES}
        return cast(
            Producer,
            AIOKafkaProducer(**self._options, **{**_PRODUCER, **changed}, enable_idempotence=True),
        )

    def fenced_producer(self, epoch: Epoch, *, batch_bytes_max: int) -> Producer:
        """Writes batches under the epoch, until the broker has given a newer one.

        Args:
            epoch: that an `epoch_producer` was given.
            batch_bytes_max: of one batch, before compression.
        """
        made = AIOKafkaProducer(
            **self._options,
            **_PRODUCER,
            enable_idempotence=True,
            max_batch_size=batch_bytes_max,
        )
        adopt_epoch(made, epoch)
        return cast(Producer, made)

    def epoch_producer(self, transactional_id: str) -> EpochProducer:
        """Gets a new epoch of the transactional id when it is started."""
        made = _EpochProducer(
            **self._options,
            **_PRODUCER,
            transactional_id=transactional_id,
            transaction_timeout_ms=TABLE_TRANSACTION_MS,
            max_batch_size=KAFKA_BATCH_BYTES,
        )
        return cast(EpochProducer, made)

    def entry_producer(self) -> EntryProducer:
        """Writes single messages; gives one up after `REGISTRY_ENTRY_MS`."""
        changed = {"request_timeout_ms": REGISTRY_ENTRY_MS}
        return cast(EntryProducer, AIOKafkaProducer(**self._options, **{**_PRODUCER, **changed}))

    def command_producer(self) -> EntryProducer:
        """As `entry_producer`; gives one up after `COMMAND_ENTRY_MS`."""
        changed = {"request_timeout_ms": COMMAND_ENTRY_MS}
        return cast(EntryProducer, AIOKafkaProducer(**self._options, **{**_PRODUCER, **changed}))

    # Consumers

    def reader(self, *, committed: bool, every_offset: bool = False) -> Consumer:
        """Reads on from any offset, in no group.

        Args:
            committed: leave out what belongs to a transaction that is open or was given up.
            every_offset: the topics are not compacted: an offset that is missing is damage.
        """
        made = self._consumer(
            {
                "isolation_level": "read_committed" if committed else "read_uncommitted",
                "fetch_max_wait_ms": READ_FETCH_WAIT_MS,
            }
        )
        return expect_every_offset(made) if every_offset else made

    def log_reader(self) -> Consumer:
        """Reads stretches of a log here and there, each as soon as it is asked for one; raises
        where an offset is gone. Between two stretches its partition is to be paused.
        """
        return expect_every_offset(
            self._consumer(
                {
                    "auto_offset_reset": "none",
                    "fetch_max_wait_ms": LOG_FETCH_WAIT_MS,
                    "isolation_level": "read_committed",
                    "request_timeout_ms": REPLICA_REQUEST_MS,
                }
            )
        )

    def replica_reader(self, *, every_offset: bool = False) -> Consumer:
        """Reads many partitions until it is stopped; raises where an offset is gone.

        Args:
            every_offset: as of `reader`.
        """
        made = self._consumer(
            {
                "auto_offset_reset": "none",
                "fetch_max_bytes": REPLICA_FETCH_BYTES_MAX,
                "isolation_level": "read_committed",
                "max_partition_fetch_bytes": REPLICA_FETCH_BYTES_MAX // 8,
                "request_timeout_ms": REPLICA_REQUEST_MS,
            }
        )
        return expect_every_offset(made) if every_offset else made

    def member(self, group: str, *, session_s: float) -> Consumer:
        """A bridge's membership in its group.

        Args:
            session_s: after this long without a heartbeat its partitions go to others.
        """
        return self._consumer(
            {
                **_membership(group, session_s, heartbeat_ms_max=BRIDGE_HEARTBEAT_MAX_MS),
                "max_poll_interval_ms": BRIDGE_POLL_INTERVAL_MS,
                "rebalance_timeout_ms": max(round(session_s * 1000), BRIDGE_REBALANCE_MIN_MS),
                "request_timeout_ms": max(BRIDGE_REQUEST_MIN_MS, round(2000 * session_s)),
            }
        )

    def worker_consumer(
        self, group: str, *, session_s: float, poll_records_max: int | None = None
    ) -> Consumer:
        """A worker's membership in its group; see `member`.

        Args:
            group: its name. Workers of all versions share it: the assignor must stay the same.
            session_s: after this long without a heartbeat its partitions go to others.
            poll_records_max: that one `getmany` gives; None for all that were fetched.
        """
        options = self.worker_consumer_options(
            group, session_s=session_s, poll_records_max=poll_records_max
        )
        return expect_every_offset(cast(Consumer, AIOKafkaConsumer(**options)))

    def worker_consumer_options(
        self, group: str, *, session_s: float, poll_records_max: int | None = None
    ) -> dict[str, Any]:
        """The keyword arguments of `worker_consumer`, for a caller that constructs it."""
        return {
            **self._options,
            **_CONSUMER,
            **_membership(group, session_s),
            "isolation_level": "read_committed",
            "max_poll_interval_ms": 2 * WORKER_REBALANCE_MS,
            "max_poll_records": poll_records_max,
            "rebalance_timeout_ms": WORKER_REBALANCE_MS,
            "request_timeout_ms": max(WORKER_REQUEST_MIN_MS, round(2000 * session_s)),
        }

    def _consumer(self, changed: dict[str, Any]) -> Consumer:
        return cast(Consumer, AIOKafkaConsumer(**self._options, **{**_CONSUMER, **changed}))

    # Admin

    def admin(self) -> Any:
        """An admin client: aiokafka's own, since `brokers.topics` alone uses it."""
        return AIOKafkaAdminClient(**self._options, request_timeout_ms=KAFKA_ATTEMPT_MS)


def _membership(
    group: str, session_s: float, *, heartbeat_ms_max: int | None = None
) -> dict[str, Any]:
    """Of a group whose members keep what they have where that is possible."""
    session_ms = round(session_s * 1000)
    heartbeat_ms = max(session_ms // HEARTBEATS_PER_SESSION, HEARTBEAT_MIN_MS)
    return {
        "group_id": group,
        "heartbeat_interval_ms": min(heartbeat_ms, heartbeat_ms_max or heartbeat_ms),
        "partition_assignment_strategy": (StickyPartitionAssignor,),
        "session_timeout_ms": session_ms,
    }


class _EpochProducer(AIOKafkaProducer):  # type: ignore[misc]
    @property
    def epoch(self) -> Epoch:
        return epoch_of(self)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    async def on_partitions_revoked(self, revoked: set[Partition]) -> None:
        await self._listener.on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[Partition]) -> None:
        await self._listener.on_partitions_assigned(assigned)


def subscribe(consumer: Consumer, topic: str, listener: RebalanceListener) -> None:
    """Joins the group's sharing of the topic."""
    consumer.subscribe([topic], listener=_Listener(listener))


_partitioner: Callable[[bytes, list[int], list[int]], int] = DefaultPartitioner()


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: as Kafka's own clients choose it."""
    every = list(range(partitions))
    return _partitioner(key, every, every)
