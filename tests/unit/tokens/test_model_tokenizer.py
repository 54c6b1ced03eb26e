"""A model's own files: what they make of prompts, and what is kept of it."""

import json
import os
import time
from array import array
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="the extra `text` is not installed")

from tests.model_directories import CHATML, byte_level, write_model
from tokens import model_tokenizer as module
from tokens.model_files import ModelFilesError, read_model_files
from tokens.model_tokenizer import ModelTokenizer
from tokens.prompt import ChatPrompt, NoTokens, NoTokensError, TextPrompt, Truncation

TURNS = [
    {"role": "user", "content": "the quick brown fox"},
    {"role": "assistant", "content": "jumps over the lazy dog"},
    {"role": "user", "content": "and then?"},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def read(path: Path) -> ModelTokenizer:
    return ModelTokenizer.read(path, time.monotonic)


def made(tokenizer: ModelTokenizer, prompt: ChatPrompt | TextPrompt) -> tuple[list[int], int]:
    content, reused = tokenizer.tokens_of(tokenizer.text_of(prompt, "vLLM", 5.0), prompt)
    return list(array("I", content)), reused


def whole(text: str) -> list[int]:
    found: list[int] = byte_level().encode(text, add_special_tokens=False).ids
    return found


def rendered(messages: list[dict[str, str]]) -> str:
    said = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return said + "<|im_start|>assistant\n"


def test_a_turn_makes_tokens_of_what_is_new_alone(path: Path) -> None:
    tokenizer = read(path)
    assert tokenizer.cut == "<|im_start|>"
    first, _ = made(tokenizer, ChatPrompt("m", TURNS[:1]))
    assert first == whole(rendered(TURNS[:1]))
    again, reused = made(tokenizer, ChatPrompt("m", TURNS[:1]))
    assert (again, reused) == (first, len(first))
    longer, reused = made(tokenizer, ChatPrompt("m", TURNS))
    assert longer == whole(rendered(TURNS))
    assert reused == len(first)  # the opened turn of the assistant, too, stands at the end


@pytest.mark.parametrize(
    ("added", "text"),
    [
        ({"added_tokens_decoder": {"90000": {"content": "<new>", "special": True}}}, "a <new> b"),
        ({"added_tokens_decoder": {"90000": {"content": "wordy"}}}, "a WORDY b"),
        ({"additional_special_tokens": ["<new>"]}, "<new>"),
        ({"extra_special_tokens": {"image_token": "<new>"}}, "a<new>"),
        ({"pad_token": "<new>"}, "a<new>"),
        (
            {"added_tokens_decoder": {"1": {"content": "<|im_start|>", "lstrip": True}}},
            "<|im_start|>",
        ),
    ],
)
def test_tokens_that_only_engines_know_are_theirs_to_find(
    path: Path, added: dict[str, object], text: str
) -> None:
    config = path / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | added))
    tokenizer = read(path)
    assert made(tokenizer, TextPrompt("m", "a new b"))[0] == whole("a new b")
    with pytest.raises(NoTokensError) as raised:
        made(tokenizer, TextPrompt("m", text))
    assert raised.value.reason is NoTokens.UNSUPPORTED


def test_tokens_that_both_files_have_alike_are_made_here(path: Path) -> None:
    tokens = json.loads((path / "tokenizer.json").read_text())["added_tokens"]
    config = path / "tokenizer_config.json"
    said = {"added_tokens_decoder": {str(one["id"]): one for one in tokens}}
    config.write_text(json.dumps(json.loads(config.read_text()) | said))
    assert made(read(path), ChatPrompt("m", TURNS))[0] == whole(rendered(TURNS))


def test_a_tenant_is_told_nothing_of_what_another_has_sent(path: Path) -> None:
    tokenizer = read(path)
    prompt = ChatPrompt("m", TURNS)
    text = tokenizer.text_of(prompt, "vLLM", 5.0)
    content, _ = tokenizer.tokens_of(text, prompt, "one")
    assert tokenizer.new_characters(text, "one") == 0
    assert tokenizer.new_characters(text, "two") == len(text)
    assert tokenizer.tokens_of(text, prompt, "two") == (content, 0)
    assert tokenizer.tokens_of(text, prompt, "two") == (content, len(content) // 4)


def test_what_is_kept_is_bounded_and_the_oldest_goes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = read(path)
    monkeypatch.setattr(module, "KEPT_BYTES_MAX", 4000)
    for turn in range(20):
        made(tokenizer, ChatPrompt("m", [{"role": "user", "content": f"number {turn}"}]))
        assert tokenizer.kept_bytes <= 4000
    last = ChatPrompt("m", [{"role": "user", "content": "number 19"}])
    assert made(tokenizer, last)[1] == len(made(tokenizer, last)[0])
    first = ChatPrompt("m", [{"role": "user", "content": "number 0"}])
    assert made(tokenizer, first)[1] < len(made(tokenizer, first)[0])


def test_a_piece_that_is_too_large_is_not_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = read(path)
    monkeypatch.setattr(module, "KEPT_PIECE_BYTES_MAX", 2000)
    large = ChatPrompt("m", [{"role": "user", "content": "dog " * 2000}])
    made(tokenizer, large)
    assert made(tokenizer, large)[1] < 20


def test_a_completion_has_the_special_tokens_that_the_tokenizer_adds(tmp_path: Path) -> None:
    tokenizer = read(write_model(tmp_path / "bos", bos=True))
    assert made(tokenizer, TextPrompt("m", "the fox"))[0] == [0, *whole("the fox")]
    assert made(tokenizer, TextPrompt("m", "the fox", False))[0] == whole("the fox")
    cut = TextPrompt("m", "the fox", truncation=Truncation(1, False))
    assert made(tokenizer, cut)[0] == [0]
    assert made(tokenizer, ChatPrompt("m", TURNS))[0] == whole(rendered(TURNS))


def test_without_a_token_to_cut_at_the_whole_is_made_each_time(tmp_path: Path) -> None:
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    tokenizer = read(write_model(tmp_path / "plain", template=plain))
    assert tokenizer.cut == ""
    made(tokenizer, ChatPrompt("m", TURNS[:1]))
    assert made(tokenizer, ChatPrompt("m", TURNS))[1] == 0


def test_special_tokens_are_variables_of_the_template(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m", template="{{ bos_token }}{{ eos_token }}{{ pad_token }}|")
    (path / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": "older", "pad_token": {"content": "P"}})
    )
    assert read(path).text_of(ChatPrompt("m", TURNS), "", 1.0) == "<s></s>P|"


@pytest.mark.parametrize(
    ("template", "prompt", "reason"),
    [
        ("{{ raise_exception('SECRET') }}", ChatPrompt("m", TURNS), NoTokens.TEMPLATE),
        ("{{ messages.a.b }}", ChatPrompt("m", TURNS), NoTokens.TEMPLATE),
        ("", ChatPrompt("m", TURNS), NoTokens.TEMPLATE),
        (CHATML, ChatPrompt("m", TURNS, chat_template="x"), NoTokens.UNSUPPORTED),
    ],
)
def test_a_prompt_that_is_refused_has_a_reason_and_none_of_its_words(
    tmp_path: Path, template: str, prompt: ChatPrompt, reason: NoTokens
) -> None:
    tokenizer = read(write_model(tmp_path / "m", template=template))
    with pytest.raises(NoTokensError) as refused:
        tokenizer.text_of(prompt, "vLLM", 1.0)
    assert refused.value.reason is reason
    assert "SECRET" not in str(refused.value)


def test_of_several_templates_the_one_for_tools_is_taken_where_there_are_any(path: Path) -> None:
    (path / "chat_template.jinja").unlink()
    config = json.loads((path / "tokenizer_config.json").read_text())
    named = [("default", "plain"), ("tool_use", "tools"), ("rag", "{% no")]
    config["chat_template"] = [{"name": name, "template": text} for name, text in named]
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = read(path)
    assert tokenizer.text_of(ChatPrompt("m", TURNS), "", 1.0) == "plain"
    with_tools = ChatPrompt("m", TURNS, [{"function": {"name": "f"}}])
    assert tokenizer.text_of(with_tools, "", 1.0) == "tools"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("tokenizer.json", "{}", "expected a tokenizer in tokenizer.json"),
        ("tokenizer.json", "no json", "expected a tokenizer in tokenizer.json"),
        ("tokenizer.json", None, "expected the file tokenizer.json in"),
        ("tokenizer_config.json", "[]", "expected a JSON object in"),
        ("tokenizer_config.json", "{", "expected JSON in"),
        ("tokenizer_config.json", "[" * 100_000, "expected JSON in"),
        ("tokenizer_config.json", b"\xff", "expected UTF-8 in"),
        ("chat_template.jinja", "{% no", "the chat template cannot be used"),
        ("chat_template.jinja", "x" * (2 << 20), "cannot read"),
    ],
)
def test_files_that_cannot_be_used_say_what_was_expected(
    path: Path, name: str, content: str | bytes | None, expected: str
) -> None:
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ModelFilesError, match=expected):
        read(path)


def test_what_is_no_directory_or_no_file_is_refused(tmp_path: Path, path: Path) -> None:
    with pytest.raises(ModelFilesError, match="expected the directory of a model"):
        read_model_files(tmp_path / "missing")
    (path / "tokenizer.json").unlink()
    os.mkfifo(path / "tokenizer.json")
    with pytest.raises(ModelFilesError, match="cannot read"):
        read_model_files(path)
