"""What Conductor's client and server say to each other: its structs, in the order of their members.

Source: Mooncake, mooncake-conductor/include/conductor/client/types.h (commit d62f27b94),
common/types.h (46983c540), prefixindex/ (1b6bbb02a) and tests/wire_types_test.cpp (06d9be5ee).
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from query_api.rpc.struct_pack import (
    BOOL,
    INT32,
    INT32S,
    INT64,
    TEXT,
    UINT64,
    Array,
    Expected,
    Integers,
    Map,
    Optional,
    Packing,
    Struct,
)


class ErrorCode(IntEnum):
    """What a call answers in place of a value."""

    INTERNAL_ERROR = -1
    INVALID_PARAMS = -600
    CONDUCTOR_UNAVAILABLE = -2000
    SERVICE_NOT_FOUND = -2001


class ContextKey(NamedTuple):
    """What is hashed alike."""

    tenant_id: str
    model_name: str
    lora_name: str
    block_size: int


class QueryRequest(NamedTuple):
    """The argument of `Query`.

    Attributes:
        token_ids: (n,) i32 LE.
    """

    context: ContextKey
    token_ids: bytes
    cache_salt: str | None
    instance_filter: str | None


class RankHit(NamedTuple):
    """How far the first blocks of a prompt go on each tier and those above, tokens.

    Attributes:
        npu: the memory of the rank's own GPU.
        cpu_local: that of its host.
        cpu_share: that of pools.
    """

    npu: int
    cpu_local: int
    cpu_share: int
    disk: int


class CacheHit(NamedTuple):
    """The same of one instance: the furthest of its ranks.

    Attributes:
        dp: `npu` of each rank.
    """

    longest_match_tokens: int
    dp: Mapping[int, int]
    rank_matches: Mapping[int, RankHit]
    npu: int
    cpu_local: int
    cpu_share: int
    disk: int


class QueryResult(NamedTuple):
    """The value of `Query`."""

    instances: Mapping[str, CacheHit]


class HashProfile(NamedTuple):
    """How an engine hashes; `root_digest` is derived, and empty in most requests."""

    strategy: str
    algorithm: str
    python_hash_seed: str
    root_digest: str
    index_projection: str


class ServiceConfig(NamedTuple):
    """The argument of `Register`, and one entry of `ListServices`.

    Attributes:
        publisher_kind: a place in `PUBLISHER_KINDS`, or `OTHER_KIND` in answers.
    """

    endpoint: str
    replay_endpoint: str
    publisher_kind: int
    model_name: str
    lora_name: str
    tenant_id: str
    instance_id: str
    block_size: int
    dp_rank: int
    cache_group: int | None
    hash_profile: HashProfile


class RegisterResult(NamedTuple):
    """The value of `Register`."""

    instance_id: str
    is_new: bool


class UnregisterRequest(NamedTuple):
    """The arguments of `Unregister`."""

    instance_id: str
    tenant_id: str
    dp_rank: int


class UnregisterResult(NamedTuple):
    """The value of `Unregister`."""

    removed_key: str


class ContextView(NamedTuple):
    """One context of `GetGlobalView`."""

    context: ContextKey
    profile: HashProfile
    instance_ranks: Mapping[str, Sequence[int]]
    prefix_count: int


class GlobalView(NamedTuple):
    """The answer of `GetGlobalView`."""

    context_count: int
    contexts: Sequence[ContextView]


PUBLISHER_KINDS: Final = ("vLLM", "Mooncake", "SGLang")
"""Those that Conductor numbers, from 0 on."""

OTHER_KIND: Final = -1
"""Of publishers that Conductor does not follow; its clients call such a kind `unknown`."""

_CONTEXT: Final = Struct(ContextKey, TEXT, TEXT, TEXT, INT64)
_PROFILE: Final = Struct(HashProfile, TEXT, TEXT, TEXT, TEXT, TEXT)
_RANK_HIT: Final = Integers(RankHit, INT64, INT64, INT64, INT64)
_HIT: Final = Struct(
    CacheHit, INT64, Map(INT64, INT64), Map(INT64, _RANK_HIT), INT64, INT64, INT64, INT64
)
_SERVICE: Final = Struct(
    ServiceConfig,
    TEXT,
    TEXT,
    INT32,
    TEXT,
    TEXT,
    TEXT,
    TEXT,
    INT64,
    INT32,
    Optional(INT64),
    _PROFILE,
)
_CONTEXT_VIEW: Final = Struct(
    ContextView, _CONTEXT, _PROFILE, Map(TEXT, Array(INT64, is_set=True)), UINT64
)

QUERY: Final = Packing(Struct(QueryRequest, _CONTEXT, INT32S, Optional(TEXT), Optional(TEXT)))
QUERY_ANSWER: Final = Packing(Expected(Struct(QueryResult, Map(TEXT, _HIT)), ErrorCode))
REGISTER: Final = Packing(_SERVICE)
REGISTER_ANSWER: Final = Packing(Expected(Struct(RegisterResult, TEXT, BOOL), ErrorCode))
UNREGISTER: Final = Packing(Struct(UnregisterRequest, TEXT, TEXT, INT32))
UNREGISTER_ANSWER: Final = Packing(Expected(Struct(UnregisterResult, TEXT), ErrorCode))
SERVICES: Final = Packing(Array(_SERVICE))
VIEW: Final = Packing(Struct(GlobalView, INT32, Array(_CONTEXT_VIEW)))
ERROR_TEXT: Final = Packing(TEXT)
