"""An engine's `/tokenize` and `/render`: what it is asked, and what its answer says. Pure.

vLLM takes messages and prompts; SGLang, too, from 0.5.12 on, and refuses messages before. vLLM's
takes fewer fields than its chats do: `documents` and the effort go as variables of the template,
reasoning by its new name, and parts of responses as those of chats.

`/render` says of a chat with images what the engine calls each, and where it is among the tokens.
vLLM answers so from 0.33 on, where it is started with `--enable-scale-out`; before, with tensors of
megabytes, for which it is not asked.

Source: vLLM 0.32 (`entrypoints/serve/tokenize`), SGLang 0.5.23 (`serving_tokenize.py`),
vLLM 0.33 (`entrypoints/scale_out/render`).
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from schemas.media import MediaFeatures, MediaItem
from schemas.registration import SGLANG
from tokens.interface import EngineAnswer
from tokens.prompt import ChatPrompt, NoTokens, NoTokensError, PromptError, TextPrompt, packed

TOKENIZE: Final = "/tokenize"
RENDER: Final = "/v1/chat/completions/render"

_RESPONSE_TEXTS: Final = ("input_text", "output_text")
_OK: Final = 200
_REFUSALS: Final = range(400, 500)


class _TokenizeAnswer(msgspec.Struct):
    tokens: list[int]


class _Features(MediaFeatures, frozen=True):
    kwargs_data: msgspec.Raw = msgspec.Raw(b"null")


class _RenderAnswer(msgspec.Struct):
    token_ids: list[int]
    features: _Features


_decoder: Final = msgspec.json.Decoder(_TokenizeAnswer)
_render_decoder: Final = msgspec.json.Decoder(_RenderAnswer)
_encoder: Final = msgspec.json.Encoder()


def question(prompt: ChatPrompt | TextPrompt, kind: str) -> bytes:
    """The body that an engine of this kind is asked with.

    Raises:
        NoTokensError: ENGINE_REFUSES: it takes no such prompt; UNSUPPORTED: nor does JSON.
    """
    if isinstance(prompt, TextPrompt):
        return text_question(prompt.model, prompt.text, special=prompt.add_special_tokens)
    return _encoded(_sglang_chat(prompt) if kind == SGLANG else _chat(prompt))


def _sglang_chat(prompt: ChatPrompt) -> dict[str, Any]:
    """As a chat of its own: it renders what that has, by its own flags."""
    if prompt.chat_template or prompt.documents or prompt.is_response:
        text = "SGLang's /tokenize takes no template, no documents and no responses"
        raise NoTokensError(NoTokens.ENGINE_REFUSES, text)
    asked: dict[str, Any] = {"model": prompt.model, "messages": prompt.messages}
    for name, value in (
        ("tools", prompt.tools),
        ("tool_choice", prompt.tool_choice),
        ("chat_template_kwargs", prompt.given_kwargs),
        ("continue_final_message", prompt.continue_final_message),
    ):
        if value:
            asked[name] = value
    if prompt.effort is not None:  # 0 is one, too
        asked["reasoning_effort"] = prompt.effort
    if prompt.add_special_tokens or not (
        prompt.add_generation_prompt or prompt.continue_final_message
    ):
        asked["add_generation_prompt"] = prompt.add_generation_prompt
        asked["add_special_tokens"] = prompt.add_special_tokens
    return asked


def render_question(prompt: ChatPrompt) -> bytes:
    """The body that vLLM is asked with for a chat with images, without their tensors.

    Raises:
        NoTokensError: UNSUPPORTED: JSON cannot have it.
    """
    return _encoded(_chat(prompt) | {"mm_payload": "none"})


def _chat(prompt: ChatPrompt) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": prompt.model,
        "messages": [_renamed(one) for one in prompt.messages],
        "add_generation_prompt": prompt.add_generation_prompt,
        "continue_final_message": prompt.continue_final_message,
        "add_special_tokens": prompt.add_special_tokens,
    }
    kwargs = dict(prompt.template_kwargs)
    if prompt.documents:
        kwargs["documents"] = prompt.documents
    for name, value in (
        ("tools", prompt.tools),
        ("chat_template", prompt.chat_template),
        ("chat_template_kwargs", kwargs),
    ):
        if value:
            asked[name] = value
    return asked


def text_question(model: str, text: str, *, special: bool) -> bytes:
    """The body that any engine is asked with for the tokens of a text."""
    return _encoded({"model": model, "prompt": text, "add_special_tokens": special})


def _encoded(asked: Mapping[str, Any]) -> bytes:
    try:
        return _encoder.encode(asked)
    except (TypeError, ValueError, RecursionError) as error:  # as of half a surrogate pair
        text = "expected a prompt that JSON can have, got another one"
        raise NoTokensError(NoTokens.UNSUPPORTED, text) from error


def read_answer(answer: EngineAnswer) -> bytes:
    """The token ids, (n,) u32 little-endian.

    Raises:
        NoTokensError: ENGINE_REFUSES or ENGINE_SILENT.
    """
    if answer.status in _REFUSALS:
        text = f"the engine refuses to tokenize the prompt, with status {answer.status}"
        raise NoTokensError(NoTokens.ENGINE_REFUSES, text)
    if answer.status != _OK:
        text = f"the engine answers /tokenize with status {answer.status}"
        raise NoTokensError(NoTokens.ENGINE_SILENT, text)
    try:
        return packed(_decoder.decode(answer.body).tokens, "tokens")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, PromptError) as error:
        text = "the engine answers /tokenize with what are no token ids"
        raise NoTokensError(NoTokens.ENGINE_SILENT, text) from error


def read_rendering(answer: EngineAnswer) -> tuple[bytes, list[MediaItem]]:
    """The token ids, (n,) u32 little-endian, and the images and the like among them.

    Raises:
        NoTokensError: ENGINE_REFUSES: it says nothing of them, or tensors, too.
    """
    if answer.status != _OK:
        text = f"the engine answers {RENDER} with status {answer.status}"
        raise NoTokensError(NoTokens.ENGINE_REFUSES, text)
    try:
        found = _render_decoder.decode(answer.body)
        media = found.features.items()
        content = packed(found.token_ids, "token_ids")
    except (ValueError, UnicodeDecodeError, RecursionError, PromptError) as error:
        text = f"the engine answers {RENDER} without what it calls images, and where they are"
        raise NoTokensError(NoTokens.ENGINE_REFUSES, text) from error
    if bytes(found.features.kwargs_data) != b"null" or not media:
        text = f"the engine answers {RENDER} with tensors, or without images"
        raise NoTokensError(NoTokens.ENGINE_REFUSES, text)
    return content, media


def _renamed(message: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(message)
    reasoning = found.pop("reasoning_content", None)
    if reasoning is not None and found.get("reasoning") is None:
        found["reasoning"] = reasoning
    content = found.get("content")
    if isinstance(content, list):
        found["content"] = [_as_text(part) for part in content]
    return found


def _as_text(part: Any) -> Any:
    """A part of a response, as a chat has it: vLLM renders both alike."""
    if isinstance(part, Mapping) and part.get("type") in _RESPONSE_TEXTS:
        return {**part, "type": "text"}
    return part
