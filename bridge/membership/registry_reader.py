"""Reads the registry topic, and shares its publishers with the other bridges.

The bridges form a consumer group on the topic: the owner of a partition follows its publishers.
Each partition is read from its beginning on, whatever was committed before: only all its entries
together say who is registered. Offsets are committed all the same, because that, and nothing else,
proves that we are still a member:

A bridge may write only while it holds a *lease*: until `session_s` after it asked for a commit that
succeeded. The group gives our partitions to another bridge no earlier than that. So a bridge that
was paused, or cut off, notices before it writes again.
"""

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from bridge.bounds import BRIDGE_RETRY_S
from brokers.availability import describe
from brokers.backoff import Backoff
from brokers.broker_settings import KafkaSettings
from brokers.client_internals import start_client
from brokers.client_types import Consumer, Message, Partition
from brokers.clients import Clients, subscribe
from brokers.errors import AWAY
from brokers.reading import stop_consumer
from schemas.codec import TOO_MANY, decode_registry_entry
from schemas.errors import EntryError
from schemas.identities import PublisherKey
from schemas.limits import (
    BRIDGE_LEAVE_S,
    ENTRIES_NAMED_MAX,
    HEARTBEATS_PER_SESSION,
    REGISTRY_ENTRIES_MAX,
    SESSION_MIN_S,
)
from schemas.registration import Registration

REGISTRY_POLL_MS: Final = 200  # of one fetch of the registry: how late a change is seen

assert 1000 * SESSION_MIN_S / HEARTBEATS_PER_SESSION > REGISTRY_POLL_MS, (
    "a bridge must come to renew its lease between two polls"
)

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RegistryPartition:
    """What one partition of the registry says.

    Attributes:
        publishers: those that are registered, and publish events.
        without_events: engines that are registered and publish none: nothing is followed.
        unusable: those whose last entry cannot be read; taken as neither registered nor forgotten.
        complete: False where there was no room for more of either.
    """

    publishers: dict[PublisherKey, Registration] = field(default_factory=dict)
    without_events: dict[PublisherKey, Registration] = field(default_factory=dict)
    unusable: set[PublisherKey] = field(default_factory=set)
    complete: bool = True

    def has_forgotten(self, publisher: PublisherKey) -> bool:
        """Whether it is certain that the publisher, if it is of this partition, is forgotten."""
        return self.complete and publisher not in self.publishers and publisher not in self.unusable


class _Renewal(NamedTuple):
    """A commit under way."""

    commit: "asyncio.Future[None]"
    asked_at: float
    partition: int


class Owner(Protocol):
    """Who follows the publishers."""

    async def revoke(self) -> None:
        """Writes what is left of all publishers; once it returns, another bridge may own them."""
        ...

    def assign(self, partitions: dict[int, RegistryPartition]) -> None:
        """These are all of our partitions, with what they say; returns at once."""
        ...

    def change(
        self, partition: int, publisher: PublisherKey, registration: Registration | None
    ) -> None:
        """One more entry of an assigned partition; None: forgotten. Returns at once."""
        ...


class RegistryReader:
    """See the module. One loop.

    Args:
        clients: of the deployment.
        kafka: its topics and groups.
        owner: given every change, in order.
        session_s: after this long without a heartbeat our partitions go to other bridges.

    Attributes:
        skipped: entries that cannot be used, by reason.
        faults: entries that were skipped because of an unexpected error.
    """

    def __init__(
        self, clients: Clients, kafka: KafkaSettings, owner: Owner, *, session_s: float
    ) -> None:
        self.skipped: Counter[str] = Counter()
        self.faults = 0
        self.rebalances = 0
        self.connected = False
        self._clients = clients
        self._topic = kafka.topics.registry.name
        self._group = kafka.group("bridge")
        self._session_s = session_s
        self._owner = owner
        self._consumer: Consumer | None = None
        self._owned: dict[int, RegistryPartition] = {}
        self._ends: dict[int, int] | None = None  # the offsets to read up to; None: not known yet
        self._assigned = self._revoked = False
        self._lease_until = 0.0
        self._renew_at = 0.0
        self._renewal: _Renewal | None = None
        self._failing = False  # logged already

    @property
    def partitions(self) -> list[int]:
        """Those that are ours."""
        return sorted(self._owned)

    def without_events(self) -> dict[PublisherKey, Registration]:
        """Engines in our partitions that publish none. Cost O(such engines)."""
        return {
            publisher: registration
            for partition in list(self._owned.values())
            for publisher, registration in list(partition.without_events.items())
        }

    @property
    def is_settled(self) -> bool:
        """Whether what is ours is known and no rebalance is under way."""
        return self._assigned and not self._revoked

    def leave(self) -> None:
        """Our run was cancelled: we are no member any more, and nothing is ours."""
        self._owned, self._assigned = {}, False

    @property
    def has_lease(self) -> bool:
        """Whether no other bridge can own what is ours; also where nothing is."""
        return not self._owned or time.monotonic() < self._lease_until

    async def run(self) -> None:
        """Follows until it is cancelled, then leaves the group."""
        backoff = Backoff(
            BRIDGE_RETRY_S, BRIDGE_RETRY_S
        )  # growing pauses would leave publishers alone
        while True:
            consumer = self._clients.member(self._group, session_s=self._session_s)
            self._consumer = consumer
            try:
                await start_client(consumer)
                subscribe(consumer, self._topic, self)
                while True:
                    await self._turn(consumer)
            except AWAY as error:
                level = logging.DEBUG if self._failing else logging.WARNING
                self.connected, self._failing = False, True
                _logger.log(level, "Cannot read %s, retrying: %s", self._topic, describe(error))
            except Exception:
                await self.on_partitions_revoked(set())
                raise
            finally:
                await self._leave(consumer)
            await self.on_partitions_revoked(set())
            await backoff.wait()

    async def _leave(self, consumer: Consumer) -> None:
        self._renewal = None
        if not await stop_consumer(consumer, timeout_s=BRIDGE_LEAVE_S):
            _logger.info("Group coordinator did not answer; the membership will time out")

    async def on_partitions_revoked(self, revoked: set[Partition]) -> None:
        """See `RebalanceListener`."""
        self.rebalances += 1
        self._assigned = False
        self._revoked = True  # nothing more is told of these, though this takes a while
        await self._owner.revoke()
        self._owned = {}
        self._lease_until = 0.0

    async def on_partitions_assigned(self, assigned: set[Partition]) -> None:
        """See `RebalanceListener`."""
        assert self._consumer is not None
        self._owned = {partition.partition: RegistryPartition() for partition in assigned}
        self._ends = None
        self._assigned = self._revoked = False
        self._renew_at = 0.0
        for number in self._owned:
            self._consumer.seek(Partition(self._topic, number), 0)
        _logger.info("Owns %d partitions of %s", len(self._owned), self._topic)

    async def _turn(self, consumer: Consumer) -> None:
        batches = await consumer.getmany(timeout_ms=REGISTRY_POLL_MS)
        self.connected, self._failing = True, False
        for messages in batches.values():
            for message in messages:
                if message.partition in self._owned and not self._revoked:
                    self._take(message)
        if self._owned:
            await self._renew(consumer)
            if not self._assigned and not self._revoked:
                await self._catch_up(consumer)

    async def _catch_up(self, consumer: Consumer) -> None:
        partitions = {number: Partition(self._topic, number) for number in self._owned}
        if self._ends is None:
            ends = await consumer.end_offsets(list(partitions.values()))
            self._ends = {key.partition: end for key, end in ends.items()}
        wanted = self._ends
        if wanted.keys() != self._owned.keys():  # a rebalance came between
            self._ends = None
            return
        for number, partition in partitions.items():
            if await consumer.position(partition) < wanted[number]:
                return
        if self._ends is wanted and not self._revoked:  # else a rebalance came meanwhile
            self._assigned = True
            self._owner.assign(self._owned)

    def _take(self, message: Message) -> None:
        """Takes one entry; skips and counts one that cannot be used, whatever it is."""
        try:
            self._follow(message)
        except EntryError as error:
            self._skip(message, error)
        except Exception:
            self.faults += 1
            _logger.exception(
                "Unexpected error; skipping the entry in %s, partition %d, offset %d",
                self._topic,
                message.partition,
                message.offset,
            )

    def _skip(self, message: Message, error: EntryError) -> None:
        self.skipped[error.reason] += 1
        is_named = self.skipped[error.reason] <= ENTRIES_NAMED_MAX
        _logger.log(
            logging.WARNING if is_named else logging.DEBUG,
            "Skipping the entry in %s, partition %d, offset %d: %s",
            self._topic,
            message.partition,
            message.offset,
            error,
        )
        partition, publisher = self._owned[message.partition], error.publisher
        if (
            publisher is None
            or publisher in partition.publishers
            or publisher in partition.unusable
        ):
            return
        if self._has_room():
            partition.unusable.add(publisher)
        else:
            partition.complete = False

    def _has_room(self) -> bool:
        remembered = (
            len(partition.publishers) + len(partition.without_events) + len(partition.unusable)
            for partition in self._owned.values()
        )
        return sum(remembered) < REGISTRY_ENTRIES_MAX

    def _follow(self, message: Message) -> None:
        entry = decode_registry_entry(message.key, message.value)
        if entry is None:
            return
        publisher, registration = entry
        partition = self._owned[message.partition]
        before = partition.publishers.get(publisher)
        silent = partition.without_events.pop(publisher, None)
        is_new = before is None and silent is None and publisher not in partition.unusable
        if registration is not None and is_new and not self._has_room():
            detail = f"one more publisher than {REGISTRY_ENTRIES_MAX}"
            raise EntryError(TOO_MANY, detail=detail, publisher=publisher)
        partition.unusable.discard(publisher)
        if registration is not None and not registration.has_events:
            partition.without_events[publisher] = registration
            registration = None  # of which there is nothing to follow
        if registration == before:
            return
        if registration is None:
            del partition.publishers[publisher]
        else:
            partition.publishers[publisher] = registration
        if self._assigned:
            self._owner.change(message.partition, publisher, registration)

    async def _renew(self, consumer: Consumer) -> None:
        """Proves, four times a session, that we are a member."""
        renewal = self._renewal or await self._ask(consumer)
        if renewal is None:
            return
        commit, asked_at, number = renewal
        # Never cancelled, however long it takes: the client's own task below would fail without
        # anything that retrieves its error, and the interpreter would complain.
        await asyncio.wait((commit,), timeout=self._session_s / 2)
        self._renewal = None if commit.done() else renewal
        if not commit.done():
            return
        if commit.cancelled() or commit.exception() is not None:
            _logger.debug("Cannot renew the lease: %r", commit)
        elif number in self._owned:
            self._lease_until = asked_at + self._session_s

    async def _ask(self, consumer: Consumer) -> _Renewal | None:
        """Starts a commit; None where it is too early for one, or it cannot be started."""
        asked_at = time.monotonic()
        if asked_at < self._renew_at:
            return None
        self._renew_at = asked_at + self._session_s / HEARTBEATS_PER_SESSION
        number = min(self._owned)
        partition = Partition(self._topic, number)
        try:
            position = await consumer.position(partition)
        except AWAY as error:
            _logger.debug("Cannot renew the lease: %r", error)
            return None
        commit = asyncio.ensure_future(consumer.commit({partition: position}))
        commit.add_done_callback(_retrieve)
        return _Renewal(commit, asked_at, number)


def _retrieve(commit: "asyncio.Future[None]") -> None:
    """Retrieves the error of a commit that is no longer waited for."""
    if not commit.cancelled():
        commit.exception()
