"""Bodies that have text, `messages` or `prompt`, where token ids are taken: made into such bodies.

A body is looked at only after it was refused, so one with token ids costs nothing. What decides the
tokens is taken out of it by OpenAI's names, and `token_ids` stand in their place; the rest is read
as it always is. Where an engine says what it calls images, `media` stand beside the tokens.
"""

from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from query_api.access.rights import Access
from query_api.http.errors import RequestError
from query_api.http.requests.block_keys import KEY_FIELDS
from query_api.http.wire import Wire, encode
from schemas.limits import MIB
from tokens.interface import NoTokens, NoTokensError, PromptTokenizer, Tokens
from tokens.prompt import Prompt, PromptError, read_chat, read_completion

TEXT_BODY_BYTES_MAX: Final = 8 * MIB  # of a body with text, before it is objects: status="413"
HEADER: Final = b"reprise-tokens"
"""Of an answer to text: who made the tokens, how many, and how many were kept; or why none."""

_TEXT: Final = ("messages", "prompt")
_SEARCHED: Final = tuple(name.encode() for name in _TEXT)
_FIELDS: Final = frozenset(
    {
        *_TEXT,
        *("add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs"),
        *("continue_final_message", "documents", "input_ids", "kv_transfer_params"),
        *("mm_processor_kwargs", "prompt_embeds", "reasoning_effort", "tool_choice", "tools"),
        *("truncate_prompt_tokens", "truncation_side"),
    }
)
_STATUSES: Final = {
    NoTokens.BUSY: 503,
    NoTokens.ENGINE_SILENT: 503,
    NoTokens.TOO_LARGE: 413,
}
_CHARACTERS_OF_TOKEN: Final = 4  # about, where there is nothing but the text

_DECODE: Final[Mapping[Wire, Callable[[bytes], dict[str, Any]]]] = {
    Wire.JSON: msgspec.json.Decoder(dict[str, Any]).decode,
    Wire.MSGPACK: msgspec.msgpack.Decoder(dict[str, Any]).decode,
}


class TextAsTokens(NamedTuple):
    """A body whose text was made tokens of.

    Attributes:
        body: in the same wire form.
        missing: why there are no tokens, in one word; "" where there are some.
        is_proven: whether each engine is known to make the same tokens.
    """

    body: bytes
    header: tuple[bytes, bytes]
    missing: str = ""
    is_proven: bool = True


class TextBodies:
    """See the module."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer

    async def translated(
        self, body: bytes, wire: Wire, access: Access, *, by_load: bool
    ) -> TextAsTokens | None:
        """The body with token ids; None where it has no text, or is none.

        Args:
            body: that was refused.
            by_load: whether a prompt without tokens is answered all the same, as one of which
                nothing is known but its length.

        Raises:
            RequestError: its text cannot be used, or has no tokens.
            AccessError: it is about a tenant that is not the caller's.
        """
        fields = _fields(body, wire)
        if fields is None:
            return None
        given = {name: fields.pop(name) for name in _FIELDS.intersection(fields)}
        model = fields.get("model", fields.get("modelname"))
        try:
            prompt = _read(given | {"model": model if isinstance(model, str) else ""}, fields)
            tenant_id = fields.get("tenant_id") or ""
            tenant_id = access.tenant_of(tenant_id if isinstance(tenant_id, str) else "")
            tokens = await self._tokenizer.tokens(prompt, tenant_id)
        except PromptError as error:
            raise RequestError("invalid_value", str(error), field=error.field) from error
        except NoTokensError as error:
            if not by_load:
                raise _refusal(error) from error
            return _by_load(fields, given, error.reason, wire)
        made: dict[str, Any] = {"token_ids": array("I", tokens.content).tolist()}
        if tokens.media and not any(map(fields.get, KEY_FIELDS)):
            made["media"] = [msgspec.structs.asdict(item) for item in tokens.media]
        body = encode(fields | made, wire)
        return TextAsTokens(body, _header(tokens), is_proven=tokens.is_proven)


def _fields(body: bytes, wire: Wire) -> dict[str, Any] | None:
    """Those of a body with text."""
    if not any(name in body for name in _SEARCHED):
        return None
    if len(body) > TEXT_BODY_BYTES_MAX:
        text = f"expected a body with text of at most {TEXT_BODY_BYTES_MAX} bytes, got {len(body)}"
        raise RequestError("body_too_large", text, status=413)
    try:
        fields = _DECODE[wire](body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # what was said of the body stands
    return fields if any(name in fields for name in _TEXT) else None


def _read(request: Mapping[str, Any], others: Mapping[str, Any]) -> Prompt:
    is_chat = "messages" in request
    doubled = [name for name in ("token_ids", "block_hashes", "seq_hashes") if name in others]
    if is_chat and "prompt" in request:
        doubled.append("prompt")
    if doubled:
        field = "messages" if is_chat else "prompt"
        raise PromptError(field, f"expected {field} or {doubled[0]}, got both: leave one out")
    return read_chat(request) if is_chat else read_completion(request)


def _refusal(error: NoTokensError) -> RequestError:
    status = _STATUSES.get(error.reason, 422)
    text = f"no tokens can be made of the text: {error}"
    more = "; send token_ids, or ask POST /route, which then goes by load"
    return RequestError(f"tokens_{error.reason}", text, status=status, more=more)


def _by_load(
    fields: dict[str, Any], given: Mapping[str, Any], reason: NoTokens, wire: Wire
) -> TextAsTokens:
    """A prompt of which nothing is known but about how long it is."""
    fields.setdefault("prompt_tokens", _characters(given) // _CHARACTERS_OF_TOKEN)
    body = encode(fields | {"block_hashes": []}, wire)
    return TextAsTokens(body, (HEADER, f"none; reason={reason}".encode()), reason)


def _characters(given: Mapping[str, Any]) -> int:
    """Of all text in it, at any depth that a decoder lets pass."""
    left: list[Any] = [given.get(name) for name in _TEXT]
    size = 0
    while left:
        one = left.pop()
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, list):
            left += one
        elif isinstance(one, dict):
            left += [value for name, value in one.items() if name in ("content", "text")]
    return size


def _header(tokens: Tokens) -> tuple[bytes, bytes]:
    text = f"{tokens.source}; count={tokens.length}; reused={tokens.reused}"
    if not tokens.is_proven:
        text += "; unproven"
    return HEADER, text.encode()
