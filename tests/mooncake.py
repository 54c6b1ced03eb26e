"""A Mooncake master as its readers meet it: frames as `KvEventPublisher` packs them."""

import time
from typing import Any

import msgspec
import zmq

from tests.subscriptions import CountedPublisher

BACKEND = "pool-0"


class Master:
    """Publishes objects, from number 1 on.

    Args:
        model_name, block_size: of the form of the development branch, which tells them; None for
            that of the main branch.
        endpoint: to bind, as that of a master before.
    """

    def __init__(
        self,
        *,
        model_name: str | None = None,
        block_size: int | None = None,
        tenant_id: str = "default",
        endpoint: str = "tcp://127.0.0.1:0",
    ) -> None:
        self._common: dict[str, Any] = {
            "model_name": model_name,
            "block_size": block_size,
            "additional_salt": None,
            "lora_name": None,
            "tenant_id": tenant_id,
            "backend_id": BACKEND,
        }
        self._is_dev = model_name is not None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._publisher = CountedPublisher(self._context)
        self._socket = self._publisher.socket
        self._socket.bind(endpoint)
        self.endpoint = self._socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self.dp_rank = 0
        self._event_id = 0
        self._number = 1

    @property
    def subscribers(self) -> int:
        return self._publisher.subscribers

    def event(self, kind: str, key: str, medium: str | None, time_ms: int) -> dict[str, Any]:
        self._event_id += 1
        dev, rank = self._is_dev, 0 if self._is_dev else None
        older = {"stored": "BlockStored", "removed": "BlockRemoved", "cleared": "AllBlocksCleared"}
        told: dict[str, Any] = {"event_id": self._event_id, "timestamp": time_ms}
        head = {**told, "event_type": kind, "type": older[kind], **self._common}
        if dev and "@" in key:
            head["model_name"] = key.partition("@")[0]
        if kind == "cleared":
            return {**head, "medium": None, "dp_rank": rank}
        places: dict[str, Any] = {"group_id": None, "medium": medium, "dp_rank": rank}
        if dev:
            places = {"medium": medium, "dp_rank": rank, "group_id": None}
        digest, value = self._hash(key)
        hashes = [] if value is None else [value]
        shards = {"tp_rank": 0, "pcp_rank": 0, "dcp_rank": 0, "pp_rank": 0} if digest else {}
        named = {"connector_block_hash": digest} if digest else {}
        signed = [one - 2**64 if one >= 2**63 and not dev else one for one in hashes]
        body = {"object_key": key, **named, **shards, "seq_hashes": hashes, "block_hashes": signed}
        if kind == "removed":
            return {**head, **places, **body, "base_block_idx": None}
        parents = {"parent_hash": None, "token_ids": None, "parent_block_hash": None}
        return {**head, **places, **body, "base_block_idx": None if dev else 0, **parents}

    def _hash(self, key: str) -> tuple[str, int | None]:
        """What the publisher finds in a key: the connector's digest, and the hash."""
        if "@" not in key:
            return "", int(key, 0)
        digest = key.rpartition("@")[2]
        return (digest, int(digest[-16:], 16)) if self._is_dev else ("", None)

    def payload(self, events: list[tuple[str, str, str | None]], time_ms: int) -> bytes:
        """A batch of (kind, key, medium)."""
        maps = [self.event(*event, time_ms) for event in events]
        return msgspec.msgpack.encode([time_ms, maps, 0])

    def send(self, *events: tuple[str, str, str | None], lost: bool = False) -> None:
        """One batch; a lost one has a number, and is not sent."""
        payload = self.payload(list(events), int(1000 * time.time()))
        number, self._number = self._number, self._number + 1
        if not lost:
            self._socket.send_multipart([b"", number.to_bytes(8, "big"), payload])

    def store(self, *keys: str, medium: str = "cpu") -> None:
        self.send(*[("stored", key, medium) for key in keys])

    def remove(self, *keys: str, medium: str = "cpu") -> None:
        self.send(*[("removed", key, medium) for key in keys])

    def clear(self) -> None:
        self.send(("cleared", "", None))

    def close(self) -> None:
        """A second call does nothing."""
        if not self._context.closed:
            self._socket.close(linger=0)
            self._context.term()


def key_of(engine_hash: int, *, model: str = "m", rank: int = 0) -> str:
    """What vLLM's connector calls the object of one rank: its key ends with the whole digest."""
    digest = (0xABCDEF << 232) + engine_hash
    return f"{model}@tp_rank:{rank}@pcp0@dcp0@pp_rank:0@{digest:064x}"
