"""What a server of LMCache's multi-process mode says to its coordinator, as a process. Needs
LMCache 0.5.7 or later, and nothing of ours.

    python server_process.py '{"instance_id": "a", "url": "http://127.0.0.1:9300", ...}'

Real are LMCache's event bus, the subscriber that makes batches of its events, the HTTP sink, the
registrar with its heartbeats, the token hasher, CacheBlend's client, and the schemas of the
coordinator's answers. What is not: the cache itself, whose events are published here, and torch, of
which names are used only.

Takes a line of JSON for each command, and answers each with one.
"""

import asyncio
import importlib
import json
import sys
import threading
import time
import types
from typing import Any

from absent import leave_out  # type: ignore[import-not-found]  # beside this file

_ABSENT = (
    "torch",
    "numba",
    "lmcache.lmcache_native",
    "lmcache.v1.memory_management",
    "lmcache.v1.mp_observability.subscribers",
)
_PACKAGES = tuple(
    f"lmcache.v1.{name}" for name in ("distributed", "mp_observability", "multiprocess")
)


def _load() -> types.SimpleNamespace:
    leave_out(_ABSENT, _PACKAGES)
    modules = {
        "api": "lmcache.v1.distributed.api",
        "internal": "lmcache.v1.distributed.internal_api",
        "events": "lmcache.v1.mp_coordinator.cache_events",
        "registrar": "lmcache.v1.mp_coordinator.registrar",
        "schemas": "lmcache.v1.mp_coordinator.schemas",
        "event": "lmcache.v1.mp_observability.event",
        "bus": "lmcache.v1.mp_observability.event_bus",
        "hasher": "lmcache.v1.multiprocess.token_hasher",
        "blend": "lmcache.v1.mp_coordinator.blend_client",
        "coordinator": "lmcache.v1.mp_coordinator.api",
    }
    return types.SimpleNamespace(
        **{name: importlib.import_module(path) for name, path in modules.items()}
    )


class _Server:
    """One server.

    Args:
        options: `instance_id`, `url` of the coordinator, `chunk_size`, and `heartbeat_s`.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        import httpx

        self._lmcache = lmcache = _load()
        self._url = options["url"]
        self._instance_id = options["instance_id"]
        self._chunk_size = options["chunk_size"]
        self._client = httpx.Client(timeout=10.0)
        self._hasher = lmcache.hasher.TokenHasher(self._chunk_size)
        lmcache.registrar.bind_coordinator_chunk_size(self._url, self._chunk_size)
        self._sink = lmcache.events.HttpCacheEventSink(self._url)
        self._subscriber = lmcache.events.CacheEventSubscriber(
            self._sink,
            self._instance_id,
            options.get("incarnation", int(time.time())),
            flush_interval=0.0,
        )
        self._bus = lmcache.bus.EventBus()
        self._bus.register_subscriber(self._subscriber)
        self._bus.start()
        self._registrations = 0
        self._loop = asyncio.new_event_loop()
        self._registering: asyncio.Task[None] | None = None
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._on_loop(self._register(options["heartbeat_s"]))

    def _on_loop(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10.0)

    async def _register(self, heartbeat_s: float) -> None:
        import httpx

        self._registering = asyncio.create_task(
            self._lmcache.registrar.keep_registered(
                httpx.AsyncClient(timeout=10.0),
                self._url,
                http_port=1,
                instance_id=self._instance_id,
                advertise_ip="127.0.0.1",
                heartbeat_interval=heartbeat_s,
                on_registered=self._publish_capacity,
                chunk_size_provider=lambda: self._chunk_size,
            )
        )

    def _publish_capacity(self) -> None:
        """As its storage manager does once it is registered."""
        self._registrations += 1
        api = self._lmcache.api
        modules = (api.ModuleMemoryCapacity(api.Tier.L1, "dram", 2**20, False),)
        self._publish("SM_CAPACITY_CHANGED", snapshot=api.CapacitySnapshot(modules))

    def _publish(self, kind: str, **metadata: Any) -> None:
        event = self._lmcache.event
        self._bus.publish(event.Event(getattr(event.EventType, kind), metadata=metadata))

    def _settle(self) -> dict[str, Any]:
        """Waits until the bus has handed all events on."""
        end = time.monotonic() + 30.0
        while self._bus.queue_depth() and time.monotonic() < end:
            time.sleep(0.001)
        return self.state()

    def _keys(self, tokens: list[int], model: str, rank: int, size: int) -> list[Any]:
        return [
            self._lmcache.api.ObjectKey(
                chunk_hash=chunk_hash,
                model_name=model,
                kv_rank=self._lmcache.api.ObjectKey.ComputeKVRank(size, rank, size, rank),
            )
            for chunk_hash in self._hasher.compute_chunk_hashes(tokens)
        ]

    def store(
        self, tokens: list[int], model: str = "m", tier: str = "l1", rank: int = 0, size: int = 1
    ) -> dict[str, Any]:
        """Its cache has stored the chunks of these tokens."""
        hashes = self._hasher.compute_chunk_hashes(tokens)
        chunk = self._chunk_size
        self._publish(
            "MP_TOKENS",
            chunk_hashes=hashes,
            token_chunks=[tokens[at * chunk : (at + 1) * chunk] for at in range(len(hashes))],
            token_offsets=[at * chunk for at in range(len(hashes))],
            parent_hashes=[None, *hashes][: len(hashes)],
        )
        return self._changed("store", tokens, model, tier, rank, size)

    def delete(
        self, tokens: list[int], model: str = "m", tier: str = "l1", rank: int = 0, size: int = 1
    ) -> dict[str, Any]:
        """Its cache has lost them."""
        return self._changed("delete", tokens, model, tier, rank, size)

    def _changed(
        self, what: str, tokens: list[int], model: str, tier: str, rank: int, size: int
    ) -> dict[str, Any]:
        keys = self._keys(tokens, model, rank, size)
        if tier == "l1":
            api, meta = self._lmcache.api, self._lmcache.internal.L1ObjectMeta
            [backend] = [one for one in api.L1BackendType if one.value == "dram"]
            kind = "L1_WRITE_FINISHED" if what == "store" else "L1_KEYS_EVICTED"
            self._publish(
                kind, keys=keys, meta=[meta(size_bytes=100, backend=backend) for _ in keys]
            )
        elif what == "store":
            sizes = [100] * len(keys)
            self._publish("L2_KEYS_STORED", keys=keys, sizes=sizes, backend="fs", shared=False)
        else:
            self._publish("L2_KEYS_DELETED", keys=keys, backend="fs", shared=False)
        return self._settle()

    def cut(self, is_cut: bool) -> dict[str, Any]:
        """Whether its posts of events find nobody."""
        url = "http://127.0.0.1:9" if is_cut else self._url
        self._sink._base_url = url  # noqa: SLF001
        return self.state()

    def names(self, tokens: list[int]) -> list[str]:
        """Its chunks of these tokens, in hex."""
        return [one.hex() for one in self._hasher.compute_chunk_hashes(tokens)]

    def look_up(self, tokens: list[int], model: str = "m", size: int = 1) -> dict[str, Any]:
        """Where they are, as its schemas read the answer."""
        answered = self._client.post(
            f"{self._url}/directory/lookup",
            json={"token_ids": tokens, "model_name": model, "world_size": size},
        )
        answered.raise_for_status()
        schemas = self._lmcache.schemas
        found: dict[str, Any] = schemas.DirectoryLookupResponse.model_validate(
            answered.json()
        ).model_dump(mode="json")
        return found

    def blend(self, tokens: list[int]) -> int:
        """How many matches CacheBlend's client is told."""
        client = self._lmcache.blend.BlendCoordinatorClient(self._url)
        namespace = self._lmcache.coordinator.BlendNamespace("m")
        client.submit_match("r", tokens, namespace)
        end = time.monotonic() + 30.0
        while not isinstance(found := client.poll_match("r"), list) and time.monotonic() < end:
            time.sleep(0.001)
        client.close()
        return len(found)

    def leave(self) -> dict[str, Any]:
        """It ends in order."""

        async def leave() -> None:
            assert self._registering is not None
            self._registering.cancel()
            await asyncio.gather(self._registering, return_exceptions=True)

        self._on_loop(leave())
        return self.state()

    def state(self) -> dict[str, Any]:
        """How far it is."""
        return {
            "registrations": self._registrations,
            "seq": self._subscriber._seq,  # noqa: SLF001
            "dropped": self._sink.dropped_events,
        }


_COMMANDS = ("store", "delete", "cut", "names", "look_up", "blend", "leave", "state")


def main() -> None:
    """Answers until its input ends."""
    out, sys.stdout = sys.stdout, sys.stderr  # LMCache logs to it
    server = _Server(json.loads(sys.argv[1]))
    for line in sys.stdin:
        asked = json.loads(line)
        do = asked.pop("do")
        assert do in _COMMANDS, do
        out.write(json.dumps(getattr(server, do)(**asked)) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
