"""OpenEngine's stream: `SubscribeKvEvents`, as TensorRT-LLM's server answers it.

Source: `ai-dynamo/openengine`, `proto/openengine/v1/kv_events.proto` at 2185e342; TensorRT-LLM's
main branch, `grpc/openengine/kv_events.py`. A stream has the ranks that are asked for, each by its
own numbers. From a number on, or from 0 with `include_snapshot`, comes what the engine's replay
buffer has yet, that number first; then what is published. There is no other snapshot: where the
buffer no longer begins at 0, the first number tells. A stream that falls behind leaves out numbers,
and one that fails says so in its last message.

A hash of `int64` has 8 bytes, big-endian; of others the last 8 bytes name the block. What is not
said is 0 or "", for the fields have no presence.
"""

from typing import Final

from google.protobuf.message import DecodeError
from xxhash import xxh3_64_intdigest

from bridge.bounds import BATCH_VALUES_MAX
from bridge.engine_http.address import bracketed
from bridge.grpc.messages import openengine_events_pb2 as pb
from bridge.grpc.shapes import Shape
from bridge.grpc.streamed import (
    UNREADABLE,
    StreamedMessage,
    StreamEnd,
    WireMap,
    encode_batch,
    with_payload,
    without_nothing,
)
from bridge.wire.drop_reasons import DropReason
from schemas.errors import BatchError
from schemas.limits import SEQUENCE_MAX
from schemas.troubles import shortened

_SHAPE: Final[Shape] = {1: {4: {10: {1: {}, 20: {}}, 11: {1: {}}, 12: {}}}}
"""The batch; its events; their stores, removals and clears; of these hashes and extra keys."""

_MEDIA: Final = {
    pb.STORAGE_MEDIUM_GPU: "GPU",
    pb.STORAGE_MEDIUM_CPU_PINNED: "CPU_PINNED",
    pb.STORAGE_MEDIUM_DISK: "DISK",
    pb.STORAGE_MEDIUM_EXTERNAL: "EXTERNAL",
}
_PER_SECOND: Final = 1e9


class OpenEngineEvents:
    """See `StreamProtocol`."""

    name = "OpenEngine"

    def request(self, first: int | None, rank: int) -> bytes:
        """See there."""
        request = pb.SubscribeKvEventsRequest(
            data_parallel_ranks=[rank],
            include_snapshot=not first,
            start_sequence_number=first or 0,
        )
        return request.SerializeToString()

    def read(self, message: bytes, rank: int) -> StreamedMessage:
        """See there."""
        try:
            envelope = pb.KvEventEnvelope.FromString(message)
        except DecodeError:
            return UNREADABLE
        if envelope.HasField("error"):
            said = shortened(envelope.error.message) or f"error {envelope.error.code}"
            return StreamedMessage(error=said, end=StreamEnd.AGAIN)
        number = envelope.batch.sequence_number
        if not envelope.HasField("batch") or number > SEQUENCE_MAX:
            return UNREADABLE
        found = StreamedMessage(
            number=number,
            rank=envelope.batch.data_parallel_rank,
            engine_time=envelope.batch.timestamp_unix_nanos / _PER_SECOND,
        )
        if found.rank != rank:
            return found
        return with_payload(found, message, _SHAPE, lambda whole: _payload(whole, rank))


def zmq_sources(answer: bytes, rank: int) -> list[str]:
    """Where a rank publishes over ZeroMQ, as an answer of GetKvEventSources says: its address, and
    that of its replay socket; none where it does not.
    """
    try:
        sources = pb.GetKvEventSourcesResponse.FromString(answer).sources
    except DecodeError:
        return []
    for source in sources:
        if source.transport == "zmq" and source.data_parallel_rank == rank:
            host, port = source.endpoint_addr.host, source.endpoint_addr.port
            found = [f"tcp://{bracketed(host)}:{port}", source.replay_endpoint]
            return list(map(shortened, filter(None, found)))
    return []


def _payload(message: bytes, rank: int) -> bytes:
    try:
        batch = pb.SubscribeKvEventsResponse.FromString(message).batch
    except DecodeError as error:
        raise BatchError(DropReason.UNDECODABLE, str(error)) from error
    events: list[WireMap] = []
    values = 0
    for event in batch.events:
        kind = event.WhichOneof("event")
        if kind == "block_stored":
            values += len(event.block_stored.token_ids) + len(event.block_stored.block_hashes)
        elif kind == "block_removed":
            values += len(event.block_removed.block_hashes)
        if values > BATCH_VALUES_MAX:
            detail = f"Expected at most {BATCH_VALUES_MAX} values, got more"
            raise BatchError(DropReason.TOO_MANY_VALUES, detail)
        if kind == "block_stored":
            events.append(_stored(event.block_stored))
        elif kind == "block_removed":
            events.append(_removed(event.block_removed))
        elif kind == "all_blocks_cleared":
            events.append({"type": "AllBlocksCleared"})
        else:
            events.append({"type": "Unknown"})  # it has another kind: not of this version
    return encode_batch(batch.timestamp_unix_nanos / _PER_SECOND, events, rank)


def _stored(stored: pb.BlockStored) -> WireMap:
    has_parent = stored.HasField("parent_block_hash")
    rows = [list(row.values) or None for row in stored.extra_keys]
    return without_nothing(
        {
            "type": "BlockStored",
            "block_hashes": list(map(_name, stored.block_hashes)),
            "parent_block_hash": _name(stored.parent_block_hash) if has_parent else None,
            "token_ids": list(stored.token_ids),
            "block_size": stored.block_size,
            "lora_id": stored.lora_id or None,
            "medium": _MEDIA.get(stored.medium),
            "lora_name": stored.lora_name or None,
            "extra_keys": rows if any(rows) else None,
            "group_idx": stored.group_idx or None,
            "kv_cache_spec_kind": stored.kv_cache_spec_kind or None,
        }
    )


def _removed(removed: pb.BlockRemoved) -> WireMap:
    return without_nothing(
        {
            "type": "BlockRemoved",
            "block_hashes": list(map(_name, removed.block_hashes)),
            "medium": _MEDIA.get(removed.medium),
            "group_idx": removed.group_idx or None,
        }
    )


def _name(name: pb.KvBlockHash) -> int:
    """What a block is called, as a number. A name of fewer bytes than a hash is hashed."""
    value = name.value
    return int.from_bytes(value[-8:], "big") if len(value) >= 8 else xxh3_64_intdigest(value)
