"""Token ids of a request, or the reason why there are none here."""

import logging
from typing import Final, NamedTuple

from gateway.fleet import ServedModel
from gateway.requests import CHAT, COMPLETIONS, ClientRequest
from tokens.interface import PromptTokenizer, Tokens
from tokens.prompt import (
    NoTokens,
    NoTokensError,
    Prompt,
    PromptError,
    TokenPrompt,
    cut_off,
    read_chat,
    read_completion,
)

BYTES_OF_TOKEN: Final = 4
"""Of text, about, where nobody has counted."""

logger = logging.getLogger(__name__)


class PromptTokens(NamedTuple):
    """What is known of a prompt.

    Attributes:
        content: token ids, (n,) u32 LE; empty where there are none.
        size: how many there are; a guess where there are none.
        missing: why there are none, in one word; "" where there are some.
        prompt: that was tokenized; None where none was.
        made: what it was made; likewise.
    """

    content: bytes
    size: int
    missing: str = ""
    prompt: Prompt | None = None
    made: Tokens | None = None


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
            prompt = self._read(request)
            if prompt is None:
                return PromptTokens(b"", guess, NoTokens.UNSUPPORTED)
            if isinstance(prompt, TokenPrompt):
                content = cut_off(prompt.content, prompt.truncation)
                return PromptTokens(content, len(content) // 4)
            if self._tokenizer is None:
                return PromptTokens(b"", guess, NoTokens.NO_TOKENIZER)
            prompt = prompt._replace(model=model.name)
            found = await self._tokenizer.tokens(prompt, model.tenant_id)
        except NoTokensError as error:
            return PromptTokens(b"", guess, error.reason)
        except PromptError:
            return PromptTokens(b"", guess, "invalid_prompt")
        except Exception:
            self.faults += 1
            logger.exception(
                "Unexpected error while a prompt was tokenized; its request is routed by load"
            )
            return PromptTokens(b"", guess, "internal_error")
        return PromptTokens(found.content, found.length, "", prompt, found)

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
    def _read(request: ClientRequest) -> Prompt | None:
        """The prompt; None of a path whose prompts are not known here."""
        if request.fields is None:
            return None
        if request.path == CHAT:
            return read_chat(request.fields)
        return read_completion(request.fields) if request.path == COMPLETIONS else None
