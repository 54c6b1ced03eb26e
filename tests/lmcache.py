"""A worker of LMCache by its script: its sockets and messages, without its cache.

The messages are made here by hand, as plain maps, and not by the structs that the bridge decodes
them with. `tests/integration/test_lmcache_worker.py` runs LMCache's own code.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

import msgpack
import zmq

ADMIT: Final = "admit"
EVICT: Final = "evict"
CPU: Final = "LocalCPUBackend"
DISK: Final = "LocalDiskBackend"
REPLY_MS: Final = 10_000


class ScriptedWorker:
    """One worker, connected to the controller's ports.

    Attributes:
        numbers: the next number of an operation, by location.
    """

    def __init__(
        self,
        ports: Sequence[int],
        instance_id: str = "lmc-0",
        worker_id: int = 0,
        *,
        peer: str | None = None,
        command_port: int = 9000,
    ) -> None:
        """`ports`: PULL, reply, heartbeat; nothing is sent yet. It says to take commands at
        `command_port`, where others may listen.
        """
        self.instance_id, self.worker_id, self.peer = instance_id, worker_id, peer
        self.command_port = command_port
        self.numbers: dict[str, int] = {}
        self._ports = ports
        self.reconnect()

    def reconnect(self) -> None:
        """Connects as a process that has just begun."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._push = self._connect(zmq.PUSH, self._ports[0])
        self._requests = self._connect(zmq.DEALER, self._ports[1])
        self._beats: zmq.Socket[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """As a process that is killed."""
        self._context.destroy(linger=0)

    def _connect(self, kind: int, port: int, host: str = "127.0.0.1") -> "zmq.Socket[bytes]":
        connected = self._context.socket(kind)
        connected.linger = 0
        connected.rcvtimeo = REPLY_MS
        connected.sndtimeo = REPLY_MS
        connected.connect(f"tcp://{host}:{port}")
        return connected

    # Requests

    def _message(self, kind: str, **fields: object) -> dict[str, object]:
        named: dict[str, object] = {"type": f"{kind}Msg"}
        return named | {"instance_id": self.instance_id, "worker_id": self.worker_id} | fields

    def _exchange(self, connected: "zmq.Socket[bytes]", message: object) -> dict[str, Any]:
        connected.send_multipart([b"", msgpack.packb(message)])
        empty, payload = connected.recv_multipart()
        assert empty == b""
        answer: dict[str, Any] = msgpack.unpackb(payload)
        return answer

    def ask(self, kind: str, **fields: object) -> dict[str, Any]:
        """A request over the worker's DEALER, and its answer."""
        return self._exchange(self._requests, self._message(kind, **fields))

    def register(self) -> dict[str, Any]:
        """Registers; heartbeats go where the answer says."""
        answer = self.ask(
            "Register", ip="127.0.0.1", port=self.command_port, peer_init_url=self.peer
        )
        host, _, port = answer["extra_config"]["heartbeat_url"].rpartition(":")
        self._beats = self._connect(zmq.DEALER, int(port), host)
        return answer

    def heartbeat(self) -> list[dict[str, Any]]:
        """Sends one; returns the commands of the answer."""
        assert self._beats is not None, "a worker registers first"
        message = self._message(
            "Heartbeat", ip="127.0.0.1", port=self.command_port, peer_init_url=self.peer
        )
        answer = self._exchange(self._beats, message)
        assert answer["type"] == "HeartbeatRetMsg"
        commands: list[dict[str, Any]] = answer["commands"]
        return commands

    def heartbeat_or_nothing(self) -> list[dict[str, Any]]:
        """The same, where the answer may stay away: the link is down, or the service."""
        try:
            return self.heartbeat()
        except zmq.Again:
            return []

    def ask_raw(self, payload: bytes) -> dict[str, Any]:
        """Any bytes as a request, and the answer."""
        self._requests.send_multipart([b"", payload])
        answer: dict[str, Any] = msgpack.unpackb(self._requests.recv_multipart()[-1])
        return answer

    def look_up(self, hashes: Sequence[int]) -> list[list[Any]]:
        """Who else has these chunks."""
        answer = self.ask("BatchedP2PLookup", hashes=list(hashes))
        found: list[list[Any]] = answer["layout_info"]
        return found

    # What is pushed

    def push(self, *messages: object) -> None:
        """One PUSH message of so many parts."""
        self._push.send_multipart([msgpack.packb(message) for message in messages])

    def push_raw(self, *parts: bytes) -> None:
        """Any bytes, likewise."""
        self._push.send_multipart(parts)

    def operations(self, kind: str, keys: Iterable[int], location: str = CPU) -> dict[str, object]:
        """A message that these were stored or evicted; they are numbered, sent or not."""
        first = self.numbers.get(location, 0)
        listed = [
            {"op_type": kind, "key": key, "seq_num": number}
            for number, key in enumerate(keys, first)
        ]
        self.numbers[location] = first + len(listed)
        return self._message("BatchedKVOperation", location=location, operations=listed)

    def admit(self, keys: Iterable[int], location: str = CPU) -> None:
        self.push(self.operations(ADMIT, keys, location))

    def evict(self, keys: Iterable[int], location: str = CPU) -> None:
        self.push(self.operations(EVICT, keys, location))

    def deregister(self) -> None:
        self.push(self._message("DeRegister", ip="127.0.0.1", port=self.command_port))

    # Full syncs

    def start_sync(self, sync_id: str, total: int, batches: int) -> dict[str, Any]:
        return self.ask(
            "FullSyncStart", location=CPU, sync_id=sync_id, total_keys=total, batch_count=batches
        )

    def push_batch(self, sync_id: str, number: int, keys: Sequence[int]) -> None:
        self.push(
            self._message(
                "FullSyncBatch", location=CPU, sync_id=sync_id, batch_id=number, keys=list(keys)
            )
        )

    def push_end(self, sync_id: str, total: int) -> None:
        self.push(
            self._message("FullSyncEnd", location=CPU, sync_id=sync_id, actual_total_keys=total)
        )

    def sync_status(self, sync_id: str) -> dict[str, Any]:
        return self.ask("FullSyncStatus", sync_id=sync_id)

    def sync(self, sync_id: str, keys: Sequence[int], batch_keys: int = 400) -> None:
        """All of a full sync but for its status."""
        batches = [keys[i : i + batch_keys] for i in range(0, len(keys), batch_keys)] or [[]]
        assert self.start_sync(sync_id, len(keys), len(batches))["accepted"]
        for number, batch in enumerate(batches):
            self.push_batch(sync_id, number, batch)
        self.push_end(sync_id, len(keys))
