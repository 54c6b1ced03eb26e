"""A coordinator without sockets: requests in; answers, and records out."""

import asyncio
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, Self

import httpx

from lmcache_adapter.coordinator.app import coordinator_app
from lmcache_adapter.coordinator.service import CoordinatorService
from lmcache_adapter.settings import CoordinatorSettings, Models
from schemas.answer_states import Doubt
from schemas.clock import REAL_CLOCK
from schemas.identities import PublisherKey, StreamKey
from schemas.records import Record
from tests.unit.lmcache_adapter.scene import Index

WALL = 1_795_000_000.0


class Sink:
    """A log, and its fold."""

    def __init__(self) -> None:
        self.index = Index()

    def append(self, records: Iterable[Record]) -> None:
        for record in records:
            self.index.apply(record)

    def has_waiting(self, publisher: PublisherKey) -> bool:
        return False


class Coordinator:
    """One run of it in a directory; of one loop."""

    def __init__(
        self,
        data: Path,
        models: Models | None = None,
        *,
        sink: Sink | None = None,
        now: float = 1000.0,
    ) -> None:
        self.now = now
        self.sink = sink or Sink()
        self.service = CoordinatorService(
            CoordinatorSettings(host="127.0.0.1"),
            models or Models(),
            data=data,
            sink=self.sink,
            loop=asyncio.get_running_loop(),
            floor=lambda publisher: self.sink.index.cursors.get(publisher, (0,))[0],
            clock=REAL_CLOCK._replace(monotonic=lambda: self.now, unix=lambda: WALL + self.now),
        )
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(coordinator_app(self.service)), base_url="http://c"
        )

    async def __aenter__(self) -> Self:
        await self.service.turn()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()
        await self.service.end()
        self.service.close()

    async def die(self) -> None:
        """As after `kill -9`: nothing that waits is written, and the directory is as it is."""
        await self._client.aclose()
        self.service.directory._database.close()
        self.service.directory._is_closing = True

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        answered = await self._client.request(method, path, json=body)
        await self.service.turn()
        return answered.status_code, answered.json() if answered.content else None

    async def wait(self, seconds: float) -> None:
        self.now += seconds
        await self.service.turn()

    def keys(self, publisher: PublisherKey) -> set[tuple[str, int]]:
        return self.sink.index.keys(publisher)

    def doubt(self, publisher: PublisherKey) -> Doubt | None:
        """Why it is not confirmed."""
        return self.service.followed[publisher].doubted.doubt


def publisher(
    instance_id: str, rank: int = 0, *, model: str = "m", size: int = 256
) -> PublisherKey:
    return PublisherKey(StreamKey("default", model, size, "", instance_id), rank)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


class Server:
    """What a server tells.

    Attributes:
        seq: of its last batch.
    """

    def __init__(
        self, coordinator: Coordinator, instance_id: str = "a", incarnation: int = 100
    ) -> None:
        self.coordinator = coordinator
        self.instance_id, self.incarnation = instance_id, incarnation
        self.seq = 0
        self.dropped = 0

    async def register(self, **fields: object) -> tuple[int, Any]:
        body = {"instance_id": self.instance_id, "ip": "10.0.0.1", "http_port": 80} | fields
        return await self.coordinator.ask("POST", "/instances", body)

    async def beat(self) -> int:
        path = f"/instances/{self.instance_id}/heartbeat"
        return (await self.coordinator.ask("PUT", path))[0]

    async def beat_of(self, coordinator: Coordinator) -> int:
        """To another run."""
        path = f"/instances/{self.instance_id}/heartbeat"
        return (await coordinator.ask("PUT", path))[0]

    async def leave(self) -> int:
        return (await self.coordinator.ask("DELETE", f"/instances/{self.instance_id}"))[0]

    def batch(self, kind: str, *chunks: int, **fields: Any) -> dict[str, Any]:
        """The next one, told or not."""
        self.seq += 1
        key = {
            "model_name": fields.pop("model", "m"),
            "kv_rank": fields.pop("rank", 0) << 16,
            "object_group_id": fields.pop("group", 0),
            "cache_salt": fields.pop("salt", ""),
        }
        size = fields.pop("size_bytes", 10)
        entries = [
            {"key": key | {"chunk_hash_hex": f"{chunk:064x}"}, "size_bytes": size}
            for chunk in chunks
        ]
        return {
            "instance_id": self.instance_id,
            "incarnation": self.incarnation,
            "seq": self.seq,
            "event_type": kind,
            "tier": "l1",
            "backend": "dram",
            "entries": entries,
            "dropped_events": self.dropped,
        } | fields

    async def tell(self, *batches: dict[str, Any]) -> Any:
        status, answer = await self.coordinator.ask("POST", "/events", {"batches": list(batches)})
        assert status == 200, answer
        return answer

    async def store(self, *chunks: int, **fields: Any) -> Any:
        return await self.tell(self.batch("store", *chunks, **fields))

    async def delete(self, *chunks: int, **fields: Any) -> Any:
        return await self.tell(self.batch("delete", *chunks, **fields))
