"""All bounds stand in `schemas/limits.py`, each is used, and no two have the same name."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas import limits

ROOT = Path(limits.__file__).parents[1]
ROOMS = (
    *(
        "schemas",
        "storage",
        "brokers",
        "logs",
        "bridge",
        "streams",
        "console",
        "query_api",
        "replay",
    ),
    *("routing", "lmcache_adapter", "doctor", "page", "reprise"),
)
LIMITS = ROOT / "schemas" / "limits.py"
ALONE = ROOT / "reprise" / "front.py"  # an image of its own, of this file and no other

BOUNDING = re.compile(
    r"_(MAX|MIN|S|MS|BYTES|RECORDS|MESSAGES|BATCHES|ENTRIES|CHANGES|RATIO|AT_ONCE)$"
    r"|RETRY|PAUSE|TIMEOUT|BACKLOG|RETENTION"
)
FORMAT = re.compile(r"FRAM(E|ING)|HEADER")  # what a format takes, as `_FRAMING_BYTES`
UNITS = {"MS": "S", "MAX": ""}


def modules(*rooms: str) -> list[Path]:
    """The production modules of these rooms, but for the limits."""
    found = [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    return [path for path in found if path != LIMITS]


def assignments(path: Path) -> Iterator[tuple[str, ast.expr]]:
    """The module's own names with what is assigned to them."""
    for statement in ast.parse(path.read_text()).body:
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
    """Whether a module's constant is a bound that belongs into the limits."""
    is_constant = name.strip("_").isupper()
    bounding = is_constant and BOUNDING.search(name) and not FORMAT.search(name)
    return bool(bounding) and is_number(value) and not is_range_of_integers(value)


def names_read(path: Path) -> set[str]:
    """The names that a module reads, also as `limits.NAME`; asserts and imports left out."""
    read: set[str] = set()
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.Assert):
            continue
        for node in ast.walk(statement):
            match node:
                case ast.Name(id=name, ctx=ast.Load()):
                    read.add(name)
                case ast.Attribute(value=ast.Name(id="limits"), attr=name):
                    read.add(name)
    return read


def test_every_bound_is_used_by_the_service() -> None:
    used = set().union(*(names_read(path) for path in [LIMITS, *modules(*ROOMS, "lab")]))
    unused = [name for name, _ in assignments(LIMITS) if name not in used]
    assert not unused, f"bounds that nothing enforces: {unused}"


@pytest.mark.parametrize("room", ROOMS)
def test_no_bound_stands_elsewhere(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules(room)
        if path != ALONE
        for name, value in assignments(path)
        if is_bound(name, value)
    ]
    assert not found, f"bounds that belong into schemas/limits.py: {found}"


def test_no_bound_is_imported_under_another_name() -> None:
    renamed = [
        f"{path.relative_to(ROOT)}: {alias.name} as {alias.asname}"
        for path in modules(*ROOMS)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "schemas.limits"
        for alias in node.names
        if alias.asname is not None
    ]
    assert not renamed, f"one bound, one name: {renamed}"


def meaning(name: str) -> str:
    """The name without what its unit alone tells: seconds and milliseconds are both a time."""
    return "_".join(UNITS.get(word, word) for word in name.split("_"))


def test_no_two_bounds_differ_in_their_unit_alone() -> None:
    """`RETRY_S` and `RETRY_MS_MAX` with two values would be two meanings of one name."""
    names = [name for name, _ in assignments(LIMITS)]
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
