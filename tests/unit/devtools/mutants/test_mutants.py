import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from devtools.mutants.__main__ import Result, judge
from devtools.mutants.operators import mutants, names
from devtools.mutants.survivors import Survivor, as_entries, read_kept
from devtools.mutants.targets import ONLY, RUST, TESTS

ROOT = Path(__file__).parents[4]
HERE = Path(__file__).parent
SAMPLE = "tests/unit/devtools/mutants/sample.py"

FIRST, SURVIVING = "if number < self.first:", "number < self.first -> number <= self.first"


def of(source: str) -> list[str]:
    return [mutant.change for mutant in mutants(source, Path("given.py"))]


def body(*lines: str) -> str:
    return "def given(a, b):\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("return a < b", ["return a < b -> return None", "a < b -> a <= b"]),
        ("return a is not b", ["return a is not b -> return None", "a is not b -> a is b"]),
        ("a.call()", ["dropped"]),
        ("a += 1", ["dropped", "a += 1 -> a -= 1", "1 -> 2", "1 -> 0"]),
        ("raise ValueError(a + 1)", ["dropped"]),
        ("del a[0]", ["dropped", "0 -> 1"]),
        ("_logger.info('it', 1)", []),
        ("assert a > 1", []),
        ("return", []),
        ("a = min(a, b)", ["dropped", "min(a, b) -> max(a, b)"]),
        ("a = not b", ["dropped", "not b -> b"]),
        ("a = True", ["dropped", "True -> False"]),
        ("a = f'{b + 1}'", ["dropped"]),
        ("a: int = b", ["dropped"]),
        ("a = b and a", ["dropped", "b and a -> a", "b and a -> b"]),
    ],
)
def test_every_kind_of_change(line: str, changes: list[str]) -> None:
    assert of(body(line)) == changes


def test_conditions_are_negated_where_no_comparison_does_so() -> None:
    assert of(body("if a: return", "elif a == b: pass")) == ["a -> not a", "a == b -> a != b"]
    assert of(body("return [x for x in a if b]"))[1:] == ["b -> not b"]


def test_defaults_annotations_decorators_and_what_stands_outside_of_functions_are_left_alone() -> (
    None
):
    source = (
        "@cache(1)\ndef given(a: int = 1) -> 'A < B':\n    '''Docstring.'''\n    ...\n\nX = 1 < 2\n"
    )
    assert of(source) == []


def test_a_name_says_which_of_several_like_lines_and_does_not_change_with_the_place() -> None:
    source = body("a.call()", "b()", "a.call()")
    named = [(one.line, one.change) for one in mutants(source, Path("given.py"))]
    assert named == [("a.call()", "dropped"), ("b()", "dropped"), ("a.call()", "dropped (#2)")]
    assert [(one.line, one.change) for one in names(source)] == named
    moved = mutants("# one line\n" * 5 + source, Path("given.py"))
    assert [(one.line, one.change) for one in moved] == named


def test_a_mutant_takes_the_place_of_what_it_is_a_mutant_of() -> None:
    source = body("return a < b")
    space: dict[str, object] = {}
    exec(compile(source, "given.py", "exec"), space)
    given = space["given"]
    assert callable(given)
    assert given(1, 1) is False
    (_, boundary) = mutants(source, Path("given.py"))
    given.__code__ = boundary.code  # type: ignore[attr-defined]
    assert given(1, 1) is True


def test_within_a_class_and_a_function() -> None:
    source = (
        "class A:\n    class B:\n        async def one(self):\n"
        "            def two():\n                return 1 + self.x\n            await two()\n"
    )
    found = mutants(source, Path("given.py"))
    assert {one.function for one in found} == {"A.B.one"}
    assert [one.at for one in found if one.change == "1 + self.x -> 1 - self.x"] == [5]


def tried(directory: Path, *options: str) -> dict[tuple[str, str], str]:
    """What became of each mutant of the sample, by its line and change."""
    out = directory / "result.json"
    command = [sys.executable, "-m", "devtools.mutants.trial", SAMPLE, f"--out={out}", *options]
    subprocess.run([*command, "--", str(HERE / "sample_checks.py")], cwd=ROOT, check=True)
    result = json.loads(out.read_text())
    assert result["failed"] == []
    return {
        (line, change): outcome
        for (_, _, line, change), outcome in zip(result["mutants"], result["outcomes"], strict=True)
    }


def test_of_the_sample_only_what_no_test_tells_apart_survives(tmp_path: Path) -> None:
    outcomes = tried(tmp_path, "--jobs=2")
    survived = {name for name, outcome in outcomes.items() if outcome == "survived"}
    assert survived == {
        (FIRST, SURVIVING),
        ("self.first = 2", "2 -> 3"),
        ("self.first = 2", "2 -> 1"),
        ("self.seen.clear()", "dropped"),
    }
    assert len(outcomes) > 10
    assert set(outcomes.values()) == {"survived", "killed"}


def test_one_function_alone(tmp_path: Path) -> None:
    outcomes = tried(tmp_path, "--function=Window.size")
    assert outcomes == {("return len(self.seen)", "return len(self.seen) -> return None"): "killed"}


ONE = Survivor("one.py", "f", "a < b", "a < b -> a <= b")
TWO = Survivor("one.py", "g", "h()", "dropped")


def result(outcomes: Sequence[tuple[Survivor, str]]) -> Result:
    return Result(
        [(one.function, 7, one.line, one.change) for one, _ in outcomes],
        [outcome for _, outcome in outcomes],
        [],
    )


def test_a_survivor_that_is_not_explained_is_new() -> None:
    judged = judge("one.py", result([(ONE, "survived"), (TWO, "killed")]), {}, whole=True)
    assert (judged.new, judged.killed, judged.explained) == ({ONE: 7}, 1, 0)


def test_an_explanation_counts_until_its_mutant_is_gone() -> None:
    kept = {ONE: "why", TWO: "why"}
    judged = judge("one.py", result([(ONE, "survived")]), kept, whole=True)
    assert (judged.new, judged.gone, judged.explained) == ({}, [TWO], 1)
    assert judge("one.py", result([(ONE, "survived")]), kept, whole=False).gone == []
    assert judge("other.py", result([]), kept, whole=True).gone == []
    assert judge("one.py", result([(ONE, "killed")]), kept, whole=False).killed_now == [ONE]


def test_entries_are_read_as_they_are_written_and_need_a_reason(tmp_path: Path) -> None:
    quoted = Survivor("one.py", "f", 'a["x"] = "\\n"', "dropped")
    path = tmp_path / "kept.toml"
    text = as_entries([ONE, quoted])
    path.write_text(text)
    with pytest.raises(ValueError, match="Expected a reason"):
        read_kept(path)
    path.write_text(text.replace('why = ""', 'why = "so"'))
    assert read_kept(path) == {ONE: "so", quoted: "so"}
    path.write_text(2 * text.replace('why = ""', 'why = "so"'))
    with pytest.raises(ValueError, match="once"):
        read_kept(path)


def test_every_explained_survivor_is_a_mutant_still() -> None:
    """Of Python; those of Rust need cargo-mutants."""
    kept = [one for one in read_kept() if one.module.endswith(".py")]
    known = {
        Survivor(module, mutant.function, mutant.line, mutant.change)
        for module in {one.module for one in kept}
        for mutant in names((ROOT / module).read_text())
    }
    assert [one for one in kept if one not in known] == []


def test_every_target_is_there() -> None:
    for path in [*TESTS, *(test for tests in TESTS.values() for test in tests), *RUST]:
        assert (ROOT / path).exists(), path
    assert set(ONLY) <= set(TESTS)
