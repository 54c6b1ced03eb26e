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
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from bridge.bounds import BRIDGE_RETRY_S
from bridge.delivery.lease import Lease
from bridge.supervision import retrieve
from brokers.availability import describe
from brokers.broker_settings import KafkaSettings
from brokers.client_types import Consumer, Message, Partition
from brokers.clients import Clients, subscribe
from brokers.errors import AWAY
from logs.attempts import LogLostError
from logs.follower import Follower, Messages
from logs.skipped import SkippedMessages
from schemas.codec import TOO_MANY, decode_registry_entry
from schemas.errors import ConfigurationError, EntryError
from schemas.identities import PublisherKey
from schemas.limits import (
    BRIDGE_LEAVE_S,
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
class RegisteredPublisher:
    """What the registry says of one publisher.

    Attributes:
        registration: as the last entry says that could be read; None where none could.
        is_unusable: whether its last entry cannot be read, and nothing is followed.
    """

    registration: Registration | None
    is_unusable: bool = False

    @property
    def followed(self) -> Registration | None:
        """The registration, where it is one of a publisher that publishes events."""
        one = self.registration
        return one if one is not None and one.has_events else None


@dataclass(slots=True)
class RegistryPartition:
    """What one partition of the registry says.

    Attributes:
        entries: of those that are registered, and of those whose last entry cannot be read: taken
            as neither registered nor forgotten.
        complete: False where there was no room for more of either.
    """

    entries: dict[PublisherKey, RegisteredPublisher] = field(default_factory=dict)
    complete: bool = True

    @property
    def publishers(self) -> dict[PublisherKey, Registration]:
        """Those that are registered, and publish events. Cost O(entries)."""
        entries = self.entries.items()
        return {key: found for key, one in entries if (found := one.followed) is not None}

    def followed(self, publisher: PublisherKey) -> Registration | None:
        """The registration of the publisher, where it is one of them."""
        entry = self.entries.get(publisher)
        return None if entry is None else entry.followed

    def has_forgotten(self, publisher: PublisherKey) -> bool:
        """Whether it is certain that the publisher, if it is of this partition, is forgotten."""
        entry = self.entries.get(publisher)
        is_known = entry is not None and (entry.is_unusable or entry.followed is not None)
        return self.complete and not is_known


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


class RegistryReader(Follower):
    """See the module. One loop.

    Args:
        kafka: its topics and groups.
        owner: given every change, in order.
        lease: of this bridge.
        session_s: after this long without a heartbeat our partitions go to other bridges.
    """

    def __init__(
        self,
        clients: Clients,
        kafka: KafkaSettings,
        owner: Owner,
        lease: Lease,
        *,
        session_s: float,
    ) -> None:
        super().__init__(
            poll_ms=REGISTRY_POLL_MS,
            retry_first_s=BRIDGE_RETRY_S,
            retry_max_s=BRIDGE_RETRY_S,  # growing pauses would leave publishers alone
            leave_s=BRIDGE_LEAVE_S,
        )
        self.skipped = SkippedMessages("entry")
        self.rebalances = 0
        self.connected = False
        self._clients = clients
        self._topic = kafka.topics.registry.name
        self._group = kafka.group("bridge")
        self._session_s = session_s
        self._owner = owner
        self._lease = lease
        self._take = self.skipped.guarded(self._topic, self._follow, self._refused)
        self._consumer: Consumer | None = None
        self._owned: dict[int, RegistryPartition] = {}
        self._ends: dict[int, int] | None = None  # the offsets to read up to; None: not known yet
        self._assigned = self._revoked = False
        self._renew_at = 0.0
        self._renewal: _Renewal | None = None
        self._failing = False  # logged already

    @property
    def partitions(self) -> list[int]:
        """Those that are ours."""
        return sorted(self._owned)

    def without_events(self) -> dict[PublisherKey, Registration]:
        """Engines in our partitions that publish none. Cost O(entries)."""
        return {
            publisher: one.registration
            for partition in list(self._owned.values())
            for publisher, one in list(partition.entries.items())
            if one.registration is not None and not one.registration.has_events
        }

    @property
    def is_settled(self) -> bool:
        """Whether what is ours is known and no rebalance is under way."""
        return self._assigned and not self._revoked

    def leave(self) -> None:
        """Our run was cancelled: we are no member any more, and nothing is ours."""
        self._owned, self._assigned = {}, False
        self._lease.end()

    # Follower: a member of the group

    def make_consumer(self) -> Consumer:
        """See `Follower`."""
        self._consumer = self._clients.member(self._group, session_s=self._session_s)
        return self._consumer

    async def begin(self, consumer: Consumer) -> None:
        """See `Follower`: the group says which partitions."""
        subscribe(consumer, self._topic, self)

    async def turn(self, consumer: Consumer) -> None:
        """See `Follower`."""
        try:
            await super().turn(consumer)
        except AWAY:
            raise
        except Exception:
            await self.on_partitions_revoked(set())  # while we are a member
            raise

    async def take(self, messages: Messages) -> None:
        """See `Follower`."""
        for some in messages.values():
            for message in some:
                if message.partition in self._owned and not self._revoked:
                    self._take(message)

    async def turned(self, consumer: Consumer, *, has_read: bool) -> None:
        """See `Follower`."""
        self.connected, self._failing = True, False
        if self._owned:
            await self._renew(consumer)
            if not self._assigned and not self._revoked:
                await self._catch_up(consumer)

    def unanswered(self) -> None:
        """See `Follower`."""
        _logger.info("Group coordinator did not answer; the membership will time out")

    async def left(self) -> None:
        """See `Follower`."""
        self._renewal = None

    async def pause(self) -> None:
        """See `Follower`: nothing is ours meanwhile."""
        await self.on_partitions_revoked(set())
        await super().pause()

    def away(self, error: Exception) -> None:
        """See `Follower`."""
        level = logging.DEBUG if self._failing else logging.WARNING
        self.connected, self._failing = False, True
        _logger.log(level, "Cannot read %s, retrying: %s", self._topic, describe(error))

    def lost(self, error: LogLostError) -> bool:
        """See `Follower`: the group gives the partitions again."""
        self.away(error)
        return False

    def refused(self, error: ConfigurationError) -> None:
        """See `Follower`: it was checked at the start."""
        self.failed(error)

    def failed(self, error: Exception) -> None:
        """See `Follower`: `bridge.supervision` logs and counts it, and starts `run` again."""
        raise error

    # The group

    async def on_partitions_revoked(self, revoked: set[Partition]) -> None:
        """See `RebalanceListener`."""
        self.rebalances += 1
        self._assigned = False
        self._revoked = True  # nothing more is told of these, though this takes a while
        await self._owner.revoke()
        self._owned = {}
        self._lease.end()

    async def on_partitions_assigned(self, assigned: set[Partition]) -> None:
        """See `RebalanceListener`."""
        assert self._consumer is not None
        self._owned = {partition.partition: RegistryPartition() for partition in assigned}
        self._lease.begin(owns=bool(assigned))
        self._ends = None
        self._assigned = self._revoked = False
        self._renew_at = 0.0
        for number in self._owned:
            self._consumer.seek(Partition(self._topic, number), 0)
        _logger.info("Owns %d partitions of %s", len(self._owned), self._topic)

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

    def _refused(self, message: Message, error: EntryError) -> None:
        partition, publisher = self._owned[message.partition], error.publisher
        if publisher is None or partition.followed(publisher) is not None:
            return
        entry = partition.entries.get(publisher)
        if entry is not None:
            entry.is_unusable = True
        elif self._has_room():
            partition.entries[publisher] = RegisteredPublisher(None, is_unusable=True)
        else:
            partition.complete = False

    def _has_room(self) -> bool:
        return sum(len(one.entries) for one in self._owned.values()) < REGISTRY_ENTRIES_MAX

    def _follow(self, message: Message) -> None:
        entry = decode_registry_entry(message.key, message.value)
        if entry is None:
            return
        publisher, registration = entry
        partition = self._owned[message.partition]
        before = partition.followed(publisher)
        if registration is None:
            partition.entries.pop(publisher, None)
        elif publisher in partition.entries or self._has_room():
            partition.entries[publisher] = RegisteredPublisher(registration)
        else:
            detail = f"one more publisher than {REGISTRY_ENTRIES_MAX}"
            raise EntryError(TOO_MANY, detail=detail, publisher=publisher)
        after = partition.followed(publisher)
        if after != before and self._assigned:
            self._owner.change(message.partition, publisher, after)

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
            self._lease.renew(asked_at + self._session_s)

    async def _ask(self, consumer: Consumer) -> _Renewal | None:
        """Starts a commit; None where it is too early for one, or it cannot be started."""
        asked_at = self._lease.clock.monotonic()
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
        commit.add_done_callback(retrieve)
        return _Renewal(commit, asked_at, number)
