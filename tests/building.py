"""Short ways to say events and records in tests."""

import struct
from collections.abc import Sequence

import msgspec
import xxhash

from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks, encode_events
from schemas.identities import Medium, PrefixScope, StreamKey
from schemas.memory_segments import MemoryRecord, pressure_of
from schemas.records import (
    PART_VERSION,
    RECORD_VERSION,
    EventsRecord,
    GapRecord,
    HeartbeatRecord,
    Part,
    PublisherReport,
    RegisteredRecord,
    ResetRecord,
    UnregisteredRecord,
    encode_record,
)
from schemas.registration import PublisherKind, Registration

BLOCK = 4
STREAM = StreamKey("default", "m", BLOCK, "", "a")
SCOPE = PrefixScope("default", "m", "", BLOCK, "")


def u64s(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def u32s(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def prefix_hashes(tokens: Sequence[int], block_size: int = BLOCK, *, seed: int = 1337) -> list[int]:
    """The published hashing standard, written out."""
    found: list[int] = []
    for start in range(0, len(tokens) - block_size + 1, block_size):
        local = xxhash.xxh3_64_intdigest(u32s(tokens[start : start + block_size]), seed)
        if found:
            local = xxhash.xxh3_64_intdigest(struct.pack("<QQ", found[-1], local), seed)
        found.append(local)
    return found


def stored(
    sequence: int,
    hashes: Sequence[int],
    tokens: Sequence[int],
    *,
    parent: int | None = None,
    medium: Medium = Medium.GPU,
    lora_name: str = "",
    shared: bool = False,
    group: int = 0,
    spec_kind: str = "",
) -> StoredBlocks:
    return StoredBlocks(
        sequence=sequence,
        hashes=u64s(hashes),
        tokens=u32s(tokens),
        group=group,
        spec_kind=spec_kind,
        parent=parent,
        block_size=BLOCK if tokens else 0,
        medium=medium,
        lora_name=lora_name,
        shared=shared,
    )


def removed(sequence: int, hashes: Sequence[int], *, medium: Medium = Medium.GPU) -> RemovedBlocks:
    return RemovedBlocks(sequence=sequence, hashes=u64s(hashes), medium=medium)


def objects(
    sequence: int,
    keys: Sequence[int],
    aliases: Sequence[int],
    *,
    medium: Medium = Medium.CPU,
    lora_name: str = "",
    by_hash: bool = False,
) -> StoredBlocks:
    """Of a shared pool, each of one block."""
    return StoredBlocks(
        sequence=sequence,
        hashes=u64s(keys),
        aliases=u64s(aliases),
        block_size=BLOCK,
        medium=medium,
        shared=True,
        lora_name=lora_name,
        by_hash=by_hash,
    )


def dropped(sequence: int, keys: Sequence[int], *, medium: Medium = Medium.CPU) -> RemovedBlocks:
    """Objects of a shared pool that it has no longer."""
    return RemovedBlocks(sequence=sequence, hashes=u64s(keys), medium=medium, shared=True)


def cleared(sequence: int) -> ClearedBlocks:
    return ClearedBlocks(sequence=sequence)


def events_record(
    first: int,
    last: int,
    events: Sequence[BlockEvent],
    *,
    incarnation: int = 1,
    stream: StreamKey = STREAM,
    dp_rank: int = 0,
    doubted: bool = False,
    incomplete: int | None = None,
    part: Part | None = None,
    repaired: str = "",
    other_ranks: tuple[int, ...] = (),
    media: int = 0,
) -> bytes:
    return encode_record(
        EventsRecord(
            stream=stream,
            dp_rank=dp_rank,
            bridge_time=0.0,
            incarnation=incarnation,
            first_sequence=first,
            last_sequence=last,
            engine_time=float(last),
            events=msgspec.Raw(encode_events(list(events))),
            doubted=doubted or msgspec.UNSET,
            media=media or msgspec.UNSET,
            incomplete=msgspec.UNSET if incomplete is None else incomplete,
            part=msgspec.UNSET if part is None else part,
            repaired=repaired or msgspec.UNSET,
            other_ranks=other_ranks or msgspec.UNSET,
            version=RECORD_VERSION if part is None else PART_VERSION,
        )
    )


def in_parts(record: EventsRecord, *ends: int) -> list[EventsRecord]:
    """The record as parts that end at these events, of which the last ends the batch."""
    parts = zip((0, *ends), ends, strict=False)
    return [
        msgspec.structs.replace(record, part=Part(first, end, ends[-1]), version=PART_VERSION)
        for first, end in parts
    ]


def gap_record(
    first: int,
    last: int,
    *,
    incarnation: int = 1,
    stream: StreamKey = STREAM,
    dp_rank: int = 0,
) -> bytes:
    return encode_record(
        GapRecord(
            stream=stream,
            dp_rank=dp_rank,
            bridge_time=0.0,
            incarnation=incarnation,
            first_sequence=first,
            last_sequence=last,
            reason="missed",
        )
    )


def reset_record(incarnation: int, *, stream: StreamKey = STREAM, dp_rank: int = 0) -> bytes:
    return encode_record(
        ResetRecord(
            stream=stream,
            dp_rank=dp_rank,
            bridge_time=0.0,
            incarnation=incarnation,
            first_sequence=-1,
            last_sequence=-1,
            reason="restarted",
        )
    )


def registration(
    instance_id: str = "a", *, port: int = 5557, dp_rank: int = 0, kind: str = "vLLM"
) -> Registration:
    return Registration(
        endpoint=f"tcp://127.0.0.1:{port}",
        kind=PublisherKind(kind),
        model_name="m",
        instance_id=instance_id,
        block_size=BLOCK,
        dp_rank=dp_rank,
    )


def registered_record(one: Registration) -> bytes:
    return encode_record(
        RegisteredRecord(stream=one.stream, dp_rank=one.dp_rank, bridge_time=0.0, registration=one)
    )


def unregistered_record(one: Registration) -> bytes:
    return encode_record(
        UnregisteredRecord(stream=one.stream, dp_rank=one.dp_rank, bridge_time=0.0)
    )


def report(one: Registration, reason: str = "") -> PublisherReport:
    """What a bridge says of a publisher."""
    return PublisherReport(one.stream, one.dp_rank, reason, 900.0)


def heartbeat_record(
    bridge: str,
    uptime: float,
    reports: Sequence[PublisherReport],
    *,
    complete: bool = False,
    age: float = 0.0,
) -> bytes:
    """A heartbeat, as it stands in the log."""
    return encode_record(
        HeartbeatRecord(
            bridge=bridge,
            uptime=uptime,
            bridge_time=1000.0 + uptime,
            age=age,
            complete=complete,
            reports=tuple(reports),
        )
    )


def memory_record(
    segment: str = "kvcached_a",
    *,
    host: str = "host",
    bridge: str = "b-1",
    change: str = "changed",
    inode: int = 1,
    used: int = 400,
    preallocated: int = 100,
    total: int = 1000,
    writer: str = "",
    at: float = 1000.0,
    changed_at: float | None = None,
) -> MemoryRecord:
    """What a bridge has read of a segment at a time."""
    return MemoryRecord(
        host=host,
        segment=segment,
        bridge=bridge,
        change=change,
        inode=inode,
        total=total,
        used=used,
        preallocated=preallocated,
        pressure=pressure_of(total, used, preallocated),
        writer=writer,
        observed_at=at,
        changed_at=at if changed_at is None else changed_at,
        bridge_time=at,
    )
