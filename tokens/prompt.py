"""Prompts: what of an OpenAI chat or completion request decides its token ids.

A request comes as a decoded JSON object. Fields that decide no tokens are passed over.
"""

from array import array
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias, cast

from schemas.errors import RepriseError
from tokens.bounds import MESSAGES_MAX, PROMPT_CHARACTERS_MAX, PROMPT_TOKENS_MAX

TEXT_PARTS: Final = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "thinking": "thinking",
    "refusal": "refusal",
}
"""Kinds of content parts that are text, with the field that has the text."""

_ENGINE_ONLY: Final = ("prompt_embeds", "input_ids", "mm_processor_kwargs", "kv_transfer_params")
_UNASKED: Final = ("reasoning", "thinking", "task")
"""Fields of a chat that engines render, and their `/tokenize` has not."""

_EMBEDDED_CHAT: Final = (
    *("model", "add_generation_prompt", "continue_final_message", "add_special_tokens"),
    *("chat_template", "chat_template_kwargs", "truncate_prompt_tokens", "truncation_side"),
    *_ENGINE_ONLY,
)
"""Fields that decide the tokens of a chat of which an embedding is asked."""

_RESERVED_KWARGS: Final = frozenset(
    {
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Arguments of a template's rendering that are no variables of the template."""


class PromptError(RepriseError):
    """A request that no engine would take.

    Operator action: none; the client has to mend the request.
    """

    def __init__(self, field: str, text: str) -> None:
        self.field = field
        super().__init__(text)


class NoTokens(StrEnum):
    """Why a prompt has no token ids here. The request is routed by load."""

    MEDIA = "media"
    """The prompt has images, audio, video or files, and no engine of the model can be asked."""
    SEVERAL_PROMPTS = "several_prompts"
    """The request has more than one prompt."""
    UNSUPPORTED = "unsupported"
    """The request asks for something that only the engine can do to a prompt."""
    NO_TOKENIZER = "no_tokenizer"
    """The settings name no tokenizer for the model, and no engine of the model can be asked."""
    NO_LIBRARY = "no_library"
    """The extra `text` is not installed, and no engine of the model can be asked."""
    UNREADABLE = "unreadable"
    """The model's files cannot be read, and no engine of the model can be asked."""
    DIFFERS = "differs"
    """An engine has computed other tokens than were made for it, and cannot be asked either."""
    TEMPLATE = "template"
    """The model's chat template refuses the messages, fails, or takes too long."""
    TOO_LARGE = "too_large"
    """The prompt is larger than a bound of this room."""
    BUSY = "busy"
    """As many prompts are being tokenized as can be at once."""
    ENGINE_SILENT = "engine_silent"
    """The engine that was asked did not answer in time, or not with token ids."""
    ENGINE_REFUSES = "engine_refuses"
    """The engine that was asked refuses the prompt."""


class NoTokensError(RepriseError):
    """A prompt has no token ids here.

    Operator action: see `reason`; `reprise_tokens_missing_total` counts each.
    """

    def __init__(self, reason: NoTokens, text: str) -> None:
        self.reason = reason
        super().__init__(text)


class Truncation(NamedTuple):
    """What the request wants cut off.

    Attributes:
        tokens: that may be left.
        is_left: whether the first ones go; else the last ones.
    """

    tokens: int
    is_left: bool


class ChatPrompt(NamedTuple):
    """The messages of a chat.

    Attributes:
        model: as the request names it.
        messages: as they came, checked for form.
        tools: that the template is told of; None for none.
        chat_template: the request's own one; engines refuse it unless they are told to trust it.
        template_kwargs: variables of the template beside these.
        add_generation_prompt: whether the assistant's turn is opened.
        continue_final_message: whether the last message goes on.
        add_special_tokens: whether the tokenizer adds its own to those of the template.
        truncation: None for none.
        tool_choice: as it came; SGLang tells the template of no tools where it says so.
        has_media: whether messages have parts that are no text, whose tokens an engine alone knows.
        effort: the request's `reasoning_effort`, as it came.
        given_kwargs: its `chat_template_kwargs`, as they came; `template_kwargs` have what vLLM
            makes of both.
        is_response: whether it is that of `POST /v1/responses`, which engines may render otherwise.
        has_unasked: whether it says what some engine renders, and can be asked of none.
    """

    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    documents: Sequence[Mapping[str, Any]] | None = None
    chat_template: str | None = None
    template_kwargs: Mapping[str, Any] = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    truncation: Truncation | None = None
    tool_choice: object = None
    has_media: bool = False
    effort: object = None
    given_kwargs: Mapping[str, Any] | None = None
    is_response: bool = False
    has_unasked: bool = False


class TextPrompt(NamedTuple):
    """A completion's text; attributes as those of `ChatPrompt`."""

    model: str
    text: str
    add_special_tokens: bool = True
    truncation: Truncation | None = None


class TokenPrompt(NamedTuple):
    """A completion's token ids, (n,) u32 little-endian."""

    model: str
    content: bytes
    truncation: Truncation | None = None


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


def read_chat(request: Mapping[str, Any]) -> ChatPrompt:
    """The prompt of `POST /v1/chat/completions`.

    Raises:
        PromptError: no engine would take it.
        NoTokensError: it has what nobody can be asked to tokenize: UNSUPPORTED and the like.
    """
    check_engine_only(request)
    messages = _objects(request, "messages")
    if not messages:
        raise PromptError("messages", "expected at least one message, got none")
    sizes = list(map(_message_size, messages))
    size = sum(one.characters for one in sizes)
    if size > PROMPT_CHARACTERS_MAX:
        raise _too_large(size)
    continues = _flag(request, "continue_final_message", default=False)
    # SGLang has no such field; vLLM refuses the former without it, whatever is made of it here.
    opens = _flag(request, "add_generation_prompt", default=not continues)
    if continues and opens:
        text = "continue_final_message and add_generation_prompt cannot both be true"
        raise PromptError("continue_final_message", text)
    return ChatPrompt(
        _text(request, "model"),
        messages,
        _objects(request, "tools") or None,
        _objects(request, "documents") or None,
        _text(request, "chat_template") or None,
        _template_kwargs(request),
        opens,
        continues,
        _flag(request, "add_special_tokens", default=False),
        _truncation(request),
        request.get("tool_choice"),
        any(one.has_media for one in sizes),
        request.get("reasoning_effort"),
        request.get("chat_template_kwargs"),
        has_unasked=any(request.get(name) is not None for name in _UNASKED),
    )


def read_completion(request: Mapping[str, Any]) -> TextPrompt | TokenPrompt:
    """The one prompt of `POST /v1/completions`. Raises as `read_chat`."""
    found = read_completions(request)
    if len(found) > 1:
        text = f"the request has {len(found)} prompts: only one can be tokenized here"
        raise NoTokensError(NoTokens.SEVERAL_PROMPTS, text)
    return found[0]


def read_completions(
    request: Mapping[str, Any], field: str = "prompt"
) -> list[TextPrompt | TokenPrompt]:
    """All prompts of `POST /v1/completions`, at least one. Raises as `read_chat`.

    Args:
        request: as it came.
        field: that has the prompts.
    """
    check_engine_only(request)
    given = request.get(field)
    prompts: Sequence[object] = [given]
    if isinstance(given, list) and given and isinstance(given[0], str | list):
        prompts = given
    return [_completion(request, one, field) for one in prompts]


def _completion(request: Mapping[str, Any], prompt: object, field: str) -> TextPrompt | TokenPrompt:
    model, truncation = _text(request, "model"), _truncation(request)
    if isinstance(prompt, str):
        if len(prompt) > PROMPT_CHARACTERS_MAX:
            raise _too_large(len(prompt))
        special = _flag(request, "add_special_tokens", default=True)
        return TextPrompt(model, prompt, special, truncation)
    if isinstance(prompt, list):
        return TokenPrompt(model, packed(prompt, field), truncation)
    text = f"expected {field} to be text or token ids, got {kind_of(prompt)}"
    raise PromptError(field, text)


def read_embeddings(request: Mapping[str, Any]) -> list[Prompt]:
    """All prompts of `POST /v1/embeddings`, at least one: texts, token ids, or chats, which `input`
    or `messages` has. Raises as `read_chat`.
    """
    field = "input" if request.get("messages") is None else "messages"
    given = request.get(field)
    several = given if isinstance(given, list) and given and _is_chat(given[0]) else [given]
    if field == "input" and not _is_chat(several[0]):
        return list(read_completions(request, field))
    return [_embedded_chat(request, one) for one in several]


def _embedded_chat(request: Mapping[str, Any], messages: object) -> ChatPrompt:
    kept = {name: request[name] for name in _EMBEDDED_CHAT if name in request}
    return read_chat({"add_generation_prompt": False, **kept, "messages": messages})


def _is_chat(given: object) -> bool:
    """As vLLM knows one."""
    return (
        isinstance(given, list)
        and bool(given)
        and all(isinstance(one, Mapping) and isinstance(one.get("role"), str) for one in given)
    )


def packed(tokens: Sequence[object], field: str) -> bytes:
    """Token ids as a query of the index has them.

    Raises:
        PromptError: they are none.
        NoTokensError: there are too many.
    """
    if len(tokens) > PROMPT_TOKENS_MAX:
        text = f"expected at most {PROMPT_TOKENS_MAX} token ids, got {len(tokens)}"
        raise NoTokensError(NoTokens.TOO_LARGE, text)
    try:
        if set(map(type, tokens)) - {int}:  # no bool, which array takes
            raise TypeError
        return array("I", cast(Sequence[int], tokens)).tobytes()
    except (TypeError, OverflowError) as error:
        raise PromptError(field, f"expected {field} to be token ids from 0 to 2**32-1") from error


def cut_off(tokens: bytes, truncation: Truncation | None) -> bytes:
    """What a request leaves of its prompt's tokens."""
    if truncation is None or truncation.tokens * 4 >= len(tokens):
        return tokens
    size = truncation.tokens * 4
    if not size:
        return b""
    return tokens[-size:] if truncation.is_left else tokens[:size]


def check_engine_only(request: Mapping[str, Any]) -> None:
    """Raises NoTokensError where a request has what an engine alone can turn into tokens."""
    for name in _ENGINE_ONLY:
        if request.get(name) is not None:
            raise NoTokensError(NoTokens.UNSUPPORTED, f"only an engine knows what {name} makes")


class _Size(NamedTuple):
    characters: int
    has_media: bool = False


def _message_size(message: Mapping[str, Any]) -> _Size:
    """The characters of a message, which is checked for form."""
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise PromptError("messages", f"expected each role to be text, got {kind_of(role)}")
    content = message.get("content")
    size, has_media = len(role), False
    if isinstance(content, str):
        size += len(content)
    elif isinstance(content, list):
        parts = [_part_size(one) for one in content]
        size += sum(filter(None, parts))
        has_media = None in parts
    elif content is not None:
        text = f"expected content to be text or a list of parts, got {kind_of(content)}"
        raise PromptError("messages", text)
    if "tool_calls" in message:
        size += _call_size(message["tool_calls"])
    for name in ("reasoning", "reasoning_content"):
        if isinstance(said := message.get(name), str):
            size += len(said)
    return _Size(size, has_media)


def _part_size(part: object) -> int | None:
    """The characters of a part; None of one that is no text."""
    if isinstance(part, str):
        return len(part)
    if not isinstance(part, Mapping):
        raise PromptError("messages", f"expected each part to be an object, got {kind_of(part)}")
    kind = part.get("type")
    field = TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None or "uuid" in part:
        return None
    text = part.get(field)
    if text is not None and not isinstance(text, str):
        raise PromptError("messages", f"expected {field} of a part to be text, got {kind_of(text)}")
    return len(text or "")


def _call_size(calls: object) -> int:
    if calls is None:
        return 0
    if not isinstance(calls, list) or len(calls) > MESSAGES_MAX:
        raise PromptError("messages", f"expected tool_calls to be a list, got {kind_of(calls)}")
    size = 0
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            text = "only an engine knows what tool calls without a function make"
            raise NoTokensError(NoTokens.UNSUPPORTED, text)
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            text = f"expected arguments of a tool call to be text, got {kind_of(arguments)}"
            raise PromptError("messages", text)
        size += len(arguments)
    return size


def _template_kwargs(request: Mapping[str, Any]) -> dict[str, Any]:
    """As vLLM makes them: null and "auto" count as not given, and an effort asks for thinking."""
    given = request.get("chat_template_kwargs") or {}
    if not isinstance(given, Mapping):
        text = f"expected chat_template_kwargs to be an object, got {kind_of(given)}"
        raise PromptError("chat_template_kwargs", text)
    reserved = _RESERVED_KWARGS.intersection(given)
    if reserved:
        text = f"only an engine knows what chat_template_kwargs.{min(reserved)} makes"
        raise NoTokensError(NoTokens.UNSUPPORTED, text)
    found = dict(given)
    effort = request.get("reasoning_effort")
    if effort is not None:
        found["reasoning_effort"] = effort
        found.setdefault("enable_thinking", effort != "none")
    found.pop("add_generation_prompt", None)  # the request's own one wins
    return {name: value for name, value in found.items() if value not in (None, "auto")}


def _truncation(request: Mapping[str, Any]) -> Truncation | None:
    tokens, side = request.get("truncate_prompt_tokens"), request.get("truncation_side")
    if tokens is None:
        return None
    if type(tokens) is not int or tokens < -1:
        text = f"expected truncate_prompt_tokens to be -1 or more, got {kind_of(tokens)}"
        raise PromptError("truncate_prompt_tokens", text)
    if tokens < 0 or side not in ("left", "right"):
        text = "only an engine knows how long a prompt may be, and which side it cuts by itself"
        raise NoTokensError(NoTokens.UNSUPPORTED, text)
    return Truncation(tokens, side == "left")


def _objects(request: Mapping[str, Any], field: str) -> Sequence[Mapping[str, Any]]:
    found = request.get(field)
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise PromptError(field, f"expected {field} to be a list of objects, got {kind_of(found)}")
    if len(found) > MESSAGES_MAX:
        text = f"expected at most {MESSAGES_MAX} of {field}, got {len(found)}"
        raise NoTokensError(NoTokens.TOO_LARGE, text)
    return found


def _text(request: Mapping[str, Any], field: str) -> str:
    found = request.get(field)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise PromptError(field, f"expected {field} to be text, got {kind_of(found)}")
    return found


def _flag(request: Mapping[str, Any], field: str, *, default: bool) -> bool:
    found = request.get(field)
    if found is None:
        return default
    if not isinstance(found, bool):
        raise PromptError(field, f"expected {field} to be true or false, got {kind_of(found)}")
    return found


def _too_large(size: int) -> NoTokensError:
    text = f"expected a prompt of at most {PROMPT_CHARACTERS_MAX} characters, got {size}"
    return NoTokensError(NoTokens.TOO_LARGE, text)


def kind_of(value: object) -> str:
    """What came, without any of it."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return kinds.get(type(value), "nothing" if value is None else "a number")
