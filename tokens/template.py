"""A model's chat template, rendered as Hugging Face's transformers renders it. Pure but for clocks.

Jinja's sandbox with `trim_blocks`, `lstrip_blocks`, loop controls, `{% generation %}`, and
transformers' own `tojson`, `raise_exception` and `strftime_now`. On top of that each round of a
loop and each call of a macro is counted: a template that loops is ended by steps or by time, in the
middle. What it may take of memory is bounded in its output, and in one expression
(`tokens.sandbox`).

Source: transformers 5.19 (`utils/chat_template_utils.py`), jinja2 3.1; the content format as
vLLM 0.32 finds it (`renderers/hf.py`).
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from tokens.bounds import PROMPT_CHARACTERS_MAX, RENDERING_STEPS_MAX
from tokens.rendering_errors import TemplateError, TemplateSlowError
from tokens.sandbox import BoundedEnvironment, joined

_CLOCK_STEPS: Final = 256  # from one look at the clock to the next
_CONTINUED: Final = "CONTINUE_FINAL_MESSAGE_TAG "


class _Meter(threading.local):
    """What the rendering of this thread may still take."""

    clock: Callable[[], float] = staticmethod(float)
    left = 0
    until = 0.0

    def begin(self, clock: Callable[[], float], seconds: float) -> None:
        self.clock = clock
        self.left = RENDERING_STEPS_MAX
        self.until = clock() + seconds

    def step(self) -> None:
        self.left -= 1
        if self.left < 0 or (not self.left % _CLOCK_STEPS and self.clock() > self.until):
            raise TemplateSlowError("the chat template does not end in time")


class _Steps(Extension):
    """Calls the meter; the calls are put into the syntax tree by `_metered`."""

    identifier = "reprise_steps"
    meter = _Meter()

    def step(self) -> str:
        """One more."""
        self.meter.step()
        return ""

    def joined(self, texts: list[Any]) -> str:
        """What `~` makes of them."""
        return joined(texts)

    def concatenation(self, one: nodes.Concat) -> nodes.Node:
        """`~` as it stands in a template."""
        texts = nodes.List(one.nodes, lineno=one.lineno)
        return self.call_method("joined", [texts]).set_lineno(one.lineno)

    def statement(self, line: int) -> nodes.Node:
        """The call as it stands in a template."""
        return nodes.ExprStmt(self.call_method("step")).set_lineno(line)


class _Generation(Extension):
    """`{% generation %}`: what stands in it is rendered, in a scope of its own."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """See `Extension`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("rendered"), [], [], body).set_lineno(line)

    def rendered(self, caller: Callable[[], str]) -> str:
        """What stands in it."""
        return caller()


class ChatTemplate:
    """One template. Of any thread.

    Attributes:
        takes_parts: whether it goes through the parts of contents, so that contents are lists for
            it; else they are text.
        tells_date: whether it asks for the time, in the zone of its process.
        knows_developer: whether it has a developer's role.
    """

    def __init__(self, text: str, clock: Callable[[], float]) -> None:
        """Compiles it.

        Raises:
            TemplateError: it is none.
        """
        self.text = text
        self._clock = clock
        environment = BoundedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols, _Steps]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _strftime_now
        try:
            tree = environment.parse(text)
            self.takes_parts = _takes_parts(tree)
            steps = environment.extensions[_Steps.identifier]
            assert isinstance(steps, _Steps)
            self._template = environment.from_string(_metered(tree, steps))
        except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
            line = getattr(error, "lineno", None) or 1
            text = f"expected a template of Jinja, got what cannot be read at line {line}"
            raise TemplateError(text) from error
        self._meter = steps.meter
        self.tells_date = "strftime_now" in text
        self.knows_developer = "'developer'" in text or '"developer"' in text

    def rendered(self, variables: Mapping[str, Any], seconds: float) -> str:
        """The text of a prompt.

        Args:
            seconds: that it may take.

        Raises:
            TemplateError: it refuses, fails, or makes more than PROMPT_CHARACTERS_MAX.
            TemplateSlowError: it takes too long.
        """
        self._meter.begin(self._clock, seconds)
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(variables):
                pieces.append(piece)
                size += len(piece)
                if size > PROMPT_CHARACTERS_MAX:
                    text = f"the chat template makes more than {PROMPT_CHARACTERS_MAX} characters"
                    raise TemplateError(text)
        except TemplateError:
            raise
        except Exception as error:  # a template runs what it likes
            raise TemplateError("the chat template fails on the messages") from error
        return "".join(pieces)

    def continued(self, variables: dict[str, Any], seconds: float) -> str:
        """The text of a prompt whose last message goes on. Raises as `rendered`."""
        messages: list[dict[str, Any]] = variables["messages"]
        content = messages[-1].get("content")
        if content is None or "content" not in self.text:
            raise TemplateError("the last message has nothing that could go on")
        if isinstance(content, list):
            at = max((n for n, part in enumerate(content) if "text" in part), default=None)
            if at is None:
                raise TemplateError("the last message has no text that could go on")
            final = content[at]["text"]
            marked: Any = list(content)
            marked[at] = {**content[at], "text": final + _CONTINUED}
        else:
            final = content
            marked = content + _CONTINUED
        marked_messages = [*messages[:-1], {**messages[-1], "content": marked}]
        text = self.rendered({**variables, "messages": marked_messages}, seconds)
        at = text.rfind(_CONTINUED.strip())
        if at < 0 or final.strip() not in text:
            raise TemplateError("the chat template leaves out the last message, which is to go on")
        cut = text[:at]
        return cut if text[at : at + len(_CONTINUED)] == _CONTINUED else cut.rstrip()


class _BoundedConcat(NodeTransformer):
    """Puts a bounded call in the place of each `~`."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """See `NodeTransformer`."""
        self.generic_visit(node)
        return self._steps.concatenation(node)


def _metered(tree: nodes.Template, steps: _Steps) -> nodes.Template:
    """The same, with a step in each round of a loop and each call of a macro, and `~` bounded."""
    _BoundedConcat(steps).visit(tree)
    for loop in tree.find_all(nodes.For):
        loop.body.insert(0, steps.statement(loop.lineno))
    for macro in tree.find_all(nodes.Macro):
        macro.body.insert(0, steps.statement(macro.lineno))
    for call in tree.find_all(nodes.CallBlock):
        call.body.insert(0, steps.statement(call.lineno))
    return tree


def _raise(text: str) -> NoReturn:
    raise TemplateError(text)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005  # as transformers does: local


# The content format


def _takes_parts(tree: nodes.Template) -> bool:
    """Whether a loop goes over the content of a message. An assignment to several names, or a loop
    of them, over messages, is more than the engine follows: it then takes contents for text.
    """
    messages = _message_names(tree)
    if messages is None:
        return False
    macros = list(tree.find_all(nodes.Macro))
    of_macros = {
        id(loop): _content_arguments(tree, macro, messages)
        for macro in macros
        for loop in macro.find_all(nodes.For)
    }
    for loop in tree.find_all(nodes.For):
        over = loop.iter
        if any(_is_of(over, name, "content") for name in messages):
            return isinstance(loop.target, nodes.Name)
        if isinstance(over, nodes.Name):
            arguments = of_macros.get(id(loop))
            if over.name in arguments if arguments is not None else over.name == "content":
                return isinstance(loop.target, nodes.Name)
    return False


def _message_names(tree: nodes.Template) -> list[str] | None:
    """What loops call a message; None where that is more than the engine follows."""
    lists = ["messages"]
    for name in lists:
        for one in tree.find_all(nodes.Assign):
            if _is_of(one.node, name):
                if not isinstance(one.target, nodes.Name):
                    return None
                if one.target.name not in lists:
                    lists.append(one.target.name)
    found: list[str] = []
    for loop in tree.find_all(nodes.For):
        if any(_is_of(loop.iter, name) for name in lists):
            if not isinstance(loop.target, nodes.Name):
                return None
            found.append(loop.target.name)
    return found


def _content_arguments(
    tree: nodes.Template, macro: nodes.Macro, messages: list[str]
) -> frozenset[str]:
    """The parameters of a macro that are given the content of a message somewhere."""
    names = [one.name for one in macro.args]
    return frozenset(
        name
        for call in tree.find_all(nodes.Call)
        if isinstance(call.node, nodes.Name) and call.node.name == macro.name
        for name, value in _given(call, names)
        if any(_is_of(value, message, "content") for message in messages)
    )


def _given(call: nodes.Call, names: list[str]) -> Iterator[tuple[str, nodes.Node]]:
    yield from zip(names, call.args, strict=False)
    yield from ((one.key, one.value) for one in call.kwargs if one.key in names)


def _is_of(node: nodes.Node | None, name: str, key: str = "") -> bool:
    """Whether the node is the variable, or its key; filtered, tested or sliced, too."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _is_of(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _is_of(node.node, name, key)
    if not key:
        return node is not None and _is_name(node, name)
    if isinstance(node, nodes.Getitem):
        is_key = isinstance(node.arg, nodes.Const) and node.arg.value == key
        return is_key and _is_name(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == key and _is_name(node.node, name)


def _is_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
