"""`/register` and `/unregister` on a replica: entries of the registry topic.

A request is checked against the registry as this replica has read it, written with acks=all, and
answered once the log has it. Where it seems to change nothing, or to be refused, all that the
registry has by then is read first: another replica may have written a moment before. Repeating a
request that failed is safe: what was written is no change the second time. A pool is as many
entries as the events have partitions. Two replicas that write different registrations of one
publisher at once cannot know of each other; see `query_api.replica.registry_table`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from brokers.availability import describe
from brokers.broker_settings import KafkaSettings
from brokers.clients import Clients, partition_of
from brokers.errors import AWAY
from brokers.options import ClientOptions
from logs.entry_writer import EntryWriter
from logs.loop_thread import LoopThread
from query_api.http.errors import recovering
from query_api.replica.replica import Replica
from query_api.replica.snapshot import Topic, TopicPartition
from schemas.errors import NotRegisteredError, RegistrationError, StorageError
from schemas.identities import PublisherKey
from schemas.limits import REGISTRY_ENTRY_MS
from schemas.registration import (
    PublisherKind,
    Registration,
    Unregistration,
    is_new,
    pool_members,
    replaced_by,
    restated_by,
)
from schemas.topics import encode_publisher, encode_registration, encode_stream

REGISTRY_WRITE_S: Final = 10.0  # a registration waits this long for Kafka: status="503"

assert REGISTRY_ENTRY_MS / 1000 < REGISTRY_WRITE_S, "an entry is given up before its request is"

T = TypeVar("T")


class RegistryWriter:
    """Implements `query_api.ports.PublisherRegistry`; works on the replica's thread."""

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        replica: Replica,
        thread: LoopThread,
        *,
        read_registry: Callable[[], Awaitable[None]],
        check: Callable[[Registration], None],
        kinds: Collection[PublisherKind],
        on_unregistered: Callable[[list[Registration]], None] = lambda gone: None,
    ) -> None:
        """Args:
        thread: of the replica, on which it writes.
        read_registry: returns once the replica has read all that the registry had by then.
        check: raises EndpointError where no bridge could ever connect.
        kinds: of publishers that the bridges can follow.
        on_unregistered: told of those that were.
        """
        self._topic = settings.topics.registry.name
        self._events_partitions = settings.topics.events.partitions
        self._servers = settings.bootstrap
        self._replica = replica
        self._thread = thread
        self._read_registry = read_registry
        self._check = check
        self._on_unregistered = on_unregistered
        self.kinds = kinds
        self._lock = asyncio.Lock()
        self._writer = EntryWriter(Clients(options).entry_producer)
        thread.close_with(self._writer.close)

    async def register(self, registration: Registration, *, replace: bool = False) -> None:
        """See `PublisherRegistry`."""
        await self._finish(self.write(registration, replace=replace))

    async def unregister(self, target: Unregistration) -> list[Registration]:
        """See `PublisherRegistry`."""
        gone = await self._finish(self._forget(target))
        self._on_unregistered(gone)
        return gone

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        unanswered = (
            f"Kafka at {self._servers} did not take the registry entry within"
            f" {REGISTRY_WRITE_S:.0f} s"
        )
        return await self._thread.call(work, REGISTRY_WRITE_S, unanswered)

    # On the thread

    async def write(
        self, registration: Registration, *, replace: bool = False, restate: bool = False
    ) -> None:
        """What `register` does; for callers that are on the thread already. `restate`: it takes the
        place of what it restates, and of nothing else.

        What is replaced goes last: where Kafka goes away meanwhile, both are registered until the
        request is repeated. An entry of the same publisher takes the place of the one before it.
        """
        async with self._lock:
            changes = partial(self._changes, registration, replace=replace, restate=restate)
            try:
                new, replaced = changes()
            except RegistrationError:
                new, replaced = [], []
            if not (new or replaced):
                await self._read_registry()
                new, replaced = changes()
            if new:
                self._check(registration)
            for one in new:
                await self._send(one.publisher, one)
            for publisher in {one.publisher for one in replaced} - {one.publisher for one in new}:
                await self._send(publisher, None)

    def _changes(
        self, registration: Registration, *, replace: bool, restate: bool
    ) -> tuple[list[Registration], list[Registration]]:
        """What is to be written, and what is to go."""
        registered = dict(self._registrations())
        replaced = replaced_by(registration, registered) if replace else []
        replaced += restated_by(registration, registered) if restate else []
        for one in replaced:
            del registered[one.publisher]
        return [one for one in self._members(registration) if is_new(one, registered)], replaced

    def _members(self, registration: Registration) -> list[Registration]:
        if not registration.is_pool:
            return [registration]
        partitions = self._events_partitions
        return pool_members(
            registration, partitions, lambda stream: partition_of(encode_stream(stream), partitions)
        )

    async def _forget(self, target: Unregistration) -> list[Registration]:
        async with self._lock:
            gone = list(filter(target.matches, self._registrations().values()))
            if not gone:
                await self._read_registry()
                gone = list(filter(target.matches, self._registrations().values()))
            if not gone:
                raise NotRegisteredError(target.service_key)
            for registration in gone:
                await self._send(registration.publisher, None)
            return list(dict.fromkeys(registration.as_registered for registration in gone))

    def _registrations(self) -> dict[PublisherKey, Registration]:
        snapshot = self._replica.loading
        if not snapshot.registry_complete:
            raise recovering("the registry is being read")
        return snapshot.registry.registrations

    async def _send(self, publisher: PublisherKey, registration: Registration | None) -> None:
        value = None if registration is None else encode_registration(registration)
        try:
            written = await self._writer.write(
                self._topic, key=encode_publisher(publisher), value=value
            )
        except AWAY as error:
            raise StorageError(
                f"Cannot write the registry entry to Kafka at {self._servers}: {describe(error)}"
            ) from error
        place = TopicPartition(Topic.REGISTRY, written.partition)
        self._replica.loading.put_written(place, written.offset, publisher, registration)
