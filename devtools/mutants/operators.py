"""The mutants of one Python module: each is one small change in the body of one function.

A mutant is compiled with the whole module, but only the code of its outermost function is kept. It
has the same name, line and free variables as the original, so it can take the original's place in
functions that are already loaded and decorated (`trial.py`).
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_DROPPED = (
    ast.Expr,
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.Delete,
    ast.Raise,
    ast.Break,
    ast.Continue,
)
_NEGATED = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
_LOGGERS = ("log", "logger", "logging", "_log", "_logger")

# Texts, types and patterns: a mutant of these says nothing of a rule.
_LEFT_ALONE = (ast.JoinedStr, ast.Assert, ast.arguments, ast.pattern, ast.Global, ast.Nonlocal)
_FIELDS_LEFT_ALONE = ("annotation", "returns", "decorator_list", "exc", "cause", "type_params")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Mutant(NamedTuple):
    """One change.

    Attributes:
        function: the outermost function's qualified name; `change` says where in it.
        at: the line's number, from 1.
        line: the line's text.
        change: "before -> after", or "dropped"; with the number of its occurrence, from the second
            on, where the function has several such lines with such changes.
        code: of the outermost function.
    """

    function: str
    at: int
    line: str
    change: str
    code: CodeType


class Name(NamedTuple):
    """What a mutant is called: see `Mutant`."""

    function: str
    at: int
    line: str
    change: str


def mutants(source: str, path: Path) -> list[Mutant]:
    """All mutants of a module, in the order of its text. Cost: each compiles the module."""
    return [
        Mutant(*name, codes(compile(mutated, str(path), "exec"))[name.function, first_line])
        for name, first_line, mutated in _named(source)
    ]


def names(source: str) -> list[Name]:
    """Of all mutants of a module, in the order of its text."""
    return [name for name, _, _ in _named(source)]


def _named(source: str) -> Iterator[tuple[Name, int, ast.Module]]:
    """Each with its function's first line and the module's tree, which is it until the next one."""
    tree = ast.parse(source)
    lines = source.splitlines()
    for name, function in _functions(tree):
        seen: Counter[tuple[str, str]] = Counter()
        for at, change, mutated in _changed(tree, function):
            line = lines[at - 1].strip()
            seen[line, change] += 1
            count = seen[line, change]
            numbered = change if count == 1 else f"{change} (#{count})"
            yield Name(name, at, line, numbered), _first_line(function), mutated


def instrumented(source: str, path: Path, hook: str) -> dict[tuple[str, int], CodeType]:
    """The code of each outermost function with a call of the builtin `hook` at its beginning, which
    is given the function's qualified name.
    """
    tree = ast.parse(source)
    wanted = [(name, _first_line(function)) for name, function in _functions(tree)]
    for name, function in _functions(tree):
        call = ast.Call(ast.Name(hook, ast.Load()), [ast.Constant(name)], [])
        function.body.insert(0, ast.Expr(call))
    found = codes(compile(ast.fix_missing_locations(tree), str(path), "exec"))
    return {key: found[key] for key in wanted}


def codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """The code objects within a module's, by qualified name and first line."""
    found = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found[constant.co_qualname, constant.co_firstlineno] = constant
            found |= codes(constant)
    return found


def _functions(
    parent: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, Function]]:
    """Functions and methods, but none within another; what a Protocol declares has no mutants."""
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, Function):
            yield prefix + node.name, node


def _first_line(function: Function) -> int:
    return min([function.lineno, *(one.lineno for one in function.decorator_list)])


class _Place(NamedTuple):
    """Where a node stands in its parent."""

    parent: ast.AST
    field: str
    position: int | None

    def put(self, node: ast.AST) -> None:
        if self.position is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.position] = node


def _changed(tree: ast.Module, function: Function) -> Iterator[tuple[int, str, ast.Module]]:
    """Each change of a function: its line, its text, and the whole module while it has it."""
    for node, place in list(_walk(function)):
        for new in _replacements(node, place):
            ast.fix_missing_locations(ast.copy_location(new, node))
            change = "dropped" if isinstance(new, ast.If) else f"{_shown(node)} -> {_shown(new)}"
            place.put(new)
            yield getattr(node, "lineno", function.lineno), change, tree
            place.put(node)


def _walk(parent: ast.AST) -> Iterator[tuple[ast.AST, _Place]]:
    for field, value in ast.iter_fields(parent):
        if field in _FIELDS_LEFT_ALONE:
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST) and not _is_left_alone(node):
                yield node, _Place(parent, field, index)
                yield from _walk(node)


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, _LEFT_ALONE):
        return True
    if not isinstance(node, ast.Expr):
        return False
    match node.value:
        case ast.Constant():  # a docstring, or the body of what a Protocol declares
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
            return name in _LOGGERS
    return False


def _replacements(node: ast.AST, place: _Place) -> Iterator[ast.AST]:
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    elif isinstance(node, ast.expr):
        if _is_condition(place) and not _is_negated_otherwise(node):
            yield ast.UnaryOp(ast.Not(), node)
        yield from _of_expression(node)


def _of_statement(node: ast.stmt) -> Iterator[ast.stmt]:
    if isinstance(node, _DROPPED):
        # It stays where it never runs, so that the function has the same variables.
        yield ast.If(ast.Constant(False), [node], [])
    match node:
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield ast.Return(ast.Constant(None))
        case ast.AugAssign(op=op) if type(op) in _ARITHMETIC:
            yield ast.AugAssign(node.target, _ARITHMETIC[type(op)](), node.value)


def _of_expression(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for index, op in enumerate(ops):
                changed = [*ops[:index], _COMPARISONS[type(op)](), *ops[index + 1 :]]
                yield ast.Compare(left, changed, comparators)
        case ast.BoolOp(op=op, values=values):
            for index in range(len(values)):
                rest = [*values[:index], *values[index + 1 :]]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield ast.BinOp(left, _ARITHMETIC[type(op)](), right)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in _SWAPPED:
            yield ast.Call(ast.Name(_SWAPPED[name], ast.Load()), args, keywords)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
            if value > 0:
                yield ast.Constant(value - 1)


def _is_condition(place: _Place) -> bool:
    if place.field == "ifs":
        return isinstance(place.parent, ast.comprehension)
    return place.field == "test" and isinstance(place.parent, ast.If | ast.IfExp | ast.While)


def _is_negated_otherwise(node: ast.expr) -> bool:
    match node:
        case ast.UnaryOp(op=ast.Not()) | ast.Constant():
            return True
        case ast.Compare(ops=[op]):
            return isinstance(op, _NEGATED)
    return False


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _shown(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())
