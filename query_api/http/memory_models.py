"""The document of `GET /memory`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class MemoryInstance(msgspec.Struct, kw_only=True):
    """A registration that names the segment."""

    tenant_id: str
    model_name: str
    instance_id: str
    dp_rank: int
    state: Annotated[str, Meta(description="How far answers of it can be trusted.")]
    reason: Annotated[str, Meta(description="Why it is not exact, in one word; else empty.")]


class MemorySegment(msgspec.Struct, kw_only=True):
    """What an engine group's KV cache takes of its memory, as kvcached says; sizes in bytes."""

    host: str
    segment: str
    state: Annotated[
        Literal["live", "orphaned", "stale", "gone"],
        Meta(
            description="`orphaned`: its writer has ended without removing it. `stale`: it was not"
            " read for a while. `gone`: it was removed."
        ),
    ]
    total: Annotated[int, Meta(description="The limit.")]
    used: int
    preallocated: Annotated[int, Meta(description="Reserved beside what is used.")]
    pressure: Annotated[float, Meta(description="(used + preallocated) / total.")]
    instances: Annotated[
        list[MemoryInstance],
        Meta(description="By `memory_segment` of their registrations; empty: no engine names it."),
    ]
    writer: Annotated[
        str,
        Meta(description="Its processes: `alive`, `gone`; empty where the bridge cannot know."),
    ]
    age: Annotated[float, Meta(description="Seconds since it was read.")]
    observed_at: Annotated[float, Meta(description="When it was read, Unix seconds.")]
    changed_at: Annotated[float, Meta(description="When these numbers were first read.")]
    since: Annotated[float, Meta(description="When this file was first seen.")]
    inode: int
    bridge: Annotated[str, Meta(description="The run of a bridge that has read it.")]


class MemoryView(msgspec.Struct, kw_only=True):
    """All segments of memory that bridges see, sorted by host and name."""

    count: int
    segments: list[MemorySegment]
