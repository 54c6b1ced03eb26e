"""The files of a model that text is made tokens by, as Hugging Face's hub has them.

tokenizer.json           the tokenizer
tokenizer_config.json    special tokens by name, and often the chat template
special_tokens_map.json  special tokens by name, of older models
chat_template.jinja      the chat template, where it is a file of its own
chat_template.json       likewise, of models with images
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from schemas.causes import cause_of
from schemas.errors import RepriseError
from schemas.limits import MIB
from storage.files import read_file

TOKENIZER_BYTES_MAX: Final = 128 * MIB  # of tokenizer.json; a quarter of a million tokens have 35
CONFIG_BYTES_MAX: Final = 8 * MIB  # of each other file
TEMPLATE_BYTES_MAX: Final = MIB  # of a chat template; that of a large model has 20 KiB

_ADDED: Final = ("additional_special_tokens", "extra_special_tokens")
_NAMED: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


class ModelFilesError(RepriseError):
    """The files of a model cannot be used.

    Operator action: name the model's directory in `tokens`, with the files that its hub page has.
    """


class TokenFlags(NamedTuple):
    """How an added token is found in a text; see `tokenizers.AddedToken`."""

    single_word: bool
    lstrip: bool
    rstrip: bool
    normalized: bool


class ModelFiles(NamedTuple):
    """What was read.

    Attributes:
        tokenizer: the text of tokenizer.json.
        template: that chats are rendered by; "" for none.
        tool_template: that is used instead where there are tools; "" for the same.
        special_tokens: the template's variables for them, by name.
        splits_special_tokens: whether special tokens in a text are text.
        added_tokens: texts that other files than tokenizer.json make a token of, with how each is
            found in a text (`TokenFlags`); None where they do not say that.
    """

    tokenizer: str
    template: str
    tool_template: str
    special_tokens: Mapping[str, str]
    splits_special_tokens: bool
    added_tokens: "Mapping[str, TokenFlags | None]" = MappingProxyType({})


def read_model_files(path: Path) -> ModelFiles:
    """Reads the directory of a model.

    Raises:
        ModelFilesError: there is none, or a file in it is not what it should be.
    """
    if not path.is_dir():
        raise ModelFilesError(f"expected the directory of a model, got: {path}")
    tokenizer = _read(path / "tokenizer.json", TOKENIZER_BYTES_MAX)
    if not tokenizer:
        raise ModelFilesError(f"expected the file tokenizer.json in {path}, found none")
    config = _read_object(path / "tokenizer_config.json")
    named = _read_object(path / "special_tokens_map.json") | config
    templates = _templates(path, config)
    return ModelFiles(
        tokenizer,
        templates.get("default", ""),
        templates.get("tool_use", ""),
        {name: text for name, value in named.items() if (text := _special(name, value))},
        config.get("split_special_tokens") is True,
        _added_tokens(named),
    )


def _added_tokens(config: Mapping[str, Any]) -> dict[str, TokenFlags | None]:
    """Source: transformers 5, which adds them to the tokenizer."""
    found: dict[str, TokenFlags | None] = {}
    for name, value in config.items():
        if name == "added_tokens_decoder" or name in _ADDED:
            several = value.values() if isinstance(value, Mapping) else value
            tokens = list(several) if isinstance(several, Iterable) else []
        else:
            tokens = [value] if _special(name, value) else []
        for one in tokens:
            flags = None
            if isinstance(one, Mapping) and name == "added_tokens_decoder":
                flags = TokenFlags(*(one.get(flag) is True for flag in TokenFlags._fields))
            content = one.get("content") if isinstance(one, Mapping) else one
            if isinstance(content, str) and content:
                found[content] = flags or found.get(content)
    return found


def _templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """By name; a file of its own wins."""
    found = config.get("chat_template")
    if isinstance(found, list):
        named = {
            str(one.get("name")): str(one.get("template"))
            for one in found
            if isinstance(one, Mapping)
        }
    else:
        named = {"default": found} if isinstance(found, str) else {}
    of_processor = _read_object(path / "chat_template.json").get("chat_template")
    if isinstance(of_processor, str):
        named = {"default": of_processor}
    own = _read(path / "chat_template.jinja", TEMPLATE_BYTES_MAX)
    if own:
        named = {"default": own}
        more = _read(path / "additional_chat_templates" / "tool_use.jinja", TEMPLATE_BYTES_MAX)
        if more:
            named["tool_use"] = more
    for name, text in named.items():
        if len(text) > TEMPLATE_BYTES_MAX:
            raise ModelFilesError(
                f"expected a chat template of at most {TEMPLATE_BYTES_MAX} characters, got"
                f" {len(text)} in the one called {name[:40]} of {path}"
            )
    return named


def _special(name: str, value: object) -> str:
    if name not in _NAMED and not name.endswith("_token"):
        return ""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _read_object(path: Path) -> dict[str, Any]:
    text = _read(path, CONFIG_BYTES_MAX)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFilesError(f"expected JSON in {path}, found something else") from error
    if not isinstance(found, dict):
        raise ModelFilesError(f"expected a JSON object in {path}, found something else")
    return found


def _read(path: Path, bytes_max: int) -> str:
    """The text of a file; "" where there is none."""
    try:
        return read_file(path, bytes_max).decode()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ModelFilesError(f"cannot read {path}: {cause_of(error)}") from error
    except UnicodeDecodeError as error:
        raise ModelFilesError(f"expected UTF-8 in {path}, found something else") from error
