"""Messages as engines hand them to the template. Each form of vLLM was seen at its server."""

from typing import Any, NamedTuple

import pytest

from tokens.conversation import variables_of
from tokens.prompt import ChatPrompt

CALL = {
    "type": "function",
    "id": "c1",
    "index": 0,
    "function": {"name": "f", "arguments": '{"b": 1, "a": "x"}', "more": 1},
}
CALLED = {
    "id": "c1",
    "function": {"arguments": {"b": 1, "a": "x"}, "name": "f", "more": 1},
    "type": "function",
    "index": 0,
}


class Form(NamedTuple):
    """See `TemplateForm`."""

    takes_parts: bool = False
    knows_developer: bool = False


PLAIN = Form()


def messages(
    *given: dict[str, Any], form: Form = PLAIN, kind: str = "vLLM"
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = variables_of(ChatPrompt("m", given), form, kind)["messages"]
    return found


def user(content: object, **more: object) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


@pytest.mark.parametrize(
    ("given", "as_text", "as_parts"),
    [
        (user("a"), "a", [{"type": "text", "text": "a"}]),
        (
            user([{"type": "text", "text": "a"}, "b"]),
            "a\nb",
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        ),
        (
            user([{"type": "input_text", "text": "a", "cache_control": 1}]),
            "a",
            [{"type": "text", "text": "a", "cache_control": 1}],
        ),
        (user([{"type": "refusal", "refusal": "no"}]), "no", [{"type": "text", "text": "no"}]),
        (user([{"type": "text", "text": None}]), "", []),
        (
            user(["", {"type": "text", "text": "a"}, {"type": "refusal", "refusal": ""}]),
            "a",
            [{"type": "text", "text": one} for one in ("", "a", "")],
        ),
        ({"role": "tool", "content": ["a", ""]}, "a", "a\n"),
        ({"role": "user"}, "", []),
        ({"role": "tool", "content": [{"type": "text", "text": "a"}]}, "a", "a"),
    ],
)
def test_contents_have_the_form_that_the_template_takes(
    given: dict[str, Any], as_text: object, as_parts: object
) -> None:
    assert messages(given) == [{"role": given["role"], "content": as_text}]
    assert messages(given, form=Form(takes_parts=True))[0]["content"] == as_parts


@pytest.mark.parametrize(
    ("given", "handed_on"),
    [
        (user("a", name="bob", foo=1), {"role": "user", "content": "a", "name": "bob"}),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
            {"role": "assistant", "content": "", "tool_calls": [CALLED]},
        ),
        (
            {"role": "assistant", "content": "x", "tool_calls": []},
            {"role": "assistant", "content": "x"},
        ),
        (
            {"role": "assistant", "content": "x", "reasoning_content": "why"},
            {"role": "assistant", "content": "x", "reasoning": "why", "reasoning_content": "why"},
        ),
        (
            {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "r", "x": 1},
            {"role": "tool", "content": "r", "tool_call_id": "c1", "name": "f"},
        ),
        (
            {"role": "weird", "content": "a", "tool_calls": [CALL]},
            {"role": "weird", "content": "a"},
        ),
    ],
)
def test_what_openai_does_not_declare_is_left_out(
    given: dict[str, Any], handed_on: dict[str, Any]
) -> None:
    (found,) = messages(given)
    assert list(found.items()) == list(handed_on.items())


def test_declared_fields_of_a_call_come_first_in_their_order() -> None:
    (found,) = messages({"role": "assistant", "tool_calls": [CALL]})
    (call,) = found["tool_calls"]
    assert (list(call), list(call["function"])) == (
        ["id", "function", "type", "index"],
        ["arguments", "name", "more"],
    )


@pytest.mark.parametrize("arguments", ["", "no json", "[1]", "7", "[" * 100_000])
def test_arguments_that_are_no_object_are_none(arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (found,) = messages({"role": "assistant", "tool_calls": [call]})
    assert found["tool_calls"][0]["function"]["arguments"] == {}


def test_a_developers_messages_join_the_systems_where_the_template_has_no_such_role() -> None:
    given = [
        {"role": "system", "content": "one"},
        user("a"),
        {"role": "developer", "content": [{"type": "text", "text": "two"}], "tools": None},
    ]
    joined = [{"role": "system", "content": "one\n\ntwo"}, user("a")]
    assert messages(*given) == joined
    assert messages(given[2], given[1])[0] == {"role": "system", "content": "two"}
    assert messages(given[1], given[2]) == [{"role": "system", "content": "two"}, user("a")]
    kept = messages(*given, form=Form(knows_developer=True))
    assert kept[2] == {"role": "developer", "content": "two", "tools": None}


def test_several_system_messages_stay_where_no_developer_speaks() -> None:
    given = [user("a"), {"role": "system", "content": "late"}]
    assert messages(*given) == given


@pytest.mark.parametrize(
    ("content", "left"),
    [
        ("x-anthropic-billing-header: cch=1\nrest", "rest"),
        ("x-anthropic-billing-header: cch=1", ""),
        ([{"type": "text", "text": "x-anthropic-billing-header: 1\na"}, "b"], "a\nb"),
        ("say x-anthropic-billing-header", "say x-anthropic-billing-header"),
    ],
)
def test_a_line_that_changes_with_each_request_is_left_out(content: object, left: str) -> None:
    assert messages({"role": "system", "content": content})[0]["content"] == left
    assert messages(user("x-anthropic-billing-header: 1"))[0]["content"]


TOOL = {
    "function": {"parameters": {"z": 1, "a": 2}, "name": "f", "x": 1, "strict": True},
    "type": "function",
    "cache": 1,
}


def test_tools_are_written_as_vllm_declares_them() -> None:
    prompt = ChatPrompt("m", [user("a")], [TOOL, {"function": {"name": "g"}}])
    first, second = variables_of(prompt, Form(), "vLLM")["tools"]
    assert list(first["function"].items()) == [
        ("name", "f"),
        ("description", None),
        ("parameters", {"z": 1, "a": 2}),
        ("strict", True),
    ]
    assert second == {
        "type": "function",
        "function": {"name": "g", "description": None, "parameters": None},
    }


def test_sglang_has_its_own_ways() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages(user(parts, name=None), kind="SGLang") == [user("a b")]
    assert messages(user("a"), form=Form(takes_parts=True), kind="SGLang") == [user("a")]
    assert messages(user(parts), form=Form(takes_parts=True), kind="SGLang") == [user(parts)]
    assert messages({"role": "assistant"}, kind="SGLang")[0]["content"] == ""
    prompt = ChatPrompt("m", [user("a")], [TOOL], tool_choice="none")
    assert variables_of(prompt, Form(), "SGLang")["tools"] is None
    assert variables_of(prompt, Form(), "vLLM")["tools"] is not None
