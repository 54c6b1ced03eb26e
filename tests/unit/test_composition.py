"""Parts get what they need by their constructors, in one direction: nothing that is handed to a
part reads what is only made afterwards. No constructor takes a soup of parameters.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeGuard

import pytest

from tests.messages import ROOMS

ROOT: Final = Path(__file__).parents[2]
COMPOSITIONS: Final = (
    "bridge/relay/relay.py",
    "bridge/service.py",
    "lmcache_adapter/distributed.py",
    "lmcache_adapter/parts.py",
    "query_api/replica/replica.py",
    "reprise/embedded/service.py",
    *("reprise/roles/" + name for name in ("bridge.py", "http_server.py", "relay.py")),
    *("reprise/roles/" + name for name in ("replay.py", "serve.py", "streams.py", "up.py")),
    "streams/worker/worker.py",
)
"""Where parts are put together: here it holds for methods that are handed on, too."""

PARAMETERS_MAX: Final = 8

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Methods = Mapping[str, _Function]


def _is_own(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"


def _names(node: ast.AST, context: type[ast.expr_context]) -> Iterator[tuple[str, int]]:
    """The names and the attributes of `self` that a piece of code loads or stores; their lines."""
    for one in ast.walk(node):
        if isinstance(one, ast.Name) and isinstance(one.ctx, context):
            yield one.id, one.lineno
        elif _is_own(one) and isinstance(one.ctx, context):
            yield f"self.{one.attr}", one.lineno


def _read(node: ast.AST, methods: _Methods) -> set[str]:
    """What a piece of code reads of what is around it, in methods that it knows, too."""
    own = {name for name, _ in _names(node, ast.Store)}
    own |= {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    read = {name for name, _ in _names(node, ast.Load)} - own
    rest = {name: one for name, one in methods.items() if f"self.{name}" not in read}
    for name, method in methods.items() - rest.items():
        read.discard(f"self.{name}")
        read |= {one for one in _read(method, rest) if one.startswith("self.")}
    return read


def _handed_on(function: _Function, methods: _Methods) -> Iterator[ast.expr]:
    """Lambdas, and methods that are given and not called."""
    called = {id(one.func) for one in ast.walk(function) if isinstance(one, ast.Call)}
    for one in ast.walk(function):
        if isinstance(one, ast.Lambda):
            yield one
        elif _is_own(one) and one.attr in methods and id(one) not in called:
            is_property = bool(methods[one.attr].decorator_list)  # that is read here and now
            yield from () if is_property else (one,)


def late_bound(source: str, *, methods_too: bool) -> list[str]:
    """What is handed on in a module, and reads what its function only makes afterwards."""
    found: list[str] = []
    modules_and_classes = [
        one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.Module | ast.ClassDef)
    ]
    for owner in modules_and_classes:
        functions = {one.name: one for one in owner.body if isinstance(one, _Function)}
        methods = functions if isinstance(owner, ast.ClassDef) else {}
        for function in functions.values():
            is_making = function.name == "__init__"
            made: dict[str, int] = {}
            for name, line in _names(function, ast.Store):
                if is_making or not name.startswith("self."):
                    made[name] = min(made.get(name, line), line)
            for one in _handed_on(function, methods if methods_too and is_making else {}):
                read = sorted(_read(one, methods))
                late = [name for name in read if made.get(name, 0) > one.lineno]
                found += [f"line {one.lineno}: {ast.unparse(one)} reads {name}" for name in late]
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_is_handed_on_that_reads_what_is_made_later(room: str) -> None:
    for path in sorted((ROOT / room).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        late = late_bound(path.read_text(), methods_too=name in COMPOSITIONS)
        assert not late, f"Expected {name} to make first what a part needs, got: {late}"


def test_every_composition_is_there() -> None:
    assert [one for one in COMPOSITIONS if not (ROOT / one).is_file()] == []


@pytest.mark.parametrize(
    ("handed", "is_late"),
    [
        ("lambda: self.second.name", True),
        ("lambda: self.first.name", False),
        ("lambda: self._look()", True),
        ("lambda: second.name", True),
        ("lambda second: second.name", False),
        ("self._look", True),
        ("self._glance", False),
        ("self.first.look", False),
    ],
)
def test_what_reads_a_later_part_is_found(handed: str, is_late: bool) -> None:
    source = f"""
class Service:
    def __init__(self):
        self.first = First()
        self.part = Part({handed})
        self.second = second = Second()

    def _look(self):
        return self.second.name

    def _glance(self):
        return self.first.name
"""
    assert bool(late_bound(source, methods_too=True)) == is_late


def _constructors(path: Path) -> Iterator[tuple[str, int]]:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text())):
        for each in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                found = each.args
                named = len(found.posonlyargs) + len(found.args) + len(found.kwonlyargs) - 1
                rest = (found.vararg is not None) + (found.kwarg is not None)
                assert isinstance(node, ast.ClassDef)
                yield f"{module}.{node.name}", named + rest


def test_no_constructor_takes_more_parameters_than_can_be_read() -> None:
    paths = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    counts = [one for path in paths for one in _constructors(path)]
    assert len(counts) > 300
    assert {name: count for name, count in counts if count > PARAMETERS_MAX} == {}
