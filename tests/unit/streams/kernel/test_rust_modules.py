"""A Rust module imports no module that imports it: `lint-imports` says the same of Python."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_rust

import streams.kernel

NATIVE = Path(streams.kernel.__file__).with_name("native")
CRATES = sorted(path.parent for path in NATIVE.rglob("src/lib.rs"))
PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))
PATHS = ("scoped_identifier", "scoped_type_identifier", "use_wildcard")


def text_of(node: tree_sitter.Node | None) -> str:
    return "" if node is None else "".join((node.text or b"").decode().split())


def parent_of(module: str) -> str:
    return module.rpartition("::")[0] or "crate"


def is_for_tests(node: tree_sitter.Node) -> bool:
    before = node.prev_named_sibling
    while before is not None and before.type in ("attribute_item", "line_comment"):
        if text_of(before) == "#[cfg(test)]":
            return True
        before = before.prev_named_sibling
    return False


def modules_of(source: Path) -> dict[str, tree_sitter.Node]:
    """The code of each module of a crate, `crate::a::b`, without those for tests alone."""
    found, hidden = {}, set()
    for file in sorted(source.rglob("*.rs")):
        parts = [one for one in file.relative_to(source).with_suffix("").parts if one != "mod"]
        module = "::".join(["crate", *(parts if parts != ["lib"] else [])])
        found[module] = PARSER.parse(file.read_bytes()).root_node
        for node in filter(is_for_tests, found[module].named_children):
            hidden.add(f"{module}::{text_of(node.child_by_field_name('name'))}")
    return {one: code for one, code in found.items() if not hidden & {one, parent_of(one)}}


def paths_in(node: tree_sitter.Node) -> Iterator[str]:
    """The paths that stand in code; those of a `use` list are written out."""
    if node.type in PATHS:
        yield text_of(node)
    elif node.type == "scoped_use_list":
        names = node.child_by_field_name("list")
        for name in names.named_children if names else ():
            for path in list(paths_in(name)) or [text_of(name)]:
                yield f"{text_of(node.child_by_field_name('path'))}::{path}"
    elif not is_for_tests(node):
        for child in node.named_children:
            yield from paths_in(child)


def circles_in(source: Path) -> list[list[str]]:
    """The modules of each circle of a crate."""
    modules = modules_of(source)
    reached: dict[str, set[str]] = {module: set() for module in modules}
    for module, code in modules.items():
        for path in paths_in(code):
            first, _, rest = path.partition("::")
            from_here = {"crate": "crate", "self": module, "super": parent_of(module)}
            named = f"{from_here[first]}::{rest}" if first in from_here else f"{module}::{path}"
            while named not in modules:
                named = parent_of(named)
            if named != module:
                reached[module].add(named)
    for middle in modules:
        for after in reached.values():
            after |= reached[middle] if middle in after else set()
    circles = {tuple(sorted(b for b in after if a in reached[b])) for a, after in reached.items()}
    return sorted(map(list, circles - {()}))


@pytest.mark.parametrize("source", CRATES, ids=lambda source: source.parent.name)
def test_no_modules_import_one_another(source: Path) -> None:
    assert circles_in(source) == [], "find the third module that both need"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ({"a": "use crate::{c, b::{self, B}};", "b": "fn f() { crate::a::g() }", "c": ""}, "ab"),
        ({"a": "use super::b;", "b": "use crate::c::*;", "c": "type A = crate::a::A;"}, "abc"),
        ({"a": "use crate::b;", "b": "#[cfg(test)]\nmod tests { use crate::a; }"}, ""),
        ({"a": "use crate::t;", "t": "use crate::a;"}, ""),
    ],
)
def test_a_circle_is_found(tmp_path: Path, code: Mapping[str, str], expected: str) -> None:
    (tmp_path / "lib.rs").write_text("mod a;\n#[cfg(test)]\nmod t;\n")
    for name, text in code.items():
        (tmp_path / f"{name}.rs").write_text(text)
    assert circles_in(tmp_path) == ([[f"crate::{one}" for one in expected]] if expected else [])
