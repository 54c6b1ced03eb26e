"""The publishers of the embedded form, over the fakes of the pump's tests."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
import pytest

from bridge.membership.registrar import Registrar
from bridge.publisher import follower
from schemas.errors import (
    EndpointError,
    NotRegisteredError,
    RegistrationConflictError,
    StorageError,
)
from schemas.identities import PublisherKey
from schemas.positions import Cursor, PublisherState
from schemas.records import RegisteredRecord, UnregisteredRecord
from schemas.registration import LMCACHE, LMCACHE_TOPIC, NO_EVENTS, Label, Registration
from tests.unit.bridge.publisher.test_sequencer import removed
from tests.unit.bridge.pump_bench import BORN, ONE, PLAIN, REPLAYS, TWO, Bench, live


class FakeTable:
    """Folds registrations when it is asked for what is folded, and nothing else."""

    def __init__(self, bench: Bench) -> None:
        self.known: dict[PublisherKey, Registration] = {}
        self.states: dict[PublisherKey, PublisherState] = {}
        self.ended = False
        self._bench = bench
        self._folded = 0

    def registrations(self) -> Mapping[PublisherKey, Registration]:
        return dict(self.known)

    def state(self, publisher: PublisherKey) -> PublisherState | None:
        return self.states.get(publisher)

    async def folded(self) -> None:
        if self.ended:
            raise StorageError("the fold has ended, for a test")
        for record in self._bench.sink.records[self._folded :]:
            if isinstance(record, RegisteredRecord):
                self.known[record.publisher] = record.registration
            elif isinstance(record, UnregisteredRecord):
                self.known.pop(record.publisher, None)
                self.states.pop(record.publisher, None)
        self._folded = len(self._bench.sink.records)


class Office:
    """A registrar round fakes."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.table = FakeTable(self.bench)
        self.syncs = self.fails = 0
        self.ended: list[PublisherKey] = []
        self.registrar = Registrar(
            follower=self.bench.pump.follower,
            sink=self.bench.sink,
            table=self.table,
            sync=self.sync,
            on_unregistered=self.ended.extend,
        )

    async def sync(self) -> None:
        if self.fails:
            self.fails -= 1
            raise StorageError("the disk is full, for a test")
        self.syncs += 1

    def kinds(self, publisher: PublisherKey = ONE) -> list[str]:
        return [type(one).__name__ for one in self.bench.sink.records if one.publisher == publisher]


Scene = Callable[[Office], Coroutine[None, None, None]]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "ARRIVED_LOOK_S", 0.0)


def play(scene: Scene) -> Office:
    async def run() -> Office:
        office = Office()
        office.bench.start()
        await scene(office)
        assert office.bench.running is not None
        office.bench.running.cancel()
        await office.bench.pump.close()
        return office

    return asyncio.run(run())


def test_a_registration_is_in_the_log_before_the_publishers_first_batch() -> None:
    async def scene(office: Office) -> None:
        office.bench.pump.inbox.put([])
        assert await office.registrar.register(PLAIN) == [PLAIN]
        await office.bench.receive(live(0))

    office = play(scene)
    assert office.kinds() == ["RegisteredRecord", "EventsRecord"]
    assert office.syncs == 1


def test_what_comes_while_a_registration_waits_for_the_disk_follows_it() -> None:
    async def scene(office: Office) -> None:
        office.bench.sink.free.clear()
        registering = asyncio.create_task(office.registrar.register(PLAIN))
        while ONE not in office.bench.receiver.followed:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await office.bench.receive(live(0))
        assert not registering.done()
        office.bench.sink.free.set()
        await registering
        await office.bench.receive(live(1))

    assert play(scene).kinds()[:2] == ["RegisteredRecord", "EventsRecord"]


def test_a_new_publisher_is_asked_for_all_that_it_has_sent() -> None:
    async def scene(office: Office) -> None:
        office.bench.engine.has = {number: live(number, TWO) for number in range(3)}
        await office.registrar.register(REPLAYS)
        await office.bench.settle()

    office = play(scene)
    assert office.kinds(TWO) == ["RegisteredRecord", *["EventsRecord"] * 3]


def test_the_same_registration_again_changes_nothing_but_tries_to_connect() -> None:
    async def scene(office: Office) -> None:
        await office.registrar.register(PLAIN)
        office.bench.receiver.followed.clear()
        assert await office.registrar.register(PLAIN) == []
        assert office.bench.receiver.followed == {ONE}

    assert play(scene).kinds() == ["RegisteredRecord"]


def test_what_is_said_to_be_done_already_is_durable() -> None:
    """Whoever was told that the log could not be synced asks again."""

    async def scene(office: Office) -> None:
        office.fails = 1
        with pytest.raises(StorageError):
            await office.registrar.register(PLAIN)
        await office.registrar.register(PLAIN)
        assert office.syncs == 1
        office.fails = 1
        with pytest.raises(StorageError):
            await office.registrar.unregister(lambda one: True, "a")
        with pytest.raises(NotRegisteredError):
            await office.registrar.unregister(lambda one: True, "a")
        assert office.syncs == 2

    play(scene)


def test_a_publisher_that_cannot_be_followed_is_not_registered() -> None:
    async def scene(office: Office) -> None:
        office.bench.receiver.refuse = True
        with pytest.raises(EndpointError):
            await office.registrar.register(PLAIN)
        assert office.bench.pump.followed == {}
        office.bench.receiver.refuse = False
        await office.registrar.register(PLAIN)

    assert play(scene).kinds() == ["RegisteredRecord"]


def test_a_server_of_lmcache_is_registered_where_it_streams_alone() -> None:
    async def scene(office: Office) -> None:
        refused = msgspec.structs.replace(PLAIN, kind=LMCACHE_TOPIC)
        with pytest.raises(EndpointError, match="the `grpc://` address of a server of type LMC"):
            await office.registrar.register(refused)
        assert office.bench.pump.followed == {}
        streams = msgspec.structs.replace(refused, endpoint="grpc://127.0.0.1:50051")
        assert await office.registrar.register(streams) == [streams]

    assert play(scene).kinds() == ["RegisteredRecord"]


def test_a_registration_in_conflict_is_refused() -> None:
    async def scene(office: Office) -> None:
        await office.registrar.register(PLAIN)
        with pytest.raises(RegistrationConflictError):
            await office.registrar.register(
                Registration(
                    endpoint=PLAIN.endpoint,
                    kind=PLAIN.kind,
                    model_name="m",
                    instance_id="other",
                    block_size=4,
                )
            )

    assert play(scene).kinds() == ["RegisteredRecord"]


@pytest.mark.parametrize(
    "change", [{"endpoint": "tcp://127.0.0.1:5999"}, {"block_size": 8}, {"model_name": "other"}]
)
def test_a_registration_replaces_the_one_of_its_name_or_leaves_it_as_it_was(
    change: dict[str, Any],
) -> None:
    new = msgspec.structs.replace(PLAIN, **change)

    async def scene(office: Office) -> None:
        await office.registrar.register(PLAIN)
        await office.bench.receive(live(0))
        with pytest.raises(RegistrationConflictError):
            await office.registrar.register(new)
        office.table.states[ONE] = PublisherState(incarnation=1, sequence=0, engine_time=BORN)
        office.bench.receiver.refused.add(new)
        with pytest.raises(EndpointError):
            await office.registrar.register(new, replace=True)
        assert office.bench.pump.followed.keys() == {ONE}
        await office.bench.receive(live(1))
        office.bench.receiver.refused.clear()
        assert await office.registrar.register(new, replace=True) == [new]
        assert office.ended == [ONE]
        assert office.bench.pump.followed.keys() == {new.publisher}
        assert await office.registrar.register(new, replace=True) == []
        assert list(office.table.registrations().values()) == [new]

    kinds = [type(one).__name__ for one in play(scene).bench.sink.records]
    changes = ["UnregisteredRecord", "RegisteredRecord"]
    assert kinds == ["RegisteredRecord", *["EventsRecord"] * 2, *changes]


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"url": "http://here"}, True),
        ({"replay_endpoint": "tcp://127.0.0.1:5998"}, True),
        ({"endpoint": "tcp://127.0.0.1:5999"}, False),
        ({"kind": "SGLang"}, False),
        ({"kv_offloading": "none"}, False),
        ({"block_size": 8}, False),
    ],
)
def test_what_replaces_a_registration_of_the_same_engine_says_so(
    change: dict[str, Any], is_same: bool
) -> None:
    new = msgspec.structs.replace(PLAIN, **change)

    async def scene(office: Office) -> None:
        await office.registrar.register(PLAIN)
        await office.registrar.register(new, replace=True)

    (gone,) = [one for one in play(scene).bench.sink.records if isinstance(one, UnregisteredRecord)]
    assert (gone.continues is True) is is_same


SAYS: Any = [
    {"kv_cache_groups": "one"},
    {"kv_partial_reuse": "none", "kv_cache_groups": "one"},
    {"lora_reload": "none"},
    {"kv_offloading": "native"},
    {"labels": (Label("rack", "r1"),), "role": "prefill"},
    {"kv_bytes_per_token": 1, "max_num_seqs": 2, "kv_capacity_tokens": 3},
]


@pytest.mark.parametrize("how", ["replace", "restate"])
@pytest.mark.parametrize("says", SAYS)
def test_what_says_other_things_of_a_publisher_leaves_it_where_it_is(
    says: dict[str, Any], how: str
) -> None:
    new = msgspec.structs.replace(PLAIN, **says)

    async def scene(office: Office) -> None:
        await office.registrar.register(PLAIN)
        await office.bench.receive(live(0))
        with pytest.raises(RegistrationConflictError):
            await office.registrar.register(new)
        assert await office.registrar.register(new, **{how: True}) == [new]
        assert await office.registrar.register(new, **{how: True}) == []
        await office.bench.receive(live(1))
        assert office.ended == []
        assert list(office.table.registrations().values()) == [new]
        assert office.bench.pump.followed[ONE].registration == new

    kinds = [type(one).__name__ for one in play(scene).bench.sink.records]
    assert kinds == ["RegisteredRecord", "EventsRecord", "RegisteredRecord", "EventsRecord"]


def test_what_has_another_name_is_never_replaced() -> None:
    async def scene(office: Office) -> None:
        await office.registrar.register(PLAIN)
        other = msgspec.structs.replace(PLAIN, instance_id="other")
        with pytest.raises(RegistrationConflictError):
            await office.registrar.register(other, replace=True)

    assert play(scene).kinds() == ["RegisteredRecord"]


def test_nothing_is_registered_once_the_fold_has_ended() -> None:
    async def scene(office: Office) -> None:
        office.table.ended = True
        with pytest.raises(StorageError, match="ended"):
            await office.registrar.register(PLAIN)

    assert play(scene).bench.sink.records == []


def test_an_unregistered_publisher_is_forgotten_and_may_come_again_from_its_beginning() -> None:
    async def scene(office: Office) -> None:
        await office.registrar.register(PLAIN)
        await office.bench.receive(live(0), live(1))
        gone = await office.registrar.unregister(lambda one: one == PLAIN, "key")
        assert gone == [PLAIN]
        await office.bench.receive(live(2))
        await office.registrar.register(PLAIN)
        await office.bench.receive(live(3))
        with pytest.raises(NotRegisteredError):
            await office.registrar.unregister(lambda one: False, "key")

    assert play(scene).kinds() == [
        "RegisteredRecord",
        "EventsRecord",
        "UnregisteredRecord",
        "RegisteredRecord",
        "GapRecord",
        "EventsRecord",
    ]


def test_after_a_restart_each_publisher_goes_on_from_where_the_table_stands() -> None:
    async def scene(office: Office) -> None:
        office.table.known = {ONE: PLAIN, TWO: REPLAYS}
        office.table.states[TWO] = PublisherState(incarnation=2, sequence=4, engine_time=BORN + 4)
        office.bench.engine.has = {number: live(number, TWO) for number in range(8)}
        await office.registrar.follow_registered()
        await office.bench.receive(live(8, TWO), live(0))
        assert office.bench.engine.asked == [Cursor(2, 4)]

    office = play(scene)
    assert office.bench.sink.told(TWO) == [removed(number, number) for number in range(5, 9)]
    assert office.bench.sink.told() == [removed(0, 0)]


def test_after_a_restart_a_publisher_that_cannot_be_connected_to_stops_no_other() -> None:
    async def scene(office: Office) -> None:
        office.table.known = {ONE: PLAIN, TWO: REPLAYS}
        office.bench.receiver.refuse = True
        await office.registrar.follow_registered()
        office.bench.receiver.refuse = False
        assert office.bench.pump.followed.keys() == {ONE, TWO}
        await office.registrar.register(PLAIN)
        assert office.bench.receiver.followed == {ONE}

    play(scene)


def test_after_a_restart_a_publisher_that_is_left_is_not_followed_and_may_be_unregistered() -> None:
    async def scene(office: Office) -> None:
        office.table.known = {ONE: PLAIN, TWO: REPLAYS}
        await office.registrar.follow_registered(lambda registration: registration == REPLAYS)
        assert office.bench.receiver.followed == {ONE}
        gone = await office.registrar.unregister(lambda registration: registration == REPLAYS, "")
        assert gone == [REPLAYS]
        assert office.bench.receiver.followed == {ONE}

    play(scene)


def test_whoever_registers_itself_is_not_followed_and_may_be_unregistered() -> None:
    worker = msgspec.structs.replace(PLAIN, kind=LMCACHE)

    async def scene(office: Office) -> None:
        office.table.known[worker.publisher] = worker
        await office.registrar.follow_registered()
        assert office.bench.pump.followed.keys() == set()
        assert await office.registrar.unregister(lambda one: one == worker, "any") == [worker]

    office = play(scene)
    assert office.ended == [worker.publisher]
    assert office.kinds() == ["UnregisteredRecord"]


def test_an_engine_without_events_is_registered_and_followed_by_nobody() -> None:
    silent = msgspec.structs.replace(PLAIN, endpoint="", kind=NO_EVENTS)

    async def scene(office: Office) -> None:
        bad = msgspec.structs.replace(silent, http_endpoint="10.0.0.7:8000")
        with pytest.raises(EndpointError):
            await office.registrar.register(bad)
        assert await office.registrar.register(silent) == [silent]
        assert await office.registrar.register(silent) == []
        await office.registrar.follow_registered()
        assert not office.bench.pump.followed
        assert not office.bench.receiver.followed
        assert await office.registrar.unregister(lambda one: True, "a") == [silent]

    office = play(scene)
    assert office.kinds(silent.publisher) == ["RegisteredRecord", "UnregisteredRecord"]
    assert office.syncs == 3
