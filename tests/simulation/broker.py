"""Apache Kafka in memory, under the names of aiokafka's clients that `brokers.clients` opens.

What is modelled, since the system leans on it: appends that are acknowledged late or never heard
of, idempotent producers that retry for as long as the broker is away, transactions, epochs that
fence older writers once a newer one has written, groups with eager rebalances and sessions,
isolation levels, compaction, retention. What is not: replication, and partitions that move.
"""

import asyncio
import random
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition  # type: ignore[import-untyped]
from aiokafka.errors import (  # type: ignore[import-untyped]
    CommitFailedError,
    IllegalStateError,
    KafkaConnectionError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceNumber,
    ProducerFenced,
)

from brokers.client_types import Epoch
from tests.simulation.loop import EPOCH_S, Process, SimulatedLoop, current

LATENCY_MAX_S: Final = 0.004
START_WAIT_S: Final = 2.0

KeyAndValue = tuple[bytes | None, bytes | None]


@dataclass(slots=True)
class Message:
    """One record as consumers see it; `transaction` is that under which it was written, or 0."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    transaction: int = 0
    visible: bool = True


_offset_of: Final = attrgetter("offset")


class PartitionLog:
    """One partition: what was appended, and by which epochs."""

    def __init__(self, topic: str, number: int) -> None:
        self.topic, self.number = topic, number
        self.records: list[Message] = []
        self.start = self.end = 0
        self.epochs: dict[int, int] = {}  # producer id -> the newest epoch that wrote here
        self.open_transactions: dict[int, int] = {}  # transaction -> its first offset

    @property
    def stable_end(self) -> int:
        """Where readers of committed records have to stop."""
        return min(self.open_transactions.values(), default=self.end)

    def read(self, start: int, *, committed: bool, most: int) -> tuple[list[Message], int]:
        """Up to `most` records from `start` on, and the offset to go on at."""
        end = self.stable_end if committed else self.end
        if start >= end:
            return [], start
        found: list[Message] = []
        place = bisect_left(self.records, start, key=_offset_of)
        for record in islice(self.records, place, None):
            if record.offset >= end:
                break
            if len(found) == most:
                return found, record.offset
            if record.visible:
                found.append(record)
        return found, end

    def after(self, offset: int) -> Iterator[Message]:
        """The records behind an offset."""
        place = bisect_right(self.records, offset, key=_offset_of)
        return islice(self.records, place, None)

    def compact(self, rng: random.Random) -> None:
        """What the cleaner may have done: superseded records up to some offset are gone."""
        dirty = rng.randint(self.start, self.stable_end)
        last = {one.key: one.offset for one in self.records if one.visible and one.offset < dirty}
        kept = [
            one
            for one in self.records
            if one.offset >= dirty or one.offset == last.get(one.key) or rng.random() < 0.2
        ]
        self.records = [one for one in kept if one.visible or one.transaction]

    def retire(self, before: int) -> None:
        """Retention: records before the offset are gone."""
        self.start = min(max(self.start, before), self.end)
        self.records = [one for one in self.records if one.offset >= self.start]


@dataclass(slots=True)
class Member:
    """A consumer as its group knows it."""

    session_s: float
    seen_at: float
    joined: int = -1
    assigned: dict[TopicPartition, None] = field(default_factory=dict)


class Group:
    """A consumer group with eager rebalances: everybody gives everything up, then it is shared."""

    def __init__(self, broker: "SimulatedBroker", name: str, rebalance_s: float) -> None:
        self._broker = broker
        self.name = name
        self._rebalance_s = rebalance_s
        self._began_at = 0.0
        self.generation = 0
        self.settled = 0  # the last generation that was shared out
        self.members: dict[Consumer, Member] = {}
        self.topics: set[str] = set()
        self.committed: dict[TopicPartition, int] = {}

    def begin(self) -> None:
        """Everybody has to join again."""
        self.generation += 1
        self._began_at = self._broker.loop.now
        self._broker.changed(self.name)

    def check(self) -> None:
        """Expels who was not heard of, and shares out once all have joined."""
        now = self._broker.loop.now
        for consumer, member in list(self.members.items()):
            late = self.generation > self.settled and now - self._began_at > self._rebalance_s
            if now - member.seen_at > member.session_s or (
                late and member.joined < self.generation
            ):
                del self.members[consumer]
                self.begin()
        joined = [one for one in self.members.values() if one.joined == self.generation]
        if self.generation > self.settled and self.members and len(joined) == len(self.members):
            self._share(joined)

    def _share(self, members: list[Member]) -> None:
        every = [
            TopicPartition(topic, number)
            for topic in sorted(self.topics)
            for number in range(len(self._broker.topics[topic]))
        ]
        before = [one.assigned for one in members]
        shares: list[dict[TopicPartition, None]] = [{} for _ in members]
        most = -(-len(every) // len(members))
        free = []
        for part in every:  # sticky: who had it keeps it, as far as that is fair
            owner = next((i for i, had in enumerate(before) if part in had), None)
            if owner is not None and len(shares[owner]) < most:
                shares[owner][part] = None
            else:
                free.append(part)
        for part in free:
            min(shares, key=len)[part] = None
        for member, share in zip(members, shares, strict=True):
            member.assigned = share
        self.settled = self.generation
        self._broker.changed(self.name)


class SimulatedBroker:
    """The cluster. `away` cuts everybody off, `cut` single processes.

    Attributes:
        refused_ratio: of batches that are answered with an error, written before or not.
        when_sent: called as a producer begins to send.
        when_appended: called for each message outside of transactions that is in the log.
    """

    def __init__(self, loop: SimulatedLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.trace: Callable[[bytes], None] = lambda _: None
        self.when_sent: Callable[[TopicPartition, Sequence[KeyAndValue]], None] = lambda *_: None
        self.when_appended: Callable[[Message], None] = lambda _: None
        self.refused_ratio = 0.0
        self.away = False
        self.fetch_max = 500  # records that one fetch brings
        self.cut: set[Process | None] = set()
        self.topics: dict[str, list[PartitionLog]] = {}
        self.settings: dict[str, dict[str, str]] = {}  # of topics that were not made by the world
        self.groups: dict[str, Group] = {}
        self.transactional: dict[str, tuple[int, int]] = {}  # id -> (producer id, epoch)
        self.running: dict[str, int] = {}  # transactional id -> open transaction
        self._numbers = 0
        self._waiting: dict[asyncio.Future[None], Container[str]] = {}
        self._watch = loop.create_task(self._check_groups())

    def make(self, topic: str, partitions: int) -> None:
        """A topic."""
        self.topics[topic] = [PartitionLog(topic, number) for number in range(partitions)]

    def number(self) -> int:
        """A new producer id or transaction."""
        self._numbers += 1
        return self._numbers

    async def _check_groups(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            for group in self.groups.values():
                group.check()

    def group(self, name: str, rebalance_s: float) -> Group:
        """The group, made where it is new."""
        return self.groups.setdefault(name, Group(self, name, rebalance_s))

    @property
    def reachable(self) -> bool:
        """Whether the process that asks reaches the broker now."""
        return not (self.away or (self.cut and current() in self.cut))

    def changed(self, name: str = "") -> None:
        """Wakes those that wait for records of the topic of this name, or for the group; without a
        name all.
        """
        for waiting, names in list(self._waiting.items()):
            if not name or name in names:
                del self._waiting[waiting]
                _finish(waiting)

    async def change(self, names: Container[str], timeout_s: float) -> None:
        """Waits until one of the topics or groups has `changed`, or for so long."""
        waiting: asyncio.Future[None] = self.loop.create_future()
        self._waiting[waiting] = names
        timer = self.loop.call_later(timeout_s, _finish, waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting.pop(waiting, None)

    def delay(self) -> Awaitable[None]:
        """One way over the network."""
        return self.loop.sleep(self.rng.random() * LATENCY_MAX_S)

    async def reach(self, timeout_s: float) -> None:
        """Waits for the broker.

        Raises:
            KafkaConnectionError: it stayed away for so long.
        """
        end = self.loop.now + timeout_s
        await self.delay()
        while not self.reachable:
            if self.loop.now >= end:
                raise KafkaConnectionError("simulated: no broker")
            await asyncio.sleep(0.1)

    def refuse(self, how: str) -> None:
        """Answers some batches with an error.

        Raises:
            OutOfOrderSequenceNumber: this one.
        """
        if self.refused_ratio and self.rng.random() < self.refused_ratio:
            raise OutOfOrderSequenceNumber(f"simulated: {how}")

    def append(
        self,
        part: TopicPartition,
        messages: Iterable[KeyAndValue],
        *,
        producer: tuple[int, int] = (0, 0),
        transaction: int = 0,
    ) -> int:
        """Appends as one batch; returns the first offset.

        Raises:
            ProducerFenced: a newer epoch of the producer has written to the partition, or ended its
                transaction.
        """
        log: PartitionLog = self.topics[part.topic][part.partition]
        number, epoch = producer
        if epoch < log.epochs.get(number, 0):
            raise ProducerFenced("simulated: a newer epoch has written")
        if transaction and transaction not in self.running.values():
            raise ProducerFenced("simulated: a newer epoch has ended the transaction")
        log.epochs[number] = epoch
        first = log.end
        if transaction:
            log.open_transactions.setdefault(transaction, first)
        for key, value in messages:
            stamp = int(1000 * (EPOCH_S + self.loop.now))
            message = Message(part.topic, part.partition, log.end, stamp, key, value, transaction)
            log.records.append(message)
            log.end += 1
            self.trace(value or b"")
            if not transaction:
                self.when_appended(message)
        self.changed(part.topic)
        return first

    def end_transaction(self, transaction: int, *, commit: bool) -> None:
        """Writes the control records; what was aborted is never seen by readers of committed."""
        for logs in self.topics.values():
            for log in logs:
                if log.open_transactions.pop(transaction, None) is None:
                    continue
                if not commit:
                    for record in log.records:
                        record.visible = record.visible and record.transaction != transaction
                log.end += 1
                self.changed(log.topic)

    def begin_epoch(self, transactional_id: str) -> tuple[int, int]:
        """A new epoch; what an older one had open is aborted."""
        number, epoch = self.transactional.get(transactional_id) or (self.number(), -1)
        self.transactional[transactional_id] = (number, epoch + 1)
        open_transaction = self.running.pop(transactional_id, 0)
        if open_transaction:
            self.end_transaction(open_transaction, commit=False)
        return number, epoch + 1

    # What is put in place of aiokafka's classes

    def consumer(self, *topics: str, **options: Any) -> "Consumer":
        """In place of `AIOKafkaConsumer`."""
        assert not topics, "the system subscribes or assigns"
        return Consumer(self, options)

    def producer(self, **options: Any) -> "Producer":
        """In place of `AIOKafkaProducer`."""
        return Producer(self, options)

    def admin(self, **options: Any) -> "Admin":
        """In place of `AIOKafkaAdminClient`."""
        return Admin(self, options["request_timeout_ms"] / 1000)


class Committed(NamedTuple):
    """How far a group is in a partition."""

    offset: int
    metadata: str = ""


class Response(NamedTuple):
    """What an admin client gives: errors of topics, or their settings."""

    topic_errors: Sequence[tuple[str, int, str]] = ()
    resources: Sequence[tuple[int, str, int, str, list[tuple[str, str]]]] = ()


class Admin:
    """In place of `AIOKafkaAdminClient`."""

    def __init__(self, broker: SimulatedBroker, request_s: float) -> None:
        self._broker = broker
        self._request_s = min(request_s, START_WAIT_S)

    async def start(self) -> None:
        await self._broker.reach(self._request_s)

    async def close(self) -> None: ...

    async def describe_topics(self) -> list[dict[str, Any]]:
        await self._broker.reach(self._request_s)
        return [
            {"topic": name, "error_code": 0, "partitions": [{"leader": 1} for _ in logs]}
            for name, logs in self._broker.topics.items()
        ]

    async def create_topics(self, topics: Sequence[Any], **_: Any) -> Response:
        await self._broker.reach(self._request_s)
        for one in topics:
            if one.name not in self._broker.topics:
                self._broker.make(one.name, one.num_partitions)
                self._broker.settings[one.name] = one.topic_configs
        return Response([(one.name, 0, "") for one in topics])

    async def describe_configs(self, wanted: Sequence[Any]) -> list[Response]:
        await self._broker.reach(self._request_s)
        settings = self._broker.settings
        found = [(one.name, list(settings.get(one.name, {}).items())) for one in wanted]
        return [Response(resources=[(0, "", 2, name, entries) for name, entries in found])]

    async def find_coordinator(self, group: str) -> int:
        await self._broker.reach(self._request_s)
        return 1

    async def list_consumer_group_offsets(
        self, group: str, *, group_coordinator_id: int, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Committed]:
        await self._broker.reach(self._request_s)
        known = self._broker.groups.get(group)
        committed = {} if known is None else known.committed
        return {part: Committed(committed.get(part, -1)) for part in partitions}


class _Batch:
    """In place of aiokafka's BatchBuilder."""

    def __init__(self, bytes_max: int) -> None:
        self.messages: list[KeyAndValue] = []
        self._left = bytes_max

    def append(
        self,
        *,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> object | None:
        size = len(key or b"") + len(value or b"") + 80
        if self.messages and size > self._left:
            return None
        self._left -= size
        self.messages.append((key, value))
        return object()


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a message or batch was written."""

    topic: str
    partition: int
    offset: int


class _TransactionManager:
    """The private part of aiokafka's producer that fencing uses."""

    def __init__(self) -> None:
        self.producer_id = 0
        self.producer_epoch = 0

    def set_pid_and_epoch(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch


class _Sender:
    """The private part of aiokafka's producer that sends, again and again, until it is closed."""

    def __init__(self, sending: dict[asyncio.Task[Any], None]) -> None:
        self._sending = sending

    async def close(self) -> None:
        for task in list(self._sending):
            task.cancel()


class Producer:
    """In place of `AIOKafkaProducer`."""

    def __init__(self, broker: SimulatedBroker, options: dict[str, Any]) -> None:
        self._broker = broker
        self._batch_bytes = options.get("max_batch_size", 16_384)
        self._transactional_id: str = options.get("transactional_id") or ""
        patient = bool(self._transactional_id or options.get("enable_idempotence"))
        self._patience_s = 1e9 if patient else options.get("request_timeout_ms", 40_000) / 1000
        self._txn_manager = _TransactionManager()
        self._transaction = 0
        self._closed = False
        self._orders: dict[TopicPartition, asyncio.Lock] = {}
        self._sending: dict[asyncio.Task[Any], None] = {}
        self._sender = _Sender(self._sending)
        self.client = _Sender({})

    @property
    def epoch(self) -> Epoch:
        """That its start gave it."""
        return Epoch(self._txn_manager.producer_id, self._txn_manager.producer_epoch)

    async def start(self) -> None:
        await self._broker.reach(START_WAIT_S)
        if self._transactional_id:
            self._txn_manager.set_pid_and_epoch(*self._broker.begin_epoch(self._transactional_id))
        elif not self._txn_manager.producer_id:
            self._txn_manager.set_pid_and_epoch(self._broker.number(), 0)

    async def stop(self) -> None:
        """As aiokafka's: waits for what is under way; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._sending:
            await asyncio.wait(list(self._sending))
        await self._sender.close()

    def create_batch(self) -> _Batch:
        return _Batch(self._batch_bytes)

    async def send_batch(
        self, batch: _Batch, topic: str, *, partition: int
    ) -> "asyncio.Future[Sent]":
        return self._begin(TopicPartition(topic, partition), batch.messages)

    async def send(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, partition: int = -1
    ) -> "asyncio.Future[Sent]":
        return self._begin(self._place(topic, key, partition), [(key, value)])

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
    ) -> Sent:
        return await self._begin(self._place(topic, key, partition), [(key, value)])

    def _place(self, topic: str, key: bytes | None, partition: int) -> TopicPartition:
        if partition < 0:
            from brokers.clients import partition_of

            partition = partition_of(key or b"", len(self._broker.topics[topic]))
        return TopicPartition(topic, partition)

    def _begin(self, part: TopicPartition, messages: Sequence[KeyAndValue]) -> "asyncio.Task[Sent]":
        self._broker.when_sent(part, messages)
        task = asyncio.ensure_future(self._deliver(part, list(messages)))
        self._sending[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Sent]") -> None:
        self._sending.pop(task, None)
        if not task.cancelled():
            task.exception()

    async def _deliver(self, part: TopicPartition, messages: list[KeyAndValue]) -> Sent:
        """Appended once; the acknowledgement may come much later, or to nobody."""
        broker = self._broker
        manager = self._txn_manager
        async with self._orders.setdefault(part, asyncio.Lock()):
            try:
                await broker.reach(self._patience_s)
            except KafkaConnectionError as error:
                raise KafkaTimeoutError("simulated: given up") from error
            broker.refuse("refused")
            offset = broker.append(
                part,
                messages,
                producer=(manager.producer_id, manager.producer_epoch),
                transaction=self._transaction,
            )
        await broker.delay()
        await broker.reach(self._patience_s)
        broker.refuse("written, and answered with an error")
        return Sent(part.topic, part.partition, offset)

    # Transactions

    async def begin_transaction(self) -> None:
        self._transaction = self._broker.number()
        self._broker.running[self._transactional_id] = self._transaction

    async def commit_transaction(self) -> None:
        await self._end_transaction(commit=True)

    async def abort_transaction(self) -> None:
        await self._end_transaction(commit=False)

    async def _end_transaction(self, *, commit: bool) -> None:
        if self._sending:
            await asyncio.wait(self._sending)
        await self._broker.reach(START_WAIT_S)
        broker, name = self._broker, self._transactional_id
        manager = self._txn_manager
        if broker.transactional[name] != (manager.producer_id, manager.producer_epoch):
            raise ProducerFenced("simulated: a newer epoch has begun")
        broker.end_transaction(self._transaction, commit=commit)
        broker.running.pop(name, None)
        self._transaction = 0
        await broker.delay()
        await broker.reach(START_WAIT_S)


class Consumer:
    """In place of `AIOKafkaConsumer`."""

    def __init__(self, broker: SimulatedBroker, options: dict[str, Any]) -> None:
        self._broker = broker
        self._committed = options.get("isolation_level") == "read_committed"
        self._reset: str = options.get("auto_offset_reset", "latest")
        self._group_id: str | None = options.get("group_id")
        self._session_s = options.get("session_timeout_ms", 10_000) / 1000
        self._rebalance_s = options.get("rebalance_timeout_ms", 60_000) / 1000
        self._request_s = min(options.get("request_timeout_ms", 40_000) / 1000, 10.0)
        self._listener: Any = None
        self._positions: dict[TopicPartition, int | None] = {}
        self._generation = -1
        self._coordinator: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self.process = current()
        self._client = _Sender({})

    async def start(self) -> None:
        await self._broker.reach(START_WAIT_S)

    async def stop(self) -> None:
        for task in (self._coordinator, self._heartbeat):
            if task is not None:
                task.cancel()
        if self._group is not None and self._broker.reachable and self in self._group.members:
            del self._group.members[self]
            self._group.begin()
        await self._broker.delay()

    @property
    def _group(self) -> Group | None:
        if self._group_id is None:
            return None
        return self._broker.group(self._group_id, self._rebalance_s)

    # Membership

    def subscribe(self, topics: Sequence[str], *, listener: Any) -> None:
        group = self._group
        assert group is not None
        group.topics.update(topics)
        self._listener = listener
        self._coordinator = asyncio.ensure_future(self._follow_group(group))
        self._heartbeat = asyncio.ensure_future(self._send_heartbeats(group))

    async def _send_heartbeats(self, group: Group) -> None:
        while True:
            if self._broker.reachable and self in group.members:
                group.members[self].seen_at = self._broker.loop.now
            await asyncio.sleep(self._session_s / 4)

    async def _follow_group(self, group: Group) -> None:
        while True:
            await self._broker.reach(1e9)
            member = group.members.get(self)
            if member is None:
                member = group.members[self] = Member(self._session_s, self._broker.loop.now)
                group.begin()
            if self._generation != group.settled or group.generation != group.settled:
                await self._rejoin(group, member)
            await self._broker.change((group.name,), 0.5)

    async def _rejoin(self, group: Group, member: Member) -> None:
        had = dict(self._positions).keys()  # in order: sets of names have none that stays
        await self._listener.on_partitions_revoked(had)
        while group.members.get(self) is member:
            member.joined = group.generation
            group.check()
            if group.settled == group.generation:
                break
            await self._broker.change((group.name,), 0.5)
        if group.members.get(self) is not member:
            self._positions = {}
            self._generation = -1
            return
        self._generation = group.settled
        self._positions = dict.fromkeys(member.assigned)
        await self._listener.on_partitions_assigned(dict(member.assigned).keys())

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset(self._positions)

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._positions = dict.fromkeys(partitions)

    # Positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        if partition not in self._positions:
            raise IllegalStateError(f"simulated: {partition} is not assigned")
        self._positions[TopicPartition(*partition)] = offset

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        for part in partitions or tuple(self._positions):
            self._positions[part] = self._log(part).start
        return True

    async def position(self, partition: TopicPartition) -> int:
        if self._positions.get(partition) is None:
            await self._broker.reach(self._request_s)
        return self._position(partition)

    def _position(self, part: TopicPartition) -> int:
        if part not in self._positions:
            raise IllegalStateError(f"simulated: {part} is not assigned")
        position = self._positions[part]
        if position is None:
            committed = self._group.committed.get(part) if self._group is not None else None
            position = self._log(part).start if committed is None else committed
            self._positions[part] = position
        return position

    def _log(self, part: TopicPartition) -> PartitionLog:
        log: PartitionLog = self._broker.topics[part.topic][part.partition]
        return log

    async def beginning_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        await self._broker.reach(self._request_s)
        return {TopicPartition(*part): self._log(part).start for part in partitions}

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        await self._broker.reach(self._request_s)
        ends = {}
        for part in partitions:
            log = self._log(part)
            ends[TopicPartition(*part)] = log.stable_end if self._committed else log.end
        return ends

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        await self._broker.reach(self._request_s)
        group = self._group
        assert group is not None
        member = group.members.get(self)
        if member is None or self._generation != group.generation:
            raise CommitFailedError("simulated: no member of this generation")
        member.seen_at = self._broker.loop.now  # as by a heartbeat
        group.committed.update(offsets)
        await self._broker.delay()

    # Records

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Message]]:
        end = self._broker.loop.now + timeout_ms / 1000
        most = min(max_records or 500, self._broker.fetch_max)
        while True:
            await self._broker.delay()
            wanted = partitions or tuple(self._positions)
            found = self._fetch(wanted, most)
            left_s = end - self._broker.loop.now
            if found or left_s <= 0:
                return found
            await self._broker.change({part[0] for part in wanted}, left_s)

    def _fetch(
        self, partitions: Sequence[TopicPartition], most: int
    ) -> dict[TopicPartition, list[Message]]:
        found: dict[TopicPartition, list[Message]] = {}
        if not self._broker.reachable:
            return found
        positions, topics = self._positions, self._broker.topics
        for part in partitions:
            if part not in positions:
                continue
            log, start = topics[part[0]][part[1]], positions[part]
            if start is None:
                start = self._position(part)
            elif start == log.end:
                continue
            if not log.start <= start <= log.end:
                if self._reset == "none":
                    raise OffsetOutOfRangeError({part: start})
                start = log.start
            records, positions[part] = log.read(start, committed=self._committed, most=most)
            most -= len(records)
            if records:
                found[part] = records
            if most <= 0:
                break
        return found


def _finish(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
