"""The documents of the API as types, with examples: the source of its OpenAPI schemas.

Requests are checked by hand (`queries`, `registrations`), because Conductor's order of checks and
texts are part of the contract; these types say what passes.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from schemas.arrays import Token
from schemas.limits import (
    BLOCK_SIZE_MAX,
    DP_RANK_MAX,
    LABELS_MAX,
    NAME_BYTES_MAX,
    QUERY_TOKENS_MAX,
    READS_MAX,
)
from schemas.media import MediaFeatures, MediaItem
from schemas.registration import (
    CurveServerKey,
    KvCacheGroups,
    KvOffloading,
    KvPartialReuse,
    KvTokenBytes,
    KvTokens,
    LabelName,
    LabelValue,
    LoraReload,
    ReportMode,
    SequencesAtOnce,
)

Name = Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
Text = Annotated[str, Meta(max_length=NAME_BYTES_MAX)]
Depth = Annotated[int, Meta(ge=0, description="Tokens.")]
ByRank = Annotated[dict[str, Depth], Meta(description="Tokens by data-parallel rank.")]
BlockSize = Annotated[int, Meta(ge=1, le=BLOCK_SIZE_MAX, description="Tokens per block.")]
Rank = Annotated[int, Meta(ge=0, le=DP_RANK_MAX)]

_CACHE_SALT = (
    "Two published meanings. Where a namespace of this name is registered (`additionalsalt` of "
    "`/register`) the query is about that namespace, whose blocks are hashed without it. "
    "Everywhere else it is the request's own salt, which enters the hash of the first block. "
    "null and the empty string are none."
)
_MODEL = "In JSON, `modelname` says the same."
_TOKEN_IDS = (
    "Prompt tokens; a trailing partial block does not count. In msgpack preferably a `bin` of "
    "little-endian int32. A negative token is its 32 bits, so -1 and 4294967295 are the same. "
    "In its place a body may have the `messages` of a chat or the `prompt` of a completion, with "
    "what else decides their tokens, by OpenAI's names."
)
_EXTRA_KEYS = (
    "What besides tokens enters the hashes of the prompt's blocks: for each whole block a row of "
    "keys, or null, exactly as the engine's events have them. `cache_salt` and the adapter may "
    "stand there too, or beside it."
)
_MEDIA = (
    "In place of `extra_keys`: images and the like in the prompt, by what the engine calls them "
    "and where their placeholder tokens are. The keys of blocks are made of it in each form that "
    "releases of vLLM have."
)
_FEATURES = (
    "The same by vLLM's names, as `/v1/chat/completions/render` answers it; tensors are ignored."
)
_SEQ_HASHES = (
    "Rolling prefix hashes, u64 (negative numbers are read as the same bits as i64): XXH3-64 with "
    "the seed that `/health` shows. A request's own cache salt is in them already. In msgpack "
    "preferably a `bin` of little-endian u64. `block_hash` is an older name of this field."
)


class QueryRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one prompt could reuse, by its tokens. In msgpack Conductor's fields, and the keys."""

    model: Annotated[Name, Meta(description=_MODEL)]
    block_size: BlockSize
    token_ids: Annotated[list[Token], Meta(max_length=QUERY_TOKENS_MAX, description=_TOKEN_IDS)]
    tenant_id: Text = "default"
    lora_name: Annotated[Text | None, Meta(description="Empty or null: the base model.")] = ""
    cache_salt: Annotated[Text | None, Meta(description=_CACHE_SALT)] = None
    instance_id: Annotated[Text | None, Meta(description="Only this instance.")] = None
    additional_salt: Annotated[
        Text | None,
        Meta(description="The namespace; `cache_salt` is the request's own then. JSON only."),
    ] = None
    lora_id: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Deprecated, JSON only: adapter `lora_id:<n>`, without lora_name."),
    ] = None
    extra_keys: Annotated[list[list[Any] | None] | None, Meta(description=_EXTRA_KEYS)] = None
    media: Annotated[list[MediaItem] | None, Meta(description=_MEDIA)] = None
    features: Annotated[MediaFeatures | None, Meta(description=_FEATURES)] = None


class HashQueryRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one prompt could reuse, by the hashes of its blocks."""

    model: Annotated[Name, Meta(description=_MODEL)]
    block_size: BlockSize
    seq_hashes: Annotated[list[int], Meta(max_length=QUERY_TOKENS_MAX, description=_SEQ_HASHES)]
    tenant_id: Text = "default"
    lora_name: Text | None = ""
    cache_salt: Annotated[Text | None, Meta(description="A registered namespace.")] = None
    instance_id: Text | None = None
    additional_salt: Text | None = None
    lora_id: int | None = None


class PublishedMatch(msgspec.Struct, gc=False):
    """What one instance holds, in tokens."""

    longest_matched: Annotated[
        Depth, Meta(description="Continuous prefix on any medium or rank, shared pools included.")
    ]
    GPU: Annotated[Depth, Meta(description="Continuous prefix on that medium alone.")]
    CPU: Depth
    DISK: Depth
    DP: Annotated[ByRank, Meta(description="Continuous prefix that the rank holds by itself.")]


class DetailedMatch(PublishedMatch, gc=False):
    """The same, and how far it can be trusted; of every instance in the scope."""

    state: Annotated[str, Meta(description="`exact`, `unconfirmed`, `degraded` or `stale`.")]
    reason: Annotated[str, Meta(description="Why it is not `exact`, in one word; else empty.")]
    since: Annotated[float, Meta(description="Since when, Unix seconds; 0 where not known.")]
    ended_by_group: Annotated[
        int | None,
        Meta(
            description="Of a hybrid model: the number of the cache group that lacks what the"
            " engine needs to reuse as much as its full attention holds; null where none does."
        ),
    ]


PublishedMatches = dict[str, dict[str, PublishedMatch]]


class RankWalk(msgspec.Struct, gc=False):
    """One rank's cumulative boundaries: on its GPU, then on in CPU memory, then on disk."""

    gpu: Depth
    cpu: Depth
    disk: Depth


class InstanceWalk(msgspec.Struct, gc=False):
    """Conductor's answer for one instance: the furthest of its ranks."""

    longest_matched: Depth
    dp: ByRank
    rank_matches: dict[str, RankWalk]
    gpu: Depth
    cpu: Depth
    disk: Depth


class DetailedWalk(InstanceWalk, gc=False):
    """The same, and how far it can be trusted; of every instance in the scope."""

    state: str
    reason: str
    since: float
    ended_by_group: int | None


class ConductorMatches(msgspec.Struct, kw_only=True):
    """Conductor's answer to a query."""

    instances: dict[str, InstanceWalk]


class DetailedConductorMatches(msgspec.Struct, kw_only=True):
    """The same with `?detail=1`."""

    instances: dict[str, DetailedWalk]


class HashProfileModel(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the engine hashes. Required in msgpack; Reprise only keeps and shows it."""

    strategy: Literal["vllm_v1", "sglang", "sglang_bigram"]
    algorithm: Literal["sha256", "sha256_cbor", "sha256_raw"]
    python_hash_seed: Annotated[str, Meta(pattern="^(random|[0-9]+)$")]
    index_projection: Literal["low64_be", "first64_be"]
    root_digest: Annotated[str | None, Meta(description="Derived; in answers only.")] = None


class RegisterRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One publisher of events to follow; or an engine without, which `/route` may choose."""

    endpoint: Annotated[
        Text,
        Meta(
            description="ZMQ address of the engine's PUB socket; or a base URL of the engine, which"
            " is asked for that. Required, but where `type` is `none`: left out there."
        ),
    ] = ""
    type: Annotated[
        str,
        Meta(
            description="Whose events it publishes, as `vLLM`, in JSON in any case; or `none`, for"
            " an engine that publishes none: what it holds is taken from what `/route` sends there."
            " `none` is JSON only."
        ),
    ]
    modelname: Name
    instance_id: Name
    block_size: BlockSize
    dp_rank: Annotated[Rank, Meta(description="Required in msgpack.")] = 0
    replace: Annotated[
        bool,
        Meta(
            description="Whether to take the place of what is registered with this name and rank,"
            " for the same model and block size or at the same endpoint; its blocks are forgotten."
            " Where the request is refused, that stays. JSON only."
        ),
    ] = False
    replay_endpoint: Annotated[Text, Meta(description="ZMQ address of the ROUTER socket.")] = ""
    http_endpoint: Annotated[
        Text,
        Meta(
            description="Base URL of the engine's HTTP server, `http://10.0.0.7:8000`. JSON only."
        ),
    ] = ""
    lora_name: Text | None = ""
    tenant_id: Text = "default"
    additionalsalt: Annotated[Text | None, Meta(description="Namespace. JSON only.")] = ""
    kv_cache_report_mode: Annotated[
        ReportMode,
        Meta(
            description="What the engine's requests ask for, JSON only: with `full` it announces"
            " blocks again that are held, which are not counted twice then; with `incremental` it"
            " does not. Where vLLM's is not said, its answers are unconfirmed while it may hold a"
            " block or not."
        ),
    ] = ""
    kv_offloading: Annotated[
        KvOffloading,
        Meta(
            description="With `none` the engine keeps no blocks elsewhere than on its GPU; with"
            " `native` it does so itself, and says what is gone from there; with `lmcache` LMCache"
            " does within it, whose blocks are known by their tokens, and of which it does not hear"
            " all that is gone: its answers are unconfirmed. A pool with `native` says of every"
            " object that it is gone; where that is not said, its answers are unconfirmed unless"
            " its master's events show it. JSON only."
            " Where vLLM's is not said, its answers stay unconfirmed behind a clear that"
            " comes after a loss, for 1,000 batches at least."
        ),
    ] = ""
    kv_partial_reuse: Annotated[
        KvPartialReuse,
        Meta(
            description="With `none` the engine never reuses a part of a block (TensorRT-LLM:"
            " `enable_partial_reuse: false`). JSON only. Where TensorRT-LLM's is not said, its"
            " answers are unconfirmed: it overwrites such blocks, and no event says so. Nor"
            " Dynamo's, which may be in front of it."
        ),
    ] = ""
    kv_cache_groups: Annotated[
        KvCacheGroups,
        Meta(
            description="With `one` the model has one cache group, of full attention; with"
            " `several` it is a hybrid, or has more of them. JSON only. Where Dynamo's is not said,"
            " its answers are unconfirmed: it keeps back what other groups hold. With `several`"
            " those of every kind are."
        ),
    ] = ""
    lora_reload: Annotated[
        LoraReload,
        Meta(
            description="With `none` the engine never loads an adapter a second time under its"
            " name. JSON only. Where SGLang's is not said, its answers about adapters are"
            " unconfirmed: it finds no block of before, and no event says so."
        ),
    ] = ""
    reads: Annotated[
        Annotated[list[Name], Meta(max_length=READS_MAX)] | None,
        Meta(
            description="The instances whose shared blocks it can read, by `instance_id`: pools,"
            " and engines that store blocks for others; an empty array: none. Without it, or with"
            " null: all of its tenant, model, block size and salt. Its own always count. JSON only."
        ),
    ] = None
    cache_group: Literal[0] | None = None
    hash_profile: HashProfileModel | None = None
    memory_segment: Annotated[
        Text,
        Meta(
            description="The kvcached segment of its engine: a name, or a pattern of `*`, `?` and"
            " `[ab]`, with `HOST/` before it where hosts use the same names. JSON only."
        ),
    ] = ""
    role: Annotated[
        Literal["combined", "prefill", "decode"],
        Meta(description="Which phases of requests its instance is for. JSON only."),
    ] = "combined"
    labels: Annotated[
        dict[LabelName, LabelValue],
        Meta(
            max_length=LABELS_MAX,
            description="What is to be known of its instance by who routes: `host`, `rack`, `zone`,"
            " `class` and others. JSON only.",
        ),
    ] = {}
    kv_bytes_per_token: Annotated[
        KvTokenBytes,
        Meta(description="What a token takes in its KV cache; 0: not known. JSON only."),
    ] = 0
    max_num_seqs: Annotated[
        SequencesAtOnce,
        Meta(description="Requests that this rank computes at once; 0: not known. JSON only."),
    ] = 0
    kv_capacity_tokens: Annotated[
        KvTokens,
        Meta(description="Tokens that this rank's KV cache holds; 0: not known. JSON only."),
    ] = 0
    url: Annotated[
        Text,
        Meta(
            description="What routers that ask by gRPC call the engine, byte for byte; without it"
            " `http_endpoint`, or else `instance_id`. JSON only."
        ),
    ] = ""
    curve_server_key: Annotated[
        CurveServerKey,
        Meta(
            description="Public key of the `reprise relay` that stands at `endpoint` and"
            " `replay_endpoint`: links to it are encrypted. JSON only."
        ),
    ] = ""


class RegisterResponse(msgspec.Struct, kw_only=True):
    """The publisher is followed from now on and after every restart."""

    status: Literal["registered successfully"]
    instance_id: str


class UnregisterRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A publisher to forget; modelname and block_size narrow what matches."""

    instance_id: Name
    dp_rank: Annotated[Rank, Meta(description="Required in msgpack.")] = 0
    tenant_id: Text = "default"
    type: Text = ""
    modelname: Name | None = None
    lora_name: Text | None = ""
    block_size: BlockSize | None = None


class UnregisterResponse(msgspec.Struct, kw_only=True):
    """What was forgotten for good, as `instance|tenant|rank`."""

    status: Literal["unregistered successfully"]
    removed_instances: list[str]


_Said = Annotated[str | UnsetType, Meta(description="As registered; empty: not said.")]


class Service(msgspec.Struct, kw_only=True):
    """One registered publisher: as registered, what is folded of it, whether it is connected."""

    Endpoint: str
    ReplayEndpoint: str
    HttpEndpoint: Annotated[str, Meta(description="Base URL of the engine's HTTP server.")]
    Type: str
    ModelName: str
    LoraName: str
    TenantID: str
    InstanceID: str
    BlockSize: int
    DPRank: int
    CacheGroup: int | None
    HashProfile: HashProfileModel | None
    AdditionalSalt: str
    MemorySegment: str
    Role: Literal["combined", "prefill", "decode"]
    Labels: dict[LabelName, LabelValue]
    KvBytesPerToken: Annotated[int, Meta(description="0: not known, as of the next two.")]
    MaxNumSeqs: int
    KvCapacityTokens: int
    KvOffloading: _Said = UNSET
    KvPartialReuse: _Said = UNSET
    KvCacheGroups: _Said = UNSET
    LoraReload: _Said = UNSET
    Reads: Annotated[
        list[str] | UnsetType | None, Meta(description="Whose shared blocks count; null: all.")
    ] = UNSET
    Url: str
    CurveServerKey: str
    Incarnation: Annotated[int, Meta(description="Which run of the publisher's process, from 1.")]
    Sequence: Annotated[int, Meta(description="Last batch folded; -1 for none.")]
    DegradedSince: Annotated[int | None, Meta(description="First batch lost for good, or null.")]
    LeftOut: Annotated[
        dict[str, int],
        Meta(
            description="Blocks that it has announced and holds, and no answer counts, by reason:"
            " `block_size:<its own>` (register it with that size), `unknown_parent`, `unresolved`,"
            " `token_count`, `extra_keys`, `hash_conflict`, `hold_count`, `waiting`, `seed`,"
            " `overflow`. It is degraded until it removes them, clears, or restarts. Of"
            " `copies_unknown` it is not known whether it holds them, and of `groups_differ` only"
            " some of its cache groups do; `chunks_differ` are on other tiers than its GPU, in"
            " another size; `objects_wait` are a pool's, whose blocks no engine has"
            " announced: it is unconfirmed. So it is of a hybrid model: `attention_only` are the"
            " blocks that it has announced of windows and recurrent states since it began, held or"
            " not. `unheld_removed` are those that it has removed from its GPU since it held"
            " nothing, and had not stored: it is unconfirmed until it clears or restarts."
        ),
    ]
    Connected: Annotated[
        bool | None, Meta(description="null on a replica, where a bridge elsewhere follows it.")
    ]
    State: Annotated[
        Literal["exact", "unconfirmed", "degraded", "stale"],
        Meta(description="How far answers of it can be trusted."),
    ]
    Reason: Annotated[str, Meta(description="Why it is not exact, in one word; else empty.")]
    Since: Annotated[float, Meta(description="Since when, Unix seconds; 0 where not known.")]
    Activity: Annotated[
        Literal["active", "silent", "disconnected", "replaying", ""],
        Meta(description="What it does now, as its bridge sees it; empty where not known."),
    ]
    ActivitySince: Annotated[float, Meta(description="Since when, likewise.")]


class Services(msgspec.Struct, kw_only=True):
    """All registered publishers, sorted by service key."""

    count: int
    services: list[Service]


class GlobalContext(msgspec.Struct, kw_only=True):
    """One scope of queries."""

    model_name: str
    lora_name: str
    block_size: int
    tenant_id: str
    additional_salt: str
    prefix_count: int
    hash_profile: HashProfileModel | None
    instances: dict[str, list[int]]


class GlobalView(msgspec.Struct, kw_only=True):
    """Every scope that has participants or blocks."""

    context_count: int
    contexts: list[GlobalContext]


class LagDocument(msgspec.Struct, kw_only=True):
    """How far a replica is behind."""

    table_records: Annotated[int, Meta(description="Rows of the table log not yet applied.")]
    source_records: Annotated[int, Meta(description="Records that no applied row covers.")]
    seconds: Annotated[float, Meta(description="It holds all that the logs held this long ago.")]
    reachable: Annotated[bool, Meta(description="Whether Kafka answered when last asked.")]


class ConditionDocument(msgspec.Struct, kw_only=True):
    """One thing that is wrong now."""

    part: Annotated[str, Meta(description="What it is about, as `log` or `kafka`.")]
    reason: Annotated[str, Meta(description="One word for machines.")]
    message: Annotated[str, Meta(description="One sentence for people.")]
    since: Annotated[float, Meta(description="When it began, Unix seconds.")]
    level: Annotated[
        Literal["degraded", "unavailable"],
        Meta(description="`unavailable`: the role cannot do its work, and is not ready."),
    ]


class Alive(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The process answers."""

    status: Literal["alive"]
    ready: Annotated[bool, Meta(description="No condition is `unavailable`.")]
    role: Annotated[str, Meta(description="`embedded` or `serve`.")]
    problem: Annotated[str, Meta(description="The messages of all conditions, or empty.")]
    conditions: list[ConditionDocument]
    kernel: str
    seed: int
    version: str
    position: Annotated[
        str, Meta(description="`partition:offset` of the last record folded, of each partition.")
    ]
    lag: Annotated[LagDocument | None, Meta(description="Replicas only.")] = None


class Ready(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Whether queries are answered; where not, `reason` is that of the first condition."""

    ready: bool
    position: str
    error: str | None = None
    reason: str | None = None


class ContextDigest(msgspec.Struct, kw_only=True):
    """One context; the digest is 16 hex digits."""

    tenant_id: str
    model_name: str
    lora_name: str
    block_size: int
    additional_salt: str
    instance_id: str
    digest: str
    entries: int


class TableDigest(msgspec.Struct, kw_only=True):
    """What the table holds.

    `digest` is SHA-256 in hex over the contexts in sorted order, each as the msgpack array of its
    six names and its digest as an integer.
    """

    position: str
    kernel: str
    seed: int
    digest: str
    contexts: list[ContextDigest]
