"""Mutants that are built as one, of a kernel of a few lines that cargo builds."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from devtools.mutants.combined_trial import KernelPackage, try_together
from devtools.mutants.crate_tests import NotBuiltError
from devtools.mutants.kernel_copy import NATIVE, KernelCopy
from tests.unit.devtools.mutants.test_combined import mutant

pytestmark = [
    pytest.mark.skipif(shutil.which("cargo") is None, reason="Rust is not installed"),
    pytest.mark.faults,
]

ROOT = Path(__file__).parents[4]
MODULE = f"{NATIVE}/tiny/src/lib.rs"
SOURCE = """\
pub fn least(a: u64, b: u64) -> u64 {
    if a < b { a } else { b }
}

pub fn steps(mut of: u64) -> u64 {
    let mut steps = 0;
    while of != 0 {
        of -= 1;
        steps += 1;
    }
    steps
}

pub const MOST: u64 = 4 + 5;

pub fn never() -> bool {
    true
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_are_two_steps() {
        assert_eq!(super::steps(2), 2);
    }
}
"""
MANIFEST = """\
[package]
name = "reprise-kernel"
version = "0.1.0"
edition = "2024"
[lib]
name = "_native"
crate-type = ["cdylib"]
test = false
[dependencies]
tiny.path = "tiny"
[workspace]
members = ["tiny"]
"""
EXTENSION = """\
#[unsafe(no_mangle)]
pub extern "C" fn least(a: u64, b: u64) -> u64 {
    tiny::least(a, b)
}
"""
TESTS = """\
import ctypes
from pathlib import Path

library = ctypes.CDLL(str(Path(__file__).parents[1] / "streams/kernel/_native.abi3.so"))
library.least.restype = ctypes.c_uint64

def least(a, b):
    return library.least(ctypes.c_uint64(a), ctypes.c_uint64(b))

def test_the_first():
    assert least(3, 4) == 3

def test_the_second():
    assert least(4, 3) == 3
"""

MUTANTS = {
    "compared otherwise": mutant(SOURCE, "a < b", "BinaryOperator", ">", "<"),
    "as good as it is": mutant(SOURCE, "a < b", "BinaryOperator", "<=", "<"),
    "a step too many": mutant(SOURCE, "steps += 1", "BinaryOperator", "*=", "+="),
    "never ends": mutant(SOURCE, "of -= 1", "BinaryOperator", "/=", "-="),
    "in a constant": mutant(SOURCE, "4 + 5", "BinaryOperator", "-", "+"),
    "of another type": mutant(SOURCE, "    true\n".strip(), "FnValue", '"text"'),
    "called by no test": mutant(SOURCE, "    true\n".strip(), "FnValue", "false"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    files = {
        MODULE: SOURCE,
        f"{NATIVE}/Cargo.toml": MANIFEST,
        f"{NATIVE}/src/lib.rs": EXTENSION,
        f"{NATIVE}/tiny/Cargo.toml": '[package]\nname = "tiny"\nversion = "0.1.0"\n',
        "tests/test_it.py": TESTS,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shutil.copytree(ROOT / "devtools/mutants", root / "devtools/mutants")
    return root


def tried(root: Path, mutants: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    found = {}
    names = list(mutants)
    copy = KernelCopy(root, root.parent / "built")
    try_together(
        copy,
        {MODULE: dict(enumerate(mutants.values())), f"{NATIVE}/tiny/src/empty.rs": {}},
        KernelPackage("tiny", ("tests/test_it.py",)),
        2,
        lambda number, outcome: found.update({names[number]: outcome}),
    )
    assert (copy.tree / MODULE).read_text() == SOURCE
    return found


def test_what_becomes_of_each_and_what_is_left(root: Path) -> None:
    assert tried(root, MUTANTS) == {
        "compared otherwise": "killed",
        "as good as it is": "survived",
        "a step too many": "killed",
        "never ends": "killed",
        "of another type": "unusable",
        "called by no test": "survived",
    }, "what stands in a constant is left"


def test_where_a_test_in_python_fails_without_a_mutant_none_is_tried(root: Path) -> None:
    with (root / "tests/test_it.py").open("a") as file:
        file.write("\ndef test_more():\n    assert least(1, 2) == 2\n")
    with pytest.raises(NotBuiltError, match=r"without a mutant: \['tests/test_it.py::test_more'\]"):
        tried(root, {"called by no test": MUTANTS["called by no test"]})


def test_where_a_test_of_the_crate_fails_without_a_mutant_none_is_tried(root: Path) -> None:
    source = SOURCE.replace("super::steps(2), 2", "super::steps(2), 3")
    (root / MODULE).write_text(source)
    with pytest.raises(NotBuiltError, match="a test of the crate fails without a mutant"):
        tried(root, {"called by no test": MUTANTS["called by no test"]})


def test_what_does_not_compile_without_a_mutant_is_said_to_be_no_mutants(root: Path) -> None:
    (root / MODULE).write_text(SOURCE.replace("let mut steps = 0;", "let mut steps = ;"))
    with pytest.raises(NotBuiltError, match="does not compile, for no mutant's sake"):
        tried(root, {"called by no test": MUTANTS["called by no test"]})
