"""A bound stands where it is used: in its module, its package's `bounds.py`, or in the limits.

Each is used, says what it protects, and no two have the same name.
"""

import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from schemas import limits

ROOT = Path(limits.__file__).parents[1]
LIMITS = ROOT / "schemas" / "limits.py"
ALONE = ROOT / "reprise" / "front.py"  # an image of its own, of this file and no other
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PRODUCT = SETTINGS["tool"]["importlinter"]["root_packages"]
ROOMS = [room for room in PRODUCT if room not in ("simulation", "lab")]
TOOLS = {"benchmarks", "tests"}  # of a room, which are no part of the product

UNITS = {"KIB", "MIB", "GIB"}
BOUNDING = re.compile(
    r"_(MAX|MIN|S|MS|BYTES|RECORDS|MESSAGES|BATCHES|ENTRIES|CHANGES|RATIO|AT_ONCE)$"
    r"|RETRY|PAUSE|TIMEOUT|BACKLOG|RETENTION"
)
FORMAT = re.compile(r"FRAM(E|ING)|HEADER")  # what a format takes, as `_FRAMING_BYTES`
MEANINGS = {"MS": "S", "MAX": ""}


@cache
def tree(path: Path) -> ast.Module:
    """The module, parsed once."""
    return ast.parse(path.read_text())


def modules(*rooms: str) -> list[Path]:
    """The production modules of these rooms, but for the limits."""
    found = [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    own = [path for path in found if not TOOLS & set(path.relative_to(ROOT).parts)]
    return [path for path in own if path not in (LIMITS, ALONE)]


def dotted(path: Path) -> str:
    """The module's name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def assignments(path: Path) -> Iterator[tuple[str, ast.expr]]:
    """The module's own names with what is assigned to them."""
    for statement in tree(path).body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value


def is_number(value: ast.expr) -> bool:
    """Whether the value is a number, or computed of numbers and names."""
    match value:
        case ast.Constant(value=constant):
            return isinstance(constant, int | float) and not isinstance(constant, bool)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.BinOp(left=left, right=right):
            return all(isinstance(side, ast.Name) or is_number(side) for side in (left, right))
        case ast.Call(func=ast.Name(id="min" | "max" | "round" | "int" | "float")):
            return True
    return False


def is_range_of_integers(value: ast.expr) -> bool:
    """Whether it is the last number of an integer type, `2**n - 1`: a format, not a bound."""
    match value:
        case ast.BinOp(
            left=ast.BinOp(left=ast.Constant(value=2), op=ast.Pow()),
            op=ast.Sub(),
            right=ast.Constant(value=1),
        ):
            return True
    return False


def is_bound(name: str, value: ast.expr) -> bool:
    """Whether a module's constant is a bound."""
    is_constant = name.strip("_").isupper()
    bounding = is_constant and BOUNDING.search(name) and not FORMAT.search(name)
    return bool(bounding) and is_number(value) and not is_range_of_integers(value)


def bounds(path: Path) -> list[str]:
    """The bounds that stand in a module: all names of a `bounds.py`, what is named as one else."""
    if path == LIMITS or path.name == "bounds.py":
        return [name for name, _ in assignments(path) if name not in UNITS]
    return [name for name, value in assignments(path) if is_bound(name, value)]


def names_of(node: ast.AST) -> set[str]:
    """The names that are read, also as `limits.NAME`."""
    read: set[str] = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Attribute(value=ast.Name(id="limits"), attr=name):
                read.add(name)
    return read


@cache
def names_read(path: Path) -> frozenset[str]:
    """What the module reads, asserts and imports left out."""
    statements = [s for s in tree(path).body if not isinstance(s, ast.Assert)]
    return frozenset().union(*map(names_of, statements))


def names_related(path: Path) -> set[str]:
    """What the module's asserts relate, or other bounds of it are computed of."""
    asserts = [s.test for s in tree(path).body if isinstance(s, ast.Assert)]
    return set().union(*map(names_of, [*asserts, *(value for _, value in assignments(path))]))


def of_kernel() -> set[str]:
    """The bounds that the Rust kernel takes of the limits when it is loaded."""
    sources = [path.read_text() for path in (ROOT / "streams").rglob("*.rs")]
    return {
        name
        for source in sources
        if '"schemas.limits"' in source
        for name in re.findall(r'"([A-Z][A-Z0-9_]+)"', source)
    }


def imported_bounds() -> Iterator[tuple[Path, str, ast.alias]]:
    """What the product imports from where a bound of that name stands."""
    places = {dotted(path): {*bounds(path), *UNITS} for path in (LIMITS, *modules(*PRODUCT))}
    for path in modules(*ROOMS):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module in places:
                for alias in node.names:
                    if alias.name in places[node.module]:
                        yield path, node.module, alias


def test_every_bound_is_used_by_the_service() -> None:
    everywhere = frozenset().union(*map(names_read, [LIMITS, *modules(*PRODUCT)]))
    unused = [name for name in bounds(LIMITS) if name not in everywhere | of_kernel()]
    assert not unused, f"bounds that nothing enforces: {unused}"


def test_what_one_room_uses_stands_in_that_room() -> None:
    users = defaultdict(set)
    for path in modules(*PRODUCT):
        for name in names_of(tree(path)):
            users[name].add(path.relative_to(ROOT).parts[0])
    shared = {name for name in users if len(users[name]) > 1 or users[name] == {"schemas"}}
    alone = [
        f"{name}: {sorted(users[name])}"
        for name in bounds(LIMITS)
        if name not in shared | names_related(LIMITS) | of_kernel()
    ]
    assert not alone, f"bounds that belong into the room which uses them: {alone}"


@pytest.mark.parametrize("room", PRODUCT)
def test_a_bound_of_a_room_is_used_where_it_stands(room: str) -> None:
    unused = []
    for path in modules(room):
        here = names_read(path)
        if path.name == "bounds.py":
            below = [other for other in modules(room) if path.parent in other.parents]
            here = frozenset().union(*(names_read(other) for other in below)) | here
        unused += [f"{path.relative_to(ROOT)}: {name}" for name in bounds(path) if name not in here]
    assert not unused, f"bounds that nothing beside them enforces: {unused}"


def test_a_bound_that_two_modules_use_stands_where_both_may_take_it() -> None:
    taken = []
    for path, place, alias in imported_bounds():
        importer = dotted(path).split(".")
        owner = place.split(".")[:-1]  # the package of a `bounds.py`
        own_package = place.endswith(".bounds") and importer[: len(owner)] == owner
        if place != "schemas.limits" and not own_package:
            taken.append(f"{path.relative_to(ROOT)}: {alias.name} of {place}")
    assert not taken, f"bounds that belong into `bounds.py`, or of two rooms into limits: {taken}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_bound_says_what_it_protects(room: str) -> None:
    silent = []
    for path in [*modules(room), *([LIMITS] if room == "schemas" else [])]:
        lines = path.read_text().splitlines()
        for statement, follows in zip(tree(path).body, [*tree(path).body[1:], None], strict=True):
            if not isinstance(statement, ast.AnnAssign | ast.Assign):
                continue
            target = statement.target if isinstance(statement, ast.AnnAssign) else None
            own = target if target is not None else statement.targets[0]  # type: ignore[union-attr]
            if not isinstance(own, ast.Name) or own.id not in bounds(path):
                continue
            end = statement.end_lineno or statement.lineno
            beside = any("#" in line for line in lines[statement.lineno - 1 : end])
            above = lines[statement.lineno - 2].startswith("#")
            below = isinstance(follows, ast.Expr) and isinstance(follows.value, ast.Constant)
            if not (beside or above or below):
                silent.append(f"{path.relative_to(ROOT)}: {own.id}")
    assert not silent, f"bounds without a comment: {silent}"


def test_no_bound_is_imported_under_another_name() -> None:
    renamed = [
        f"{path.relative_to(ROOT)}: {alias.name} as {alias.asname}"
        for path, _, alias in imported_bounds()
        if alias.asname is not None
    ]
    assert not renamed, f"one bound, one name: {renamed}"


def meaning(name: str) -> str:
    """The name without what its unit alone tells: seconds and milliseconds are both a time."""
    return "_".join(MEANINGS.get(word, word) for word in name.split("_"))


def test_no_two_bounds_differ_in_their_unit_alone() -> None:
    """`RETRY_S` and `RETRY_MS_MAX` with two values would be two meanings of one name."""
    names = [name for path in (LIMITS, *modules(*ROOMS)) for name in bounds(path)]
    meanings = Counter(meaning(name).strip("_") for name in names)
    same = [name for name in names if meanings[meaning(name).strip("_")] > 1]
    assert not same, f"bounds that cannot be told apart by their names: {same}"


@pytest.mark.parametrize(
    ("line", "bound"),
    [
        ("RETRY_S: Final = 1.0", True),
        ("_QUEUE_RECORDS_MAX = 4 * 1024", True),
        ("STOP_S: Final = SHUTDOWN_S - 2.0", True),
        ("_PAUSE = 3", True),
        ("READY: Final = 200", False),
        ("_U32_MAX = 2**32 - 1", False),
        ("_FRAMING_BYTES: Final = 128", False),
        ("_HEADER_BYTES = struct.calcsize('>I')", False),
        ("default_timeout_s = 3.0", False),
    ],
)
def test_a_bound_is_told_from_other_constants(tmp_path: Path, line: str, bound: bool) -> None:
    module = tmp_path / "module.py"
    module.write_text(line)
    assert [is_bound(name, value) for name, value in assignments(module)] == [bound]
