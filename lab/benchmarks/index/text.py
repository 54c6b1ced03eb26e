"""Text to tokens: what a turn of a conversation costs of which all but the last is known.

With a byte-level BPE that is trained on the documents, and a template as Qwen has it. CPU of the
thread, from the request's bytes to what the index takes; each run is the mean of many turns.
"""

import json
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import thread_time
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import Sizes
from tokens.model_tokenizer import ModelTokenizer
from tokens.prompt import read_chat

RUNS: Final = 5
TURNS: Final = 20
LENGTHS: Final = (8,)
VOCABULARY: Final = 4096
TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CHARACTERS_OF_TURN: Final = 800
_US: Final = 1e6


def measure(sizes: Sizes) -> list[Figure]:
    texts = [path.read_text() for path in sorted(Path("docs").glob("*.md"))]
    corpus = "".join(texts)
    with TemporaryDirectory() as folder:
        _write_model(Path(folder), texts)
        return [figure for length in LENGTHS for figure in _of_length(Path(folder), corpus, length)]


def _write_model(path: Path, texts: Sequence[str]) -> None:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=["<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    (path / "tokenizer.json").write_text(made.to_str())
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))


def _conversation(corpus: str, turns: int, salt: int) -> list[dict[str, Any]]:
    start = salt * 997 % max(len(corpus) - turns * _CHARACTERS_OF_TURN, 1)
    texts = (
        corpus[start + n * _CHARACTERS_OF_TURN : start + (n + 1) * _CHARACTERS_OF_TURN]
        for n in range(turns)
    )
    return [
        {"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(texts)
    ]


def _of_length(path: Path, corpus: str, thousands: int) -> list[Figure]:
    corpus *= 1 + thousands * 8192 // len(corpus)
    cold, turn, sizes = [], [], []
    for run in range(RUNS):
        tokenizer = ModelTokenizer.read(path, time.monotonic)
        messages = _conversation(corpus, 2, run)
        while sizes_of(tokenizer, messages) < thousands * 1000:
            messages = _conversation(corpus, len(messages) + 4 * thousands // 8, run)
        fresh = ModelTokenizer.read(path, time.monotonic)
        cold.append(_seconds(fresh, messages) * _US)
        seconds = []
        for n in range(TURNS):
            messages = [
                *messages,
                {"role": "assistant", "content": corpus[n * 211 : n * 211 + 200]},
                {"role": "user", "content": f"{n}: {corpus[n * 307 : n * 307 + 200]}"},
            ]
            seconds.append(_seconds(fresh, messages))
        turn.append(mean(seconds) * _US)
        sizes.append(float(sizes_of(fresh, messages)))
    named = f"{thousands}K tokens"
    return [
        Figure(name=f"a conversation of {named}, all new", unit="us CPU", runs=cold),
        Figure(
            name=f"a further turn of {named}",
            unit="us CPU",
            runs=turn,
            note="JSON, the template and the last two messages of 200 characters each",
        ),
        Figure(name=f"the conversation of {named} at its end", unit="tokens", runs=sizes),
    ]


def sizes_of(tokenizer: ModelTokenizer, messages: list[dict[str, Any]]) -> int:
    """How many tokens it has."""
    prompt = read_chat({"model": "m", "messages": messages})
    content, _ = tokenizer.tokens_of(tokenizer.text_of(prompt, "vLLM", 60.0), prompt)
    return len(content) // 4


def _seconds(tokenizer: ModelTokenizer, messages: list[dict[str, Any]]) -> float:
    """CPU of the way from a request's bytes to token ids as the index takes them."""
    body = msgspec.json.encode({"model": "m", "messages": messages})
    started = thread_time()
    prompt = read_chat(msgspec.json.decode(body))
    content, _ = tokenizer.tokens_of(tokenizer.text_of(prompt, "vLLM", 60.0), prompt)
    spent = thread_time() - started
    assert array("I", content)
    return spent
