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
    read_completions,
    read_embeddings,
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
    "part",
    [
        IMAGE,
        {"image_url": "x"},
        {"type": "file"},
        {"type": "text", "text": "a", "uuid": 1},
        {"type": ["text"]},
    ],
)
def test_parts_that_are_no_text_are_said(part: dict[str, Any]) -> None:
    text = {"type": "text", "text": "a"}
    assert chat(messages=[USER, {"role": "user", "content": [text, part]}, USER]).has_media
    assert not chat(messages=[{"role": "user", "content": [text]}]).has_media


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("a", [TextPrompt("m", "a")]),
        (["a", "b"], [TextPrompt("m", "a"), TextPrompt("m", "b")]),
        ([1, 2], [TokenPrompt("m", packed(1, 2))]),
        ([[1], [2, 3]], [TokenPrompt("m", packed(1)), TokenPrompt("m", packed(2, 3))]),
    ],
)
def test_all_prompts_of_a_request_are_read(given: Any, prompts: list[Any]) -> None:
    assert read_completions({"model": "m", "prompt": given}) == prompts
    assert read_embeddings({"model": "m", "input": given}) == prompts


@pytest.mark.parametrize("field", ["input", "messages"])
def test_chats_of_which_an_embedding_is_asked_are_read(field: str) -> None:
    read = ChatPrompt("m", [USER], add_generation_prompt=False, template_kwargs={})
    asked = {"model": "m", "tools": [{"type": "function"}], "reasoning_effort": "low"}
    assert read_embeddings({**asked, field: [USER]}) == [read]
    assert read_embeddings({**asked, field: [[USER], [USER, USER]]}) == [
        read,
        read._replace(messages=[USER, USER]),
    ]
    opened = read_embeddings({**asked, field: [USER], "add_generation_prompt": True})
    assert opened == [read._replace(add_generation_prompt=True)]


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"input": None}, "input"), ({"input": [["a"]]}, "input"), ({"messages": ["x"]}, "messages")],
)
def test_embedding_of_nothing_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(PromptError) as refused:
        read_embeddings(fields)
    assert refused.value.field == field


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
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
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


def test_a_last_message_that_goes_on_opens_no_turn() -> None:
    """As SGLang has it, whose chats have no field for the latter."""
    found = chat(continue_final_message=True)
    assert (found.continue_final_message, found.add_generation_prompt) == (True, False)
