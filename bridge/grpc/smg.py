"""SMG's stream: `SubscribeKvEvents` of its servicers, which relay their engines' own publishers.

Source: `smg-grpc-proto` 0.4.28, `common.proto`; `smg-grpc-servicer` 0.14.1, `kv_relay.py`, and the
servicer in Rust, `crates/engine_servicer/src/kv_events.rs`. What they do:

    the number to start from    is the last one that is known. In Rust what follows it comes first,
                                or OUT_OF_RANGE; in Python every other number than 0 is refused
    0                           in Rust all batches from 0 on, or else a snapshot; in Python what
                                is published from then on
    a restart, a gap            DATA_LOSS, and the stream ends: all is asked for anew
    load                        with each batch, and in messages of their own (`load_only`), which
                                repeat the last number and are no batches

Left out by the relay are the events of other cache groups than full attention, of pools, of owners
beside the engine, and placeholders. A hash is the lower 64 bits, signed.
"""

from typing import Final

from google.protobuf.message import DecodeError

from bridge.bounds import BATCH_VALUES_MAX, REQUESTS_MAX
from bridge.engine_http.load_answers import LOAD_USAGE_ROUNDING, RankLoad
from bridge.grpc.messages import smg_events_pb2 as pb
from bridge.grpc.shapes import Shape
from bridge.grpc.streamed import (
    UNREADABLE,
    StreamedMessage,
    WireMap,
    encode_batch,
    with_payload,
    without_nothing,
)
from bridge.wire.drop_reasons import DropReason
from bridge.wire.stream_marks import WholeMark
from schemas.errors import BatchError
from schemas.limits import KV_TOKENS_MAX, SEQUENCE_MAX

_U64: Final = 2**64 - 1

_BLOCK: Final[Shape] = {6: {}}
_SHAPE: Final[Shape] = {3: {2: {1: _BLOCK}, 3: {}, 4: {}}}
"""Events; their stores, removals and clears; of stores blocks; of these extra keys."""

_MEDIA: Final[dict[int, str]] = {
    pb.KV_CACHE_TIER_DEVICE: "GPU",
    pb.KV_CACHE_TIER_HOST: "CPU",
    pb.KV_CACHE_TIER_DISK: "DISK",
    pb.KV_CACHE_TIER_EXTERNAL: "EXTERNAL",
}
_LEVELS: Final = (
    pb.KV_CACHE_TIER_DEVICE,
    pb.KV_CACHE_TIER_HOST,
    pb.KV_CACHE_TIER_DISK,
    pb.KV_CACHE_TIER_EXTERNAL,
)


class SmgEvents:
    """See `StreamProtocol`."""

    name = "SMG"

    def request(self, first: int | None, rank: int) -> bytes:
        """See there: all ranks come, each by its own numbers."""
        start = max(0, (first or 0) - 1)
        request = pb.SubscribeKvEventsRequest(
            start_sequence_number=start, load_records_before_first_batch=True
        )
        return request.SerializeToString()

    def read(self, message: bytes, rank: int) -> StreamedMessage:
        """See there."""
        try:
            envelope = pb.KvEventEnvelope.FromString(message)
        except DecodeError:
            return UNREADABLE
        number, has_rank = envelope.sequence_number, envelope.HasField("dp_rank")
        found = StreamedMessage(rank=envelope.dp_rank if has_rank else None)
        if envelope.HasField("load"):
            found = found._replace(load=_load(envelope.load))
            if envelope.load.load_only:
                return found
        if number > SEQUENCE_MAX:
            return UNREADABLE._replace(load=found.load)
        found = found._replace(number=number, engine_time=envelope.timestamp)
        if envelope.HasField("snapshot"):
            chunk = envelope.snapshot
            mark = WholeMark(chunk.index, chunk.count, chunk.unknown_before)
            found = found._replace(mark=mark)
        if found.rank not in (None, rank):
            return found
        return with_payload(found, message, _SHAPE, lambda whole: _payload(whole, rank))


def _payload(message: bytes, rank: int) -> bytes:
    try:
        batch = pb.KvEventBatch.FromString(message)
    except DecodeError as error:
        raise BatchError(DropReason.UNDECODABLE, str(error)) from error
    events, values = [], 0
    for event in batch.events:
        kind = event.WhichOneof("data")
        if kind == "stored":
            values += sum(1 + len(block.token_ids) for block in event.stored.blocks)
        elif kind == "removed":
            values += len(event.removed.block_hashes)
        if values > BATCH_VALUES_MAX:
            detail = f"Expected at most {BATCH_VALUES_MAX} values, got more"
            raise BatchError(DropReason.TOO_MANY_VALUES, detail)
        if kind == "stored" and event.stored.blocks:
            events.append(_stored(event.stored))
        elif kind == "removed":
            events.append(_removed(event.removed))
        elif kind == "cleared":
            ownership = event.cleared.ownership or None
            cleared: WireMap = {"type": "AllBlocksCleared", "ownership": ownership}
            events.append(without_nothing(cleared))
        elif kind is None:
            events.append({"type": "Unknown"})  # it has another kind of data: not of this version
    return encode_batch(batch.timestamp, events, rank)


def _stored(stored: pb.KvBlocksStored) -> WireMap:
    first = stored.blocks[0]
    has_parent = stored.HasField("parent_block_hash")
    tokens: list[int] = []
    for block in stored.blocks:
        tokens += block.token_ids
    rows: list[list[object] | None] = [list(map(_key, one.extra_keys)) for one in stored.blocks]
    if stored.cache_salt and not has_parent and not any(rows):
        rows[0] = [stored.cache_salt]  # what is behind has it by its parent
    level = first.cache_level if first.HasField("cache_level") else None
    return without_nothing(
        {
            "type": "BlockStored",
            "block_hashes": [block.block_hash & _U64 for block in stored.blocks],
            "parent_block_hash": stored.parent_block_hash & _U64 if has_parent else None,
            "token_ids": tokens,
            "block_size": first.block_size,
            "lora_id": first.lora_id if first.HasField("lora_id") else None,
            "medium": _medium(stored, level),
            "lora_name": stored.lora_name or None,
            "extra_keys": [row or None for row in rows] if any(rows) else None,
            **_group_of(stored),
            "kv_cache_spec_kind": stored.kv_cache_spec_kind or None,
        }
    )


def _removed(removed: pb.KvBlocksRemoved) -> WireMap:
    level = removed.cache_level if removed.HasField("cache_level") else None
    return without_nothing(
        {
            "type": "BlockRemoved",
            "block_hashes": [one & _U64 for one in removed.block_hashes],
            "medium": _medium(removed, level),
            **_group_of(removed),
        }
    )


def _group_of(event: pb.KvBlocksStored | pb.KvBlocksRemoved) -> WireMap:
    """What only some engines have: whose blocks they are, and in which group."""
    is_remote = event.locality == pb.KV_CACHE_LOCALITY_REMOTE
    return {
        "group_idx": event.group_idx if event.HasField("group_idx") else None,
        "locality": "REMOTE" if is_remote else None,
        "ownership": event.ownership or None,
    }


def _medium(event: pb.KvBlocksStored | pb.KvBlocksRemoved, level: int | None) -> str | None:
    """The engine's own word, or what its tier is called; None for the device."""
    if event.medium:
        return event.medium
    tier = event.tier or (_LEVELS[min(level, 3)] if level is not None and level >= 0 else 0)
    return _MEDIA.get(tier) if tier else None


def _key(key: pb.KvBlockExtraKey) -> object:
    kind = key.WhichOneof("key")
    if kind == "multimodal":
        return [key.multimodal.identifier, key.multimodal.offset]
    return "" if kind is None else getattr(key, kind)


def _load(load: pb.EngineLoad) -> RankLoad:
    capacity = load.max_total_num_tokens if load.HasField("max_total_num_tokens") else 0
    pending = load.waiting_uncached_tokens if load.HasField("waiting_uncached_tokens") else None
    usage = load.token_usage
    return RankLoad(
        min(load.running_requests, REQUESTS_MAX),
        min(load.waiting_requests, REQUESTS_MAX),
        pending,
        min(usage, 1.0) if 0 <= usage <= 1 + LOAD_USAGE_ROUNDING else None,
        capacity if 0 < capacity <= KV_TOKENS_MAX else None,
    )
