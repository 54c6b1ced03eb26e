"""Which engines have computed the tokens of which shapes of prompts as they were made. Pure.

Tokens that a template and a tokenizer make here are a guess at what an engine makes of a request: a
flag of its command line, its release or its kind may have it render tools, an effort or the last
message otherwise. So they are proven for one engine and one shape of prompt at a time: what a
request uses that templates and engines differ in. An answer by tokens that are not proven for each
engine of the model is not `exact`.
"""

import hashlib
import json
import re
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import msgspec

from schemas.registration import SGLANG
from tokens.interface import Engine
from tokens.prompt import TEXT_PARTS, ChatPrompt, TextPrompt

PROOFS_MAX: Final = 16_384  # that are kept, of shapes and engines; the one longest unused goes
REFUSED_S: Final = 600.0  # in which an engine is not asked again that gave no proof
CLOCK_SLOT_S: Final = 900  # seconds: in which dates change nowhere; zones differ by quarters

CLOCK_SKEW_S: Final = 60.0  # by which an engine's clock may be another one

_PLAIN_CHOICES: Final = (None, "auto")

_MARKS: Final = ("think>", "<|", "</", "[INST]", "<tool_", "<start_of")
"""Texts that templates look for, and tokenizers may take for special tokens."""

_NORMAL_FORMS: Final = ("NFC", "NFKC")  # to which tokenizers may bring a text

_ESCAPED: Final = "<>&'"
"""Characters that some of the writers of JSON in templates escape."""

_NULL: Final = re.compile(r"[:,\[]null\b")

_READ_OTHERWISE: Final = {
    "large number": re.compile(r"\d{19}"),
    "fraction": re.compile(r"\d[.eE][-+\d]"),
    "no number": re.compile(r"\b(NaN|Infinity)\b"),
    "half a pair": re.compile(r"\\u[dD][89a-fA-F]"),
}
"""What readers of JSON make different values of, or refuse."""

NAMED_DEPTH: Final = 4  # of lists and objects, whose names are part of a shape: a tool's parameters

_CONTRADICTED: Final = (False, float("inf"))

Shape: TypeAlias = bytes


def shape_of(prompt: ChatPrompt | TextPrompt) -> Shape:
    """What a prompt uses that engines may differ in, as a digest: of names and values, which a
    client makes up. Cost O(characters).
    """
    used = _used(prompt)
    return hashlib.blake2b(
        "\0".join(sorted(used)).encode(errors="replace"), digest_size=16
    ).digest()


def _used(prompt: ChatPrompt | TextPrompt) -> set[str]:
    found = {"special"} if prompt.add_special_tokens else set()
    if prompt.truncation is not None:
        found.add("truncated")
    if isinstance(prompt, TextPrompt):
        return found | {"completion", *_of_text("completion", prompt.text)}
    found.add("response" if prompt.is_response else "chat")
    found.update(f"variable {name} {_shown(one)}" for name, one in prompt.template_kwargs.items())
    found.update(_of_json("documents", prompt.documents or ()))
    if prompt.tools:
        found |= {"tools", *_of_json("tools", prompt.tools)}
        choice = prompt.tool_choice
        if choice not in _PLAIN_CHOICES:
            found.add(f"tool choice {choice if isinstance(choice, str) else 'by name'}")
    for name, is_used in (
        (f"effort {_shown(prompt.effort)}", prompt.effort is not None),
        ("template", prompt.chat_template),
        ("no turn opened", not prompt.add_generation_prompt),
        ("continued", prompt.continue_final_message),
        ("unasked", prompt.has_unasked),
    ):
        if is_used:
            found.add(name)
    roles = [str(message["role"]) for message in prompt.messages]
    found.update(f"{one} before {other}" for one, other in pairwise(["", *roles, ""]))
    for message in prompt.messages:
        found |= _of_message(message)
    return found


def _shown(value: object) -> str:
    """Of a variable: what templates compare with, and no text of any length."""
    return repr(value)[:64] if isinstance(value, str | int | float | None) else type(value).__name__


def _of_message(message: Mapping[str, Any]) -> set[str]:
    role = message["role"]
    found = {f"{role} with {name}" for name, value in message.items() if value is not None}
    found.update(_of_json(f"calls of {role}", message.get("tool_calls") or ()))
    content = message.get("content")
    if isinstance(content, str):
        return found | {*_of_text(role, content)}
    if content is not None:
        found.add("several parts" if len(content) != 1 else "parts")
        kinds = {one.get("type") for one in content if isinstance(one, Mapping)} - {"text"}
        found.update(f"part {kind}" for kind in kinds)
        for one in content:
            text = one
            if isinstance(one, Mapping):
                text = one.get(TEXT_PARTS.get(str(one.get("type")), "text"))
            if isinstance(text, str):
                found.update(_of_text(role, text))
    return found


def _of_text(role: str, text: str) -> Iterator[str]:
    """What templates look for in a text, and cut off or escape, and tokenizers bring to another
    form.
    """
    if not text or text[0].isspace() or text[-1].isspace():
        yield f"{role} {bool(text)} {text[:1].isspace()} {text[-1:].isspace()}"
    yield from (f"{role} {mark}" for mark in _MARKS if mark in text)
    if not text.isascii():
        normal = (form for form in _NORMAL_FORMS if unicodedata.is_normalized(form, text))
        yield f"{role} beyond ASCII {list(normal)}"
    if role == "tool":  # some templates write it as JSON
        yield from _written(role, text)


def _of_json(name: str, value: object) -> Iterator[str]:
    """What decides how templates write it as JSON: the names of its outer levels in their order, as
    some engines put them into another, and which characters of it may be escaped.
    """
    try:
        yield from _written(name, msgspec.json.encode(value).decode())
    except (TypeError, ValueError, RecursionError):
        yield f"{name} no JSON"
    yield from _of_level(name, value, 0)


def _of_level(name: str, value: object, depth: int) -> Iterator[str]:
    if depth == NAMED_DEPTH:
        return
    if isinstance(value, Mapping):
        yield f"{name} {depth} {list(value)}"
        for one in value.values():
            yield from _of_level(name, one, depth + 1)
    elif isinstance(value, list):
        for one in value:
            yield from _of_level(name, one, depth + 1)
    elif isinstance(value, str):
        yield from _of_encoded(name, value)


def _written(name: str, text: str) -> Iterator[str]:
    if not text.isascii():
        yield f"{name} beyond ASCII"
    if any(one in text for one in _ESCAPED):
        yield f"{name} escaped"
    if _NULL.search(text):
        yield f"{name} null"


def _of_encoded(name: str, text: str) -> Iterator[str]:
    """Arguments of a call are JSON, which some engines decode and write again."""
    if not text.startswith("{"):
        return
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        yield f"{name} no JSON"
        return
    yield from (f"{name} {kind}" for kind, found in _READ_OTHERWISE.items() if found.search(text))
    is_same = json.dumps(decoded, ensure_ascii=False) == text
    yield f"{name} {'as written' if is_same else 'written otherwise'}"


def unseen(prompt: ChatPrompt | TextPrompt, engine: Engine) -> bool:
    """Whether the engine's `/tokenize` proves nothing of how the prompt is rendered: of chats where
    its release renders them otherwise, or of one with what it has no field for: of vLLM's who may
    call which tool, and an effort, which SGLang's takes otherwise among variables. SGLang's has
    fields that its completions and chats have not, and pass over, and leaves out what is null in a
    tool; neither cuts prompts off.
    """
    is_sglang = engine.kind == SGLANG
    if is_sglang and prompt.truncation is not None:
        return True
    if isinstance(prompt, TextPrompt):
        return not engine.completes or (is_sglang and not prompt.add_special_tokens)
    if not engine.renders or prompt.has_unasked:
        return True
    if is_sglang:
        opens = prompt.add_generation_prompt or prompt.continue_final_message
        is_passed_over = prompt.add_special_tokens or not opens or _has_null(prompt)
        return is_passed_over or "reasoning_effort" in (prompt.given_kwargs or ())
    is_chosen = bool(prompt.tools) and prompt.tool_choice not in _PLAIN_CHOICES
    return is_chosen or prompt.effort is not None


def _has_null(prompt: ChatPrompt) -> bool:
    return bool(prompt.tools) and "tools null" in _of_json("tools", prompt.tools)


def may_tell_other_dates(now: float) -> bool:
    """Whether at that time, Unix seconds, it may be another day at an engine by its clock."""
    return (now + CLOCK_SKEW_S) % CLOCK_SLOT_S < 2 * CLOCK_SKEW_S


class Proofs:
    """See the module. Not thread-safe.

    Args:
        monotonic: seconds.
        unix: likewise.
    """

    def __init__(self, monotonic: Callable[[], float], unix: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._unix = unix
        # By model, shape and engine: whether it is proven, and until when that holds.
        self._found: OrderedDict[tuple[str, Shape, Engine], tuple[bool, float]] = OrderedDict()

    def prove(self, model: str, shape: Shape, engine: Engine, *, tells_date: bool = False) -> None:
        """The engine has computed the same tokens.

        Args:
            tells_date: whether its template does, so that the proof ends with this quarter of an
                hour.
        """
        now = self._unix()
        left_s = CLOCK_SLOT_S - now % CLOCK_SLOT_S if tells_date else float("inf")
        self._keep((model, shape, engine), is_proven=True, left_s=left_s)

    def refuse(self, model: str, shape: Shape, engine: Engine) -> None:
        """The engine can prove nothing of the shape, or computes other tokens."""
        self._keep((model, shape, engine), is_proven=False, left_s=REFUSED_S)

    def is_proven(self, model: str, shape: Shape) -> bool:
        """Whether any engine has computed the same tokens of that shape. Cost O(PROOFS_MAX)."""
        found = self._found.items()
        return any(is_proven for key, (is_proven, _) in found if key[:2] == (model, shape))

    def contradict(self, model: str, shape: Shape) -> None:
        """An engine has computed others than were proven: whatever proves it proves nothing, until
        the process is another. Cost O(PROOFS_MAX).
        """
        for key in [one for one in self._found if one[:2] == (model, shape)]:
            self._found[key] = _CONTRADICTED

    def proven(self, model: str, shape: Shape, engines: Sequence[Engine]) -> list[Engine]:
        """Those that have computed the same tokens."""
        now = self._monotonic()
        found = ((one, self._found.get((model, shape, one), (False, 0.0))) for one in engines)
        return [one for one, (is_proven, until) in found if is_proven and now < until]

    def lacking(
        self, model: str, shape: Shape, engines: Sequence[Engine]
    ) -> tuple[bool, list[Engine]]:
        """Whether some engine has given no proof, and those that may be asked for one."""
        now = self._monotonic()
        is_lacking, left = False, []
        for engine in engines:
            key = model, shape, engine
            is_proven, until = self._found.get(key, (False, 0.0))
            if now >= until:
                is_lacking = True
                left.append(engine)
            elif not is_proven:
                is_lacking = True
            else:
                self._found.move_to_end(key)
        return is_lacking, left

    def _keep(self, key: tuple[str, Shape, Engine], *, is_proven: bool, left_s: float) -> None:
        if self._found.get(key) != _CONTRADICTED:
            self._found[key] = is_proven, self._monotonic() + left_s
        self._found.move_to_end(key)
        while len(self._found) > PROOFS_MAX:
            self._found.popitem(last=False)
