"""A publisher as a released engine has it, as far as the harness touches one; no engine's code."""

from collections.abc import Sequence

import msgspec
import zmq

END = b"\xff" * 8


class BlockStored(msgspec.Struct, tag=True):
    block_hashes: list[int | bytes]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    block_hashes: list[int]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    pass


class BlockStoredMetadata(msgspec.Struct):
    cache_salt: str


class BlockStoredWithMetadata(BlockStored, tag="BlockStored", kw_only=True):
    metadata: BlockStoredMetadata


class KVEventBatch(msgspec.Struct, array_like=True):
    ts: float
    events: Sequence[object]
    data_parallel_rank: int | None = None


class ZmqEventPublisher:
    def __init__(self, attn_dp_rank: int, endpoint: str, **settings: object) -> None:
        self.rank = attn_dp_rank
        self.settings = settings
        self.sent: list[bytes] = []
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        self.socket.bind(endpoint)

    def publish(self, batch: KVEventBatch) -> None:
        payload = msgspec.msgpack.encode(batch)
        sequence = len(self.sent).to_bytes(8, "big")
        self.sent.append(payload)
        self.socket.send_multipart([b"", sequence, payload])

    def shutdown(self) -> None:
        self.socket.close(linger=0)
