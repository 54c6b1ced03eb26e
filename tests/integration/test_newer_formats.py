"""What a newer Reprise has left in topics and on disks of roles is refused with what to do, or
passed over, and is left as it is: all values of a topic are compared before and after.
`tests/unit/test_newer_formats.py` has what is left in a data directory.
"""

import asyncio
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from bridge.delivery.spool import Spool
from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from brokers.topics import ensure_topics
from routing.fold.chunks import CHUNK_VERSION, chunks_of
from routing.fold.fold import STATE_VERSION, RoutingFold
from routing.log.recovery import recover_fold
from routing.log.topics import RoutingTopics
from routing.worker.state import RoutingStateTopic
from schemas.errors import NewerVersionError
from schemas.records import NEWEST_VERSION
from schemas.topics import (
    ENTRY_VERSION,
    CursorNote,
    TopicSpec,
    encode_note,
    encode_publisher,
    encode_registration,
)
from streams.table.rows.format import RowWrite
from tests.building import events_record, registered_record, registration, stored
from tests.deployment import query_for
from tests.integration.test_serve_kafka import Worker, consume, produce
from tests.processes import Service, until
from tests.roles import Role
from tests.routing import decisions
from tests.unit.test_newer_formats import TOKENS, contents, newer, newer_row, newer_table, write_all


def test_the_command_says_so_and_ends(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_all(data)
    newer_table(data)
    service = Service(data)
    with pytest.raises(AssertionError, match="the service did not start"):
        service.start()
    assert service.stop() == 1
    assert "Error: Expected table rows of version `1` or older, got `2` at" in service.log()
    assert "Traceback" not in service.log()


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
    options, topics = client_options(settings), RoutingTopics.of(settings)
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
