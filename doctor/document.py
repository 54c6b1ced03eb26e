"""The answer of `GET /doctor`, which `reprise doctor` prints."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta


class Code(StrEnum):
    """What a finding is; the names are kept. docs/observe.md has a row of each."""

    # Of an instance
    EVENTS_OFF = "events_off"
    PREFIX_CACHING_OFF = "prefix_caching_off"
    ASLEEP = "asleep"
    MODEL_NAME = "model_name"
    RANKS = "ranks"
    CLOCK = "clock"
    RELEASE = "release"
    BLOCK_SIZE = "block_size"
    DROPPED = "dropped"
    REPEATED_NUMBERS = "repeated_numbers"
    LEFT_OUT = "left_out"
    REPORT_MODE = "report_mode"
    OBJECTS_WAIT = "objects_wait"
    HASHES_DIFFER = "hashes_differ"
    ATTENTION_ONLY = "attention_only"
    TIERS_CLEARED = "tiers_cleared"
    NEVER_REMOVED = "never_removed"
    CHUNKS_UNKNOWN = "chunks_unknown"
    CHUNKS_DIFFER = "chunks_differ"
    POOL_CLEARED = "pool_cleared"
    POOL_REMOVED = "pool_removed"
    LENDER_GONE = "lender_gone"
    UNHELD_REMOVED = "unheld_removed"
    PARTIAL_REUSE = "partial_reuse"
    GROUPS_UNKNOWN = "groups_unknown"
    DROPS_UNSAID = "drops_unsaid"
    ADAPTER_RELOADED = "adapter_reloaded"
    ADAPTER_UNKNOWN = "adapter_unknown"
    READS_UNKNOWN = "reads_unknown"
    LOST_BATCHES = "lost_batches"
    UNREACHED = "unreached"
    DISCONNECTED = "disconnected"
    NO_ENDPOINT = "no_endpoint"
    NO_ENGINE = "no_engine"
    ENGINE_AWAY = "engine_away"
    PROCESS_CHANGED = "process_changed"
    NOT_FOLLOWED = "not_followed"
    REPLAY = "replay"
    NO_REPLAY = "no_replay"
    PARTLY_KNOWN = "partly_known"
    SPOOLED = "spooled"
    NO_EVENTS = "no_events"
    NEVER_REMOVES = "never_removes"
    MATCHES_NOTHING = "matches_nothing"
    MATCHES_LESS = "matches_less"
    MATCHES_MORE = "matches_more"
    OUTCOMES_DIFFER = "outcomes_differ"
    CACHE_UNSAID = "cache_unsaid"
    # Of the service
    ASKED_TENANT = "asked_tenant"
    ASKED_MODEL = "asked_model"
    ASKED_BLOCK_SIZE = "asked_block_size"
    ASKED_SALT = "asked_salt"
    ASKED_TOKENS = "asked_tokens"
    TOKENS_LATE = "tokens_late"
    NOTHING_REGISTERED = "nothing_registered"
    BEHIND = "behind"
    DISK = "disk"
    CONDITION = "condition"


class Finding(msgspec.Struct, kw_only=True):
    """One thing that is wrong."""

    code: Annotated[str, Meta(description="What it is; docs/observe.md has a row of each.")]
    tenant_id: Annotated[str, Meta(description='"" where it is of the service itself.')] = ""
    instance_id: Annotated[str, Meta(description="Likewise.")] = ""
    model_name: Annotated[str, Meta(description="Likewise.")] = ""
    dp_ranks: Annotated[list[int], Meta(description="Of the instance, that it is of.")] = []
    cause: Annotated[str, Meta(description="What is wrong, and what is its likeliest cause.")]
    expected: Annotated[str, Meta(description="By what is registered, or promised.")] = ""
    got: str = ""
    remedy: Annotated[str, Meta(description="What to do.")]
    since: Annotated[float, Meta(description="Unix seconds; 0 where that is not known.")] = 0.0


class EngineSays(msgspec.Struct, kw_only=True):
    """What an engine says of itself over HTTP; null, 0 and empty: it does not say it."""

    version: str
    models: list[str]
    block_size: int
    blocks: Annotated[int, Meta(description="That its cache has room for; of this rank.")]
    ranks: Annotated[list[int], Meta(description="That publish events.")]
    endpoint: Annotated[str, Meta(description="Where this rank publishes, in its own words.")]
    replay_endpoint: str
    publishes: Annotated[bool | None, Meta(description="Whether events are switched on.")]
    caches: Annotated[bool | None, Meta(description="Whether prefix caching is.")]
    is_asleep: bool | None
    reads_media: bool | None
    is_hybrid: bool | None
    completes_as_told: bool | None


class RankExamination(msgspec.Struct, kw_only=True):
    """One data-parallel rank: what is registered of it, and what came of it."""

    dp_rank: int
    endpoint: str
    replay_endpoint: str
    http_endpoint: str
    state: Annotated[str, Meta(description="How far answers of it can be trusted.")]
    reason: str
    activity: str
    incarnation: int
    received: Annotated[int, Meta(description="Sequence number of the last batch; -1: none.")]
    left_out: Annotated[dict[str, int], Meta(description="Blocks that no answer counts, by why.")]
    dropped: Annotated[
        int, Meta(description="Messages, batches and events that its bridge dropped, about.")
    ]
    last_drop: Annotated[str, Meta(description="Why, of the last of them.")]
    clock_s: Annotated[
        float, Meta(description="How far its clock is behind its bridge's, roughly; 0: not far.")
    ]
    engine: Annotated[
        EngineSays | None, Meta(description="null: it has no HTTP address, or does not answer.")
    ]


class AskedExamination(msgspec.Struct, kw_only=True):
    """Decisions of the last quarter of an hour for the instance, and what outcomes say: tokens of
    the prompts that were reported.
    """

    reported: Annotated[int, Meta(description="Outcomes that said `cached_tokens`.")] = 0
    prompt_tokens: int = 0
    promised_tokens: Annotated[int, Meta(description="Said to be cached there.")] = 0
    cached_tokens: Annotated[int, Meta(description="Found to be, by the engine's word.")] = 0
    unpromised_tokens: Annotated[int, Meta(description="Found there, and not promised.")] = 0
    missing_tokens: Annotated[int, Meta(description="Promised, and not found there.")] = 0
    miscounted: Annotated[
        int, Meta(description="Requests of which the engine counts other tokens than the router.")
    ] = 0


class InstanceExamination(msgspec.Struct, kw_only=True):
    """One instance with one model."""

    tenant_id: str
    instance_id: str
    model_name: str
    block_size: int
    additional_salt: str
    type: str
    ranks: list[RankExamination]
    indexed_blocks: Annotated[int, Meta(description="That the index has of it.")]
    capacity_blocks: Annotated[int, Meta(description="That its engine has room for; 0: unknown.")]
    asked: AskedExamination
    verdict: Annotated[str, Meta(description='What is wrong with it in words, or "healthy".')]


class DoctorDocument(msgspec.Struct, kw_only=True):
    """All that is known to be wrong, and what that was found out from."""

    at: Annotated[float, Meta(description="Unix seconds.")]
    role: str
    position: str
    findings: list[Finding]
    notes: Annotated[
        list[Finding], Meta(description="What is so of a model, and no mistake of anybody's.")
    ] = []
    instances: list[InstanceExamination]
