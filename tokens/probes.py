"""Prompts that an engine is compared by. They have what templates and tokenizers differ in."""

from collections.abc import Callable
from typing import Final

from tokens.prompt import ChatPrompt, TextPrompt

_TEXT: Final = (
    "Hello,  world!\n\n\tdef f(x):\n        return x ** 2  # 1234567 €\n"
    "Ünïcödé 日本語 العربية 🙂🙃 don't I'LL 3.14159\r\n"
)


def _short(model: str) -> ChatPrompt:
    return ChatPrompt(model, [{"role": "user", "content": "Hi"}])


def _long(model: str) -> ChatPrompt:
    messages = [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": _TEXT},
        {"role": "assistant", "content": " Trimmed? "},
        {"role": "user", "content": "And now\n"},
    ]
    return ChatPrompt(model, messages)


def _response(model: str) -> ChatPrompt:
    return _long(model)._replace(add_special_tokens=True, is_response=True)


def _text(model: str) -> TextPrompt:
    return TextPrompt(model, _TEXT)


PROBES: Final[tuple[Callable[[str], ChatPrompt | TextPrompt], ...]] = (
    _short,
    _long,
    _response,
    _text,
)
"""Each makes one of a model. Chats come first: most requests are chats."""
