"""Requests of OpenAI's form are read, and what only an engine can do has a name."""

from array import array
from typing import Any

import pytest

from tokens.bounds import MESSAGES_MAX, PROMPT_CHARACTERS_MAX, PROMPT_TOKENS_MAX
from tokens.prompt import (
    ChatPrompt,
    NoTokens,
    NoTokensError,
    PromptError,
    TextPrompt,
    TokenPrompt,
    Truncation,
    cut_off,
    read_chat,
    read_completion,
)

USER = {"role": "user", "content": "Hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def chat(**fields: Any) -> ChatPrompt:
    return read_chat({"model": "m", "messages": [USER], **fields})


def packed(*tokens: int) -> bytes:
    return array("I", tokens).tobytes()


def test_a_chat_is_read_with_what_decides_its_tokens() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    read = chat(tools=tools, tool_choice="none", temperature=0.5, add_special_tokens=True)
    assert read == ChatPrompt(
        "m", [USER], tools, add_special_tokens=True, tool_choice="none", template_kwargs={}
    )


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({}, {}),
        ({"chat_template_kwargs": {"a": None, "b": "auto", "c": 0}}, {"c": 0}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "low", "enable_thinking": False},
        ),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, {}),
    ],
)
def test_variables_of_the_template_are_those_that_vllm_hands_on(
    fields: dict[str, Any], kwargs: dict[str, Any]
) -> None:
    assert chat(**fields).template_kwargs == kwargs


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, NoTokens.MEDIA),
        ({"messages": [{"role": "user", "content": [{"image_url": "x"}]}]}, NoTokens.MEDIA),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, NoTokens.MEDIA),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "uuid": 1}]}]},
            NoTokens.MEDIA,
        ),
        ({"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, NoTokens.MEDIA),
        ({"messages": [USER] * (MESSAGES_MAX + 1)}, NoTokens.TOO_LARGE),
        (
            {"messages": [{"role": "user", "content": "x" * (PROMPT_CHARACTERS_MAX + 1)}]},
            NoTokens.TOO_LARGE,
        ),
        ({"prompt_embeds": "x"}, NoTokens.UNSUPPORTED),
        ({"chat_template_kwargs": {"tools": []}}, NoTokens.UNSUPPORTED),
        ({"chat_template_kwargs": {"tokenize": True}}, NoTokens.UNSUPPORTED),
        ({"truncate_prompt_tokens": -1}, NoTokens.UNSUPPORTED),
        ({"truncate_prompt_tokens": 5}, NoTokens.UNSUPPORTED),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]},
            NoTokens.UNSUPPORTED,
        ),
    ],
)
def test_what_only_an_engine_can_do_has_a_name(fields: dict[str, Any], reason: NoTokens) -> None:
    with pytest.raises(NoTokensError) as refused:
        chat(**fields)
    assert refused.value.reason is reason


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": ["SECRET"]}, "messages"),
        ({"messages": [{"content": "SECRET"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages"),
        ({"messages": [{"role": "user", "content": [7]}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": "SECRET"}]}, "messages"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}]},
            "messages",
        ),
        ({"model": 7}, "model"),
        ({"tools": "SECRET"}, "tools"),
        ({"chat_template_kwargs": "SECRET"}, "chat_template_kwargs"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": "SECRET"}, "add_generation_prompt"),
        ({"truncate_prompt_tokens": "SECRET"}, "truncate_prompt_tokens"),
    ],
)
def test_what_no_engine_would_take_is_refused_without_what_it_says(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(PromptError) as refused:
        chat(**fields)
    assert refused.value.field == field
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("Hi", TextPrompt("m", "Hi")),
        (["Hi"], TextPrompt("m", "Hi")),
        ([1, 2], TokenPrompt("m", packed(1, 2))),
        ([[1, 2]], TokenPrompt("m", packed(1, 2))),
        ([], TokenPrompt("m", b"")),
    ],
)
def test_a_completion_is_a_text_or_token_ids(prompt: object, read: object) -> None:
    assert read_completion({"model": "m", "prompt": prompt}) == read


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (["a", "b"], NoTokens.SEVERAL_PROMPTS),
        ([[1], [2]], NoTokens.SEVERAL_PROMPTS),
        ("x" * (PROMPT_CHARACTERS_MAX + 1), NoTokens.TOO_LARGE),
        ([0] * (PROMPT_TOKENS_MAX + 1), NoTokens.TOO_LARGE),
    ],
)
def test_a_completion_of_which_there_are_no_tokens_says_why(
    prompt: object, reason: NoTokens
) -> None:
    with pytest.raises(NoTokensError) as refused:
        read_completion({"model": "m", "prompt": prompt})
    assert refused.value.reason is reason


@pytest.mark.parametrize("prompt", [None, 7, {}, [-1], [2**32], [1.5], [True], [None]])
def test_what_is_no_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(PromptError) as refused:
        read_completion({"model": "m", "prompt": prompt})
    assert refused.value.field == "prompt"


@pytest.mark.parametrize(
    ("truncation", "left"),
    [
        (None, packed(1, 2, 3)),
        (Truncation(4, True), packed(1, 2, 3)),
        (Truncation(2, True), packed(2, 3)),
        (Truncation(2, False), packed(1, 2)),
        (Truncation(0, True), b""),
    ],
)
def test_a_request_may_leave_less(truncation: Truncation | None, left: bytes) -> None:
    assert cut_off(packed(1, 2, 3), truncation) == left
