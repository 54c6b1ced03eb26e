"""Sources that have all their mutants: what is chosen, and whom the compiler's errors are about."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from devtools.mutants.combined import CHOSEN, REACHED, RUNTIME, CombinedSource, combined

needs_rust = pytest.mark.skipif(shutil.which("rustc") is None, reason="Rust is not installed")


def mutant(source: str, at: str, genre: str, replacement: str, of: str | None = None) -> Any:
    """As it is listed: what stands at `at`, of which `of` is replaced, all of it where None."""
    start = source.index(at) + at.index(of or at)
    end = start + len(of or at)

    def place(index: int) -> dict[str, int]:
        before = source[:index]
        return {"line": before.count("\n") + 1, "column": index - before.rfind("\n")}

    span = {"start": place(start), "end": place(end)}
    function = {"return_type": source[source.find("->") : source.index("{")]}
    return {"genre": genre, "replacement": replacement, "span": span, "function": function}


def shown(whole: CombinedSource) -> str:
    """Without marks and paths."""
    text = re.sub(r"/\*<[^>]*>\*/", "", whole.source)
    return text.replace("crate::mutant_choice::", "")


def made(source: str, *mutants: tuple[str, ...]) -> str:
    return shown(combined(source, dict(enumerate(mutant(source, *one) for one in mutants))))


def test_an_operator_is_chosen_with_its_operands() -> None:
    source = "fn f(a: u8, b: u8) -> bool { /* ä */ a + 1 < b }"
    assert made(source, ("a + 1 < b", "BinaryOperator", "==", "<")) == source.replace(
        "a + 1 < b", "(if is(0) { a + 1 == b } else { a + 1 < b })"
    )


def test_mutants_within_each_other_are_of_the_source_as_it_is() -> None:
    source = "fn f(a: u8, b: u8) -> bool { a + 1 < b }"
    assert made(
        source,
        ("a + 1 < b", "BinaryOperator", "==", "<"),
        ("a + 1", "BinaryOperator", "-", "+"),
        ("a + 1", "BinaryOperator", "*", "+"),
    ) == source.replace(
        "a + 1 < b",
        "(if is(0) { a + 1 == b } else {"
        " (if is(1) { a - 1 } else if is(2) { a * 1 } else { a + 1 }) < b })",
    )


def test_a_body_returns_what_it_is_replaced_with_before_all_else() -> None:
    source = "fn f(a: u8) -> u8 { a + 1 }"
    assert made(
        source,
        ("a + 1", "BinaryOperator", "-", "+"),
        ("a + 1", "FnValue", "0"),
        ("a + 1", "FnValue", "1"),
    ) == (
        "fn f(a: u8) -> u8 { if is(1) { return 0; }if is(2) { return 1; }"
        "(if is(0) { a - 1 } else { a + 1 }) }"
    )


def test_an_arm_is_dropped_by_its_guard() -> None:
    source = "fn f(a: u8) -> u8 { match a { 1 => 2, b if b > 3 => 4, _ => 5 } }"
    assert made(
        source,
        ("1 => 2", "MatchArm", ""),
        ("b if b > 3 => 4", "MatchArm", ""),
        ("b > 3", "MatchArmGuard", "true"),
        ("b > 3", "BinaryOperator", "<", ">"),
    ) == (
        "fn f(a: u8) -> u8 { match a { 1 if !is(0) => 2, b if (if is(1) { false } else if is(2)"
        " { true } else if is(3) { b < 3 } else { b > 3 }) => 4, _ => 5 } }"
    )


def test_an_unary_operator_and_a_field_are_left_out() -> None:
    source = "fn f(a: A) -> A { A { b: !a.b, ..A::default() } }"
    assert made(
        source, ("!a.b", "UnaryOperator", "", "!"), ("b: !a.b,", "StructField", "")
    ) == source.replace(
        "A { b: !a.b, ..A::default() }",
        "(if is(1) { A {  ..A::default() } } else"
        " { A { b: (if is(0) { a.b } else { !a.b }), ..A::default() } })",
    )


@pytest.mark.parametrize(
    ("source", "at", "genre"),
    [
        ("fn f() { g!(a < b) }", "<", "BinaryOperator"),
        ("fn f(a: bool) { if let Some(1) = g() && a {} }", "&&", "BinaryOperator"),
        ("fn f() -> impl Iterator<Item = u8> { g() }", "g()", "FnValue"),
    ],
)
def test_what_cannot_be_chosen_is_left_to_be_tried_alone(source: str, at: str, genre: str) -> None:
    whole = combined(source, {3: mutant(source, at, genre, "h()")})
    assert whole == CombinedSource(source, [])


SOURCE = "fn f(a: u8, b: u8) -> bool { a + 1 < b }\nfn g() {}\n"
OPERATORS = {
    5: mutant(SOURCE, "a + 1 < b", "BinaryOperator", "==", "<"),
    6: mutant(SOURCE, "a + 1", "BinaryOperator", "-", "+"),
    7: mutant(SOURCE, "a + 1", "BinaryOperator", "*", "+"),
}


@pytest.mark.parametrize(
    ("at", "mutants"),
    [
        ("a + 1 == b", {5}),
        ("== b", {5}),
        ("a - 1", {6}),
        ("a + 1 })", {6, 7}),
        ("else if", {6, 7}),
        ("< b }", {5}),
        ("fn f", set()),
        ("fn g", set()),
    ],
)
def test_an_error_is_about_the_mutant_around_it_or_all_at_its_place(
    at: str, mutants: set[int]
) -> None:
    whole = combined(SOURCE, OPERATORS)
    assert whole.blamed([whole.source.index(at)]) == mutants


def test_an_error_in_a_body_may_be_about_what_it_is_replaced_with() -> None:
    source = "fn f(a: u8) -> u8 { g(a + 1) }\nfn h() {}"
    whole = combined(
        source,
        {
            1: mutant(source, "g(a + 1)", "FnValue", "0"),
            2: mutant(source, "a + 1", "BinaryOperator", "-", "+"),
        },
    )
    assert whole.blamed([whole.source.index("g(")]) == {1}
    assert whole.blamed([whole.source.index("a + 1")]) == {2}
    assert whole.blamed([whole.source.index("fn h")]) == set()


def test_of_an_errors_places_that_in_a_mutant_says_most() -> None:
    whole = combined(SOURCE, OPERATORS)
    around, within = (whole.source.index(at) for at in ("else if", "a - 1"))
    assert whole.blamed([around, within]) == {6}
    assert whole.blamed([]) == set()
    assert [whole.within(place) for place in (around, within)] == [set(), {6}]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = SOURCE + 'fn main() { print!("{}", f(3, 4)); if f(9, 1) { g() } }\n'
    directory = tmp_path_factory.mktemp("combined")
    whole = combined(source, OPERATORS)
    assert whole.numbers == [5, 6, 7]
    (directory / "it.rs").write_text(whole.source + RUNTIME.read_text())
    command = ["rustc", "--edition", "2024", "it.rs", "-o", "it"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True)
    return directory / "it"


@needs_rust
def test_the_environment_chooses(program: Path) -> None:
    def of(**environment: str) -> str:
        return subprocess.run([program], env=environment, capture_output=True, text=True).stdout

    assert of() == "false"
    assert [of(**{CHOSEN: str(number)}) for number in (5, 6, 7, 8)] == [
        "true",
        "true",
        "true",
        "false",
    ]


@needs_rust
def test_what_is_reached_is_noted_once(program: Path, tmp_path: Path) -> None:
    file = tmp_path / "reached"
    subprocess.run([program], env={REACHED: str(file)}, check=True, capture_output=True)
    assert sorted(file.read_text().split()) == ["5", "6", "7"]
