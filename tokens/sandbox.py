"""Jinja's sandbox, in which one expression makes no more text than a prompt may have.

Jinja bounds `range` alone: `"a" * 10**10` takes 10 GB, at the first rendering. Bounded are the
operators, what pads, formats, wraps and fills up, and what is put together of many texts, before it
is: `~`, `join`, and what a macro or a block has made.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from jinja2 import pass_environment, pass_eval_context
from jinja2.filters import FILTERS, make_attrgetter, sync_do_slice
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokens.bounds import PROMPT_CHARACTERS_MAX
from tokens.rendering_errors import TemplateError

RENDERING_BITS_MAX: Final = 4096  # of a number

_PADDING: Final = frozenset({"center", "ljust", "rjust", "zfill"})
_WIDE: Final = re.compile(r"[0-9]{7}|%[^%a-zA-Z]*\*|\{[^{}]*\{")
"""A width of seven digits, or one that an argument says."""


def joined(texts: Iterable[Any], separator: str = "") -> str:
    """The texts in one.

    Raises:
        TemplateError: it would be more than a prompt may have.
    """
    found: list[str] = []
    size = -len(separator)
    for one in texts:
        found.append(str(one))
        size += len(found[-1]) + len(separator)
        _check(size)
    return separator.join(found)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """See the module."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    concat = staticmethod(joined)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.globals["lipsum"]
        self.filters["batch"] = _batched
        self.filters["slice"] = _sliced
        self.filters["join"] = _joined
        self.filters["replace"] = _replaced
        self.filters["sum"] = _summed
        self.filters["wordwrap"] = _wrapped
        self.filters["center"] = _centered
        self.filters["indent"] = _indented
        self.filters["format"] = _formatted

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """See `SandboxedEnvironment`."""
        if operator == "+":
            if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
                _check(len(left) + len(right))
        elif operator == "*":
            _check_product(left, right)
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() * right)
        elif isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **named: Any) -> Any:
        """See `SandboxedEnvironment`."""
        method = getattr(obj, "__wrapped__", obj)  # as Jinja hands out `format`
        text = getattr(method, "__self__", None)
        if isinstance(text, str):
            name = method.__name__
            if name in _PADDING and args and isinstance(args[0], int):
                _check(args[0])
            elif name == "expandtabs":
                _check(text.count("\t") * max((*args, *named.values(), 8)))
            elif name == "replace" and len(args) > 1:
                _check(text.count(str(args[0])) * len(str(args[1])))
            elif name in ("format", "format_map"):
                _check_format(text)
            elif name == "join" and args:
                return joined(args[0], text)
        return super().call(context, obj, *args, **named)


def _check(size: int) -> None:
    if size > PROMPT_CHARACTERS_MAX:
        text = f"the chat template makes more than {PROMPT_CHARACTERS_MAX} characters"
        raise TemplateError(text)


def _check_bits(size: int) -> None:
    if size > RENDERING_BITS_MAX:
        raise TemplateError(
            f"the chat template makes a number of more than {RENDERING_BITS_MAX} bits"
        )


def _check_product(left: Any, right: Any) -> None:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | list | tuple) and isinstance(other, int):
            _check(len(one) * other)
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise TemplateError("the chat template formats with a width that is not bounded")


def _centered(value: str, width: int = 80) -> str:
    _check(width)
    found: str = FILTERS["center"](value, width)
    return found


def _indented(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    size = width if isinstance(width, int) else len(width)
    _check((s.count("\n") + 1) * size)
    found: str = FILTERS["indent"](s, width, first, blank)
    return found


def _formatted(value: str, *args: Any, **named: Any) -> str:
    _check_format(value)
    found: str = FILTERS["format"](value, *args, **named)
    return found


@pass_eval_context
def _joined(
    context: EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    return joined(value, str(d))


@pass_eval_context
def _replaced(context: EvalContext, s: str, old: str, new: str, count: int | None = None) -> str:
    _check(str(s).count(str(old)) * len(str(new)))
    found: str = FILTERS["replace"](context, s, old, new, count)
    return found


@pass_environment
def _summed(
    environment: BoundedEnvironment,
    iterable: Iterable[Any],
    attribute: str | int | None = None,
    start: Any = 0,
) -> Any:
    items = list(iterable)
    if isinstance(start, list | tuple):
        get = make_attrgetter(environment, attribute) if attribute is not None else None
        parts = items if get is None else map(get, items)
        _check(sum(len(one) for one in parts if isinstance(one, list | tuple)))
    return FILTERS["sum"](environment, items, attribute, start)


@pass_environment
def _wrapped(
    environment: BoundedEnvironment,
    s: str,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,
) -> str:
    _check(len(s) * len(wrapstring or ""))
    found: str = FILTERS["wordwrap"](
        environment, s, width, break_long_words, wrapstring, break_on_hyphens
    )
    return found


def _batched(value: Iterable[Any], linecount: int, fill_with: Any = None) -> Iterator[list[Any]]:
    _check(linecount)
    found: Iterator[list[Any]] = FILTERS["batch"](value, linecount, fill_with)
    return found


def _sliced(value: Collection[Any], slices: int, fill_with: Any = None) -> Iterator[list[Any]]:
    _check(slices)
    found: Iterator[list[Any]] = sync_do_slice(value, slices, fill_with)
    return found
