"""What an engine says of the tokens of a request. Pure.

Source: OpenAI's API, `usage` of chat completions, completions and embeddings, and of `response` of
responses; `prompt_tokens_details` of vLLM with `--enable-prompt-tokens-details`, and of SGLang with
`--enable-cache-report`.
"""

from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

Tokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class _Details(msgspec.Struct):
    cached_tokens: Tokens | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    input_tokens_details: _Details | None = None


class _Response(msgspec.Struct):
    id: str | None = None
    usage: _Usage | None = None


class _Document(msgspec.Struct):
    usage: _Usage | None = None
    choices: list[msgspec.Raw] | None = None
    response: _Response | None = None
    id: Any = None
    object: Any = None
    error: Any = None


class Usage(NamedTuple):
    """In tokens; None where the engine does not say it.

    Attributes:
        response: the id of the answer, where it is one of `/v1/responses`.
    """

    prompt: int | None
    cached: int | None
    output: int | None
    response: str = ""


class UsageDocument(NamedTuple):
    """What one document says.

    Attributes:
        is_alone: whether it says nothing else: no choice has a part in it, and nothing failed.
    """

    usage: Usage
    is_alone: bool


_decoder: Final = msgspec.json.Decoder(_Document)


def read_usage(document: bytes) -> UsageDocument | None:
    """What a body, or the data of an event, says of tokens; None where it says nothing."""
    try:
        found = _decoder.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    said, response = found.usage, found.id if found.object == "response" else None
    if said is None and found.response is not None:
        said, response = found.response.usage, found.response.id
    if said is None:
        return None
    details = said.prompt_tokens_details or said.input_tokens_details
    cached = None if details is None else details.cached_tokens
    prompt = said.input_tokens if said.prompt_tokens is None else said.prompt_tokens
    output = said.output_tokens if said.completion_tokens is None else said.completion_tokens
    if cached is not None and prompt is not None:
        cached = min(cached, prompt)
    name = response if isinstance(response, str) else ""
    is_alone = found.choices == [] and found.error is None
    return UsageDocument(Usage(prompt, cached, output, name), is_alone)
