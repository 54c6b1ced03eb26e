"""A registered publisher, and the rules by which one may join the others.

`/register`, the configuration file, the registry topic and the log all hold what is here.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, NamedTuple, NewType

import msgspec
from msgspec import Meta

from schemas.answer_states import Doubt
from schemas.errors import RegistrationConflictError, RegistrationError
from schemas.identities import (
    DEFAULT_TENANT,
    BlockSize,
    Name,
    PublisherKey,
    Rank,
    StreamKey,
    Text,
)
from schemas.limits import (
    KV_TOKEN_BYTES_MAX,
    KV_TOKENS_MAX,
    LABEL_BYTES_MAX,
    LABELS_MAX,
    NAME_BYTES_MAX,
    PUBLISHERS_MAX,
    READS_MAX,
    SEQUENCES_AT_ONCE_MAX,
)
from schemas.positions import CPU_TAKEN_BACK, DISK_TAKEN_BACK, ON_CPU, LogOffset, Seconds

# What comes back from a log, a topic or a disk and is above a bound is refused as it is decoded
# (RecordError, EntryError).
KIND_CHARS_MAX: Final = 64  # the name of a wire protocol

POOL_NAMES_TRIED: Final = 100  # by partition, for the members of a pool: each of them gets one

GRPC_SCHEME: Final = "grpc://"

PublisherKind = NewType("PublisherKind", str)
"""The wire protocol of a publisher, as Mooncake's `/register` spells it: `vLLM`, `SGLang`;
others as their makers do: `TensorRT-LLM`, `Dynamo`. Errors and documents call it the same.
"""

VLLM: Final = PublisherKind("vLLM")
TENSORRT_LLM: Final = PublisherKind("TensorRT-LLM")
SGLANG: Final = PublisherKind("SGLang")
MOONCAKE: Final = PublisherKind("Mooncake")
DYNAMO: Final = PublisherKind("Dynamo")
TOKENSPEED: Final = PublisherKind("TokenSpeed")
ATOM: Final = PublisherKind("ATOM")

LMCACHE: Final = PublisherKind("LMCache")
"""A worker of LMCache, which connects to the bridge as to LMCache's own controller."""

LMCACHE_TOPIC: Final = PublisherKind("LMCache-MP")
"""A server of LMCache's multi-process mode: it writes a Kafka topic of its own, or tells its
coordinator; or it is registered, and streams by gRPC.
"""

NO_EVENTS: Final = PublisherKind("none")
"""An engine that publishes no events: nothing is followed, and it has no part in the table or in
answers to queries. Decisions alone say what it holds (`routing.observed.predicted_blocks`).
"""


class KindFacts(NamedTuple):
    """What is known of all publishers of a kind.

    Attributes:
        is_self_registered: no client registers it: its bridge writes into the log that it is there,
            once it has heard of it, and the registry knows nothing of it. One that streams by gRPC
            is registered as others are.
        is_pool: it publishes what a pool holds that instances of the scope read.
        has_many_ranks: the events of several ranks may come in one stream, numbered as one.
        counts_by_rank: each rank numbers its batches itself, so that of several behind one address
            each has numbers of its own.
        pod_label: what the label of a pod calls it; "" where pods are not labelled with it.
        clears_gpu_alone: its clear may leave what it has offloaded, which may be chunks of blocks,
            or of a tier of which it never says what is gone.
        announces_again: it may announce as stored what it holds already, and does not say so: of
            chains that begin a prompt.
        announces_chains_again: so with any chain.
        removes_once: whatever it announces again, it finds the latest, and says once that it is
            gone.
        reuses_in_part: it may overwrite a block that a prompt shares a part of, without an event.
        keeps_blocks_back: it leaves out blocks that it cannot name, and not that some were stored.
        holds_once: it has one tree of blocks: what it stores once more while it holds it, it had
            dropped without an event.
        hides_groups: it does not say what cache groups its engine has, or keeps that back.
        reloads_adapters: it may load an adapter again, and finds no block of it of before then,
            without an event.
        drops_unsaid: it may lose what it holds, or its events, and says nothing of that.
        hides_connectors: its engine may be any, with whatever keeps blocks beside its GPU.
    """

    is_self_registered: bool = False
    is_pool: bool = False
    has_many_ranks: bool = False
    counts_by_rank: bool = False
    pod_label: str = ""
    clears_gpu_alone: bool = False
    announces_again: bool = False
    announces_chains_again: bool = False
    removes_once: bool = False
    reuses_in_part: bool = False
    keeps_blocks_back: bool = False
    holds_once: bool = False
    hides_groups: bool = False
    reloads_adapters: bool = False
    drops_unsaid: bool = False
    hides_connectors: bool = False


PUBLISHER_KINDS: Final[Mapping[PublisherKind, KindFacts]] = {
    VLLM: KindFacts(
        counts_by_rank=True, pod_label="vllm", clears_gpu_alone=True, announces_again=True
    ),
    TENSORRT_LLM: KindFacts(
        has_many_ranks=True, pod_label="tensorrt-llm", reuses_in_part=True, holds_once=True
    ),
    SGLANG: KindFacts(
        counts_by_rank=True,
        pod_label="sglang",
        announces_again=True,
        announces_chains_again=True,
        reloads_adapters=True,
    ),
    MOONCAKE: KindFacts(is_pool=True, drops_unsaid=True),
    DYNAMO: KindFacts(
        has_many_ranks=True,
        clears_gpu_alone=True,
        reuses_in_part=True,
        keeps_blocks_back=True,
        hides_groups=True,
        hides_connectors=True,
    ),
    TOKENSPEED: KindFacts(
        counts_by_rank=True,
        pod_label="tokenspeed",
        announces_again=True,
        announces_chains_again=True,
        hides_groups=True,
    ),
    ATOM: KindFacts(
        counts_by_rank=True,
        pod_label="atom",
        announces_chains_again=True,
        removes_once=True,
        hides_groups=True,
    ),
    LMCACHE: KindFacts(is_self_registered=True),
    LMCACHE_TOPIC: KindFacts(is_self_registered=True, drops_unsaid=True),
    NO_EVENTS: KindFacts(pod_label="none"),
}
"""The kinds of publishers of which anything is known. Those that a client registers have a decoder,
in `bridge.wire.SOURCES`, and what of this is not so needs no entry here. How the HTTP server of a
kind is asked is in `bridge/engine_http/`.
"""

STREAMED_KINDS: Final = (VLLM, TENSORRT_LLM, SGLANG, TOKENSPEED, LMCACHE_TOPIC)
"""Those whose servers stream their events by gRPC, too: `bridge/grpc/methods.py`."""

_OTHER_KIND: Final = KindFacts()


def facts_of(kind: PublisherKind) -> KindFacts:
    """What is known of the kind; nothing of one that a newer version registered."""
    return PUBLISHER_KINDS.get(kind, _OTHER_KIND)


ReportMode = Literal["", "full", "incremental"]
"""vLLM's `kv_cache_report_mode`; "" where it is not said."""

KvOffloading = Literal["", "none", "native", "lmcache"]
"""What keeps blocks elsewhere than on an engine's GPU: nothing; the engine itself, which says what
is gone from there; LMCache, by hashes of its own; "" where it is not said.
"""

KvPartialReuse = Literal["", "none"]
"""What of an engine's block a prompt may take for its own that ends within it: nothing; "" where it
is not said.
"""

KvCacheGroups = Literal["", "one", "several"]
"""Which groups the layers of an engine's model make in its cache: one, of full attention; several,
or another one, as of hybrid models; "" where it is not said.
"""

LoraReload = Literal["", "none"]
"""When an engine loads an adapter once more under its name: never; "" where it is not said."""

Role = Literal["combined", "prefill", "decode"]
"""What an instance does with the requests that it is sent: both phases, or one of them."""

KvTokenBytes = Annotated[int, Meta(ge=0, le=KV_TOKEN_BYTES_MAX)]
"""What one token takes in an engine's KV cache; 0 where that is not known."""

KvTokens = Annotated[int, Meta(ge=0, le=KV_TOKENS_MAX)]
"""How many tokens an engine's KV cache has room for; likewise."""

SequencesAtOnce = Annotated[int, Meta(ge=0, le=SEQUENCES_AT_ONCE_MAX)]
"""How many requests an engine computes at once; likewise."""


CurveServerKey = Annotated[
    str, Meta(max_length=40, pattern=r"^([0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40})?$")
]
"""Public key of CURVE, 40 characters of Z85; "" where a publisher does not encrypt."""

_Z85: Final = {
    character: value
    for value, character in enumerate(
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    )
}


def is_curve_key(text: str) -> bool:
    """Whether it is a key of CURVE: 32 bytes as Z85 (ZeroMQ RFC 32), five characters for each four
    bytes. Whether anybody has it is another question.
    """
    if len(text) != 40 or any(character not in _Z85 for character in text):
        return False
    groups = (text[first : first + 5] for first in range(0, 40, 5))
    return all(sum(_Z85[c] * 85 ** (4 - i) for i, c in enumerate(one)) < 2**32 for one in groups)


LabelName = Annotated[str, Meta(min_length=1, max_length=LABEL_BYTES_MAX)]
LabelValue = Annotated[str, Meta(max_length=LABEL_BYTES_MAX)]


class Label(NamedTuple):
    """What somebody says of an instance, such as where it stands: `rack`, `r7`."""

    name: LabelName
    value: LabelValue


Labels = Annotated[tuple[Label, ...], Meta(max_length=LABELS_MAX)]
"""Sorted by name, each name once: so equal ones are equal in each form, and encode alike."""


Reads = Annotated[tuple[Name, ...], Meta(max_length=READS_MAX)]
"""Instances whose shared blocks an instance can read. Sorted, each once: so equal ones are equal in
each form.
"""


SGLANG_STRATEGIES: Final = ("sglang", "sglang_bigram")
"""How SGLang's engines hash, by tokens and by pairs of them: Conductor's names."""


class HashProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine hashes blocks. Conductor's clients must send it; Reprise hashes tokens itself
    and keeps it only to show it again in `/services`.
    """

    strategy: Text
    algorithm: Text
    python_hash_seed: Text
    index_projection: Text


class Registration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One publisher, as registered. Field names are those of the log; `/register` has its own
    spelling.

    Attributes:
        endpoint: ZMQ address of the PUB socket, e.g. `tcp://10.0.0.7:5557`; or a base URL of the
            engine's HTTP server, e.g. `http://10.0.0.7:8000`, which says where it publishes; or of
            a gRPC server that streams its events, e.g. `grpc://10.0.0.7:50051`. "" of an engine
            without events, and of no other.
        replay_endpoint: ZMQ address of the ROUTER socket that replays, or "".
        peer_url: where an LMCache worker gives its blocks to others of its kind, or "".
        registered_at: when a publisher that registered itself did so, Unix seconds; 0 for others.
        http_endpoint: base URL of the engine's HTTP server, e.g. `http://10.0.0.7:8000`, or "".
        lora_name: the adapter of events without a field for one; "" for the base model.
        memory_segment: the segment that says what the engine's cache takes
        (`schemas.memory_segments`): its
            name, or a pattern of it, with `HOST/` before it where hosts use the same names; or "".
        kv_cache_report_mode: what the engine's requests ask for: with `full` it announces the
            cached blocks that a request uses again as stored, with `incremental` never; "" for
            what it is seen to do.
        kv_offloading: with `none` it has no other tier than its GPU, and stores in no pool, so that
            a clear of the GPU is one of all that it holds. With `lmcache` it does not hear of all
            that is gone. A pool, or a server, with `native` says of every object that it is gone.
        kv_partial_reuse: with `none` it never takes a block of which a prompt needs a part, as
            TensorRT-LLM does by default, and says nothing of what it overwrites.
        kv_cache_groups: with `one` its model has one cache group, of full attention, so that
            nothing is hidden where its events name no groups; with `several` it has others.
        lora_reload: with `none` it never loads an adapter again, as SGLang does, which then finds
            none of its blocks of before.
        url: what routers call the engine, byte for byte, where they ask by gRPC; "" where that is
            `http_url`.
        pool: the instance that was registered, where this is one of its members (`pool_members`).
        role: which phases its instance is for.
        labels: of its instance; who routes compares them.
        kv_bytes_per_token: see `KvTokenBytes`.
        max_num_seqs: see `SequencesAtOnce`; of this rank.
        kv_capacity_tokens: see `KvTokens`; of this rank.
        curve_server_key: of the relay that stands at both ZMQ addresses, or "".
        is_shard: it has a part of each block, and the other ranks of its instance have the others:
            a block is of use where all of them have it.
        reads: whose shared blocks it can read beside its own, by `shared_as`; None: everybody's, of
            its scope. Of an engine that publishes events, and of no other.
    """

    endpoint: Text
    kind: Annotated[PublisherKind, Meta(min_length=1, max_length=KIND_CHARS_MAX)]
    model_name: Name
    instance_id: Name
    block_size: BlockSize
    dp_rank: Rank = 0
    tenant_id: Text = DEFAULT_TENANT
    lora_name: Text = ""
    additional_salt: Text = ""
    replay_endpoint: Text = ""
    http_endpoint: Text = ""
    kv_cache_report_mode: ReportMode = ""
    kv_offloading: KvOffloading = ""
    kv_partial_reuse: KvPartialReuse = ""
    kv_cache_groups: KvCacheGroups = ""
    lora_reload: LoraReload = ""
    hash_profile: HashProfile | None = None
    peer_url: Text = ""
    registered_at: Seconds = 0.0
    memory_segment: Text = ""
    url: Text = ""
    pool: Text = ""
    role: Role = "combined"
    labels: Labels = ()
    kv_bytes_per_token: KvTokenBytes = 0
    max_num_seqs: SequencesAtOnce = 0
    kv_capacity_tokens: KvTokens = 0
    curve_server_key: CurveServerKey = ""
    is_shard: bool = False
    reads: Reads | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where an engine without events has an endpoint, or another has none;
        or a relay's key comes with the address of an engine that says itself where it publishes.
        """
        if bool(self.endpoint) != self.has_events:
            raise ValueError(
                f"Expected an endpoint of a publisher of events, and none with type {NO_EVENTS},"
                f" got: `{self.endpoint[:80]}` with type {self.kind[:80]}"
            )
        if self.curve_server_key and (self.has_url or self.has_stream or not self.has_events):
            raise ValueError(
                "Expected the ZMQ address of a relay with a curve_server_key, got:"
                f" `{self.endpoint[:80]}`"
            )
        if self.replay_endpoint and self.has_stream:
            raise ValueError(
                "Expected no replay_endpoint with a gRPC endpoint, which resumes itself, got:"
                f" `{self.replay_endpoint[:80]}`"
            )

    @property
    def has_events(self) -> bool:
        """Whether it publishes events, so that it can be followed."""
        return self.kind != NO_EVENTS

    @property
    def as_registered(self) -> "Registration":
        """What was asked for: of a member of a pool, the pool."""
        if not self.pool:
            return self
        return msgspec.structs.replace(self, instance_id=self.pool, pool="")

    @property
    def is_pool(self) -> bool:
        """Whether it is a pool that all instances share, and no instance itself."""
        return facts_of(self.kind).is_pool

    @property
    def shared_as(self) -> str:
        """What `reads` of others calls it: of a member of a pool, the pool."""
        return self.pool or self.instance_id

    def can_read(self, name: str) -> bool:
        """Whether the shared blocks of who is called so count for it, where both are of one scope.
        Its own always do.
        """
        return self.reads is None or name in self.reads or name == self.instance_id

    @property
    def is_self_registered(self) -> bool:
        """Whether no client registers it, and the registry knows nothing of it."""
        return facts_of(self.kind).is_self_registered and not self.has_stream

    @property
    def has_other_ranks(self) -> bool:
        """Whether its stream may have the events of other ranks, too."""
        facts = facts_of(self.kind)
        return facts.has_many_ranks or facts.counts_by_rank

    @property
    def doubt(self) -> Doubt | None:
        """What releases of its kind are known to do without an event, and nothing rules out here;
        None where its events say all.
        """
        facts, groups = facts_of(self.kind), self.kv_cache_groups
        if self.kv_offloading == "lmcache":
            return Doubt.NEVER_REMOVED
        # Who streams by gRPC keeps back the events of all groups but those of full attention.
        hides_groups = facts.hides_groups or self.has_stream
        if groups == "several" or (hides_groups and groups != "one"):
            return Doubt.GROUPS_UNKNOWN
        if facts.reuses_in_part and self.kv_partial_reuse != "none":
            return Doubt.PARTIAL_REUSE
        if facts.drops_unsaid and self.kv_offloading != "native":
            return Doubt.DROPS_UNSAID
        return None

    @property
    def reloads_adapters(self) -> bool:
        """Whether what it holds under an adapter may be of no use to it, without an event."""
        return facts_of(self.kind).reloads_adapters and self.lora_reload != "none"

    @property
    def stream(self) -> StreamKey:
        """The key of this publisher's records."""
        return StreamKey(
            self.tenant_id, self.model_name, self.block_size, self.additional_salt, self.instance_id
        )

    @property
    def publisher(self) -> PublisherKey:
        """The identity under which its events are folded."""
        return PublisherKey(self.stream, self.dp_rank)

    @property
    def has_url(self) -> bool:
        """Whether the engine is to be asked where it publishes: its endpoint is a base URL."""
        return self.endpoint.startswith(("http://", "https://"))

    @property
    def has_stream(self) -> bool:
        """Whether its events are streamed by gRPC: no ZMQ socket is connected to."""
        return self.endpoint.startswith(GRPC_SCHEME)

    @property
    def http_url(self) -> str:
        """Base URL of the engine's HTTP server, or ""."""
        return self.http_endpoint or (self.endpoint if self.has_url else "")

    @property
    def local_socket(self) -> str:
        """The first of its addresses that is a socket of this machine's file system, or "". Such a
        one may be anybody's: a stranger may not register it.
        """
        addresses = (self.endpoint, self.replay_endpoint)
        return next((one for one in addresses if not is_over_network(one)), "")

    @property
    def router_url(self) -> str:
        """What routers call the engine: what was registered as that, its base URL, or its name."""
        return self.url or self.http_url or self.instance_id

    @property
    def passed_over_media(self) -> int:
        """The bits of `PublisherState.media` that say nothing of what may be gone unsaid: with
        `native` what it has on its CPU; else what it removes from DISK without naming an owner,
        for tiers of files and objects beside that never do, and from the CPU of an engine that may
        be any, as one with LMCache.
        """
        if self.kv_offloading == "native":
            return ON_CPU
        return DISK_TAKEN_BACK | (CPU_TAKEN_BACK if facts_of(self.kind).hides_connectors else 0)

    def restates(self, other: "Registration") -> bool:
        """Whether it says other things of the same publisher, and nothing else of its stream: so
        it takes the place of the other one, and all that is known of the publisher stays.
        """
        same = {name: getattr(other, name) for name in _SAID}
        offloading = (other.kv_offloading, self.kv_offloading)
        if self.is_pool or offloading == ("", "native"):
            same["kv_offloading"] = other.kv_offloading
        return self != other and msgspec.structs.replace(self, **same) == other

    def continues(self, other: "Registration") -> bool:
        """Whether it is of the same engine as one that it replaces, whose stream goes on, and says
        nothing else of what keeps its blocks.
        """
        same = ("publisher", "kind", "endpoint", "kv_offloading")
        return all(getattr(self, name) == getattr(other, name) for name in same)

    @property
    def service_key(self) -> str:
        """Conductor's name for a service, `instance|tenant|rank`: what `/unregister` reports."""
        return service_key(self.tenant_id, self.instance_id, self.dp_rank)


_SAID: Final = (
    *("kv_partial_reuse", "kv_cache_groups", "lora_reload", "reads", "role", "labels"),
    *("kv_bytes_per_token", "max_num_seqs", "kv_capacity_tokens"),
)
"""Fields that say what an engine is or does, and not what its stream is nor how it is read."""


class Unregistration(NamedTuple):
    """Which publishers are registered no more; None matches any."""

    tenant_id: str
    instance_id: str
    dp_rank: int
    model_name: str | None = None
    block_size: int | None = None

    @classmethod
    def of(cls, registration: Registration) -> "Unregistration":
        """This one alone."""
        one = registration
        return cls(one.tenant_id, one.instance_id, one.dp_rank, one.model_name, one.block_size)

    @property
    def service_key(self) -> str:
        """See `Registration.service_key`."""
        return service_key(self.tenant_id, self.instance_id, self.dp_rank)

    def matches(self, registration: Registration) -> bool:
        """Whether this one is meant; a pool is meant by its own name, which no member has."""
        one = registration
        ours = (one.tenant_id, one.pool or one.instance_id, one.dp_rank)
        return (
            ours == (self.tenant_id, self.instance_id, self.dp_rank)
            and self.model_name in (None, one.model_name)
            and self.block_size in (None, one.block_size)
        )


class LiveRegistration(msgspec.Struct, frozen=True):
    """A live registration and the offset of the record that made it, which retention must keep."""

    registration: Registration
    offset: LogOffset


def is_over_network(endpoint: str) -> bool:
    """Whether it is an address of a network, or none."""
    return not endpoint or endpoint.startswith(("tcp://", "http://", "https://", GRPC_SCHEME))


def service_key(tenant_id: str, instance_id: str, dp_rank: int) -> str:
    """Conductor's name for a service."""
    return f"{instance_id}|{tenant_id}|{dp_rank}"


def pool_members(
    pool: Registration, partitions: int, partition_of: Callable[[StreamKey], int]
) -> list[Registration]:
    """The publishers that a pool is followed as where a log has several partitions: one in each,
    since its objects are joined to what the engines of a partition announce. Cost O(partitions *
    log(partitions)).

    Each is named by the pool's instance and a number that puts its stream into a partition that
    none before it is in. A log of one partition has the pool itself.

    Raises:
        RegistrationError: such a name is longer than the bound.
    """
    if partitions == 1:
        return [pool]
    found: dict[int, Registration] = {}
    for number in range(POOL_NAMES_TRIED * partitions):
        name = f"{pool.instance_id}#{number}"
        member = msgspec.structs.replace(pool, instance_id=name, pool=pool.instance_id)
        found.setdefault(partition_of(member.stream), member)
        if len(found) == partitions:
            break
    if len(name.encode()) > NAME_BYTES_MAX or len(found) < partitions:
        raise RegistrationError(
            f"Expected a pool's instance_id that leaves room for `#{number}` in"
            f" {NAME_BYTES_MAX} bytes, got: {pool.instance_id[:80]}"
        )
    return list(found.values())


def replaced_by(
    registration: Registration, registered: Mapping[PublisherKey, Registration]
) -> list[Registration]:
    """What a registration that replaces takes the place of: what has its name and rank, and its
    model or its endpoint. What has another name stays. Cost O(registered).
    """
    key, publisher = registration.service_key, registration.publisher
    return [
        other
        for other in registered.values()
        if (asked := other.as_registered) != registration
        and asked.service_key == key
        and (
            asked.publisher == publisher
            or _is_taken_by(other, registration)
            or _has_other_block_size(other, registration)
        )
    ]


def restated_by(
    registration: Registration, registered: Mapping[PublisherKey, Registration]
) -> list[Registration]:
    """Those of which a registration says other things (`Registration.restates`). Cost
    O(registered).
    """
    return [other for other in registered.values() if registration.restates(other.as_registered)]


def is_new(registration: Registration, registered: Mapping[PublisherKey, Registration]) -> bool:
    """Whether the publisher is not registered yet. Cost O(registered).

    Raises:
        RegistrationConflictError: its name or its endpoint is that of a different registration.
        RegistrationError: one more than the bound.
    """
    same = registered.get(registration.publisher)
    if same == registration:
        return False
    if same is not None:
        raise RegistrationConflictError(
            f"conflicting registration for service key: {registration.service_key}",
            _difference(same, registration),
        )
    name = registration.as_registered.publisher
    if any(
        other.pool != registration.pool and other.as_registered.publisher == name
        for other in registered.values()
    ):
        raise RegistrationConflictError(
            f"conflicting registration for service key: {registration.as_registered.service_key}"
        )
    for other in registered.values():
        if _has_other_block_size(other, registration):
            raise RegistrationConflictError(
                f"conflicting registration for service key: {registration.service_key}",
                f"block_size is {other.block_size}, got: {registration.block_size}",
            )
    if any(_is_taken_by(other, registration) for other in registered.values()):
        raise RegistrationConflictError(
            f"conflicting active registration for endpoint: {registration.endpoint}"
        )
    if len(registered) >= PUBLISHERS_MAX:
        raise RegistrationError(f"Expected at most {PUBLISHERS_MAX} publishers, got one more")
    return True


_SPELLED: Final = {"kind": "type", "model_name": "modelname", "additional_salt": "additionalsalt"}


def _difference(one: Registration, other: Registration) -> str:
    """The first field of a body in which they differ, with both values."""
    for name in Registration.__struct_fields__:
        was, now = getattr(one, name), getattr(other, name)
        if was != now:
            return f"{_SPELLED.get(name, name)} is {_shown(name, was)}, got: {_shown(name, now)}"
    return ""


def _shown(name: str, value: object) -> object:
    if name == "reads" and isinstance(value, tuple):  # an empty one is not as if it were left out
        return str(list(value))[:80]
    return "left out" if value in ("", (), None) else value


def _has_other_block_size(other: Registration, registration: Registration) -> bool:
    """Whether it is the same rank of the same engine with blocks of another size: an engine has one
    size for a model. A pool has those of all its engines, one without events has none, and the
    LMCache beside an engine has the size of its own chunks under the engine's name.
    """
    if other.block_size == registration.block_size or other.is_pool or registration.is_pool:
        return False
    if any(facts_of(one.kind).is_self_registered for one in (other, registration)):
        return False
    if not (other.has_events and registration.has_events):
        return False
    stream = registration.stream._replace(block_size=other.block_size)
    return other.publisher == registration.publisher._replace(stream=stream)


def _is_taken_by(other: Registration, registration: Registration) -> bool:
    """Whether the endpoint is another's. A pool serves all models, each of which is registered;
    behind one base URL each rank has a socket of its own, behind a gRPC server a stream, and a
    socket or a stream may have several ranks. A server of LMCache has a stream for each model.
    """
    if not registration.has_events or other.endpoint != registration.endpoint:
        return False
    is_other_model = other.model_name != registration.model_name
    if other.kind == registration.kind == LMCACHE_TOPIC and is_other_model:
        return False
    if other.is_pool and registration.is_pool:
        return False
    if other.has_other_ranks and other.stream == registration.stream:
        return other.kind != registration.kind  # of another rank: the publisher is another one
    is_shared = other.has_url or other.has_stream
    return not is_shared or other.dp_rank == registration.dp_rank
