"""What a server of LMCache's multi-process mode tells: JSON, `{"batches": [...]}`. A value of the
topic `lmcache-cache-events`, and the body of `POST /events` to a coordinator.

    batch   instance_id, incarnation, seq (from 1), event_type store|delete|access|config,
            tier l1|l2, backend, shared, entries, dropped_events, capacity_bytes,
            capacity_revision, ts
    entry   key: chunk_hash_hex, model_name, kv_rank, object_group_id, cache_salt; size_bytes;
            and the chunk's tokens, which are not kept

Source: lmcache 0.5.6 and 0.5.7rc2, `lmcache/v1/mp_coordinator/api.py`, `cache_events.py` and
`schemas.py`.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from lmcache_adapter.bounds import LMCACHE_OPERATIONS_MAX
from schemas.codec import UNUSABLE, detail_of
from schemas.errors import WireError
from schemas.identities import Name, Text
from schemas.limits import INCARNATION_MAX
from schemas.positions import Cursor

LMCACHE_TOPIC_BATCHES_MAX: Final = 4096  # of one value of LMCache's topic: reason="malformed"
LMCACHE_TOPIC_HASH_CHARS: Final = 256  # of a chunk's hash in it: reason="malformed_batch"

MALFORMED: Final = "malformed"
_RANK_SHIFT: Final = 16
_RANK_MASK: Final = 0xFF

Hex = Annotated[
    str,
    Meta(pattern="^([0-9a-fA-F]{2})+$", min_length=2, max_length=LMCACHE_TOPIC_HASH_CHARS),
]


Count = Annotated[int, Meta(ge=0, lt=2**62)]


class BatchError(WireError):
    """A value that cannot be read. Operator action: see who writes the topic."""

    def __init__(self, detail: str) -> None:
        super().__init__(MALFORMED, detail)


class ChunkKey(msgspec.Struct, frozen=True, kw_only=True):
    """Of a chunk: one rank's part of it.

    Attributes:
        kv_rank: four numbers of 8 bits: world size, rank, and both of the host.
    """

    chunk_hash_hex: Hex
    model_name: Name
    kv_rank: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    object_group_id: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    cache_salt: Text = ""

    @property
    def chunk(self) -> int:
        """The hash as u64: its last 8 bytes, big-endian, as of every hash that comes as bytes."""
        return int.from_bytes(bytes.fromhex(self.chunk_hash_hex)[-8:], "big")

    @property
    def rank(self) -> int:
        """Among all of the model's workers."""
        return self.kv_rank >> _RANK_SHIFT & _RANK_MASK


class ChunkEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk that something happened to.

    Attributes:
        size_bytes: of it, where it was stored.
    """

    key: ChunkKey
    size_bytes: Count = 0


class BatchHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch must say for its place to be known.

    Attributes:
        incarnation: of the server's process; a later one has a higher number.
        seq: of the batch in it, from 1.
    """

    instance_id: Name
    incarnation: Annotated[int, Meta(ge=0, le=INCARNATION_MAX)]
    seq: Annotated[int, Meta(ge=1, le=2**62)]

    @property
    def cursor(self) -> Cursor:
        """Its place in what the server sends, numbered from 0."""
        return Cursor(self.incarnation, self.seq - 1)


class Batch(BatchHead, frozen=True, kw_only=True):
    """Events of one kind, of one server.

    Attributes:
        tier: memory of the host (`l1`), or what is below it.
        backend: which of several of the tier; "" in `access`.
        shared: whether several instances use the same storage.
        dropped_events: entries that the incarnation has dropped on their way so far; of a release
            that does not say it, 0.
        capacity_bytes: of the tier's backend, in `config`; 0 where it is not said.
        capacity_revision: which declaration of capacities it is of; one has a batch for each.
    """

    event_type: Literal["store", "delete", "access", "config"]
    tier: Literal["l1", "l2"]
    backend: Text = ""
    shared: bool = False
    entries: Annotated[list[ChunkEntry], Meta(max_length=LMCACHE_OPERATIONS_MAX)] = []
    dropped_events: Count = 0
    capacity_bytes: Count = 0
    capacity_revision: Count = 0


class UnreadableBatch(msgspec.Struct, frozen=True):
    """A batch that cannot be read.

    Attributes:
        head: whose it is, where that can be read.
        detail: what was expected.
    """

    head: BatchHead | None
    detail: str


class _Value(msgspec.Struct, frozen=True):
    batches: Annotated[list[msgspec.Raw], Meta(max_length=LMCACHE_TOPIC_BATCHES_MAX)]


_values: msgspec.json.Decoder[_Value] = msgspec.json.Decoder(_Value)
_batches: msgspec.json.Decoder[Batch] = msgspec.json.Decoder(Batch)
_heads: msgspec.json.Decoder[BatchHead] = msgspec.json.Decoder(BatchHead)


def decode(value: bytes) -> list[Batch | UnreadableBatch]:
    """The batches of a value, in order; one that is bad does not take the others with it.

    Raises:
        BatchError: it is no such value.
    """
    try:
        found = _values.decode(value)
    except UNUSABLE as error:
        raise BatchError(detail_of(error)) from error
    return [_decoded(bytes(one)) for one in found.batches]


def _decoded(encoded: bytes) -> Batch | UnreadableBatch:
    try:
        return _batches.decode(encoded)
    except UNUSABLE as error:
        detail = detail_of(error)
    try:
        return UnreadableBatch(_heads.decode(encoded), detail)
    except UNUSABLE:
        return UnreadableBatch(None, detail)
