"""The prompt of `POST /v1/responses`: items of a conversation become messages of a chat. Pure.

One message may come in several items: reasoning, text and calls of tools. What an engine keeps of
earlier responses is its own, and so are tools that it has itself.

Source: vLLM 0.32 (`entrypoints/openai/responses/utils.py`, `protocol.py`).
"""

from collections.abc import Mapping
from typing import Any, Final

from tokens.prompt import (
    ChatPrompt,
    NoTokens,
    NoTokensError,
    PromptError,
    check_engine_only,
    kind_of,
    read_chat,
)

_KEPT_BY_ENGINES: Final = ("previous_response_id", "previous_input_messages", "prompt")
_UNFINISHED: Final = ("in_progress", "incomplete")

Message = dict[str, Any]


def read_response(request: Mapping[str, Any]) -> ChatPrompt:
    """The prompt of a request. Raises as `read_chat`."""
    check_engine_only(request)
    for name in _KEPT_BY_ENGINES:
        if request.get(name) is not None:
            raise _unsupported(f"only an engine knows what {name} stands for")
    if request.get("truncation") not in (None, "disabled"):
        raise _unsupported("only an engine knows how long a prompt may be")
    given = request.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not all(isinstance(one, Mapping) for one in items):
        text = f"expected input to be text or a list of objects, got {kind_of(given)}"
        raise PromptError("input", text)
    goes_on = bool(items) and _is_unfinished(items[-1])
    reasoning = request.get("reasoning")
    return read_chat(
        {
            "model": request.get("model"),
            "messages": _messages(request.get("instructions"), items),
            "tools": _tools(request.get("tools")),
            "tool_choice": request.get("tool_choice"),
            "chat_template_kwargs": request.get("chat_template_kwargs"),
            "reasoning_effort": reasoning.get("effort") if isinstance(reasoning, Mapping) else None,
            "add_generation_prompt": not goes_on,
            "continue_final_message": goes_on,
            "add_special_tokens": True,  # vLLM adds them to its responses, and not to its chats
        }
    )._replace(is_response=True)


def _messages(instructions: object, items: list[Mapping[str, Any]]) -> list[Message]:
    found: list[Message] = []
    if instructions:
        found.append({"role": "system", "content": instructions})
    start = len(found)
    for item in items:
        before = found[-1] if len(found) > start and found[-1]["role"] == "assistant" else {}
        message = _message(item)
        if message["role"] == "assistant" and before and _joins(before, message):
            continue
        found.append(message)
    return found


def _joins(before: Message, message: Message) -> bool:
    """Whether an assistant's item has become a part of the message before it."""
    if "tool_calls" in message:
        before.setdefault("tool_calls", []).extend(message["tool_calls"])
        return True
    name = "reasoning" if "reasoning" in message else "content"
    if before.get(name) is None:
        before[name] = message[name]
        return True
    return False


def _message(item: Mapping[str, Any]) -> Message:
    kind = item.get("type")
    if kind == "function_call" and not item.get("namespace"):
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        output, name = item.get("output"), item.get("call_id")
        return {"role": "tool", "content": output, "tool_call_id": name}
    if kind == "reasoning" and not item.get("encrypted_content"):
        said = item.get("content") or item.get("summary")
        return {"role": "assistant", "reasoning": _first_text(said) if said else ""}
    if kind not in (None, "message") or "role" not in item:
        raise _unsupported("only an engine knows what becomes of such items of the input")
    if item["role"] != "assistant":
        return dict(item)
    content = item.get("content")
    text = content if isinstance(content, str) else _first_text(content)
    return {"role": "assistant", "content": text}


def _first_text(parts: object) -> str:
    """Of the first part alone, as vLLM takes it."""
    first = parts[0] if isinstance(parts, list) and parts else None
    text = first.get("text") if isinstance(first, Mapping) else None
    if not isinstance(text, str):
        raise _unsupported("only an engine knows what becomes of a part without text")
    return text


def _is_unfinished(item: Mapping[str, Any]) -> bool:
    """Whether the answer goes on with that item."""
    return (
        item.get("type", "message") in ("message", "reasoning")
        and item.get("status") in _UNFINISHED
    )


def _tools(given: object) -> list[Message] | None:
    if not given:
        return None
    if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        raise PromptError("tools", f"expected tools to be a list of objects, got {kind_of(given)}")
    if any(one.get("type") != "function" for one in given):
        raise _unsupported("only an engine knows its own tools")
    return [
        {
            "type": "function",
            "function": {name: value for name, value in one.items() if name != "type"},
        }
        for one in given
    ]


def _unsupported(text: str) -> NoTokensError:
    return NoTokensError(NoTokens.UNSUPPORTED, text)
