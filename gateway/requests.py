"""What of a client's request is read. Pure.

Its body is passed on as it came. One thing is added, at its beginning, where a stream would not say
how many tokens there were: `"stream_options":{"include_usage":true}`; the event that answers it is
left out again (`gateway.events`).

Source: OpenAI's API; `priority` as vLLM has it, where the lower comes first; `X-Session-ID` as the
routers of vLLM and SGLang take it, `x-dynamo-session-id` as Dynamo, `x-llm-d-slo-ttft-ms` as llm-d;
vLLM 0.32, `sampling_params.py`, and SGLang 0.5, `schedule_batch.py`, of what reads no cache.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from gateway.errors import GatewayError
from query_api.http.traces import context_of
from query_api.http.wire import Headers, header
from schemas.limits import MIB, NAME_BYTES_MAX

GATEWAY_READ_BYTES_MAX: Final = 4 * MIB  # of a body whose prompt is read; a larger one has media
GATEWAY_OBJECTIVE_MS_MAX: Final = 10**9  # eleven days: what is longer is no objective: 400
GATEWAY_PRIORITY_MAX: Final = 2**31 - 1

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
EMBEDDINGS: Final = "/v1/embeddings"

_INCLUDE_USAGE: Final = b'"stream_options":{"include_usage":true}'
_OPENING: Final = re.compile(rb"\s*\{\s*")
_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Of one connection alone (RFC 9110, 7.6.1), or made anew of the next one."""

_SEVERAL: Final = ("n", "best_of")
"""How many answers there are to be, or are to be tried."""

_SCORED: Final = ("echo", "prompt_logprobs", "return_logprob", "logprob_start_len")
"""Of requests that may want probabilities of their prompt, which is computed whole for that."""

_SESSION_HEADERS: Final = (b"x-session-id", b"x-dynamo-session-id")
_SLO_HEADER: Final = b"x-llm-d-slo-ttft-ms"
_TENANT_HEADER: Final = b"x-reprise-tenant"
API_KEY_HEADER: Final = b"x-api-key"
"""In which clients of Anthropic's API have their key, in place of `Authorization`."""

_OWN_PREFIX: Final = b"reprise-"
"""Of headers that the gateway alone sets."""

_OWN_HEADERS: Final = frozenset({b"accept-encoding", b"x-data-parallel-rank", _TENANT_HEADER})
"""Which the gateway decides: nothing that it has to read is compressed."""


class _Fields(msgspec.Struct):
    """Of a body that is too large to be read whole."""

    model: Any = None
    stream: Any = None
    stream_options: Any = None
    user: Any = None
    priority: Any = None
    cache_salt: Any = None
    previous_response_id: Any = None
    lora_path: Any = None


_large: Final = msgspec.json.Decoder(_Fields)
_small: Final = msgspec.json.Decoder()


class ClientRequest(NamedTuple):
    """A request to an engine.

    Attributes:
        path: as it came.
        url_query: what stands behind the `?`.
        headers: those that are passed on.
        body: as it is passed on.
        model: as the request names it; "" where it names none.
        is_stream: whether events are asked for.
        leaves_out: whether usage was asked for by the gateway alone.
        tenant_id: as the request names it; "" where it names none.
        session_id: "" for none.
        cache_salt: "" for none.
        ttft_slo_s: 0 for none.
        priority: below 0 is refused first.
        context: of the client's span, "" for none.
        previous: the id of the response that it goes on from; "" for none.
        fields: of the body; None where it is no JSON object, or too large to be read.
        tests_cache: whether what its answer says of the engine's cache is what that held before.
        lora_path: the adapter that it names as SGLang's requests do; "" for none.
    """

    path: str
    url_query: bytes
    headers: list[tuple[str, str]]
    body: bytes
    model: str = ""
    is_stream: bool = False
    leaves_out: bool = False
    tenant_id: str = ""
    session_id: str = ""
    cache_salt: str = ""
    ttft_slo_s: float = 0.0
    priority: int = 0
    context: str = ""
    previous: str = ""
    fields: Mapping[str, Any] | None = None
    tests_cache: bool = True
    lora_path: str = ""

    @property
    def can_be_a_pair(self) -> bool:
        """Whether one engine can compute its prompt for another one."""
        if self.fields is None or self.path not in (CHAT, COMPLETIONS):
            return False
        return "kv_transfer_params" not in self.fields and self.fields.get("n", 1) == 1


def read_request(
    path: str,
    url_query: bytes,
    headers: Headers,
    body: bytes,
    *,
    keeps_authorization: bool,
    session_cookie: str = "",
    asks_usage: bool = True,
) -> ClientRequest:
    """What a request asks.

    Args:
        headers: as they came.
        body: likewise, whole.
        keeps_authorization: whether engines are to see the client's key: it is not the gateway's.
        session_cookie: the name of the cookie that names a session; "" for none.
        asks_usage: whether a stream is asked for usage where its client does not.

    Raises:
        GatewayError: its body is no JSON object, though it says so, or names no model that can be.
    """
    passed = _passed_on(headers, keeps_authorization=keeps_authorization)
    tenant_id = _text(header(headers, _TENANT_HEADER))
    session_id = _session_of(headers, session_cookie)
    context = context_of(headers)
    is_json = header(headers, b"content-type").lower().startswith(b"application/json")
    if not is_json or header(headers, b"content-encoding"):
        return ClientRequest(
            path,
            url_query,
            passed,
            body,
            tenant_id=tenant_id,
            session_id=session_id,
            context=context,
        )
    fields, is_whole = _read_fields(body)
    model = fields.get("model")
    if not isinstance(model, str | None) or len((model or "").encode()) > NAME_BYTES_MAX:
        text = f"Expected model to be a name of at most {NAME_BYTES_MAX} bytes, got another value"
        raise GatewayError(400, "invalid_model", text, param="model")
    is_stream = fields.get("stream") is True
    is_silent = is_stream and path in (CHAT, COMPLETIONS) and "stream_options" not in fields
    leaves_out = asks_usage and is_silent and _is_utf8(body)
    if leaves_out:
        body = with_fields(body, _INCLUDE_USAGE)
    user, salt = fields.get("user"), fields.get("cache_salt")
    previous, lora_path = fields.get("previous_response_id"), fields.get("lora_path")
    return ClientRequest(
        path,
        url_query,
        passed,
        body,
        model or "",
        is_stream,
        leaves_out,
        tenant_id,
        session_id or (_bounded(user) if isinstance(user, str) else ""),
        _bounded(salt) if isinstance(salt, str) else "",
        _objective_of(headers),
        _priority_of(fields.get("priority")),
        context,
        _bounded(previous) if path == RESPONSES and isinstance(previous, str) else "",
        fields if is_whole else None,
        _tests_cache(fields),
        _bounded(lora_path) if isinstance(lora_path, str) else "",
    )


def _read_fields(body: bytes) -> tuple[Mapping[str, Any], bool]:
    """The fields of a body, and whether these are all."""
    try:
        if len(body) > GATEWAY_READ_BYTES_MAX:
            some = msgspec.structs.asdict(_large.decode(body))
            return {name: value for name, value in some.items() if value is not None}, False
        found = _decoded(body)
    except (ValueError, RecursionError) as error:
        text = "Expected the body to be a JSON object, as its content type says, got other bytes"
        raise GatewayError(400, "invalid_json", text) from error
    if not isinstance(found, dict):
        text = "Expected the body to be a JSON object, got another value of JSON"
        raise GatewayError(400, "invalid_json", text)
    return found, True


def _decoded(body: bytes) -> Any:
    try:
        return _small.decode(body)
    except msgspec.DecodeError:
        return json.loads(body)  # half a surrogate pair, as engines take it


def _is_utf8(body: bytes) -> bool:
    """Whether a JSON object is of UTF-8 and has no mark: engines read UTF-16 and 32, too."""
    return _OPENING.match(body) is not None and b"\0" not in body[:4]


def _tests_cache(fields: Mapping[str, Any]) -> bool:
    """Of several answers vLLM tells what the last one found, which others had stored before it, and
    SGLang computes the prompt first; a prompt of which probabilities are wanted is not looked up.
    """
    if any(fields.get(name) not in (None, 1) for name in _SEVERAL) or fields.get("use_beam_search"):
        return False
    scored = (fields.get(name) for name in _SCORED)
    return all(one is None or one is False for one in scored)


def with_fields(body: bytes, fields: bytes) -> bytes:
    """A body with fields before its own, which stay as they came.

    Args:
        body: a JSON object.
        fields: as they stand in one, without braces.
    """
    opening = _OPENING.match(body)
    assert opening is not None, "it is an object"
    comma = b"" if body[opening.end() : opening.end() + 1] == b"}" else b","
    return b"".join((b"{", fields, comma, body[opening.end() :]))


def _passed_on(headers: Headers, *, keeps_authorization: bool) -> list[tuple[str, str]]:
    left_out = _HOP_BY_HOP | _OWN_HEADERS
    named = header(headers, b"connection")
    if named:
        left_out |= {one.strip().lower() for one in named.split(b",")}
    if not keeps_authorization:
        left_out |= {b"authorization", API_KEY_HEADER}
    return [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in headers
        if name not in left_out and not name.startswith(_OWN_PREFIX)
    ]


def passed_back(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers of an engine's answer that its client gets, in ASGI's form."""
    left_out = _HOP_BY_HOP - {b"content-length"}
    named = [value for name, value in headers if name.lower() == b"connection"]
    if named:
        left_out |= {one.strip().lower() for value in named for one in value.split(b",")}
    return [
        (low, value)
        for name, value in headers
        if (low := name.lower()) not in left_out and not low.startswith(_OWN_PREFIX)
    ]


def _session_of(headers: Headers, cookie: str) -> str:
    for name in _SESSION_HEADERS:
        found = header(headers, name)
        if found:
            return _text(found)
    if cookie:
        for part in header(headers, b"cookie").split(b";"):
            name, _, value = part.strip().partition(b"=")
            if name == cookie.encode():
                return _text(value)
    return ""


def _text(value: bytes) -> str:
    return _bounded(value.decode("latin-1").strip())


def _bounded(text: str) -> str:
    """A name of the client's; "" where it is none that a record may have."""
    if len(text) > NAME_BYTES_MAX or len(text.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        return ""
    return text if text.isprintable() else ""


def _objective_of(headers: Headers) -> float:
    """Seconds; 0 for none.

    Raises:
        GatewayError: it is no time.
    """
    text = header(headers, _SLO_HEADER)
    if not text:
        return 0.0
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= GATEWAY_OBJECTIVE_MS_MAX:
        name, said = _SLO_HEADER.decode(), text[:40].decode("latin-1")
        expected = f"Expected {name} to be milliseconds up to {GATEWAY_OBJECTIVE_MS_MAX:d}"
        raise GatewayError(400, "invalid_objective", f"{expected}, got: {said}", param=name)
    return found / 1000.0


def _priority_of(value: Any) -> int:
    if not isinstance(value, int) or abs(value) > GATEWAY_PRIORITY_MAX:
        return 0
    return -value
