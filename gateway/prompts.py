"""Token ids of a request, or the reason why there are none here."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gateway.fleet import ServedModel
from gateway.requests import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, ClientRequest
from schemas.media import MediaItem
from schemas.registration import SGLANG
from tokens.interface import PromptTokenizer, Tokens
from tokens.prompt import (
    ChatPrompt,
    NoTokens,
    NoTokensError,
    Prompt,
    PromptError,
    TextPrompt,
    TokenPrompt,
    cut_off,
    read_chat,
    read_completions,
    read_embeddings,
)
from tokens.responses import read_response

GATEWAY_TOKENS_S: Final = 1.0  # that tokens are waited for; then by load, reason="busy"

BYTES_OF_TOKEN: Final = 4
"""Of text, about, where nobody has counted."""

_OF_EACH_PROMPT: Final = ("cache_salt", "lora_path")
"""Which SGLang's requests may have for each of several prompts."""

_NOT_EMBEDDED: Final = ("cache_salt", "messages")
"""Of requests for embeddings, which SGLang passes over."""

logger = logging.getLogger(__name__)


class PromptTokens(NamedTuple):
    """What is known of a prompt; of several, the longest is routed by, and all are booked.

    Attributes:
        content: token ids of it, (n,) u32 LE; empty where there are none.
        size: how many there are of all; a guess where there are none.
        missing: why there are none, in one word; "" where there are some.
        prompt: that was tokenized; None where none was.
        made: what it was made; likewise.
        is_partial: whether an engine may find more in its cache than these tokens say.
        media: images and the like among the tokens, where an engine says what it calls them.
    """

    content: bytes
    size: int
    missing: str = ""
    prompt: Prompt | None = None
    made: Tokens | None = None
    is_partial: bool = False
    media: Sequence[MediaItem] = ()

    @property
    def is_unproven(self) -> bool:
        """Whether some engine may make other tokens of it."""
        return self.made is not None and not self.made.is_proven


class Prompts:
    """Reads prompts of requests, and has them tokenized.

    Args:
        tokenizer: makes token ids; None: only those that requests have themselves are known.

    Attributes:
        faults: unexpected errors.
    """

    def __init__(self, tokenizer: PromptTokenizer | None = None) -> None:
        self.faults = 0
        self._tokenizer = tokenizer

    async def of(self, request: ClientRequest, model: ServedModel) -> PromptTokens:
        """What is known of the prompt. Never an error: the engine says what is wrong with it."""
        guess = len(request.body) // BYTES_OF_TOKEN
        try:
            prompts = self._read(request, model)
            prompt = max(prompts, key=_size_of)
            others = sum(map(_size_of, prompts)) - _size_of(prompt)
            if isinstance(prompt, TokenPrompt):
                content = cut_off(prompt.content, prompt.truncation)
                size = len(content) // 4 + others
                return PromptTokens(content, size, is_partial=len(prompts) > 1)
            if self._tokenizer is None:
                return PromptTokens(b"", guess, NoTokens.NO_TOKENIZER)
            prompt = prompt._replace(model=model.name)
            async with asyncio.timeout(GATEWAY_TOKENS_S):
                found = await self._tokenizer.tokens(prompt, model.tenant_id)
        except NoTokensError as error:
            return PromptTokens(b"", guess, error.reason)
        except TimeoutError:
            return PromptTokens(b"", guess, NoTokens.BUSY)
        except PromptError:
            return PromptTokens(b"", guess, "invalid_prompt")
        except Exception:
            self.faults += 1
            logger.exception(
                "Unexpected error while a prompt was tokenized; its request is routed by load"
            )
            return PromptTokens(b"", guess, "internal_error")
        if len(prompts) > 1:
            return PromptTokens(found.content, found.length + others, is_partial=True)
        hides = isinstance(prompt, ChatPrompt) and prompt.has_media and not found.media
        return PromptTokens(found.content, found.length, "", prompt, found, hides, found.media)

    def counted(self, tokens: PromptTokens, prompt_tokens: int) -> None:
        """An engine has said how many tokens the prompt has."""
        if self._tokenizer is None or tokens.prompt is None or tokens.made is None:
            return
        try:
            self._tokenizer.counted(tokens.prompt, tokens.made, prompt_tokens)
        except Exception:
            self.faults += 1
            logger.exception("Unexpected error while tokens were compared; going on")

    @staticmethod
    def _read(request: ClientRequest, model: ServedModel) -> Sequence[Prompt]:
        """All prompts, at least one."""
        read = _READERS.get(request.path)
        if request.fields is None or read is None:
            raise NoTokensError(NoTokens.UNSUPPORTED, "only an engine knows what becomes of it")
        if any(one.kind == SGLANG for one in model.targets.values()) and (
            read is _read_response
            or (read is read_embeddings and any(map(request.fields.get, _NOT_EMBEDDED)))
        ):
            text = "SGLang makes chats of responses in a way of its own, and embeds without salts"
            raise NoTokensError(NoTokens.UNSUPPORTED, text)
        if request.fields.get("extra_key") or any(
            isinstance(request.fields.get(name), list) for name in _OF_EACH_PROMPT
        ):
            text = "its blocks have keys of which no event says anything, or several salts"
            raise NoTokensError(NoTokens.UNSUPPORTED, text)
        return read(request.fields)


def _read_chat(fields: Mapping[str, Any]) -> Sequence[Prompt]:
    return [read_chat(fields)]


def _read_response(fields: Mapping[str, Any]) -> Sequence[Prompt]:
    return [read_response(fields)]


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Sequence[Prompt]]]] = {
    CHAT: _read_chat,
    COMPLETIONS: read_completions,
    RESPONSES: _read_response,
    EMBEDDINGS: read_embeddings,
}


def _size_of(prompt: Prompt) -> int:
    """In tokens; a guess where there is text."""
    if isinstance(prompt, TokenPrompt):
        return len(prompt.content) // 4
    if isinstance(prompt, TextPrompt):
        return len(prompt.text) // BYTES_OF_TOKEN
    return sum(len(str(one.get("content"))) for one in prompt.messages) // BYTES_OF_TOKEN
