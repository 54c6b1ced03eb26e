"""What parts are made of: no constructor of the product takes a soup of parameters."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.messages import ROOMS, ROOT

PARAMETERS_MAX: Final = 8

EXCEPTIONS: Final = {
    "bridge.pump.Pump": 9,
    "routing.log.reader.RoutingReader": 9,
}
"""Constructors that still take more; entries go, and none comes."""


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
    assert {name: count for name, count in counts if count > PARAMETERS_MAX} == EXCEPTIONS
