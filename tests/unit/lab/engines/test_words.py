"""The model of words: a tokenizer of the field makes the same tokens of a chat."""

import json
from pathlib import Path

import pytest

from lab.engines import words

CHAT = [
    {"role": "system", "content": words.text_of([0, 1, words.VOCABULARY - 1])},
    {"role": "user", "content": "w5 w6"},
    {"role": "assistant", "content": "w7"},
    {"role": "user", "content": "w8 nothing w32000"},
]


def test_tokenizer_of_the_field_makes_the_same_tokens(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra `text` is not installed")
    jinja2 = pytest.importorskip("jinja2", reason="the extra `text` is not installed")
    words.write_model(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    template = jinja2.Template(config["chat_template"])
    text = template.render(messages=CHAT, add_generation_prompt=True)
    found = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(text).ids
    assert found == words.chat_tokens(CHAT)
    assert found.count(words.VOCABULARY) == 2, "unknown words"


def test_next_turn_goes_on_from_prompt_and_answer() -> None:
    prompt = words.chat_tokens(CHAT)
    answer = words.answer_of(prompt, 9)
    assert answer == words.answer_of(prompt, 9)
    assert answer != words.answer_of(prompt[1:-1], 9)
    said = [{"role": "assistant", "content": words.text_of(answer)}]
    further = words.chat_tokens([*CHAT, *said, {"role": "user", "content": "w1"}])
    assert further[: len(prompt) + len(answer)] == prompt + answer
