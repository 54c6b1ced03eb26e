"""Every message that a person can read, by the sources: `python -m tests.messages` prints them.

Errors' texts, also those that are put together in a local variable first, log lines but for DEBUG,
and what the command line says. A placeholder stands as it is written, as `{error}` or `%s`; parts
of which the sources do not tell the text stand as `{expression}`, too.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
ROOMS: Final = (
    "bridge",
    "brokers",
    "console",
    "doctor",
    "gateway",
    "lmcache_adapter",
    "logs",
    "page",
    "routing",
    "query_api",
    "replay",
    "reprise",
    "schemas",
    "lab",
    "storage",
    "streams",
    "tokens",
)
LOGGED: Final = ("info", "warning", "error", "exception", "critical", "log")
_ECHOES: Final = ("echo", "secho", "confirm", "prompt", "tell", "print")
_VARIANTS_MAX: Final = 24
_KEYWORDS: Final = ("detail", "more", "text", "message", "what", "remedy", "cause")


class Message(NamedTuple):
    """One of them.

    Attributes:
        kind: `raise NAME`, `log LEVEL`, `help` or `echo`.
        place: file and line.
        text: as a reader sees it, but for placeholders.
        caught: types of the error that is being handled there.
        values: what a log line puts in, in order.
    """

    kind: str
    place: str
    text: str
    caught: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def is_loud(self) -> bool:
        """Whether it is a log line at WARNING or above, or may be one."""
        levels = ("warning", "error", "exception", "critical", "log")
        return self.kind.startswith("log ") and self.kind.removeprefix("log ") in levels

    @property
    def is_error(self) -> bool:
        """Whether it is the text of an error."""
        return self.kind.startswith("raise ")

    def __str__(self) -> str:
        return f"{self.place}: {self.kind}: {self.text}"


@cache
def messages(root: Path = ROOT) -> tuple[Message, ...]:
    """All of them, by place."""
    return tuple(
        message
        for room in ROOMS
        for path in sorted((root / room).rglob("*.py"))
        for message in messages_of(path.read_text(), str(path.relative_to(root)))
    )


def messages_of(source: str, place: str) -> Iterator[Message]:
    """Those of one module."""
    tree = ast.parse(source)
    names = _Names(tree)
    yield from _Reader(place).read(tree, names, ())


@cache
def own_errors(root: Path = ROOT) -> frozenset[str]:
    """Names of the classes of errors that the rooms define: of theirs, the text is ours."""
    return frozenset(
        node.name
        for room in ROOMS
        for path in (root / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name.endswith(("Error", "Refusal"))
    )


class _Names:
    """Texts that the names of a scope may have, each from its line on.

    A name that is assigned before several errors means at each what was assigned since the one
    before.
    """

    def __init__(self, scope: ast.AST, outer: "_Names | None" = None) -> None:
        self._outer = outer
        self._texts: dict[str, list[tuple[int, str]]] = {}
        nodes = list(_of_scope(scope))
        self._raised = [node.lineno for node in nodes if isinstance(node, ast.Raise)]
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._assign(node.targets[0], node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assign(node.target, node.value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                before = self.of(node.target.id, node.lineno)
                more = _texts(node.value, self)
                texts = [one + end for one in before for end in more]
                self._add(node.target.id, node.lineno, texts)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._add(target.id, value.lineno, _texts(value, self))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for name, part in zip(target.elts, value.elts, strict=False):
                self._assign(name, part)

    def _add(self, name: str, line: int, texts: list[str]) -> None:
        known = self._texts.setdefault(name, [])
        known += [(line, text) for text in texts][:_VARIANTS_MAX]

    def of(self, name: str, line: int) -> list[str]:
        """What the name may say at a line."""
        if name not in self._texts:
            return self._outer.of(name, 10**9) if self._outer is not None else []
        before = [(at, text) for at, text in self._texts[name] if at <= line]
        since = max((at for at in self._raised if at < line), default=0)
        recent = [text for at, text in before if at >= since]
        return recent or [text for _, text in before or self._texts[name]]


def _of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        if not isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        ):
            yield child
            yield from _of_scope(child)


def _texts(node: ast.expr | None, names: _Names) -> list[str]:
    """What an expression may say; [] for what is no text as far as the source tells."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return _joined([_part(one, names) for one in node.values])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _texts(node.left, names), _texts(node.right, names)
        if not (left or right):
            return []
        return _joined([left or [_placeholder(node.left)], right or [_placeholder(node.right)]])
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, names), *_texts(node.orelse, names)]
    if isinstance(node, ast.Name):
        return names.of(node.id, node.lineno)
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        if name in ("str", "repr", "printable", "detail_of") and node.args:
            inner = node.args[0]
            return _texts(inner, names) or [_placeholder(inner)]
        if name in ("str.format", "dedent") and node.args:
            return _texts(node.args[0], names)
    return []


def _part(node: ast.expr, names: _Names) -> list[str]:
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    assert isinstance(node, ast.FormattedValue)
    is_plain = node.conversion == -1 and node.format_spec is None
    if is_plain and isinstance(node.value, ast.Name | ast.IfExp):
        known = _texts(node.value, names)
        if known and all(len(one) > 1 or not one for one in known):
            return known
    return [f"{{{ast.unparse(node.value)}{_conversion(node)}}}"]


def _conversion(node: ast.FormattedValue) -> str:
    text = "" if node.conversion == -1 else f"!{chr(node.conversion)}"
    if isinstance(node.format_spec, ast.JoinedStr):
        text += ":" + "".join(_part_of_format(one) for one in node.format_spec.values)
    return text


def _part_of_format(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else "{}"


def _placeholder(node: ast.expr) -> str:
    return f"{{{ast.unparse(node)}}}"


def _joined(parts: Iterable[list[str]]) -> list[str]:
    found = [""]
    for part in parts:
        found = [one + more for one in found for more in part][:_VARIANTS_MAX]
    return found


class _Reader:
    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, node: ast.AST, names: _Names, caught: tuple[str, ...]) -> Iterator[Message]:
        """What stands below a node."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = _Names(node, names)
            if any(
                "command" in ast.unparse(one) or "group" in ast.unparse(one)
                for one in node.decorator_list
            ):
                yield from self._told("help", node, [ast.get_docstring(node) or ""], caught)
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            types = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            caught = tuple(ast.unparse(one).removeprefix("*") for one in types)
        elif isinstance(node, ast.Call):
            yield from self._call(node, names, caught)
        for child in ast.iter_child_nodes(node):
            yield from self.read(child, names, caught)

    def _call(self, node: ast.Call, names: _Names, caught: tuple[str, ...]) -> Iterator[Message]:
        function = ast.unparse(node.func)
        name = function.rpartition(".")[2]
        if name in LOGGED and "logger" in function:
            yield from self._log(name, node, names, caught)
        elif _is_error(name):
            yield from self._told(f"raise {name}", node, list(self._arguments(node, names)), caught)
        elif function == "super().__init__":
            texts = [text for text in self._arguments(node, names) if " " in text]
            yield from self._told("raise self", node, texts, caught)
        elif name.endswith("_option") and node.args:
            texts = [text for text in _texts(node.args[0], names) if " " in text]
            yield from self._told("help", node, texts, caught)
        elif name in _ECHOES and node.args:
            yield from self._told("echo", node, _texts(node.args[0], names), caught)
        for keyword in node.keywords:
            if keyword.arg in ("help", "epilog", "short_help", "description"):
                yield from self._told("help", node, _texts(keyword.value, names), caught)

    def _log(
        self, level: str, node: ast.Call, names: _Names, caught: tuple[str, ...]
    ) -> Iterator[Message]:
        arguments = node.args[1:] if level == "log" else node.args
        if level == "log" and ast.unparse(node.args[0]) == "logging.DEBUG":
            return
        texts = _texts(arguments[0], names) or [_placeholder(arguments[0])]
        values = tuple(ast.unparse(one) for one in arguments[1:])
        yield from self._told(f"log {level}", node, texts, caught, values)

    def _arguments(self, node: ast.Call, names: _Names) -> Iterator[str]:
        """What an error says, each way: its arguments that are texts, with what is said behind."""
        texts: list[str] = []
        for argument in node.args:
            known = _texts(argument, names)
            if not known and isinstance(argument, ast.Call | ast.Name | ast.Attribute):
                known = [_placeholder(argument)]
            texts += [one for one in known if " " in one or one.startswith("{")]
        behind = [""]
        for keyword in node.keywords:
            if keyword.arg == "more":
                behind = _texts(keyword.value, names) or [_placeholder(keyword.value)]
            elif keyword.arg in _KEYWORDS:
                texts += _texts(keyword.value, names) or [_placeholder(keyword.value)]
        written = [one for one in texts if " " in one] or texts
        yield from (one + more for one in written for more in behind)

    def _told(
        self,
        kind: str,
        node: ast.AST,
        texts: list[str],
        caught: tuple[str, ...],
        values: tuple[str, ...] = (),
    ) -> Iterator[Message]:
        line = getattr(node, "lineno", 0)
        for text in dict.fromkeys(texts):
            if text.strip():
                yield Message(kind, f"{self._path}:{line}", " ".join(text.split()), caught, values)


def _is_error(name: str) -> bool:
    return (
        name.endswith(("Error", "Exception", "BadParameter", "Refusal"))
        and name.lstrip("_")[:1].isupper()
    )


def main() -> None:
    """Prints those whose line has what is given, or all."""
    wanted = sys.argv[1:]
    for message in messages():
        if all(one in str(message) for one in wanted):
            print(message)


if __name__ == "__main__":
    main()
