"""LMCache's controller messages, as its 0.5 workers send and read them.

Each is a msgpack map tagged by `type`, the name of LMCache's class; a part that begins with `{` is
the same in JSON. Fields that are not known are ignored, as LMCache's own decoder does.

Source: lmcache 0.5.6, `lmcache/v1/cache_controller/message.py` and `commands/`.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from lmcache_adapter.bounds import LMCACHE_OPERATIONS_MAX
from schemas.codec import UNUSABLE, detail_of
from schemas.errors import WireError
from schemas.identities import Name, Rank, Text
from schemas.limits import PORT_MAX

Count = Annotated[int, Meta(ge=0, le=2**53)]
Port = Annotated[int, Meta(ge=0, le=PORT_MAX)]

_U64_MASK: Final = 2**64 - 1


MALFORMED: Final = "malformed"
"""Reason of a part that is no message."""


class MessageError(WireError):
    """A part that is none of the messages below. Operator action: see what else uses the port."""

    def __init__(self, detail: str) -> None:
        super().__init__(MALFORMED, detail)


def _tag(name: str) -> str:
    return f"{name}Msg"


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=_tag):
    pass


class _OfWorker(_Message, frozen=True, kw_only=True):
    instance_id: Name
    worker_id: Rank


# What a worker sends


class Register(_OfWorker, frozen=True, kw_only=True):
    """The first message of a worker's process.

    Attributes:
        ip, port: where it takes commands.
        peer_init_url: `host:port` where other workers get blocks of it; None without P2P.
    """

    ip: Text
    port: Port
    peer_init_url: Text | None = None


class Heartbeat(Register, frozen=True, kw_only=True):
    """The same, again and again."""


class DeRegister(_OfWorker, frozen=True, kw_only=True):
    """The worker's process ends."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that is stored or evicted.

    Attributes:
        key: its hash, signed or unsigned.
        seq_num: of the operation at its location, from 0 in each process.
    """

    op_type: Literal["admit", "evict"]
    key: int
    seq_num: int


class BatchedKVOperation(_OfWorker, frozen=True, kw_only=True):
    """Operations at one location, in order."""

    location: Name
    operations: Annotated[list[Operation], Meta(max_length=LMCACHE_OPERATIONS_MAX)]


class _KVOperation(_OfWorker, frozen=True, kw_only=True):
    key: int
    location: Name
    seq_num: int = 0


class KVAdmit(_KVOperation, frozen=True, kw_only=True):
    """One stored chunk, as workers before 0.4 send it."""


class KVEvict(_KVOperation, frozen=True, kw_only=True):
    """One evicted chunk, likewise."""


class FullSyncStart(_OfWorker, frozen=True, kw_only=True):
    """The worker's cache is frozen; it will send all of its keys in so many batches."""

    location: Name
    sync_id: Name
    total_keys: Count
    batch_count: Count


class FullSyncBatch(_OfWorker, frozen=True, kw_only=True):
    """Some of these keys; `batch_id` from 0."""

    location: Name
    sync_id: Name
    batch_id: Count
    keys: Annotated[list[int], Meta(max_length=LMCACHE_OPERATIONS_MAX)]


class FullSyncEnd(_OfWorker, frozen=True, kw_only=True):
    """All batches were sent."""

    location: Name
    sync_id: Name
    actual_total_keys: Count


class FullSyncStatus(_OfWorker, frozen=True, kw_only=True):
    """May the cache be used again?"""

    sync_id: Name


class BatchedP2PLookup(_OfWorker, frozen=True, kw_only=True):
    """Who else has these chunks, in the order of a prompt?"""

    hashes: Annotated[list[int], Meta(max_length=LMCACHE_OPERATIONS_MAX)]


Pushed = BatchedKVOperation | KVAdmit | KVEvict | FullSyncBatch | FullSyncEnd | DeRegister
Request = Register | Heartbeat | FullSyncStart | FullSyncStatus | BatchedP2PLookup
Message = Pushed | Request

# What it is answered


class RegisterRet(_Message, frozen=True, kw_only=True):
    """`extra_config`: `heartbeat_url`, `host:port` without a scheme."""

    extra_config: dict[str, str] = {}


class FullSyncCommand(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="command_type", tag="full_sync"
):
    """Send all that you hold. `reason`: a word for the worker's log."""

    reason: str | None = None
    args: None = None


class HeartbeatRet(_Message, frozen=True, kw_only=True):
    """What the worker is to do."""

    commands: list[FullSyncCommand] = []


class FullSyncStartRet(_Message, frozen=True, kw_only=True):
    """Whether the batches may come."""

    sync_id: str
    accepted: bool
    error_msg: str | None = None


class FullSyncStatusRet(_Message, frozen=True, kw_only=True):
    """Whether all came, and whether the cache may be used again.

    Attributes:
        global_progress: the share of all workers that are whole.
        missing_batches: to be sent again.
    """

    sync_id: str
    is_complete: bool
    global_progress: float
    can_exit_freeze: bool
    missing_batches: list[int] = []


class BatchedP2PLookupRet(_Message, frozen=True, kw_only=True):
    """Of each who has some: instance, location, how many of the first chunks, where to get them."""

    layout_info: list[tuple[str, str, int, str]]


class Error(_Message, frozen=True, kw_only=True):
    """The request cannot be answered."""

    error: str


Reply = (
    RegisterRet | HeartbeatRet | FullSyncStartRet | FullSyncStatusRet | BatchedP2PLookupRet | Error
)

NOT_FOUND: Final = BatchedP2PLookupRet(layout_info=[("", "", 0, "")])
"""Nobody has them."""

_msgpack: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_json: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


def decode(part: bytes) -> Message:
    """One message of a worker.

    Raises:
        MessageError: it is none; says what was expected, and where.
    """
    try:
        return _json.decode(part) if part[:1] == b"{" else _msgpack.decode(part)
    except UNUSABLE as error:
        raise MessageError(detail_of(error)) from error


def encode(reply: Reply) -> bytes:
    """The message as a worker reads it."""
    return _encoder.encode(reply)


def key_of(number: int) -> int:
    """A chunk hash as u64: LMCache's hash functions give signed and unsigned ones, and on the wire
    the same 64 bits may be either.
    """
    return number & _U64_MASK
