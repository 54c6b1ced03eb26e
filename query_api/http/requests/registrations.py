"""The bodies of `POST /register` and `POST /unregister`, checked in Conductor's order.

The msgpack form takes exactly Conductor's fields (G3), where `hash_profile` is required; the JSON
form takes the published ones and OWN_FIELDS, and `hash_profile` may be absent, because Reprise
hashes tokens itself. The type `none`, of an engine without events, is of the JSON form alone.
"""

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple, TypeVar, get_args

import msgspec

from query_api.access.errors import AccessError
from query_api.access.rights import OPEN, Access, Right
from query_api.http.errors import RequestError, shown
from query_api.http.requests.fields import (
    bounded_text,
    decode,
    got,
    read_integer,
    read_name,
    read_optional_integer,
    read_optional_text,
    read_text,
)
from query_api.http.requests.queries import missing, read_lora_name, unknown_field
from query_api.http.wire import Field, Wire, is_map, split_fields
from schemas.limits import (
    BLOCK_SIZE_MAX,
    DP_RANK_MAX,
    KV_TOKEN_BYTES_MAX,
    KV_TOKENS_MAX,
    LABEL_BYTES_MAX,
    LABELS_MAX,
    NAME_BYTES_MAX,
    READS_MAX,
    SEQUENCES_AT_ONCE_MAX,
)
from schemas.registration import (
    GRPC_SCHEME,
    NO_EVENTS,
    SGLANG_STRATEGIES,
    HashProfile,
    KvCacheGroups,
    KvOffloading,
    KvPartialReuse,
    Label,
    Labels,
    LoraReload,
    PublisherKind,
    Reads,
    Registration,
    ReportMode,
    Role,
    Unregistration,
    is_curve_key,
    is_over_network,
)

T = TypeVar("T")

REGISTER_FIELDS: Final = frozenset(
    {
        "block_size",
        "cache_group",
        "dp_rank",
        "endpoint",
        "hash_profile",
        "instance_id",
        "lora_name",
        "modelname",
        "replay_endpoint",
        "tenant_id",
        "type",
    }
)
OWN_FIELDS: Final = frozenset(
    {
        "additionalsalt",
        "curve_server_key",
        "http_endpoint",
        "kv_bytes_per_token",
        "kv_cache_groups",
        "kv_cache_report_mode",
        "kv_capacity_tokens",
        "kv_offloading",
        "kv_partial_reuse",
        "labels",
        "lora_reload",
        "max_num_seqs",
        "memory_segment",
        "model",
        "reads",
        "replace",
        "role",
        "url",
    }
)
"""Those that Conductor does not know: of the JSON form alone."""

_OF_EVENTS: Final = (
    "endpoint",
    "replay_endpoint",
    "kv_cache_report_mode",
    "kv_offloading",
    "kv_partial_reuse",
    "kv_cache_groups",
    "lora_reload",
    "curve_server_key",
)
"""Fields that say how events are published."""

_NO_EVENTS_JSON: Final = f'"{NO_EVENTS}"'.encode()

_UNREGISTER_FIELDS: Final = frozenset(
    {"block_size", "dp_rank", "instance_id", "lora_name", "modelname", "tenant_id", "type"}
)
_OWN_UNREGISTER_FIELDS: Final = frozenset({"model"})
_PROFILE_FIELDS: Final = ("strategy", "algorithm", "python_hash_seed", "index_projection")
_ALGORITHMS: Final = ("sha256", "sha256_cbor")
_STRATEGY: Final = "vllm_v1"
_PROJECTION: Final = "low64_be"
_SGLANG_HASH: Final = ("sha256_raw", "first64_be")  # algorithm and projection, of SGLang's chains
_SEED_MAX: Final = 2**32 - 1
_READS_BYTES_MAX: Final = 2 * READS_MAX * 6 * NAME_BYTES_MAX  # as \uXXXX, and blanks between them
_names: Final = msgspec.json.Decoder(list[str] | None).decode

FieldMap = dict[str, Field]


class RegisterCommand(NamedTuple):
    """A checked body of `POST /register`; `replace`: what has its name, or is at its endpoint."""

    registration: Registration
    replace: bool


def read_registration(
    body: bytes, wire: Wire, kinds: Collection[PublisherKind], access: Access = OPEN
) -> Registration:
    """The registration alone; see `read_register_command`."""
    return read_register_command(body, wire, kinds, access).registration


def read_register_command(
    body: bytes, wire: Wire, kinds: Collection[PublisherKind], access: Access = OPEN
) -> RegisterCommand:
    """The body of `POST /register`.

    Args:
        body: as it came.
        wire: what it is encoded in.
        kinds: of publishers that can be followed.

    Raises:
        RequestError: the first thing that is wrong.
        AccessError: it is about a tenant that is not the caller's.
    """
    allowed = REGISTER_FIELDS
    if wire is Wire.JSON:
        allowed = allowed | OWN_FIELDS
    fields = _named_model(_known_fields(split_fields(body, wire), allowed))
    endpoint = kind = ""
    if wire is Wire.JSON and _publishes_nothing(fields):
        _check_no_events(fields)
    else:
        endpoint = _required_name(fields, "endpoint", wire)
        if "type" not in fields:
            raise missing("type", " or ".join((*kinds, NO_EVENTS)))
        kind = _required_name(fields, "type", wire)
    model_name = _required_name(fields, "modelname", wire)
    instance_id = _required_name(fields, "instance_id", wire)
    if wire is Wire.JSON:
        _check_blank(modelname=model_name, instance_id=instance_id)
    block_size = _read_block_size(fields, wire)
    replay_endpoint = _text(fields, "replay_endpoint", wire)
    if wire is Wire.JSON and replay_endpoint and "://" not in replay_endpoint:
        text = "replay_endpoint must be an address such as tcp://10.0.0.7:5558"
        more = f", got: {shown(replay_endpoint)}"
        raise RequestError("invalid_value", text, field="replay_endpoint", more=more)
    if replay_endpoint and endpoint.startswith(GRPC_SCHEME):
        text = (
            "replay_endpoint must be left out where endpoint is a gRPC address: it resumes itself"
        )
        more = f", got: {shown(replay_endpoint)}"
        raise RequestError("invalid_value", text, field="replay_endpoint", more=more)
    _check_files((("endpoint", endpoint), ("replay_endpoint", replay_endpoint)), access)
    http_endpoint = _text(fields, "http_endpoint", wire)
    lora_name = read_lora_name(fields["lora_name"], wire) if "lora_name" in fields else ""
    tenant_id = access.tenant_of(_text(fields, "tenant_id", wire))
    _check_cache_group(fields, wire)
    hash_profile = _read_hash_profile(fields, wire)
    additional_salt = ""
    if "additionalsalt" in fields:
        additional_salt = read_optional_text(fields["additionalsalt"], wire)
    registration = Registration(
        endpoint=endpoint,
        kind=_kind(kind, kinds, wire) if endpoint else NO_EVENTS,
        model_name=model_name,
        instance_id=instance_id,
        block_size=block_size,
        dp_rank=_read_rank(fields, wire),
        tenant_id=tenant_id,
        lora_name=lora_name,
        additional_salt=additional_salt,
        replay_endpoint=replay_endpoint,
        http_endpoint=http_endpoint,
        kv_cache_report_mode=_word(fields, "kv_cache_report_mode", wire, get_args(ReportMode)),
        kv_offloading=_word(fields, "kv_offloading", wire, get_args(KvOffloading)),
        kv_partial_reuse=_word(fields, "kv_partial_reuse", wire, get_args(KvPartialReuse)),
        kv_cache_groups=_word(fields, "kv_cache_groups", wire, get_args(KvCacheGroups)),
        lora_reload=_word(fields, "lora_reload", wire, get_args(LoraReload)),
        hash_profile=hash_profile,
        memory_segment=_text(fields, "memory_segment", wire),
        role=_word(fields, "role", wire, get_args(Role), default="combined"),
        labels=_read_labels(fields, wire),
        kv_bytes_per_token=_read_size(fields, "kv_bytes_per_token", wire, KV_TOKEN_BYTES_MAX),
        max_num_seqs=_read_size(fields, "max_num_seqs", wire, SEQUENCES_AT_ONCE_MAX),
        kv_capacity_tokens=_read_size(fields, "kv_capacity_tokens", wire, KV_TOKENS_MAX),
        url=_text(fields, "url", wire),
        curve_server_key=_curve_server_key(_text(fields, "curve_server_key", wire), endpoint),
        reads=_read_reads(fields, wire),
    )
    if registration.reads is not None and (registration.is_pool or not registration.has_events):
        message = f"reads must be left out where type is {registration.kind}: it reads no blocks"
        raise RequestError("invalid_value", message, field="reads", more=got(fields["reads"]))
    return RegisterCommand(registration, _read_replace(fields))


def _check_files(endpoints: Iterable[tuple[str, str]], access: Access) -> None:
    """A socket of this machine's file system may be anybody's: it is for who may do everything."""
    if Right.ADMIN in access.rights:
        return
    for field, endpoint in endpoints:
        if not is_over_network(endpoint):
            text = (
                "Expected an address of a network, as tcp://10.0.0.7:5557; others are registered"
                " by the configuration file, or with a key that has the right admin"
            )
            raise AccessError("no_right", text, field=field)


def read_unregistration(body: bytes, wire: Wire, access: Access = OPEN) -> Unregistration:
    """The body of `POST /unregister`. `type` and `lora_name` are checked and not used. Raises as
    `read_registration`.
    """
    own = _OWN_UNREGISTER_FIELDS if wire is Wire.JSON else frozenset()
    fields = _named_model(_known_fields(split_fields(body, wire), _UNREGISTER_FIELDS | own))
    instance_id = _required_name(fields, "instance_id", wire)
    tenant_id = access.tenant_of(_text(fields, "tenant_id", wire))
    dp_rank = _read_target_rank(fields, wire)
    _text(fields, "type", wire)
    if "lora_name" in fields:
        read_lora_name(fields["lora_name"], wire)
    model_name = read_name(fields["modelname"], wire) if "modelname" in fields else None
    block_size = _read_block_size(fields, wire) if "block_size" in fields else None
    return Unregistration(tenant_id, instance_id, dp_rank, model_name, block_size)


def _known_fields(fields: list[Field], allowed: frozenset[str]) -> FieldMap:
    """The fields by name; of a repeated one the first counts, as in Conductor."""
    by_name: FieldMap = {}
    for field in fields:
        if field.name not in allowed:
            raise unknown_field(field.name, allowed)
        by_name.setdefault(field.name, field)
    return by_name


def _named_model(fields: FieldMap) -> FieldMap:
    """`model` is `modelname`, where that is not given, too: /query and /route call it so."""
    if (model := fields.pop("model", None)) is not None:
        fields.setdefault("modelname", Field("modelname", model.raw))
    return fields


def _required_name(fields: FieldMap, name: str, wire: Wire) -> str:
    if name not in fields:
        raise missing(name)
    return read_name(fields[name], wire)


def _check_blank(**names: str) -> None:
    """A name of blanks is a mistake, and cannot be told from another one on any page."""
    for name, text in names.items():
        if not text.strip():
            more = f', got: "{shown(text)}"'
            message = f"{name} must not be empty"
            raise RequestError("invalid_value", message, field=name, more=more)


def _text(fields: FieldMap, name: str, wire: Wire) -> str:
    return read_text(fields[name], wire) if name in fields else ""


def _publishes_nothing(fields: FieldMap) -> bool:
    given = fields.get("type")
    return given is not None and bytes(memoryview(given.raw)) == _NO_EVENTS_JSON


def _check_no_events(fields: FieldMap) -> None:
    for name in _OF_EVENTS:
        if _text(fields, name, Wire.JSON):
            message = f"{name} must be left out where type is {NO_EVENTS}: nothing is followed"
            raise RequestError("invalid_value", message, field=name, more=got(fields[name]))


def _kind(name: str, kinds: Collection[PublisherKind], wire: Wire) -> PublisherKind:
    if wire is Wire.JSON:  # people write it
        by_lower = {kind.lower(): kind for kind in kinds}
        name = by_lower.get(name.lower(), name)
    if name not in kinds:
        expected = " or ".join((*kinds, NO_EVENTS) if wire is Wire.JSON else kinds)
        more = f", got: {shown(name)}"
        raise RequestError("invalid_value", f"type must be {expected}", field="type", more=more)
    return PublisherKind(name)


def _word(
    fields: FieldMap, field: str, wire: Wire, choices: tuple[T, ...], *, default: str = ""
) -> T:
    """The choice that a field names, or the default: the very object, which no record has then.

    Raises:
        RequestError: it names none of them.
    """
    name = _text(fields, field, wire) or default
    for choice in choices:
        if name == choice:
            return choice
    *others, last = filter(None, map(str, choices))
    detail = (
        f"{field} must be {', '.join(others)} or {last}" if others else f"{field} must be {last}"
    )
    raise RequestError("invalid_value", detail, field=field, more=f", got: {shown(name)}")


def _curve_server_key(key: str, endpoint: str) -> str:
    field = "curve_server_key"
    if key and endpoint.startswith(("http://", "https://", GRPC_SCHEME)):
        message = f"endpoint must be a relay's ZMQ address, as tcp://10.0.0.7:6557, with {field}"
        more = f", got: {shown(endpoint)}"
        raise RequestError("invalid_value", message, field="endpoint", more=more)
    if key and not is_curve_key(key):
        message = f"{field} must be a public key of CURVE, 40 characters of Z85"
        more = f", got {len(key)}: {shown(key)}"
        raise RequestError("invalid_value", message, field=field, more=more)
    return key


def _read_replace(fields: FieldMap) -> bool:
    raw = bytes(memoryview(fields["replace"].raw)) if "replace" in fields else b"false"
    if raw not in (b"true", b"false"):
        more = got(fields["replace"])
        message = "replace must be true or false"
        raise RequestError("invalid_type", message, field="replace", more=more)
    return raw == b"true"


def _read_labels(fields: FieldMap, wire: Wire) -> Labels:
    if "labels" not in fields:
        return ()
    raw = bytes(memoryview(fields["labels"].raw))
    if not is_map(raw, wire):
        message = "labels must be an object of strings"
        raise RequestError("invalid_type", message, field="labels", more=got(fields["labels"]))
    given = {field.name: field for field in split_fields(raw, wire)}
    if len(given) > LABELS_MAX:
        message = f"labels must have at most {LABELS_MAX} entries"
        raise RequestError("out_of_range", message, field="labels", more=f", got {len(given)}")
    return tuple(_read_label(name, given[name], wire) for name in sorted(given))


def _read_label(name: str, field: Field, wire: Wire) -> Label:
    if not name:
        more = ", got one whose name is empty"
        raise RequestError("invalid_value", "labels must have names", field="labels", more=more)
    bounded_text("labels", name, LABEL_BYTES_MAX)
    value = read_text(Field(f"labels.{name}", field.raw), wire)
    return Label(name, bounded_text("labels", value, LABEL_BYTES_MAX))


def _read_reads(fields: FieldMap, wire: Wire) -> Reads | None:
    """Whose shared blocks it reads; null is all, as where it is missing."""
    field = fields.get("reads")
    if field is None:
        return None
    is_long = memoryview(field.raw).nbytes > _READS_BYTES_MAX
    names = None if is_long else decode(_names, field, wire, "an array of strings")
    if is_long or (names is not None and len(names) > READS_MAX):
        message = f"reads must have at most {READS_MAX} entries"
        more = f" of {NAME_BYTES_MAX} bytes, got {'more' if names is None else len(names)}"
        raise RequestError("out_of_range", message, field="reads", more=more)
    if names is None:
        return None
    if "" in names:
        more = ", got one that is empty"
        raise RequestError("invalid_value", "reads must have names", field="reads", more=more)
    return tuple(sorted({bounded_text("reads", name) for name in names}))


def _read_size(fields: FieldMap, name: str, wire: Wire, most: int) -> int:
    """A number that may be unknown: 0, as where it is missing."""
    size = read_integer(fields[name], wire) if name in fields else 0
    if not 0 <= size <= most:
        message = f"{name} must be from 0 to {most}"
        raise RequestError("out_of_range", message, field=name, more=f", got: {size}")
    return size


def _read_block_size(fields: FieldMap, wire: Wire) -> int:
    if "block_size" not in fields:
        raise missing("block_size")
    block_size = read_integer(fields["block_size"], wire)
    message = ""
    if block_size <= 0:
        message = "block_size must be greater than zero"
    elif block_size > BLOCK_SIZE_MAX:
        message = f"block_size must be at most {BLOCK_SIZE_MAX}"
    if message:
        raise RequestError("out_of_range", message, field="block_size", more=f", got: {block_size}")
    return block_size


def _read_rank(fields: FieldMap, wire: Wire) -> int:
    if "dp_rank" not in fields:
        if wire is Wire.JSON:
            return 0
        raise missing("dp_rank")
    dp_rank = read_integer(fields["dp_rank"], wire)
    if not 0 <= dp_rank <= DP_RANK_MAX:
        message = "dp_rank must be a non-negative int"
        more = f" of at most {DP_RANK_MAX}, got: {dp_rank}"
        raise RequestError("out_of_range", message, field="dp_rank", more=more)
    return dp_rank


def _read_target_rank(fields: FieldMap, wire: Wire) -> int:
    """As `_read_rank`, but Conductor has one reason here for every bad rank: `invalid_value`."""
    try:
        return _read_rank(fields, wire)
    except RequestError as error:
        if error.field is None or error.reason == "missing":
            raise
        message, more = "dp_rank must be a non-negative int", error.more
        raise RequestError("invalid_value", message, field="dp_rank", more=more) from error


def _check_cache_group(fields: FieldMap, wire: Wire) -> None:
    if "cache_group" not in fields:
        return
    group = read_optional_integer(fields["cache_group"], wire)
    if group:
        message, more = "only cache group zero is supported", f", got: {group}"
        raise RequestError("unsupported", message, field="cache_group", more=more)


def _read_hash_profile(fields: FieldMap, wire: Wire) -> HashProfile | None:
    field = fields.get("hash_profile")
    if field is None:
        if wire is Wire.JSON:
            return None
        raise missing("hash_profile")
    raw = bytes(memoryview(field.raw))
    if wire is Wire.JSON and raw == b"null":
        return None
    if not is_map(raw, wire):
        kind = "an object" if wire is Wire.JSON else "a map"
        message = f"hash_profile must be {kind}"
        raise RequestError("invalid_type", message, field="hash_profile", more=got(field))
    profile_fields = _known_fields(split_fields(raw, wire), frozenset(_PROFILE_FIELDS))
    profile = HashProfile(
        **{name: _required_name(profile_fields, name, wire) for name in _PROFILE_FIELDS}
    )
    _check_profile(profile)
    return profile


def _check_profile(profile: HashProfile) -> None:
    """The recipes that Conductor knows, in its order of checks. SGLang's has no seed to check."""
    is_sglang = profile.strategy in SGLANG_STRATEGIES
    if is_sglang and (profile.algorithm, profile.index_projection) == _SGLANG_HASH:
        return
    if profile.algorithm not in _ALGORITHMS:
        message = f"unsupported hash algorithm: {profile.algorithm}"
        more = f"; expected: {' or '.join(_ALGORITHMS)}"
        raise RequestError("invalid_value", message, field="algorithm", more=more)
    if profile.strategy != _STRATEGY:
        message = f"unsupported hash strategy: {profile.strategy}"
        more = f"; expected: {_STRATEGY}"
        raise RequestError("invalid_value", message, field="strategy", more=more)
    if profile.index_projection != _PROJECTION:
        message = f"unsupported index projection: {profile.index_projection}"
        more = f"; expected: {_PROJECTION}"
        raise RequestError("invalid_value", message, field="index_projection", more=more)
    seed = profile.python_hash_seed
    came = f", got: {shown(seed)}"
    if seed == "random":
        return
    if not (seed.isascii() and seed.isdigit()):
        message = 'python_hash_seed must be "random" or ASCII decimal text in 0..4294967295'
        raise RequestError("invalid_value", message, field="python_hash_seed", more=came)
    if int(seed) > _SEED_MAX:
        message = "python_hash_seed must be in range 0..4294967295"
        raise RequestError("invalid_value", message, field="python_hash_seed", more=came)
