"""The registry's reader against messages of a consumer in memory."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from bridge.delivery.lease import Lease
from bridge.membership import registry_reader
from bridge.membership.registry_reader import RegistryPartition, RegistryReader
from brokers.broker_settings import KafkaSettings
from brokers.client_types import Consumer, Partition
from brokers.clients import Clients
from brokers.errors import KafkaError
from logs import skipped
from schemas.identities import PublisherKey
from schemas.registration import NO_EVENTS, Registration
from schemas.topics import encode_publisher, encode_registration
from tests.unit.bridge.messages import registration

ONE = registration()
TWO = registration(instance_id="w-2")
SETTINGS = KafkaSettings(bootstrap="k:1", registry_partitions=1)
TOPIC = SETTINGS.topics.registry.name
KEY = encode_publisher(ONE.publisher)
POISON: list[tuple[bytes | None, bytes | None]] = [
    (b"\xc1", b"what?"),
    (b"\x92\x95\xa1\xff", encode_registration(ONE)),
    (None, b""),
    (KEY, b"\x81\xa8endpoint\xa1\xff"),
    (KEY, b"\x91" * 10_000),
    (KEY, encode_registration(TWO)),
    (KEY, encode_registration(ONE)[:-1]),
]


class Owner:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.assigned: list[dict[int, RegistryPartition]] = []
        self.changes: list[tuple[int, PublisherKey, Registration | None]] = []
        self.fails_for: PublisherKey | None = None

    async def revoke(self) -> None: ...

    def assign(self, partitions: dict[int, RegistryPartition]) -> None:
        self.assigned.append(partitions)

    def change(
        self, partition: int, publisher: PublisherKey, registration: Registration | None
    ) -> None:
        if publisher == self.fails_for:
            raise ZeroDivisionError("injected")
        self.changes.append((partition, publisher, registration))


class FakeConsumer:
    """One partition of the registry."""

    def __init__(self) -> None:
        self.log: list[tuple[bytes | None, bytes | None]] = []
        self.position_ = 0

    def seek(self, partition: object, offset: int) -> None:
        self.position_ = offset

    async def position(self, partition: object) -> int:
        return self.position_

    async def end_offsets(self, partitions: Sequence[Any]) -> Mapping[Partition, int]:
        return {Partition(*one): len(self.log) for one in partitions}

    async def commit(self, offsets: object) -> None: ...

    async def getmany(
        self, *, timeout_ms: int, max_records: int | None = None
    ) -> Mapping[Partition, Sequence[Any]]:
        start, self.position_ = self.position_, len(self.log)
        messages = [
            SimpleNamespace(partition=0, offset=start + n, key=key, value=value)
            for n, (key, value) in enumerate(self.log[start:])
        ]
        return {Partition(TOPIC, 0): messages}


class Reading:
    """A reader to which the partition was assigned."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.consumer = FakeConsumer()
        clients = cast(Clients, SimpleNamespace())
        self.lease = Lease()
        self.registry = RegistryReader(clients, SETTINGS, self.owner, self.lease, session_s=10.0)
        self.registry._consumer = cast(Consumer, self.consumer)
        asyncio.run(self.registry.on_partitions_assigned({Partition(TOPIC, 0)}))

    def turn(self, *messages: tuple[bytes | None, bytes | None]) -> RegistryPartition:
        """Reads these, and all before them that were not read."""
        self.consumer.log += messages

        async def turn() -> None:
            await self.registry.turn(cast(Consumer, self.consumer))

        asyncio.run(turn())
        (entries,) = self.owner.assigned
        return entries[0]


@pytest.fixture
def reading() -> Reading:
    return Reading()


def entry(of: Registration) -> tuple[bytes, bytes]:
    return encode_publisher(of.publisher), encode_registration(of)


@pytest.mark.parametrize("poison", POISON)
def test_an_entry_that_cannot_be_read_is_counted_and_the_next_ones_are_followed(
    reading: Reading, poison: tuple[bytes | None, bytes | None]
) -> None:
    entries = reading.turn(poison, entry(TWO))
    assert entries.publishers == {TWO.publisher: TWO}
    assert reading.registry.skipped.total() == 1
    reading.turn(poison, entry(ONE))
    assert reading.owner.changes == [(0, ONE.publisher, ONE)]
    assert (reading.registry.skipped.total(), reading.registry.skipped.faults) == (2, 0)


@pytest.mark.parametrize("assigned_before", [False, True])
def test_while_partitions_are_being_revoked_nothing_more_is_told_of_them(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, assigned_before: bool
) -> None:
    """The owner writes what it has, which takes a while; the reading goes on meanwhile."""
    if assigned_before:
        reading.turn()
    told = list(reading.owner.assigned)

    async def revoke() -> None:
        reading.consumer.log.append(entry(ONE))
        await reading.registry.turn(cast(Consumer, reading.consumer))

    monkeypatch.setattr(reading.owner, "revoke", revoke)
    asyncio.run(reading.registry.on_partitions_revoked({Partition(TOPIC, 0)}))
    assert (reading.owner.assigned, reading.owner.changes) == (told, [])
    reading.owner.assigned.clear()
    asyncio.run(reading.registry.on_partitions_assigned({Partition(TOPIC, 0)}))
    assert reading.turn().publishers == {ONE.publisher: ONE}


def test_what_is_ours_may_be_written_once_a_commit_has_proven_it_until_it_is_revoked(
    reading: Reading,
) -> None:
    assert not reading.lease.is_held, "the group may have given it to another bridge since"
    reading.turn()
    assert reading.lease.is_held
    asyncio.run(reading.registry.on_partitions_revoked({Partition(TOPIC, 0)}))
    asyncio.run(reading.registry.on_partitions_assigned({Partition(TOPIC, 0)}))
    assert not reading.lease.is_held
    reading.registry.leave()
    assert reading.lease.is_held, "nothing is ours that another bridge could own"


def test_a_publisher_whose_entry_cannot_be_read_is_not_taken_for_forgotten(
    reading: Reading,
) -> None:
    entries = reading.turn((KEY, b"\x00"))
    assert not entries.has_forgotten(ONE.publisher)
    assert entries.has_forgotten(TWO.publisher)
    reading.turn((KEY, None))
    assert entries.has_forgotten(ONE.publisher)


def test_an_unexpected_error_costs_one_entry_and_is_counted_with_its_place(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    reading.turn()
    reading.owner.fails_for = ONE.publisher
    reading.turn(entry(ONE), entry(TWO))
    assert reading.owner.changes == [(0, TWO.publisher, TWO)]
    assert reading.registry.skipped.faults == 1
    assert f"skipping the entry in {TOPIC}, partition 0, offset 0" in caplog.text


def test_the_publishers_of_a_registry_have_a_bound_and_none_counts_as_forgotten_above_it(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_reader, "REGISTRY_ENTRIES_MAX", 3)
    many = [registration(instance_id=f"i-{number}") for number in range(5)]
    bad = [(encode_publisher(one.publisher), b"\x00") for one in many]
    entries = reading.turn(*map(entry, many[:2]), *bad[2:], *map(entry, many[3:]))
    assert len(entries.entries) == 3
    assert set(entries.publishers) == {one.publisher for one in many[:2]}
    assert not entries.has_forgotten(many[4].publisher)
    assert reading.registry.skipped["too_many"] == 2
    reading.turn((encode_publisher(many[0].publisher), None), entry(many[4]))
    assert many[4].publisher in entries.publishers


def test_of_many_unusable_entries_only_the_first_are_named(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(skipped, "ENTRIES_NAMED_MAX", 2)
    with caplog.at_level(logging.WARNING):
        reading.turn(*[(b"\xc1", b"")] * 9)
    assert reading.registry.skipped == {"malformed_key": 9}
    assert len([one for one in caplog.records if "Skipping" in one.message]) == 2


def test_an_engine_without_events_is_followed_by_nobody_and_known(reading: Reading) -> None:
    silent = msgspec.structs.replace(ONE, endpoint="", kind=NO_EVENTS)
    entries = reading.turn(entry(silent), entry(TWO))
    assert entries.publishers == {TWO.publisher: TWO}
    assert reading.registry.without_events() == {ONE.publisher: silent}
    assert entries.has_forgotten(ONE.publisher), "whatever the log has of it ends"
    reading.turn(entry(silent))
    assert reading.owner.changes == []
    reading.turn(entry(ONE))
    assert reading.registry.without_events() == {}
    reading.turn(entry(silent))
    assert reading.owner.changes == [(0, ONE.publisher, ONE), (0, ONE.publisher, None)]
    reading.turn((encode_publisher(ONE.publisher), None))
    assert reading.registry.without_events() == {}


class Member(FakeConsumer):
    """A consumer of the group, whose polls fail; it notes what becomes of it."""

    def __init__(self, failures: list[Exception], seen: list[str]) -> None:
        super().__init__()
        self._failures = failures
        self._seen = seen

    async def start(self) -> None: ...

    def subscribe(self, topics: list[str], listener: object) -> None: ...

    async def stop(self) -> None:
        self._seen.append("left")

    async def getmany(
        self, *, timeout_ms: int, max_records: int | None = None
    ) -> Mapping[Partition, Sequence[Any]]:
        if self._failures:
            raise self._failures.pop(0)
        self._seen.append("read")
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (KafkaError("away"), ["left", "revoked", "read", "left"]),
        (ZeroDivisionError("injected"), ["revoked", "left", "failed"]),
    ],
)
def test_what_is_ours_is_given_up_where_the_registry_cannot_be_read_and_not_at_the_end(
    failure: Exception, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_reader, "BRIDGE_RETRY_S", 0.001)
    seen: list[str] = []
    failures = [failure]

    class Noting(Owner):
        async def revoke(self) -> None:
            seen.append("revoked")

    async def run() -> None:
        clients = SimpleNamespace(member=lambda group, session_s: Member(failures, seen))
        registry = RegistryReader(
            cast(Clients, clients), SETTINGS, Noting(), Lease(), session_s=10.0
        )
        reading = asyncio.create_task(registry.run())
        async with asyncio.timeout(5):
            while "read" not in seen and not reading.done():  # noqa: ASYNC110 -- it has no event
                await asyncio.sleep(0.001)
        reading.cancel()
        (error,) = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(error, ZeroDivisionError):
            seen.append("failed")

    asyncio.run(run())
    assert seen == expected
