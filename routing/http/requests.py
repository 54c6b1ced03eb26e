"""Bodies of `/route`, `/feedback` and `/load`, checked.

Types say what passes, and msgspec refuses the rest with its place. Tokens alone are not made
objects of: they stay encoded, and are read as `/query` reads them.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

from query_api.access.rights import OPEN, Access
from query_api.http.errors import RequestError
from query_api.http.post_endpoint import HttpHeaders
from query_api.http.requests.block_keys import KEY_FIELDS, NO_KEYS, read_block_keys
from query_api.http.requests.fields import bounded_text, read_hashes, read_tokens
from query_api.http.requests.queries import (
    Query,
    answer_hash_query,
    block_keys,
    furthest,
    missing,
    with_adapter,
)
from query_api.http.requests.refusals import body_refusal
from query_api.http.wire import Field, Wire, header, malformed
from routing.decisions.candidates import is_in_the_future, sample_of
from routing.decisions.interface import OfferedCandidate, PostedLoad, RouteRequest
from routing.decisions.router import ClientReport
from schemas.identities import PrefixScope, Rank
from schemas.limits import BLOCK_SIZE_MAX, MIB, NAME_BYTES_MAX
from schemas.positions import Seconds
from schemas.routing_records import (
    FeedbackReport,
    LoadSample,
    LoadSource,
    OutcomeEvent,
    Phase,
    Target,
)
from streams.kernel.interface import InstanceMatch, ReadOnlyKernel

CANDIDATES_MAX: Final = 4096  # of one request: status="400"
CANDIDATES_BYTES_MAX: Final = 2 * MIB  # of the same, before they are objects: status="413"
ROUTE_TOKENS_MAX: Final = 2**31 - 1  # of one prompt or output, by a client: reason="out_of_range"
FEEDBACK_MAX: Final = 1024  # reports or samples of one request: status="400"
FEEDBACK_BYTES_MAX: Final = 2 * MIB  # of these, before they are objects: status="413"

DecodedT = TypeVar("DecodedT", covariant=True)

Name = Annotated[str, Meta(min_length=1)]
Milliseconds = Annotated[float, Meta(ge=0, le=1e9)]
RequestTokens = Annotated[int, Meta(ge=0, le=ROUTE_TOKENS_MAX)]

_SLO_HEADER: Final = b"x-llm-d-slo-ttft-ms"
_SCANNED_HEAD: Final = b'{"model":"-","block_size":1,"token_ids":'


class Objectives(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request is to be answered within."""

    ttft_ms: Milliseconds | None = None
    tbt_ms: Milliseconds | None = None


class RouteBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /route`. `token_ids`, with `KEY_FIELDS`, or `block_hashes` as in `/query`,
    `/query_by_hash`, or `messages` or a `prompt` in their place; `modelname` is `model`, where that
    is not given, as `/register` calls it.
    """

    block_size: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    model: Name = ""
    modelname: Name = ""
    token_ids: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    block_hashes: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt_tokens: RequestTokens | None = None
    request_id: str = ""
    tenant_id: str = ""
    lora_name: str | None = None
    cache_salt: str | None = None
    additional_salt: str | None = None
    extra_keys: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    features: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    media: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    expected_output_tokens: RequestTokens | None = None
    phase: Phase = Phase.COMBINED
    candidates: Annotated[tuple[OfferedCandidate, ...], Meta(max_length=CANDIDATES_MAX)] | None = (
        None
    )
    slo: Objectives | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    session_id: str = ""
    policy: str = ""
    reserve: bool = True
    explain: bool = False


ReportedMs = Annotated[float, Meta(ge=0, le=86_400_000)]
"""Of one request: at most a day."""


class FeedbackEvent(StrEnum):
    """What is reported: an `OutcomeEvent`, or that the request goes on."""

    DISPATCHED = "dispatched"
    FIRST_TOKEN = "first_token"
    PROGRESS = "progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def outcome(self) -> OutcomeEvent:
        """As it stands in a record: of one that goes on, that it was dispatched, once more."""
        is_alive = self is FeedbackEvent.PROGRESS
        return OutcomeEvent.DISPATCHED if is_alive else OutcomeEvent(self.value)


class FeedbackBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One report of `POST /feedback`; milliseconds, and Unix seconds for `at`."""

    event: FeedbackEvent
    decision_id: str | None = None
    request_id: str | None = None
    tenant_id: str | None = None
    at: Seconds | None = None
    instance_id: Name | None = None
    dp_rank: Rank | None = None
    prompt_tokens: RequestTokens | None = None
    cached_tokens: RequestTokens | None = None
    queue_ms: ReportedMs | None = None
    prefill_ms: ReportedMs | None = None
    ttft_ms: ReportedMs | None = None
    output_tokens: RequestTokens | None = None
    tbt_ms: ReportedMs | None = None
    error: str | None = None


class LoadBody(PostedLoad, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sample of `POST /load`."""

    instance_id: Name
    dp_rank: Rank = 0
    tenant_id: str = ""


class _Candidates(msgspec.Struct, frozen=True):
    """Those of a body of `POST /route` as they came."""

    candidates: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Decoders(NamedTuple):
    route: "Decoder[RouteBody]"
    feedback: "Decoder[FeedbackBody | list[FeedbackBody]]"
    load: "Decoder[LoadBody | list[LoadBody]]"
    candidates: "Decoder[_Candidates]"


class Decoder(Protocol[DecodedT]):
    """Of one form of bodies; msgspec's, of either wire form."""

    type: Any

    def decode(self, body: bytes, /) -> DecodedT:
        """The body, checked."""


def _decoders(module: Any) -> _Decoders:
    return _Decoders(
        module.Decoder(RouteBody),
        module.Decoder(FeedbackBody | list[FeedbackBody]),
        module.Decoder(LoadBody | list[LoadBody]),
        module.Decoder(_Candidates),
    )


_DECODERS: Final = {
    Wire.JSON: _decoders(msgspec.json),
    Wire.MSGPACK: _decoders(msgspec.msgpack),
}


def decode_body(decoder: Decoder[DecodedT], body: bytes, wire: Wire) -> DecodedT:
    """What the body says.

    Raises:
        RequestError: the first thing that is wrong, with its place.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise body_refusal(decoder.type, error, body, wire) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(wire, error, body) from error


# /route


def read_route(
    body: bytes,
    wire: Wire,
    headers: HttpHeaders,
    kernel: ReadOnlyKernel,
    access: Access = OPEN,
    *,
    is_ready: bool,
) -> RouteRequest:
    """The body of `POST /route`, with what the index says of its prompt.

    Args:
        body: as it came.
        headers: of the request, of which one may have the objective.
        is_ready: whether what it says counts.

    Raises:
        RequestError: the first thing that is wrong.
        AccessError: it is about a tenant that is not the caller's.
    """
    _check_candidates(body, wire)
    asked = decode_body(_DECODERS[wire].route, body, wire)
    return route_request(_with_model(asked), wire, headers, kernel, access, is_ready=is_ready)


def candidates_as_posted(body: bytes) -> bytes | None:
    """Those of a body in JSON that was read, as they stand there; None where it names none."""
    raw = _DECODERS[Wire.JSON].candidates.decode(body).candidates
    return None if raw is msgspec.UNSET else bytes(raw)


def has_objective(headers: HttpHeaders) -> bool:
    """Whether a header has one; of a body see `RouteBody`."""
    return bool(header(headers, _SLO_HEADER))


def route_request(
    asked: RouteBody,
    wire: Wire,
    headers: HttpHeaders,
    kernel: ReadOnlyKernel,
    access: Access = OPEN,
    *,
    is_ready: bool,
) -> RouteRequest:
    """As `read_route`, of a body that was decoded."""
    _check_texts(asked)
    by_hash = asked.block_hashes is not msgspec.UNSET
    query = _query(asked, wire, kernel, access, by_hash=by_hash)
    scope, prefixes, matches = _ask(kernel, query, by_hash=by_hash, is_ready=is_ready)
    prompt = _prompt_tokens(asked, query, by_hash=by_hash)
    matches = _bounded(matches, prompt)
    ttft_s, tbt_s = _objectives(asked, headers)
    return RouteRequest(
        asked.request_id,
        scope,
        prompt,
        matches,
        prefixes,
        asked.expected_output_tokens,
        asked.phase,
        _candidates(asked),
        ttft_s,
        tbt_s,
        asked.priority,
        asked.session_id,
        asked.policy,
        asked.reserve,
        asked.explain,
        tokens=b"" if by_hash or asked.cache_salt or query.keys != NO_KEYS else query.content,
    )


def _with_model(asked: RouteBody) -> RouteBody:
    if asked.model:
        return asked
    if not asked.modelname:
        raise missing("model")
    return msgspec.structs.replace(asked, model=asked.modelname)


def _check_texts(asked: RouteBody) -> None:
    for name in ("model", "request_id", "tenant_id", "session_id", "policy"):
        bounded_text(name, getattr(asked, name))
    for name in ("lora_name", "cache_salt", "additional_salt"):
        bounded_text(name, getattr(asked, name) or "")


def _query(
    asked: RouteBody, wire: Wire, kernel: ReadOnlyKernel, access: Access, *, by_hash: bool
) -> Query:
    content = asked.block_hashes if by_hash else asked.token_ids
    if content is msgspec.UNSET:
        raise missing("token_ids", "the tokens of the prompt, or block_hashes for it")
    if by_hash and asked.token_ids is not msgspec.UNSET:
        text = "expected token_ids or block_hashes, got both: leave one of them out"
        raise RequestError("invalid_value", text, field="block_hashes")
    assert isinstance(content, msgspec.Raw)
    packed = _read_content(content, wire, kernel, by_hash=by_hash)
    given = {name: Field(name, raw) for name in KEY_FIELDS if (raw := getattr(asked, name))}
    query = Query(
        asked.model,
        asked.block_size,
        packed,
        access.tenant_of(asked.tenant_id),
        asked.lora_name or "",
        asked.cache_salt or "",
        asked.additional_salt,
    )
    if not given:
        return query
    tokens = len(packed) // 8 * asked.block_size if by_hash else len(packed) // 4
    keys = read_block_keys(given, wire, tokens, asked.block_size)
    if by_hash and keys != NO_KEYS:
        name = min(given)
        text = f"expected block_hashes or {name}, got both: the hashes contain what it says"
        raise RequestError("invalid_value", text, field=name)
    return with_adapter(kernel, query._replace(keys=keys))


def _read_content(
    content: msgspec.Raw, wire: Wire, kernel: ReadOnlyKernel, *, by_hash: bool
) -> bytes:
    if by_hash:
        return read_hashes(Field("block_hashes", content), wire)
    if wire is Wire.JSON:
        scanned = kernel.scan_query(b"".join((_SCANNED_HEAD, content, b"}")))
        if scanned is not None:
            return scanned.tokens
    return read_tokens(Field("token_ids", content), wire)


def _ask(
    kernel: ReadOnlyKernel, query: Query, *, by_hash: bool, is_ready: bool
) -> tuple[PrefixScope, bytes, list[InstanceMatch]]:
    """The scope, the prefix hashes of the prompt, and what instances hold of it: as plain blocks or
    as blocks of pairs, or with keys in several forms, which no one list of hashes has. The hashes
    are of the form of which most is held.
    """
    if by_hash:
        prefixes = query.content
        scope, matches = answer_hash_query(kernel, query) if is_ready else (query.scope, [])
        return scope, prefixes, matches
    scope, forms = block_keys(kernel, query)
    if query.block_size > BLOCK_SIZE_MAX:
        return scope, b"", []
    found = [kernel.query(scope, query.content, keys, None) if is_ready else [] for keys in forms]
    held = [max((match.longest for match in matches), default=0) for matches in found]
    keys = forms[held.index(max(held))]
    blocks = len(query.content) // 4 // query.block_size
    prefixes = kernel.prefix_hashes(scope, query.content, keys, blocks)
    return scope, prefixes, furthest(found)


def _prompt_tokens(asked: RouteBody, query: Query, *, by_hash: bool) -> int:
    if not by_hash:
        return len(query.content) // 4
    if asked.prompt_tokens is not None:
        return asked.prompt_tokens
    covered = len(query.content) // 8 * query.block_size
    if covered > ROUTE_TOKENS_MAX:
        text = f"expected a prompt of at most {ROUTE_TOKENS_MAX} tokens, got blocks of {covered}"
        raise RequestError("out_of_range", text, field="block_size")
    return covered


def _bounded(matches: list[InstanceMatch], prompt: int) -> list[InstanceMatch]:
    """No more than the prompt: it may be said to be shorter than its hashes."""
    if max((match.longest for match in matches), default=0) <= prompt:
        return matches
    return [
        match._replace(
            longest=min(match.longest, prompt),
            ranks=[
                rank._replace(
                    matched=min(rank.matched, prompt),
                    gpu_walk=min(rank.gpu_walk, prompt),
                    cpu_walk=min(rank.cpu_walk, prompt),
                    disk_walk=min(rank.disk_walk, prompt),
                )
                for rank in match.ranks
            ],
        )
        for match in matches
    ]


def _objectives(asked: RouteBody, headers: HttpHeaders) -> tuple[float, float]:
    """Seconds; 0 for none. An objective of 0 ms can be met by nobody, and is refused."""
    slo = asked.slo or Objectives()
    ttft = slo.ttft_ms
    if ttft is None:
        text = header(headers, _SLO_HEADER).decode("latin-1").strip()
        if text:
            ttft = _milliseconds(text)
    for name, value in (("slo.ttft_ms", ttft), ("slo.tbt_ms", slo.tbt_ms)):
        if value == 0:
            text = f"{name} must be above 0, got: 0; leave it out where there is no objective"
            raise RequestError("out_of_range", text, field=name)
    return (ttft or 0.0) / 1000.0, (slo.tbt_ms or 0.0) / 1000.0


def _milliseconds(text: str) -> float:
    try:
        return msgspec.convert(float(text), Milliseconds)
    except ValueError as error:
        name = _SLO_HEADER.decode()
        message = f"Expected milliseconds in the header {name}, got: {text[:40]}"
        raise RequestError("invalid_value", message, field=name) from error


def _candidates(asked: RouteBody) -> tuple[OfferedCandidate, ...] | None:
    if asked.candidates is None:
        return None
    names = [(one.instance_id, one.dp_rank) for one in asked.candidates]
    if len(set(names)) < len(names):
        index = _first_repeated(names)
        text = f"expected each candidate once, got twice: {names[index][0][:80]}"
        raise RequestError("invalid_value", text, field="candidates", index=index)
    for name, _ in names:
        if 4 * len(name) > NAME_BYTES_MAX:
            bounded_text("candidates.instance_id", name)
    return asked.candidates


def _first_repeated(names: Sequence[Hashable]) -> int:
    """Where a name stands for the second time; there is one."""
    counts: Counter[Hashable] = Counter()
    for name in names:
        counts[name] += 1
        if counts[name] > 1:
            break
    return counts.total() - 1


# /feedback and /load


def read_feedback(body: bytes, wire: Wire, access: Access = OPEN) -> list[ClientReport]:
    """The body of `POST /feedback`.

    Raises:
        RequestError: the first thing that is wrong.
        AccessError: it names a tenant that is not the caller's.
    """
    _check_size(body, "reports")
    decoded = decode_body(_DECODERS[wire].feedback, body, wire)
    reports = decoded if isinstance(decoded, list) else [decoded]
    _check_count(len(reports), "reports")
    return [_told(one, index, access) for index, one in enumerate(reports)]


def _told(one: FeedbackBody, index: int, access: Access) -> ClientReport:
    if (one.decision_id is None) == (one.request_id is None):
        given = "neither" if one.decision_id is None else "both"
        text = f"expected one of decision_id and request_id, got {given}"
        raise RequestError("invalid_value", text, field="decision_id", index=index)
    for name in ("decision_id", "request_id", "tenant_id", "instance_id", "error"):
        bounded_text(name, getattr(one, name) or "")
    if one.prompt_tokens is not None and (one.cached_tokens or 0) > one.prompt_tokens:
        text = f"cached_tokens must be at most prompt_tokens, which is {one.prompt_tokens}"
        more = f", got: {one.cached_tokens}"
        raise RequestError("out_of_range", text, field="cached_tokens", index=index, more=more)
    for name in ("queue_ms", "prefill_ms"):
        part = getattr(one, name) or 0.0
        if one.ttft_ms is not None and part > one.ttft_ms:
            text = f"{name} must be at most ttft_ms, which is {one.ttft_ms}"
            raise RequestError("out_of_range", text, field=name, index=index, more=f", got: {part}")
    outcome = FeedbackReport(
        0,
        one.event.outcome,
        0.0,
        one.instance_id,
        one.dp_rank,
        one.prompt_tokens,
        one.cached_tokens,
        _seconds(one.queue_ms),
        _seconds(one.prefill_ms),
        _seconds(one.ttft_ms),
        one.output_tokens,
        _seconds(one.tbt_ms),
        one.error or "",
    )
    tenant_id = one.tenant_id
    if access.tenants is not None and (tenant_id or one.decision_id is None):
        tenant_id = access.tenant_of(tenant_id)
    return ClientReport(one.decision_id, one.request_id, outcome, one.at, tenant_id, access.tenants)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0


def read_load(body: bytes, wire: Wire, now: float, access: Access = OPEN) -> list[LoadSample]:
    """The body of `POST /load`.

    Raises:
        RequestError: the first thing that is wrong.
        AccessError: it is of a tenant that is not the caller's.
    """
    _check_size(body, "samples")
    decoded = decode_body(_DECODERS[wire].load, body, wire)
    samples = decoded if isinstance(decoded, list) else [decoded]
    _check_count(len(samples), "samples")
    for index, one in enumerate(samples):
        bounded_text("instance_id", one.instance_id)
        bounded_text("tenant_id", one.tenant_id)
        if is_in_the_future(one.observed_at, now):
            text = (
                f"expected observed_at to be past, in Unix seconds, got {one.observed_at:.3f}, when"
                f" this machine's clock says {now:.3f}: leave it out, or set the clocks"
            )
            raise RequestError("in_the_future", text, field="observed_at", index=index)
    return [
        sample_of(
            Target(access.tenant_of(one.tenant_id), one.instance_id, one.dp_rank),
            one,
            LoadSource.POSTED,
            now,
        )
        for one in samples
    ]


def _check_candidates(body: bytes, wire: Wire) -> None:
    """Refuses more of them than there can be before they are objects, which hold up the loop."""
    if len(body) <= CANDIDATES_BYTES_MAX:
        return
    try:
        raw = _DECODERS[wire].candidates.decode(body).candidates
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # the whole body's decoder says what is wrong
    size = 0 if raw is msgspec.UNSET else len(memoryview(raw))
    if size > CANDIDATES_BYTES_MAX:
        text = f"candidates must take at most {CANDIDATES_BYTES_MAX} bytes, got {size}"
        raise RequestError("too_many_elements", text, field="candidates", status=413)


def _check_size(body: bytes, what: str) -> None:
    if len(body) > FEEDBACK_BYTES_MAX:
        text = f"expected at most {FEEDBACK_BYTES_MAX} bytes of {what}, got {len(body)}"
        raise RequestError(
            "too_many_elements", f"{text}: send them in several requests", status=413
        )


def _check_count(count: int, what: str) -> None:
    if not 0 < count <= FEEDBACK_MAX:
        text = f"expected 1 to {FEEDBACK_MAX} {what}, got {count}"
        if count:
            text += ": send them in several requests"
        raise RequestError("too_many_elements" if count else "invalid_value", text)
