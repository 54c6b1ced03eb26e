"""What of an OpenAI request decides its tokens. Reprise takes it as it is, and makes the tokens."""

from collections.abc import Mapping
from typing import Any, Final

TEMPLATE_FIELDS: Final = (
    "tools",
    "tool_choice",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "documents",
    "reasoning_effort",
)
"""Fields of a chat request that change its tokens, with the same names in `/route`."""


def prompt_of(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields of `/route` that say the prompt; None where a request has none that tokens could
    say: images, several prompts, other calls.

    `request` has the fields of OpenAI's chat completion or completion.
    """
    if "prompt" in request:
        return _completion(request["prompt"])
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    if not all(isinstance(one, Mapping) and _is_text(one.get("content")) for one in messages):
        return None
    found: dict[str, Any] = {"messages": messages}
    extra = request.get("extra_body")
    for source in (extra if isinstance(extra, Mapping) else {}, request):
        for name in TEMPLATE_FIELDS:
            if source.get(name) is not None:
                found[name] = source[name]
    return found


def are_tokens(tokens: object) -> bool:
    """Whether they are token ids, one or more."""
    return (
        isinstance(tokens, list)
        and bool(tokens)
        and all(type(one) is int and 0 <= one < 1 << 32 for one in tokens)
    )


def _completion(prompt: object) -> dict[str, Any] | None:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return {"prompt": prompt}
    return {"token_ids": prompt} if are_tokens(prompt) else None


def _is_text(content: object) -> bool:
    """Of a message; None is that of one that only calls tools."""
    if content is None or isinstance(content, str):
        return True
    return isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" for part in content
    )
