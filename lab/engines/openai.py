"""OpenAI's API as simulated engines speak it: what a request asks for, and how it is answered.

A token is a byte of the text: of a prompt, of messages behind their roles, and of an answer. So the
next turn of a conversation begins with the tokens of the last one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from lab.engines.control import EventStream, RequestError

ANSWER_TOKENS_MAX: Final = 4_096
COMPLETION_TOKENS: Final = 16
"""Of a completion that says no number, as OpenAI has it; a chat's answer then ends by itself."""


class StreamOptions(msgspec.Struct, frozen=True):
    """Of a request that is answered by a stream."""

    include_usage: bool = False


class OpenAiRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A chat or a completion, as far as it says something to an engine without a model."""

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    model: str = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    dp_rank: int | None = None

    @property
    def is_chat(self) -> bool:
        """Whether it has messages."""
        return self.messages is not None

    @property
    def tokens(self) -> list[int]:
        """Of its prompt. Raises RequestError: it has none."""
        if self.messages is None and self.prompt is None:
            raise RequestError("Expected messages or a prompt, got neither")
        return list(prompt_tokens({"prompt": self.prompt, "messages": self.messages}))

    def said(self, text: str) -> str:
        """As much of an answer as it wants."""
        most = self.max_completion_tokens or self.max_tokens
        if most is None:
            most = len(text) if self.is_chat else COMPLETION_TOKENS
        return text[: max(min(most, ANSWER_TOKENS_MAX), 1)]


class OpenAiAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine answers.

    Attributes:
        request: that it answers.
        answer_id: of its own.
        model: that the engine serves.
        created: Unix seconds.
        text: as much as the request wants.
        is_whole: whether it wants all.
        prompt_tokens, cached_tokens: of the prompt, and of these found in the cache.
    """

    request: OpenAiRequest
    answer_id: str
    model: str
    created: int
    text: str
    is_whole: bool
    prompt_tokens: int
    cached_tokens: int

    def document(self) -> "dict[str, Any] | EventStream":
        """Whole, or as a stream, as the request wants it."""
        if self.request.stream:
            return EventStream(self._events())
        choice: dict[str, Any] = (
            {"message": {"role": "assistant", "content": self.text}}
            if self.request.is_chat
            else {"text": self.text, "logprobs": None}
        )
        name = "chat.completion" if self.request.is_chat else "text_completion"
        return self._document(name, [choice | self._end()]) | {"usage": self._usage()}

    def _events(self) -> Iterator[object]:
        is_chat = self.request.is_chat
        name = "chat.completion.chunk" if is_chat else "text_completion"
        words = self.text.split(" ")
        pieces = [f"{word} " for word in words[:-1]] + words[-1:]
        for number, piece in enumerate(pieces):
            role = {} if number else {"role": "assistant"}
            said = {"delta": role | {"content": piece}} if is_chat else {"text": piece}
            yield self._document(name, [said | {"finish_reason": None}])
        last: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
        yield self._document(name, [last | self._end()])
        options = self.request.stream_options
        if options is not None and options.include_usage:
            yield self._document(name, []) | {"usage": self._usage()}

    def _document(self, name: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.answer_id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "choices": [one | {"index": 0} for one in choices],
        }

    def _end(self) -> dict[str, Any]:
        return {"finish_reason": "stop" if self.is_whole else "length"}

    def _usage(self) -> dict[str, Any]:
        said = len(self.text)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": said,
            "total_tokens": self.prompt_tokens + said,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


def prompt_tokens(request: Mapping[str, Any]) -> Sequence[int]:
    """The tokens of a request: as they are given, or the bytes of its text."""
    prompt = request.get("prompt")
    if isinstance(prompt, list):
        return prompt
    if isinstance(prompt, str):
        return prompt.encode()
    lines = [f"<{one.get('role')}>{one.get('content')}" for one in request.get("messages") or ()]
    return "\n".join([*lines, "<assistant>"]).encode()
