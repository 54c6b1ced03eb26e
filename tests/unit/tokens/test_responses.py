"""Requests of the Responses API become the chats that vLLM makes of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tokens.conversation import _tool
from tokens.prompt import ChatPrompt, NoTokens, NoTokensError, PromptError
from tokens.responses import read_response

VECTORS = Path(__file__).parents[2] / "vectors" / "responses" / "vllm-0.32.0.jsonl"
USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize("line", VECTORS.read_text().splitlines())
def test_the_chat_is_the_one_that_vllm_makes(line: str) -> None:
    said = json.loads(line)
    read = read_response(said["request"])
    tools = None if read.tools is None else [_tool(one) for one in read.tools]
    kwargs = {
        **read.template_kwargs,
        "add_generation_prompt": read.add_generation_prompt,
        "continue_final_message": read.continue_final_message,
    }
    assert (read.messages, tools, kwargs) == (said["messages"], said["tools"], said["kwargs"])


def test_the_tokenizer_adds_its_own_tokens() -> None:
    read = read_response({"model": "m", "input": "Hi"})
    assert read == ChatPrompt(
        "m", [USER], add_special_tokens=True, template_kwargs={}, is_response=True
    )


def test_media_are_said() -> None:
    image = {"type": "input_image", "image_url": "data:,"}
    assert read_response({"input": [{"role": "user", "content": [image]}]}).has_media


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_1"},
        {"previous_input_messages": []},
        {"prompt": {"id": "p"}},
        {"truncation": "auto"},
        {"prompt_embeds": "x"},
        {"tools": [{"type": "web_search"}]},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"type": "reasoning", "encrypted_content": "x"}]},
        {"input": [{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": ""}]},
        {"input": [{"type": "function_call", "namespace": "n", "name": "f", "arguments": ""}]},
        {"input": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "x"}]}]},
        {"input": [{"role": "assistant", "content": []}]},
    ],
)
def test_what_only_an_engine_knows_has_a_name(fields: dict[str, Any]) -> None:
    with pytest.raises(NoTokensError) as refused:
        read_response({"input": [USER], **fields})
    assert refused.value.reason is NoTokens.UNSUPPORTED


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"input": None}, "input"),
        ({"input": 7}, "input"),
        ({"input": ["SECRET"]}, "input"),
        ({"input": []}, "messages"),
        ({"input": [{"role": 7}]}, "messages"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": {}}]}, "messages"),
        ({"tools": "SECRET"}, "tools"),
        ({"tools": ["SECRET"]}, "tools"),
    ],
)
def test_what_no_engine_would_take_is_refused_without_what_it_says(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(PromptError) as refused:
        read_response({"input": [USER], **fields})
    assert refused.value.field == field
    assert "SECRET" not in str(refused.value)
