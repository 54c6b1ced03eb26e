"""Bodies of the coordinator's HTTP routes, as LMCache has them.

Source: lmcache 0.5.7rc2, `lmcache/v1/mp_coordinator/schemas.py` and `http_apis/`.
"""

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from lmcache_adapter.topic.batches import ChunkKey
from schemas.codec import UNUSABLE, detail_of
from schemas.errors import RepriseError
from schemas.identities import Name
from schemas.limits import PORT_MAX

LOOKUP_KEYS_MAX: Final = 65_536  # of one look-up by keys: 422
METADATA_MAX: Final = 64  # of one registration: 422

T = TypeVar("T")

Port = Annotated[int, Meta(ge=0, le=PORT_MAX)]
ChunkTokens = Annotated[int, Meta(ge=1, le=2**20)]
Address = Annotated[str, Meta(max_length=256)]
Tokens = list[Annotated[int, Meta(ge=0, lt=2**32)]]
TierName = Literal["l1", "l2"]


class CoordinatorError(RepriseError):
    """An answer of LMCache's own form, `{"detail": ...}`.

    Attributes:
        status: of HTTP.
        detail: a text; of 422, a list, as FastAPI has it.
    """

    def __init__(self, status: int, detail: str | list[dict[str, object]]) -> None:
        super().__init__(str(detail))
        self.status = status
        self.detail = detail


class Register(msgspec.Struct, frozen=True, kw_only=True):
    """Of `POST /instances`: see `RegisterRequest` there."""

    instance_id: Annotated[str, Meta(max_length=256)] = ""
    ip: Annotated[str, Meta(min_length=1, max_length=256)]
    http_port: Annotated[int, Meta(ge=1, le=PORT_MAX)]
    metadata: Annotated[dict[Address, Address], Meta(max_length=METADATA_MAX)] = {}
    chunk_size: ChunkTokens | None = None
    p2p_advertised_url: Address = ""
    mq_port: Port = 0


class ChunkSize(msgspec.Struct, frozen=True):
    """Of `PUT /config/chunk-size`, and its answer."""

    chunk_size: ChunkTokens


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """Of `POST /directory/lookup`: keys, or all tokens of a request from its first one on."""

    keys: Annotated[list[ChunkKey], Meta(max_length=LOOKUP_KEYS_MAX)] = []
    token_ids: Tokens = []
    model_name: str = ""
    world_size: Annotated[int, Meta(ge=1, le=255)] = 1
    cache_salt: str = ""


class BlendLookup(msgspec.Struct, frozen=True, kw_only=True):
    """Of `POST /directory/blend-lookup`."""

    tokens_b64: str = ""
    model_name: str = ""
    world_size: Annotated[int, Meta(ge=1, le=255)] = 1
    cache_salt: str = ""


class Prefetch(msgspec.Struct, frozen=True, kw_only=True):
    """Of `POST /cache/prefetches`; `tier` and `force` of `POST /cache/delete`."""

    instance_id: Name
    model_name: str
    world_size: Annotated[int, Meta(ge=1, le=255)]
    token_ids: Tokens = []
    cache_salt: str = ""


class Placement(msgspec.Struct, frozen=True):
    """Where an object is, as `Placement` there."""

    instance_id: str
    incarnation: int
    tier: str
    backend: str
    size_bytes: int
    shared: bool


class KeyPlacements(msgspec.Struct, frozen=True):
    """One key of a look-up; tokens are not kept, and accesses not counted."""

    key: ChunkKey
    placements: list[Placement]
    token_ids: tuple[int, ...] = ()
    access_count: int = 0


class LookupAnswer(msgspec.Struct, frozen=True):
    """Of `POST /directory/lookup`."""

    chunks: int
    results: list[KeyPlacements]


class KeyInfo(msgspec.Struct, frozen=True):
    """One key of a list."""

    key: ChunkKey
    placements: list[Placement]
    num_tokens: int = 0
    access_count: int = 0


class KeyList(msgspec.Struct, frozen=True):
    """Of `GET /directory/keys`."""

    total: int
    keys: list[KeyInfo]


class EventsAnswer(msgspec.Struct):
    """Of `POST /events`."""

    applied: int = 0
    duplicates: int = 0
    stale: int = 0


def read(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """A body.

    Raises:
        CoordinatorError: 422, as FastAPI answers what its models refuse.
    """
    try:
        return decoder.decode(body)
    except UNUSABLE as error:
        raise unprocessable(detail_of(error)) from error


def unprocessable(text: str, *, of: str = "body") -> CoordinatorError:
    """422: a body, or a parameter, that is none."""
    return CoordinatorError(422, [{"type": "value_error", "loc": [of], "msg": text}])


def not_served(what: str, instead: str) -> CoordinatorError:
    """501: LMCache's coordinator does it, and this one does not."""
    return CoordinatorError(501, f"Reprise does not {what}: {instead}")


def fields_of(answer: msgspec.Struct) -> dict[str, Any]:
    """For tests and logs: an answer as a map."""
    found: dict[str, Any] = msgspec.to_builtins(answer)
    return found
