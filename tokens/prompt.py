"""Prompts: what of an OpenAI chat or completion request decides its token ids.

A request comes as a decoded JSON object. Fields that decide no tokens are passed over.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from schemas.errors import RepriseError


class PromptError(RepriseError):
    """A request that no engine would take.

    Operator action: none; the client has to mend the request.

    Attributes:
        field: of the request.
    """

    def __init__(self, field: str, text: str) -> None:
        self.field = field
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
        documents: likewise.
        chat_template: the request's own one; engines refuse it unless they are told to trust it.
        template_kwargs: what the template is given beside these.
        add_generation_prompt: whether the assistant's turn is opened.
        continue_final_message: whether the last message goes on.
        add_special_tokens: whether the tokenizer adds its own to those of the template.
        truncation: None for none.
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
        NoTokensError: it has what cannot be tokenized here: MEDIA and the like.
    """
    raise NotImplementedError


def read_completion(request: Mapping[str, Any]) -> TextPrompt | TokenPrompt:
    """The prompt of `POST /v1/completions`. Raises as `read_chat`."""
    raise NotImplementedError
