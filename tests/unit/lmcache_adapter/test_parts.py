"""What is served of LMCache, as heartbeats look at it."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from bridge.publisher.ports import PublisherWatch
from lmcache_adapter.coordinator.wire import Register
from lmcache_adapter.parts import LmcacheParts
from lmcache_adapter.settings import LmcacheSettings, Model
from lmcache_adapter.topic.batches import Batch, ChunkEntry, ChunkKey
from schemas.identities import PublisherKey
from schemas.records import Record
from tests.unit.lmcache_adapter.coordinator.scene import Sink as FoldedSink

A, B = (PublisherKey(Model().stream(name), 0) for name in "ab")


class Sink:
    """One in which records of one publisher wait."""

    def append(self, records: Iterable[Record]) -> None:
        raise AssertionError("nothing is served")

    def has_waiting(self, publisher: PublisherKey) -> bool:
        return publisher == A


def test_the_sink_says_whether_records_wait(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    try:
        watch: PublisherWatch = LmcacheParts(
            LmcacheSettings(), data=tmp_path, sink=Sink(), loop=loop
        )
        assert (watch.has_waiting(A), watch.has_waiting(B)) == (True, False)
        assert (watch.followed, watch.watched_at) == ({}, 0.0)
    finally:
        loop.close()


def test_publishers_of_the_coordinator_are_among_all(tmp_path: Path) -> None:
    async def scene() -> None:
        sink = FoldedSink()
        parts = LmcacheParts(
            LmcacheSettings(coordinated="127.0.0.1:0"),
            data=tmp_path,
            sink=sink,
            loop=asyncio.get_running_loop(),
        )
        coordinator = parts.coordinator
        assert coordinator is not None
        key = ChunkKey(chunk_hash_hex="00" * 8, model_name="lmcache")
        batch = Batch(
            instance_id="a",
            incarnation=1,
            seq=1,
            event_type="store",
            tier="l1",
            entries=[ChunkEntry(key=key)],
        )
        coordinator.receive([batch])
        await coordinator.turn()
        assert parts.knows(A)
        assert not parts.is_linked(A), "it has not registered"
        coordinator.register(Register(instance_id="a", ip="10.0.0.1", http_port=1))
        assert parts.is_linked(A)
        assert set(parts.followed) == {A}
        parts.forget([A, B])
        assert not parts.knows(A)
        await parts.end()
        parts.stop()

    asyncio.run(scene())
