"""Prompts that an engine is compared by. They have what templates and tokenizers differ in."""

from collections.abc import Callable
from typing import Final

from tokens.prompt import ChatPrompt, TextPrompt

_TEXT: Final = (
    "Hello,  world!\n\n\tdef f(x):\n        return x ** 2  # 1234567 €\n"
    "Ünïcödé 日本語 العربية 🙂🙃 don't I'LL 3.14159\r\n"
    # Not normalized: marks behind their letters, and what stands for other characters.
    "Cafe\u0301 A\u030a \u1112\u1161\u11ab "
    "\u212b \ufb01n \uff21\uff11 \u00bd x\u00b2 \u2460 \u2167\n"
    # What tokenizers cut at: runs of digits, spaces, lines and signs, and letters beside them.
    "1 12 123 1234 a1b2c3 v2.0.1 1,000,000 0x1F\u0663\u0664 "
    "camelCase snake_case THE'S we\u2019re\n"
    "a b  c   d    e\u00a0f\u3000g\u200bh\tj\t\tk "
    "\n \n\n\n  l\r\r\n== != -> ... ((( ]]] <b>&amp;</b>\n"
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 "
    "\u0928\u092e\u0938\u094d\u0924\u0947 "
    "\u05e9\u05b8\u05dc\u05d5\u05b9\u05dd "
    "\u043f\u0440\u0438\u0432\u0435\u0442 "
    "\ud55c\uad6d\uc5b4 \U0001d54f "
    "\U0001f469\u200d\U0001f4bb \U0001f1eb\U0001f1f7 "
    "\u00ad\ufeff\ufffd\x7f https://a.b/c?d=e%20f\n"
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
