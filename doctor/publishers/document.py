"""What a check says, as `reprise publishers check --json` prints it. Fields are only ever added."""

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from doctor.document import Finding


class Reading(StrEnum):
    """How much of what a publisher sends is used."""

    WHOLE = "whole"
    IN_PART = "in part"
    NONE = "none"
    SILENT = "silent"


class NumbersCheck(msgspec.Struct, kw_only=True):
    """The numbers of the messages, as they came."""

    first: int | None
    last: int | None
    missing: int
    back: Annotated[int, Meta(description="How often a number was below the one before it.")]
    repeated: int
    unreadable: Annotated[int, Meta(description="Messages without a frame of 8 bytes for it.")]
    lost: Annotated[int, Meta(description="Batches that a service would count as lost.")] = 0
    restarts: Annotated[int, Meta(description="That a service would see.")] = 0


class MessagesCheck(msgspec.Struct, kw_only=True):
    """What the messages look like, each by how many there are."""

    count: int
    replayed: int
    seconds: float
    frames: dict[str, int]
    topics: dict[str, int]
    encodings: dict[str, int]
    forms: dict[str, int]
    ranks: list[int]
    numbers: NumbersCheck
    fault: Annotated[str, Meta(description="The first payload that cannot be decoded, and where.")]


class KindCheck(msgspec.Struct, kw_only=True):
    """One kind of publisher: what its decoder makes of the events."""

    type: str
    tried: int
    used: int
    effects: dict[str, int]


class FieldCheck(msgspec.Struct, kw_only=True):
    """One field of an event."""

    name: str
    seen: int
    empty: Annotated[int, Meta(description="Of these, null or empty.")]
    values: str
    looks_like: Annotated[str, Meta(description='"" where nothing tells.')]
    unknown: Annotated[str, Meta(description='What it does where it is not known; "": it is.')]


class EventCheck(msgspec.Struct, kw_only=True):
    """One kind of event."""

    tag: str
    count: int
    form: str
    effects: Annotated[dict[str, int], Meta(description="Of those that were tried.")]
    fields: list[FieldCheck]


class Problem(msgspec.Struct, kw_only=True):
    """Why events are not used as they are."""

    reason: str
    effect: str
    count: int
    is_harmless: bool
    where: Annotated[list[str], Meta(description="The first of them.")]
    got: str
    expected: str
    remedy: str


class BlocksCheck(msgspec.Struct, kw_only=True):
    """The blocks that the events name."""

    stored: int
    removed: int
    cleared: int
    sizes: dict[str, int]
    media: dict[str, int]
    groups: dict[str, int]
    adapters: dict[str, int]
    keyed: Annotated[int, Meta(description="That a salt, an image or the like enters.")]
    placeholders: Annotated[int, Meta(description="Stored without tokens.")]
    roots: int
    found_parents: int
    unknown_parents: int
    again: Annotated[int, Meta(description="Stored while they were held on that medium.")]
    unheld: Annotated[int, Meta(description="Removed, and not held there.")]
    chained: Annotated[bool | None, Meta(description="Whether hashes are of all before; null: ?")]
    shared_names: int
    second_names: int
    counted: Annotated[int, Meta(description="That answers would count at the end.")]
    state: Annotated[str, Meta(description="How far answers about it could be trusted.")]


class PublisherCheck(msgspec.Struct, kw_only=True):
    """One publisher."""

    endpoint: str
    reading: Reading
    verdict: str
    messages: MessagesCheck
    kinds: Annotated[list[KindCheck], Meta(description="The best one first.")]
    events: list[EventCheck]
    problems: list[Problem]
    blocks: BlocksCheck
    findings: Annotated[list[Finding], Meta(description="What is wrong with what it sends.")]
    registrations: Annotated[list[dict[str, Any]], Meta(description="Bodies of POST /register.")]
    reasons: Annotated[list[str], Meta(description="Why they are as they are.")]
    questions: Annotated[list[str], Meta(description="What only the engine's author knows.")]


class CheckDocument(msgspec.Struct, kw_only=True):
    """All of them."""

    publishers: list[PublisherCheck]
    notes: Annotated[list[str], Meta(description="What of the capture is not whole.")]
