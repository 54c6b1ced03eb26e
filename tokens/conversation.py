"""The messages of a chat as an engine hands them to the template. Pure.

Engines do not hand on what came. vLLM reads each message by what OpenAI's API declares, drops what
it does not know, and gives contents the form that the template goes by; SGLang has its own ways.

Source: vLLM 0.32 (`renderers/chat_utils.py`, `renderers/hf.py`), tried against its server; SGLang
of August 2026 (`entrypoints/openai/serving_chat.py`, `parser/jinja_template_utils.py`), read.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from schemas.registration import SGLANG
from tokens.prompt import TEXT_PARTS, ChatPrompt

Message = dict[str, Any]

_BILLING: Final = "x-anthropic-billing-header"
"""The first word of a line that changes with every request; vLLM drops it."""

_DECLARED: Final = frozenset(
    {
        *("audio_url", "closed", "data", "file", "image_url", "input_audio", "name", "refusal"),
        *("prompt_cache_breakpoint", "text", "thinking", "tool_reference", "type", "video_url"),
        *("audio_embeds", "image_embeds", "image_pil", "uuid", "video_embeds"),
    }
)
"""Fields of parts that vLLM declares; a template is shown the others."""


class TemplateForm(Protocol):
    """What a template takes; see `tokens.template.ChatTemplate`."""

    @property
    def takes_parts(self) -> bool:
        """Whether contents are lists for it."""
        ...

    @property
    def knows_developer(self) -> bool:
        """Whether it has a developer's role."""
        ...


def variables_of(prompt: ChatPrompt, template: TemplateForm, kind: str) -> dict[str, Any]:
    """The template's variables, but for the model's special tokens.

    Args:
        prompt: of which they are.
        template: that is to have them.
        kind: of the engine, as registrations name it.
    """
    if kind == SGLANG:
        messages = [_sglang_message(one, parts=template.takes_parts) for one in prompt.messages]
        tools = None if prompt.tool_choice == "none" else prompt.tools
    else:
        messages = [_vllm_message(one, parts=template.takes_parts) for one in prompt.messages]
        if not template.knows_developer:
            messages = _as_system(messages)
        tools = prompt.tools
    return {
        **prompt.template_kwargs,
        "messages": messages,
        "tools": None if tools is None else [_tool(one) for one in tools],
        "documents": prompt.documents,
        "add_generation_prompt": prompt.add_generation_prompt,
    }


# vLLM


def _vllm_message(one: Mapping[str, Any], *, parts: bool) -> Message:
    role = one["role"]
    content = one.get("content")
    given: Iterable[Any] = [] if content is None else content
    if isinstance(content, str):
        given = [{"type": "text", "text": content}]
    if role == "system":
        given = _without_billing(given)
    texts = [(part, text) for part in given if (text := _text_of(part)) is not None]
    message: Message = {"role": role}
    if parts and role != "tool":
        message["content"] = [_part(part, text) for part, text in texts]
    else:  # of a template that takes text alone, empty parts leave no line
        message["content"] = "\n".join(text for _, text in texts if parts or text)
    if role == "assistant":
        if one.get("tool_calls"):
            message["tool_calls"] = [_call(call) for call in one["tool_calls"]]
        reasoning = one.get("reasoning")
        reasoning = one.get("reasoning_content") if reasoning is None else reasoning
        if reasoning is not None:
            message["reasoning"] = message["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in one:
        message["tool_call_id"] = one["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(one.get(name), str):
            message[name] = one[name]
    if role == "developer":
        message["tools"] = one.get("tools")
    return message


def _text_of(part: Any) -> str | None:
    """None where there is none, and the part is left out."""
    if isinstance(part, str):
        return part
    text = part.get(TEXT_PARTS[part["type"]])
    return None if text is None else str(text)


def _part(part: Any, text: str) -> Message:
    """With the fields that OpenAI's API does not declare."""
    more = {} if isinstance(part, str) else part
    undeclared = {name: value for name, value in more.items() if name not in _DECLARED}
    return {"type": "text", "text": text, **undeclared}


def _without_billing(parts: Iterable[Any]) -> list[Any]:
    kept = []
    for part in parts:
        is_text = isinstance(part, str) or part.get("type") == "text"
        text = None if not is_text else part if isinstance(part, str) else part.get("text")
        if not (isinstance(text, str) and text.startswith(_BILLING)):
            kept.append(part)
        elif rest := text.partition("\n")[2]:
            kept.append(rest if isinstance(part, str) else {**part, "text": rest})
    return kept


def _call(call: Mapping[str, Any]) -> Message:
    """Declared fields first, in their order; arguments are an object."""
    function = call["function"]
    inner = {"arguments": _arguments(function["arguments"]), "name": function.get("name")}
    inner |= {name: value for name, value in function.items() if name not in inner}
    outer = {"id": call.get("id"), "function": inner, "type": call.get("type", "function")}
    return outer | {name: value for name, value in call.items() if name not in outer}


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _tool(tool: Mapping[str, Any]) -> Message:
    """As pydantic writes vLLM's declaration of it: all that is declared, and nothing else."""
    function = tool.get("function")
    function = function if isinstance(function, Mapping) else {}
    inner = {name: function.get(name) for name in ("name", "description", "parameters")}
    deferred = function.get("defer_loading", tool.get("defer_loading"))
    for name, value in (("strict", function.get("strict")), ("defer_loading", deferred)):
        if value is not None:
            inner[name] = value
    found: Message = {"type": tool.get("type", "function"), "function": inner}
    if tool.get("defer_loading") is not None:
        found["defer_loading"] = tool["defer_loading"]
    return found


def _as_system(messages: list[Message]) -> list[Message]:
    """A developer's messages are the system's where the template has no such role; then all of the
    system's become one, before all others.
    """
    if all(one["role"] != "developer" for one in messages):
        return messages
    renamed = [
        {name: value for name, value in one.items() if name != "tools"} | {"role": "system"}
        if one["role"] == "developer"
        else one
        for one in messages
    ]
    roles = [one["role"] for one in renamed]
    if roles.count("system") == 1 and roles[0] == "system":
        return renamed
    said = [text for one in renamed if one["role"] == "system" if (text := _joined(one["content"]))]
    others = [one for one in renamed if one["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(said)}, *others]


def _joined(content: str | Sequence[Message]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)


# SGLang


def _sglang_message(one: Mapping[str, Any], *, parts: bool) -> Message:
    """What is null is left out; texts are joined by spaces, and stay text for every template."""
    message = {name: value for name, value in one.items() if value is not None}
    content = one.get("content")
    if content is None:
        message["content"] = ""
    elif isinstance(content, list) and (not parts or one["role"] == "tool"):
        message["content"] = " ".join(
            str(part["text"])
            for part in content
            if isinstance(part, Mapping) and part.get("type") == "text" and "text" in part
        )
    if one.get("tool_calls"):
        message["tool_calls"] = [_call(call) for call in one["tool_calls"]]
    return message
