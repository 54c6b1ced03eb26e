"""Bodies of Dynamo's select service, as requests of the router.

Fields that Dynamo does not know are ignored, as it does. One that it knows, and that would change
the choice in a way that the router has not, is refused with 501.
"""

from array import array
from collections.abc import Iterable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from query_api.http.errors import RequestError
from query_api.http.requests.fields import bounded_text
from query_api.http.requests.queries import missing
from query_api.http.wire import Wire
from routing.decisions.interface import OfferedCandidate, RouteRequest
from routing.http.requests import RequestTokens, RouteBody, decode_body, route_request
from schemas.arrays import to_little_endian
from schemas.identities import DEFAULT_TENANT, Rank
from schemas.limits import BLOCK_SIZE_MAX, QUERY_TOKENS_MAX
from schemas.routing_records import TokenCount
from streams.kernel.interface import InstanceMatch, RankMatch, ReadOnlyKernel

DEFAULT_MODEL: Final = "default"
WorkerId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
SignedHash = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class PinnedWorker(msgspec.Struct, frozen=True):
    """The only one that may be chosen."""

    worker_id: WorkerId
    dp_rank: Rank = 0


class SessionContext(msgspec.Struct, frozen=True):
    """Of these only the name counts."""

    session_id: str


class PromptBody(msgspec.Struct, frozen=True):
    """A prompt and its partition. Block hashes are those of each block alone; the chain of them is
    what is looked for.
    """

    model_name: str = DEFAULT_MODEL
    routing_group: str = DEFAULT_TENANT
    token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    block_hashes: list[SignedHash] | None = None
    sequence_hashes: list[SignedHash] | None = None
    isl_tokens: RequestTokens | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    is_eagle: bool | None = None
    mm_routing_info: Any = None
    block_mm_infos: list[Any] | None = None
    router_config_override: Any = None

    @property
    def has_tokens(self) -> bool:
        """Whether it has tokens, which count before hashes."""
        return self.token_ids is not msgspec.UNSET and bytes(self.token_ids) != b"null"


class SelectBody(PromptBody, frozen=True, kw_only=True):
    """The body of `POST /select` and `/select_and_reserve`."""

    selection_id: str | None = None
    expected_output_tokens: RequestTokens | None = None
    session_id: str | None = None
    session_context: SessionContext | None = None
    pinned_worker: PinnedWorker | None = None
    allowed_worker_ids: list[WorkerId] | None = None
    affinity_target: Any = None
    routing_constraints: Any = None


class ReservationBody(PromptBody, frozen=True, kw_only=True):
    """The body of `POST /reservations`; without a worker, what was selected under that name."""

    selection_id: Annotated[str, Meta(min_length=1)]
    worker_id: WorkerId | None = None
    dp_rank: Rank | None = None
    expected_output_tokens: RequestTokens | None = None
    effective_prefill_tokens: RequestTokens | None = None
    track_prefill_tokens: bool | None = None


class OutputBlockBody(msgspec.Struct, frozen=True):
    """The body of `POST /reservations/{id}/output_block`, which may be empty."""

    decay_fraction: Annotated[float, Meta(ge=0, le=1)] | None = None


class WorkerBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /workers`. `type` is not Dynamo's: which engine publishes."""

    worker_id: WorkerId
    model_name: Annotated[str, Meta(min_length=1)] = DEFAULT_MODEL
    routing_group: str = DEFAULT_TENANT
    type: str = "vLLM"
    endpoint: str | None = None
    kv_events_endpoint: str | None = None
    kv_events_endpoints: dict[str, str] = {}
    replay_endpoint: str | None = None
    block_size: Annotated[int, Meta(ge=1, le=BLOCK_SIZE_MAX)] | None = None
    data_parallel_start_rank: Rank | None = None
    data_parallel_size: Annotated[int, Meta(ge=1, le=1024)] | None = None
    max_num_batched_tokens: TokenCount | None = None
    total_kv_blocks: TokenCount | None = None
    is_eagle: bool | None = None
    taints: list[str] = []
    topology_domains: dict[str, str] = {}
    kv_transfer_domain: str | None = None
    kv_transfer_enforcement: Any = None
    router_hint_worker_type: str | None = None


BodyT = TypeVar("BodyT", bound=msgspec.Struct)

_decoders: Final[dict[type, Any]] = {
    body: msgspec.json.Decoder(body)
    for body in (PromptBody, SelectBody, ReservationBody, OutputBlockBody, WorkerBody)
}


def read_body(body: bytes, form: type[BodyT]) -> BodyT:
    """A body in JSON.

    Raises:
        RequestError: it is none, or asks for what the router does not have.
    """
    asked: BodyT = decode_body(_decoders[form], body, Wire.JSON)
    for name in ("selection_id", "model_name", "routing_group", "lora_name", "cache_salt"):
        bounded_text(name, getattr(asked, name, None) or "")
    check_supported(asked, _UNSUPPORTED)
    if isinstance(asked, PromptBody) and any(asked.block_mm_infos or ()):
        raise unsupported("block_mm_infos")
    return asked


_UNSUPPORTED: Final = (
    "affinity_target",
    "is_eagle",
    "kv_transfer_domain",
    "kv_transfer_enforcement",
    "mm_routing_info",
    "router_config_override",
    "router_hint_worker_type",
    "routing_constraints",
    "taints",
)


def check_supported(asked: object, names: Iterable[str]) -> None:
    """Raises RequestError where one of the fields says something."""
    for name in names:
        given = getattr(asked, name, None)
        if given and (not isinstance(given, dict) or any(given.values())):
            raise unsupported(name)


def unsupported(name: str) -> RequestError:
    """The router cannot do what a field asks for."""
    text = f"Expected a request without {name}, which this service does not implement"
    return RequestError("unsupported", text, field=name, status=501)


def to_request(
    asked: PromptBody,
    block_size: int,
    kernel: ReadOnlyKernel,
    candidates: tuple[OfferedCandidate, ...],
    *,
    is_ready: bool,
    reserve: bool,
) -> RouteRequest:
    """What the router is asked, with what the index says of the prompt.

    Args:
        asked: as decoded.
        candidates: who may be chosen.
        is_ready: whether what the kernel says counts.
        reserve: whether it is booked.

    Raises:
        RequestError: the first thing that is wrong.
    """
    session = getattr(asked, "session_context", None)
    body = RouteBody(
        model=asked.model_name,
        block_size=block_size,
        token_ids=asked.token_ids if asked.has_tokens else msgspec.UNSET,
        block_hashes=msgspec.UNSET if asked.has_tokens else _hashes_of(asked, kernel),
        prompt_tokens=None if asked.has_tokens else asked.isl_tokens,
        request_id=getattr(asked, "selection_id", None) or "",
        tenant_id=asked.routing_group,
        lora_name=asked.lora_name,
        cache_salt=asked.cache_salt,
        expected_output_tokens=getattr(asked, "expected_output_tokens", None),
        session_id=(session.session_id if session else getattr(asked, "session_id", None)) or "",
        reserve=reserve,
    )
    wire = Wire.JSON if asked.has_tokens else Wire.MSGPACK
    found = route_request(body, wire, [], kernel, is_ready=is_ready)
    return found._replace(candidates=candidates)


def _hashes_of(asked: PromptBody, kernel: ReadOnlyKernel) -> msgspec.Raw:
    """The prefix hashes of a prompt that comes as hashes of blocks, as `bin`; a reservation's may
    be unknown: it has only those by which Dynamo counts blocks. Cost O(blocks).
    """
    if asked.sequence_hashes is None:
        raise missing("sequence_hashes")
    if asked.isl_tokens is None:
        raise missing("isl_tokens")
    if not asked.isl_tokens:
        text = "isl_tokens must be greater than 0, got: 0"
        raise RequestError("out_of_range", text, field="isl_tokens")
    hashes = asked.block_hashes
    if hashes is None:
        if not isinstance(asked, ReservationBody):
            raise missing("block_hashes")
        return msgspec.Raw(b"\x90")
    if len(hashes) != len(asked.sequence_hashes):
        text = (
            f"expected as many block_hashes as sequence_hashes, got {len(hashes)} and"
            f" {len(asked.sequence_hashes)}"
        )
        raise RequestError("invalid_value", text, field="block_hashes")
    if len(hashes) > QUERY_TOKENS_MAX:
        text = f"block_hashes must have at most {QUERY_TOKENS_MAX} elements, got {len(hashes)}"
        raise RequestError("too_many_elements", text, field="block_hashes", status=413)
    chained = kernel.chain_hashes(to_little_endian(array("q", hashes)))
    return msgspec.Raw(msgspec.msgpack.encode(chained))


def with_computed(request: RouteRequest, computed: int, target: tuple[str, int]) -> RouteRequest:
    """The request, of which the client says how many tokens are to be computed there.

    Raises:
        RequestError: more than it has.
    """
    cached = request.prompt_tokens - computed
    if cached < 0:
        text = f"expected at most {request.prompt_tokens} effective_prefill_tokens, got {computed}"
        raise RequestError("out_of_range", text, field="effective_prefill_tokens")
    name, rank = target
    ranks = [RankMatch(rank, cached, cached, cached, cached)]
    return request._replace(matches=[InstanceMatch(name, cached, cached, 0, 0, ranks)])
