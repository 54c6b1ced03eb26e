"""LMCache's routes through the whole app."""

import time
from collections.abc import Sequence

import pytest

from lmcache_adapter.http.hashes import chunk_hashes
from lmcache_adapter.http.models import Worker
from lmcache_adapter.http.workers import worker_of
from reprise.application import create_app
from schemas.answer_states import AnswerState, Standing
from schemas.events import StoredBlocks, encode_events
from schemas.identities import Medium, PublisherKey
from schemas.registration import LMCACHE, HashProfile, Registration
from tests.fakes import AsgiClient, FakeTable, pack_hashes

CHUNK = 4
TOKENS = list(range(12))
PROFILE = HashProfile(
    strategy="lmcache",
    algorithm="builtin",
    python_hash_seed="",
    index_projection="first_8_bytes_big_endian",
)
HASHES = chunk_hashes(TOKENS, CHUNK, PROFILE)


def join(
    table: FakeTable, instance_id: str, rank: int = 0, profile: HashProfile | None = PROFILE
) -> PublisherKey:
    """A worker that is registered by itself."""
    registration = Registration(
        endpoint=f"tcp://10.0.0.{rank}:9000",
        kind=LMCACHE,
        model_name="m",
        instance_id=instance_id,
        block_size=CHUNK,
        dp_rank=rank,
        hash_profile=profile,
        peer_url="10.0.0.1:8200",
        registered_at=1_795_000_000.0,
    )
    publisher = registration.publisher
    table.registrations[publisher] = registration
    table.kernel.register(table.kernel.open_publisher(*publisher), "", True)
    return publisher


def hold(
    table: FakeTable, publisher: PublisherKey, hashes: Sequence[int], medium: Medium = Medium.CPU
) -> None:
    stored = StoredBlocks(
        sequence=0, hashes=pack_hashes(hashes), block_size=CHUNK, medium=medium, by_hash=True
    )
    table.kernel.apply(table.kernel.open_publisher(*publisher), encode_events([stored]), -1)


def test_a_prompt_is_looked_up_in_every_instance(table: FakeTable, client: AsgiClient) -> None:
    hold(table, join(table, "a"), HASHES[:2])
    hold(table, join(table, "b"), HASHES, Medium.DISK)
    join(table, "c")
    reply = client.post_json("/lookup", {"tokens": TOKENS})
    document = reply.document()
    assert reply.status == 200
    assert document["event_id"].startswith("Lookup")
    assert document["layout_info"] == {
        "a": ["LocalCPUBackend", 8],
        "b": ["LocalDiskBackend", 12],
    }


def test_a_last_chunk_that_is_not_full_counts_its_tokens(
    table: FakeTable, client: AsgiClient
) -> None:
    hold(table, join(table, "a"), chunk_hashes(TOKENS[:6], CHUNK, PROFILE))
    reply = client.post_json("/lookup", {"tokens": TOKENS[:6]})
    assert reply.document()["layout_info"] == {"a": ["LocalCPUBackend", 6]}


def test_without_a_hash_algorithm_it_is_told_what_is_missing(
    table: FakeTable, client: AsgiClient
) -> None:
    join(table, "a", profile=None)
    reply = client.post_json("/lookup", {"tokens": TOKENS})
    assert (reply.status, reply.document()["reason"]) == (400, "unknown_hash")
    assert "lmcache.models" in reply.document()["error"]


def test_without_workers_nobody_has_anything(client: AsgiClient) -> None:
    assert client.post_json("/lookup", {"tokens": TOKENS}).document()["layout_info"] == {}


@pytest.mark.parametrize("body", [{}, {"tokens": "x"}, {"tokens": [2**40]}, {"tokens": [1.5]}, []])
def test_what_is_no_prompt_is_refused(client: AsgiClient, body: object) -> None:
    reply = client.post_json("/lookup", body)
    assert reply.status == 400
    assert reply.document()["error"]


def test_while_it_recovers_it_says_so(table: FakeTable, client: AsgiClient) -> None:
    table.ready = False
    assert client.post_json("/lookup", {"tokens": TOKENS}).status == 503


def test_workers_are_listed_all_of_an_instance_or_one(table: FakeTable, client: AsgiClient) -> None:
    hold(table, join(table, "a", 0), HASHES)
    hold(table, join(table, "a", 1), HASHES[:2])
    hold(table, join(table, "b"), HASHES[:1])
    everybody = client.get("/controller/workers").document()
    assert everybody["total_count"] == 3
    assert [
        (one["instance_id"], one["worker_id"], one["key_count"]) for one in everybody["workers"]
    ] == [
        ("a", 0, 3),
        ("a", 1, 2),
        ("b", 0, 1),
    ]
    assert client.get("/controller/workers?instance_id=a").document()["total_count"] == 2
    one = client.get("/controller/workers?instance_id=a&worker_id=1").document()
    assert (one["ip"], one["port"], one["peer_init_url"]) == ("10.0.0.1", 9000, "10.0.0.1:8200")
    assert one["registration_time"] == 1_795_000_000.0
    for query in ("instance_id=c", "instance_id=a&worker_id=7"):
        assert client.get(f"/controller/workers?{query}").status == 404
    assert client.get("/controller/workers?instance_id=a&worker_id=x").status == 400


def test_a_last_heartbeat_is_now_or_since_when_there_is_none(
    table: FakeTable, client: AsgiClient
) -> None:
    for name in ("a", "b"):
        join(table, name)
    table.standings["b"] = Standing(AnswerState.UNCONFIRMED, "link_down", 1_795_000_100.0)
    before = time.time()
    a, b = client.get("/controller/workers").document()["workers"]
    assert a["last_heartbeat_time"] >= before
    assert b["last_heartbeat_time"] == 1_795_000_100.0


def test_chunks_are_counted_by_instance(table: FakeTable, client: AsgiClient) -> None:
    hold(table, join(table, "a", 0), HASHES)
    hold(table, join(table, "a", 1), HASHES)
    join(table, "b")
    assert client.get("/controller/key-stats").document() == {
        "total_key_count": 6,
        "total_instance_count": 2,
        "total_worker_count": 3,
        "instances": [
            {"instance_id": "a", "key_count": 6, "worker_count": 2},
            {"instance_id": "b", "key_count": 0, "worker_count": 1},
        ],
    }


def test_whoever_knows_more_of_the_workers_is_asked(table: FakeTable) -> None:
    publisher = join(table, "a")

    class Source:
        async def lmcache_workers(self) -> Sequence[Worker]:
            return [worker_of(table.registrations[publisher], 5.0, 77)]

    client = AsgiClient(create_app(table, table, workers=Source()))
    [one] = client.get("/controller/workers").document()["workers"]
    assert (one["last_heartbeat_time"], one["key_count"]) == (5.0, 77)
    assert client.get("/controller/key-stats").document()["total_key_count"] == 77
