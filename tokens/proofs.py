"""Which engines have computed the tokens of which shapes of prompts as they were made. Pure.

Tokens that a template and a tokenizer make here are a guess at what an engine makes of a request: a
flag of its command line, its release or its kind may have it render tools, an effort or the last
message otherwise. So they are proven for one engine and one shape of prompt at a time: what a
request uses that templates and engines differ in. An answer by tokens that are not proven for each
engine of the model is not `exact`.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from schemas.registration import SGLANG
from tokens.interface import Engine
from tokens.prompt import ChatPrompt, TextPrompt

PROOFS_MAX: Final = 16_384  # that are kept, of shapes and engines; the one longest unused goes
REFUSED_S: Final = 600.0  # in which an engine is not asked again that gave no proof
CLOCK_SLOT_S: Final = 900  # seconds: in which dates change nowhere; zones differ by quarters

_PLAIN_ROLES: Final = ("system", "user", "assistant")
_PLAIN_CHOICES: Final = (None, "auto")

Shape: TypeAlias = bytes


def shape_of(prompt: ChatPrompt | TextPrompt) -> Shape:
    """What a prompt uses that engines may differ in, as a digest: of names and values, which a
    client makes up. Cost O(messages and their parts).
    """
    used = _used(prompt)
    return hashlib.blake2b(
        "\0".join(sorted(used)).encode(errors="replace"), digest_size=16
    ).digest()


def _used(prompt: ChatPrompt | TextPrompt) -> set[str]:
    found = {"special"} if prompt.add_special_tokens else set()
    if isinstance(prompt, TextPrompt):
        return found | {"completion"}
    found.add("response" if prompt.is_response else "chat")
    found.update(f"variable {name} {_shown(one)}" for name, one in prompt.template_kwargs.items())
    if prompt.tools:
        found.add("tools")
        choice = prompt.tool_choice
        if choice not in _PLAIN_CHOICES:
            found.add(f"tool choice {choice if isinstance(choice, str) else 'by name'}")
    for name, is_used in (
        ("documents", prompt.documents),
        (f"effort {_shown(prompt.effort)}", prompt.effort is not None),
        ("template", prompt.chat_template),
        ("no turn opened", not prompt.add_generation_prompt),
        ("continued", prompt.continue_final_message),
        ("assistant last", prompt.messages[-1].get("role") == "assistant"),
    ):
        if is_used:
            found.add(name)
    for message in prompt.messages:
        found |= _of_message(message)
    return found


def _shown(value: object) -> str:
    """Of a variable: what templates compare with, and no text of any length."""
    return repr(value)[:64] if isinstance(value, str | int | float | None) else type(value).__name__


def _of_message(message: Mapping[str, Any]) -> set[str]:
    found = {f"field {name}" for name, value in message.items() if value is not None}
    found -= {"field role", "field content"}
    if message["role"] not in _PLAIN_ROLES:
        found.add(f"role {message['role']}")
    content = message.get("content")
    if content is None:
        found.add("no content")
    elif not isinstance(content, str):
        found.add("parts")
        if len(content) != 1:
            found.add("several parts")
        kinds = {one.get("type") for one in content if isinstance(one, Mapping)} - {"text"}
        found.update(f"part {kind}" for kind in kinds)
    return found


def unseen(prompt: ChatPrompt | TextPrompt, kind: str) -> bool:
    """Whether the prompt has what vLLM's `/tokenize` has no field for, so that its answer proves
    nothing of how a chat is rendered: who may call which tool, and an effort.
    """
    if isinstance(prompt, TextPrompt) or kind == SGLANG:
        return False
    is_chosen = bool(prompt.tools) and prompt.tool_choice not in _PLAIN_CHOICES
    return is_chosen or prompt.effort is not None


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
        self._found[key] = is_proven, self._monotonic() + left_s
        self._found.move_to_end(key)
        while len(self._found) > PROOFS_MAX:
            self._found.popitem(last=False)
