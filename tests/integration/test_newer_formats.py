"""What a newer Reprise has left is refused with what to do, or passed over, and is left as it
is.

A version above ours is written into each format that this Reprise has made. What it is then asked
to start on is compared before and after: every file that is no database's, byte for byte, of every
database all entries, of every topic all values; and no part of it was set aside.
"""

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from bridge.delivery.spool import Spool
from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from brokers.topics import ensure_topics
from logs.checkpoint import write_checkpoint
from logs.embedded import EmbeddedLog, ReadOnlyLog
from reprise.embedded.repair import DirectoryRepair
from reprise.embedded.service import EmbeddedService
from reprise.settings import Settings
from routing.fold.chunks import CHUNK_VERSION, chunks_of
from routing.fold.fold import STATE_VERSION, RoutingFold
from routing.log.recovery import recover_fold
from routing.worker.state import RoutingStateTopic
from schemas.conditions import Part
from schemas.errors import NewerVersionError, StorageError
from schemas.identities import Offset
from schemas.records import NEWEST_VERSION
from schemas.routing_records import ROUTING_VERSION, encode_routing
from schemas.topics import (
    ENTRY_VERSION,
    CursorNote,
    TopicSpec,
    encode_note,
    encode_publisher,
    encode_registration,
)
from storage.rocksdb import ANSWERS, HISTORY, LOG, SPOOL, TABLE, Database, Preset, new_batch
from streams.audit.log import AnswersLog
from streams.history.store import FORMAT as HISTORY_FORMAT
from streams.table.rows import format as rows
from streams.table.rows.format import RowWrite
from tests.building import events_record, registered_record, registration, stored
from tests.deployment import query_for
from tests.integration.test_serve_kafka import Worker, consume, produce
from tests.processes import Service, until
from tests.roles import Role
from tests.routing import decisions

PRESETS = {"log": LOG, "table": TABLE, "history": HISTORY, "answers": ANSWERS, "spool": SPOOL}
TOKENS = list(range(8))


def contents(data: Path) -> dict[str, object]:
    """All that is stored below; what RocksDB does with its files meanwhile is its own."""
    found: dict[str, object] = {}
    databases = {file.parent for file in data.rglob("CURRENT")}
    for path in databases:
        database = Database.up_to_damage(path, PRESETS[path.name])
        try:
            found[str(path.relative_to(data))] = dict(database.scan(b"", b""))
        finally:
            database.close()
    for file in data.rglob("*"):
        if file.is_file() and file.parent not in databases:
            found[str(file.relative_to(data))] = file.read_bytes()
    return found


def change(path: Path, preset: Preset, key: bytes, of: Callable[[bytes], bytes]) -> None:
    """Replaces what stands under a key."""
    database = Database(path, preset)
    batch = new_batch()
    batch.put(key, of(database.get(key) or b""))
    database.write(batch)
    database.close()


def newer_row(value: bytes) -> bytes:
    """The same of the next version: what a checksum guards is what stands behind it."""
    return bytes([rows.ROW_FORMAT + 1]) + value[1:]


def u64(_: bytes) -> bytes:
    return struct.pack("<Q", 2)


def newer(record: bytes, version: int) -> bytes:
    """The record of another version, with a field that nobody knows."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(record) | {"version": version, "new": 1})


def newer_log(data: Path) -> None:
    change(data / "log", LOG, b"mformat", u64)


def newer_table(data: Path) -> None:
    change(data / "table", TABLE, rows.COVERED_KEY, newer_row)


def one_newer_row(data: Path) -> None:
    database = Database.read_only(data / "table", TABLE)
    key, _ = next(iter(database.scan(rows.CONTEXT, rows.CONTEXT)))
    database.close()
    change(data / "table", TABLE, key, newer_row)


def newer_history(data: Path) -> None:
    change(data / "history", HISTORY, b"f", lambda _: struct.pack("<I", HISTORY_FORMAT + 1))


def newer_answers(data: Path) -> None:
    change(data / "answers", ANSWERS, b"mformat", u64)


def newer_routing_log(data: Path) -> None:
    change(data / "routing" / "log", LOG, b"mformat", u64)


def checkpoint_of(data: Path, place: int, state: bytes) -> None:
    """The checkpoint with another state in one of its fields."""
    fields = msgspec.msgpack.decode(RoutingFold().dump())
    fields[place] = state
    write_checkpoint(data / "routing" / "checkpoint", [msgspec.msgpack.encode(fields)])


def newer_checkpoint(data: Path) -> None:
    state = [STATE_VERSION + 1, {"another": "form"}]
    write_checkpoint(data / "routing" / "checkpoint", [msgspec.msgpack.encode(state)])


def newer_estimates(data: Path) -> None:
    checkpoint_of(data, 4, msgspec.msgpack.encode([3, "another form"]))


def newer_observations(data: Path) -> None:
    checkpoint_of(data, 5, msgspec.msgpack.encode([2, "another form"]))


def newer_note_of_loss(data: Path) -> None:
    (data / "loss.json").write_text('{"version": 2, "losses": ["another form"]}\n')


REFUSED: dict[Callable[[Path], None], tuple[str, str]] = {
    newer_log: ("a log of version `1`", "log"),
    newer_table: ("table rows of version `1`", "table"),
    one_newer_row: ("table rows of version `1`", "table"),
    newer_history: ("a history of version `1`", "history"),
    newer_answers: ("a log of version `1`", "answers"),
    newer_routing_log: ("a log of version `1`", "routing/log"),
    newer_checkpoint: ("a checkpoint of routing of version `1`", "routing/checkpoint"),
    newer_estimates: ("a state of the estimates of version `2`", "routing/checkpoint"),
    newer_observations: ("a checkpoint of observations of version `1`", "routing/checkpoint"),
    newer_note_of_loss: ("a note of lost records of version `1`", "loss.json"),
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with all that a service can keep, but for LMCache's."""
    path = tmp_path / "data"
    log = EmbeddedLog(path / "log")
    log.append(
        [registered_record(registration("a")), events_record(0, 0, [stored(0, [1], TOKENS[:4])])]
    )
    log.close()
    (path / "routing").mkdir()
    routing = EmbeddedLog(path / "routing" / "log")
    routing.append([encode_routing(decisions(1))])
    routing.close()
    AnswersLog(path / "answers").close()
    ended, problem = outcome(path)
    assert (ended, problem) == (False, "")
    answers = AnswersLog(path / "answers")
    answers.append([b"one that cannot be read"])
    answers.close()
    return path


def until_recovered(service: EmbeddedService) -> None:
    until(
        lambda: service.damage or not service.conditions.has(Part.RECOVERY),
        what=f"the end of the recovery: {service.conditions.problem}",
    )


def outcome(data: Path) -> tuple[bool, str]:
    """Whether a service ends on the directory, and what it says then."""
    try:
        service = EmbeddedService(Settings(data=data, audit_rate=1.0))
    except StorageError as error:
        return True, str(error)
    service.start()
    try:
        until_recovered(service)
        return service.damage is not None, str(service.damage or "")
    finally:
        service.stop()


@pytest.mark.parametrize("make_newer", REFUSED, ids=lambda one: one.__name__)
def test_a_service_refuses_what_is_newer_and_leaves_it(
    data: Path, make_newer: Callable[[Path], None]
) -> None:
    make_newer(data)
    before = contents(data)
    what, where = REFUSED[make_newer]
    for _ in range(2):
        ended, problem = outcome(data)
        assert ended
        assert problem.startswith(f"Expected {what} or older, got `")
        assert f"at {data / where}: a newer Reprise wrote it, and it is left as it is" in problem
        assert problem.endswith("Upgrade this one")
    assert contents(data) == before


def test_the_command_says_so_and_ends(data: Path) -> None:
    newer_table(data)
    service = Service(data)
    with pytest.raises(AssertionError, match="the service did not start"):
        service.start()
    assert service.stop() == 1
    assert "Error: Expected table rows of version `1` or older, got `2` at" in service.log()
    assert "Traceback" not in service.log()


@pytest.mark.parametrize(
    "make_newer", [newer_log, newer_table, one_newer_row, newer_routing_log, newer_checkpoint]
)
def test_a_repair_takes_nothing_newer_for_damage(
    data: Path, make_newer: Callable[[Path], None]
) -> None:
    make_newer(data)
    before = contents(data)
    with pytest.raises(NewerVersionError, match="or older, got `2`"):
        DirectoryRepair(data).examine()
    assert contents(data) == before


def test_records_of_a_newer_version_are_passed_over_counted_and_kept(data: Path) -> None:
    event = newer(events_record(1, 1, [stored(1, [2], TOKENS[4:], parent=1)]), NEWEST_VERSION + 1)
    routed = newer(encode_routing(decisions(2)), ROUTING_VERSION + 1)
    for path, record in ((data / "log", event), (data / "routing" / "log", routed)):
        log = EmbeddedLog(path)
        log.append([record])
        log.close()
    service = EmbeddedService(Settings(data=data))
    service.start()
    try:
        until_recovered(service)
        assert service.folding.fold.counters["newer_version"] == 1
        assert service.routing.skipped == 1
    finally:
        service.stop()
    for path, record in ((data / "log", event), (data / "routing" / "log", routed)):
        reading = ReadOnlyLog(path)
        assert record in [one.value for one in reading.read(Offset(0))]
        reading.close()


# Topics, and what roles have on their disks


@pytest.fixture
def settings(kafka_settings: KafkaSettings) -> KafkaSettings:
    asyncio.run(ensure_topics(kafka_settings))
    return kafka_settings


def values(settings: KafkaSettings, topic: TopicSpec) -> list[tuple[bytes, bytes]]:
    """Without tombstones: a worker that takes a partition says so by one."""
    found = consume(settings, topic)
    return sorted((key, value) for key, value in found if value is not None)


def refusal_of(role: Role) -> str:
    """What a role says that ends by itself."""
    with suppress(AssertionError):  # it may have ended before it was seen to begin
        role.start()
    assert role.process is not None
    assert role.process.wait(60) == 1
    return role.output()


def test_a_worker_refuses_a_newer_table_and_a_replica_passes_over_its_rows(
    settings: KafkaSettings, tmp_path: Path
) -> None:
    worker = Worker(settings, 0)
    produce(settings, settings.topics.events, 0, [(b"k", b"record")] * 2)
    records = [registered_record(registration("a")), events_record(0, 0, [stored(0, [1], TOKENS)])]
    written = [
        RowWrite(row.key, row.value and newer_row(row.value)) for row in worker.flush(*records)
    ]
    worker.write_rows(written)
    topic = settings.topics.table
    before = values(settings, topic)
    role = Role("streams", tmp_path / "streams-1", settings)
    assert "Error: Expected table rows of version `1` or older, got `2`" in refusal_of(role)
    assert values(settings, topic) == before
    replica = Role("serve", tmp_path / "serve-1", settings)
    replica.start()
    try:
        until(replica.is_ready, what="readiness", timeout_s=60)
        assert replica.metric("reprise_table_rows_total", outcome="newer_rows") > 0
        until(
            lambda: replica.state(query_for(TOKENS)) == "stale", what="it knows that it is behind"
        )
        assert "a newer Reprise wrote it" in replica.output()
    finally:
        replica.kill()
    assert values(settings, topic) == before


def test_a_worker_writes_no_checkpoint_of_routing_in_place_of_a_newer_one(
    settings: KafkaSettings,
) -> None:
    options, topics = client_options(settings), settings.routing
    asyncio.run(ensure_topics(settings, specs=topics))
    fold = RoutingFold()
    fold.apply(0, decisions(1))
    form = msgspec.msgpack.encode([CHUNK_VERSION + 1, "another form"])
    for newer_one in (
        [(b"0", form)],
        chunks_of(5, msgspec.msgpack.encode([STATE_VERSION + 1, "another form"])),
    ):
        produce(settings, topics.state, 0, [*chunks_of(0, fold.dump()), *newer_one])
        before = consume(settings, topics.state)

        async def take() -> None:
            state = RoutingStateTopic(options, topics)
            try:
                await state.take()
            finally:
                await state.stop()

        with pytest.raises(NewerVersionError, match=f"topic {topics.state.name}: a newer Reprise"):
            asyncio.run(take())
        assert consume(settings, topics.state) == before
        # Whoever writes none goes by what is before it, or by the log.
        recovered = asyncio.run(recover_fold(options, topics))
        assert recovered.newer is not None


def test_newer_entries_of_the_registry_and_of_cursors_are_passed_over_and_counted(
    settings: KafkaSettings, tmp_path: Path
) -> None:
    one, two = registration("a"), registration("b", port=5558)
    key = encode_publisher(two.publisher)
    registry, cursors = settings.topics.registry, settings.topics.cursors
    note = CursorNote(incarnation=1, sequence=7, partition=0, offset=0)
    produce(settings, cursors, 0, [(key, newer(encode_note(note), ENTRY_VERSION + 1))])
    produce(
        settings,
        registry,
        0,
        [
            (encode_publisher(one.publisher), encode_registration(one)),
            (key, newer(encode_registration(two), ENTRY_VERSION + 1)),
        ],
    )
    before = values(settings, registry), values(settings, cursors)
    roles = [Role("serve", tmp_path / "serve-1", settings)]
    roles += [Role("bridge", tmp_path / "bridge-1", settings)]
    try:
        for role in roles:
            role.start()
            until(role.is_ready, what=f"{role.name} ready", timeout_s=60)
        replica, bridge = roles
        assert [each["InstanceID"] for each in replica.get("/services")["services"]] == ["a"]
        assert replica.metric("reprise_registry_skipped_total") == 1
        unusable = "reprise_bridge_unusable_entries_total"
        until(lambda: bridge.metric(unusable) == 2, what=f"both: {bridge.output()}")
        for role in roles:
            assert "version `2`, where `1` or older was expected: a newer Reprise" in role.output()
    finally:
        for role in roles:
            role.kill()
    assert before[1][0] in values(settings, cursors)
    assert values(settings, registry) == before[0]


def test_a_bridge_refuses_what_a_newer_one_has_spooled(
    settings: KafkaSettings, tmp_path: Path
) -> None:
    role = Role("bridge", tmp_path / "bridge-1", settings)
    spool = Spool(role.data / "spool")
    publisher = registration("a").publisher
    spool.append(publisher, [newer(events_record(0, 0, []), NEWEST_VERSION + 1)])
    spool.close()
    before = contents(role.data)
    found = f"got `{NEWEST_VERSION + 1}` at {role.data / 'spool'}: a newer Reprise wrote it"
    expected = f"Error: Expected spooled records of version `{NEWEST_VERSION}` or older, {found}"
    assert expected in refusal_of(role)
    assert contents(role.data) == before
