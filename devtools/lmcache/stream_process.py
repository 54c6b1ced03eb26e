"""What a server of LMCache's multi-process mode streams by gRPC, as a process. Needs LMCache 0.5.7
or later with grpcio, and nothing of ours.

    python stream_process.py '{"chunk_size": 4, ...}'

Real are LMCache's event bus, the module that records its events and serves them, the one that
answers pings and ends calls that nobody pings, the gRPC server with the messages of its own
definitions, and the token hasher. What is not: the cache itself, whose events are published here,
and torch, of which names are used only.

Takes a line of JSON for each command, and answers each with one.
"""

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
    "lmcache.v1.distributed.storage_manager",
    "lmcache.v1.memory_management",
    "lmcache.v1.mp_observability.subscribers",
    "lmcache.v1.multiprocess.modules.engine_driven_transfer",
    "lmcache.v1.multiprocess.modules.lmcache_driven_transfer",
)
_GRPC = "lmcache.v1.multiprocess.transport.grpc_impl"
_PACKAGES = tuple(
    f"lmcache.v1.{name}"
    for name in (
        "distributed",
        "gpu_connector",
        "gpu_connector.kv_format",
        "mp_observability",
        "multiprocess",
    )
)


def _load() -> types.SimpleNamespace:
    leave_out(_ABSENT, _PACKAGES)
    modules = {
        "api": "lmcache.v1.distributed.api",
        "event": "lmcache.v1.mp_observability.event",
        "bus": "lmcache.v1.mp_observability.event_bus",
        "hasher": "lmcache.v1.multiprocess.token_hasher",
        "kv_events": "lmcache.v1.multiprocess.modules.kv_events",
        "management": "lmcache.v1.multiprocess.modules.management",
        "server": f"{_GRPC}.server",
    }
    _leave_out_services()
    return types.SimpleNamespace(
        **{name: importlib.import_module(path) for name, path in modules.items()}
    )


def _leave_out_services() -> None:
    """Of the services those stay that are tried: others have torch's types in their messages."""
    descriptors: Any = importlib.import_module(f"{_GRPC}.descriptors")
    registry: Any = importlib.import_module(f"{_GRPC}.method_registry")
    bindings = descriptors.get_service_bindings()
    tried = {name: bindings[name] for name in ("KVEventService", "ManagementService")}
    descriptors.get_service_bindings = lambda: tried
    methods = [one.name for binding in tried.values() for one in binding.descriptor.methods]
    operations = set(map(descriptors.client_method_name, methods))
    all_specs = registry.get_rpc_specs()
    specs = {name: one for name, one in all_specs.items() if name in operations}
    registry.get_rpc_specs = lambda: specs


class _Server:
    """One server.

    Args:
        options: `chunk_size`; `port`, 0 for any; `log_size`, how many records it keeps; `places` of
            its event bus; `reap_s`, after which a call that is not pinged is ended.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._lmcache = lmcache = _load()
        self._chunk_size = options["chunk_size"]
        self._hasher = lmcache.hasher.TokenHasher(self._chunk_size)
        config = lmcache.bus.EventBusConfig(max_queue_size=options.get("places", 10_000))
        self._bus = lmcache.bus.EventBus(config)
        self._held = threading.Event()
        self._held.set()
        kinds = lmcache.event.EventType
        self._bus.subscribe(kinds.MP_TOKENS, lambda event: self._held.wait())
        context = types.SimpleNamespace(event_bus=self._bus)
        self._events = lmcache.kv_events.KVEventModule(
            context, kv_event_log_size=options.get("log_size", 32768)
        )
        management = lmcache.management.ManagementModule(
            context,
            liveness_targets=(self._events,),
            worker_reap_timeout_seconds=options.get("reap_s", 120.0),
        )
        self._server = lmcache.server.GrpcMultiprocessServer(
            f"grpc://127.0.0.1:{options.get('port', 0)}",
            max_cpu_workers=1,
            max_gpu_workers=1,
            grpc_server_workers=4,
        )
        self._server.add_modules([management, self._events])
        self._bus.start()
        self._server.start()

    def _publish(self, kind: str, **metadata: Any) -> None:
        event = self._lmcache.event
        self._bus.publish(event.Event(getattr(event.EventType, kind), metadata=metadata))

    def _settle(self) -> dict[str, Any]:
        """Waits until the bus has handed all events on."""
        end = time.monotonic() + 30.0
        while self._bus.queue_depth() and time.monotonic() < end:
            time.sleep(0.001)
        return self.state()

    def _keys(self, hashes: list[bytes], model: str, rank: int, size: int) -> list[Any]:
        key = self._lmcache.api.ObjectKey
        kv_rank = key.ComputeKVRank(size, rank, size, rank)
        return [key(chunk_hash=one, model_name=model, kv_rank=kv_rank) for one in hashes]

    def store(
        self, tokens: list[int], model: str = "m", rank: int = 0, size: int = 1
    ) -> dict[str, Any]:
        """Its memory has the chunks of these tokens."""
        self._store(tokens, model, rank, size)
        return self._settle()

    def _store(self, tokens: list[int], model: str, rank: int, size: int) -> None:
        hashes = self._hasher.compute_chunk_hashes(tokens)
        chunk = self._chunk_size
        self._publish(
            "MP_TOKENS",
            chunk_hashes=hashes,
            token_chunks=[tokens[at * chunk : (at + 1) * chunk] for at in range(len(hashes))],
            token_offsets=[at * chunk for at in range(len(hashes))],
            parent_hashes=[None, *hashes][: len(hashes)],
        )
        self._publish("L1_WRITE_FINISHED", keys=self._keys(hashes, model, rank, size))

    def delete(
        self, tokens: list[int], model: str = "m", rank: int = 0, size: int = 1
    ) -> dict[str, Any]:
        """It has lost them."""
        hashes = self._hasher.compute_chunk_hashes(tokens)
        self._publish("L1_KEYS_EVICTED", keys=self._keys(hashes, model, rank, size))
        return self._settle()

    def overflow(self, tokens: list[int], model: str = "m") -> dict[str, Any]:
        """These come while its bus is full: what finds no place is dropped."""
        self._held.clear()
        before = self._bus.dropped_events_count()
        while self._bus.dropped_events_count() == before:
            self._store(tokens, model, 0, 1)
        self._held.set()
        return self._settle()

    def names(self, tokens: list[int]) -> list[str]:
        """Its chunks of these tokens, in hex."""
        return [one.hex() for one in self._hasher.compute_chunk_hashes(tokens)]

    def state(self) -> dict[str, Any]:
        """How far it is, and where it is asked."""
        status: dict[str, Any] = self._events.report_status()["kv_events"]
        return {"port": self._server.bound_port, **status}


_COMMANDS = ("store", "delete", "overflow", "names", "state")


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
