"""What is served of LMCache, as heartbeats look at it."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from bridge.publisher.ports import PublisherWatch
from lmcache_adapter.parts import LmcacheParts
from lmcache_adapter.settings import LmcacheSettings, Model
from schemas.identities import PublisherKey
from schemas.records import Record

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
