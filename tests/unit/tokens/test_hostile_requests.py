"""Requests of any JSON: they are read, or refused by an error of this room."""

import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="the extra `text` is not installed")

from tests.model_directories import write_model
from tokens.engine_tokenizer import question
from tokens.model_tokenizer import ModelTokenizer
from tokens.prompt import (
    ChatPrompt,
    NoTokensError,
    PromptError,
    read_chat,
    read_completion,
    read_embeddings,
)
from tokens.responses import read_response

TEMPLATE = (
    "{{ bos_token }}{{ tools | tojson }}{{ documents }}{% for m in messages %}<|im_start|>"
    "{{ m.role }}{{ m.name }}{% if m.content is string %}{{ m.content | trim }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c | tojson }}{% endfor %}{% endfor %}"
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "input_text", "refusal", "thinking", "image_url", 7])},
    optional={"text": VALUES, "refusal": st.text(), "thinking": st.text(), "uuid": VALUES},
)
CALLS = st.fixed_dictionaries(
    {},
    optional={
        "id": VALUES,
        "type": VALUES,
        "function": st.fixed_dictionaries(
            {}, optional={"name": VALUES, "arguments": st.text(max_size=8) | VALUES, "x": VALUES}
        )
        | VALUES,
    },
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "", 7])},
    optional={
        "content": st.text() | st.lists(PARTS | st.text(), max_size=3) | VALUES,
        "tool_calls": st.lists(CALLS, max_size=2) | VALUES,
        "name": VALUES,
        "reasoning": VALUES,
        "reasoning_content": VALUES,
        "tools": VALUES,
        "task": VALUES,
    },
)
CHATS = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES, max_size=4) | VALUES},
    optional={
        "model": VALUES,
        "tools": st.lists(st.dictionaries(st.sampled_from(["type", "function"]), VALUES)) | VALUES,
        "documents": VALUES,
        "chat_template": VALUES,
        "chat_template_kwargs": VALUES,
        "reasoning_effort": VALUES,
        "add_generation_prompt": VALUES,
        "continue_final_message": VALUES,
        "add_special_tokens": VALUES,
        "truncate_prompt_tokens": VALUES,
        "truncation_side": VALUES,
    },
)
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["message", "reasoning", "function_call", "function_call_output", "item_reference"]
        )
        | VALUES,
        "role": st.sampled_from(["user", "assistant", "system"]) | VALUES,
        "content": VALUES | st.lists(st.fixed_dictionaries({"type": VALUES, "text": VALUES})),
        "summary": VALUES,
        "status": st.sampled_from(["in_progress", "completed"]) | VALUES,
        "name": VALUES,
        "arguments": VALUES,
        "output": VALUES,
        "call_id": VALUES,
    },
)
RESPONSES = st.fixed_dictionaries(
    {"input": st.lists(ITEMS, max_size=4) | VALUES},
    optional={
        "instructions": VALUES,
        "reasoning": VALUES,
        "tools": st.lists(st.fixed_dictionaries({"type": st.just("function")})) | VALUES,
        "truncation": VALUES,
        "chat_template_kwargs": VALUES,
    },
)
EMBEDDINGS = st.fixed_dictionaries(
    {},
    optional={
        "input": VALUES | st.lists(MESSAGES | st.lists(MESSAGES, max_size=2), max_size=3),
        "messages": VALUES | st.lists(MESSAGES | st.lists(MESSAGES, max_size=2), max_size=3),
        "add_generation_prompt": VALUES,
    },
)
COMPLETIONS = st.fixed_dictionaries({"prompt": VALUES | st.lists(st.integers(), max_size=4)})


@cache
def tokenizer() -> ModelTokenizer:
    with TemporaryDirectory() as folder:
        path = write_model(Path(folder) / "m", template=TEMPLATE)
        return ModelTokenizer.read(path, time.monotonic)


def made(prompt: ChatPrompt) -> None:
    for kind in ("vLLM", "SGLang"):
        try:
            text = tokenizer().text_of(prompt, kind, 60.0)
            tokenizer().tokens_of(text, prompt)
            question(prompt, kind)
        except NoTokensError:
            pass


@settings(max_examples=300, deadline=None)
@given(request=CHATS)
def test_a_chat_is_made_tokens_of_or_refused(request: dict[str, Any]) -> None:
    try:
        prompt = read_chat(request)
    except (PromptError, NoTokensError):
        return
    made(prompt)


@settings(max_examples=300, deadline=None)
@given(request=RESPONSES)
def test_a_response_is_made_tokens_of_or_refused(request: dict[str, Any]) -> None:
    try:
        prompt = read_response(request)
    except (PromptError, NoTokensError):
        return
    made(prompt)


@settings(max_examples=200, deadline=None)
@given(request=EMBEDDINGS)
def test_embeddings_are_read_or_refused(request: dict[str, Any]) -> None:
    try:
        prompts = read_embeddings(request)
    except (PromptError, NoTokensError):
        return
    assert prompts
    for prompt in prompts:
        if isinstance(prompt, ChatPrompt):
            made(prompt)


@settings(max_examples=200, deadline=None)
@given(request=COMPLETIONS)
def test_a_completion_is_read_or_refused(request: dict[str, Any]) -> None:
    try:
        read_completion(request)
    except (PromptError, NoTokensError):
        return
