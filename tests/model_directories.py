"""Small tokenizers of every make, and directories of models that have them. Needs `tokenizers`."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CHATML: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL: Final = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<unk>")
TEXT: Final = (
    "the quick brown fox jumps over the lazy dog and then it went on to say what it had seen",
    "def f(x):\n    return x + 1\n\n\tpass  # a comment",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich, 1234567890 times",
    "user assistant system tool says hello world",
)


def byte_level(*, prefix_space: bool = False, split: str = "") -> Tokenizer:
    """As GPT, Llama 3 and Qwen have it."""
    made = Tokenizer(models.BPE())
    steps: list[Any] = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=not split))
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    return _trained(made, trainers.BpeTrainer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def sentence_piece(scheme: str) -> Tokenizer:
    """As Gemma and newer Mistral have it: Metaspace, which may count where a text begins."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return _trained(made, trainers.UnigramTrainer, unk_token="<unk>")


def prepended() -> Tokenizer:
    """As Llama 2 has it: a normalizer puts a space before each text."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return _trained(made, trainers.BpeTrainer)


def word_piece() -> Tokenizer:
    """As BERT has it: lower case, accents off."""
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _trained(made, trainers.WordPieceTrainer)


def composed() -> Tokenizer:
    """With normalizers that look at more than one character."""
    made = byte_level()
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    return made


def _trained(made: Tokenizer, trainer: Any, **options: Any) -> Tokenizer:
    made.train_from_iterator(
        TEXT, trainer(vocab_size=600, special_tokens=list(SPECIAL), show_progress=False, **options)
    )
    return made


def odd(added: Sequence[AddedToken], made: Tokenizer | None = None) -> Tokenizer:
    """With more added tokens."""
    made = byte_level() if made is None else made
    made.add_tokens(list(added))
    return made


def all_makes() -> Iterator[tuple[str, Tokenizer]]:
    """By name."""
    digits = r"\p{N}{1,3}|[^\r\n\p{L}\p{N}]?\p{L}+|\s*[\r\n]+|\s+(?!\S)|\s+"
    yield "byte level", byte_level()
    yield "byte level with a prefix", byte_level(prefix_space=True)
    yield "split by a pattern", byte_level(split=digits)
    for scheme in ("first", "always", "never"):
        yield f"metaspace, {scheme}", sentence_piece(scheme)
    yield "prepended", prepended()
    yield "word piece", word_piece()
    yield "composed", composed()
    yield (
        "takes spaces",
        odd(
            [
                AddedToken("<mask>", lstrip=True, normalized=False),
                AddedToken("<sep>", rstrip=True, normalized=False),
                AddedToken("<|im_start|>s", normalized=False),
            ]
        ),
    )
    yield "looked for after", odd([AddedToken("hello", normalized=True, lstrip=True)], prepended())
    yield (
        "looked for in what is normalized",
        odd([AddedToken("lazy", normalized=True)], prepended()),
    )
    yield "whole words", odd([AddedToken("fox", single_word=True, normalized=False)])
    yield "overlapping", odd([AddedToken("x<|im_", normalized=False)])
    yield "in the middle", odd([AddedToken("a<|im_start|>b", normalized=False)])
    yield "greedy", odd([AddedToken("<|im_start|>q", normalized=False, lstrip=True)])


def write_model(
    path: Path, made: Tokenizer | None = None, *, template: str = CHATML, bos: bool = False
) -> Path:
    """The directory of a model, as Hugging Face's hub has it."""
    path.mkdir(parents=True, exist_ok=True)
    made = byte_level() if made is None else made
    if bos:
        first = made.token_to_id("<s>")
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", first)]
        )
    (path / "tokenizer.json").write_text(made.to_str())
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "chat_template.jinja").write_text(template)
    return path
