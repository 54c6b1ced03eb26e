"""A model whose tokens are words, as text and as the files of its tokenizer.

Token N is the word `wN`; each message of a chat begins with a token for its role. So a tokenizer of
the field makes the same tokens of a text as a line of Python. What the model answers follows from
the prompt alone, whatever engine computes it: a client knows the next turn of a conversation.
"""

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, Final
from zlib import crc32

VOCABULARY: Final = 32_000
ROLES: Final = ("system", "user", "assistant")
UNKNOWN: Final = "<unk>"
TEMPLATE: Final = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_WORDS: Final = {f"w{token}": token for token in range(VOCABULARY)}
_UNKNOWN_TOKEN: Final = VOCABULARY
_ROLE_TOKENS: Final = {role: _UNKNOWN_TOKEN + place for place, role in enumerate(ROLES, 1)}
_ANSWER_FOLLOWS: Final = 64
"""Tokens at the end of a prompt that its answer follows from."""

Message = Mapping[str, str]


def text_of(tokens: Iterable[int]) -> str:
    """The words of tokens that are no roles."""
    return " ".join(f"w{token}" for token in tokens)


@lru_cache(maxsize=4096)
def word_tokens(text: str) -> Sequence[int]:
    """The tokens of a text without roles."""
    return tuple(_WORDS.get(word, _UNKNOWN_TOKEN) for word in text.split())


def chat_tokens(messages: Iterable[Message]) -> list[int]:
    """The prompt that is made of a chat: the answer comes behind the last token."""
    parts = ((_ROLE_TOKENS[one["role"]], *word_tokens(one["content"])) for one in messages)
    return [*chain.from_iterable(parts), _ROLE_TOKENS["assistant"]]


def answer_of(prompt: Sequence[int], size: int) -> list[int]:
    """So many tokens that the model answers."""
    seed = crc32(array("I", prompt[-_ANSWER_FOLLOWS:]).tobytes())
    return Random(seed).choices(range(VOCABULARY), k=size)


def write_model(folder: Path) -> None:
    """The files of the tokenizer, as a model's directory has them."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = _WORDS | {UNKNOWN: _UNKNOWN_TOKEN}
    added: list[dict[str, Any]] = []
    for role, token in _ROLE_TOKENS.items():
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added.append({"id": token, "content": f"<|{role}|>", **flags, "special": True})
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": UNKNOWN}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": model,
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    architecture = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": len(vocabulary) + len(ROLES),
        "max_position_embeddings": 1 << 17,
    }
    for name, content in (
        ("tokenizer.json", document),
        ("tokenizer_config.json", config),
        ("config.json", architecture),
    ):
        (folder / name).write_text(json.dumps(content))
