"""What runs have found, kept in a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from devtools.mutants.findings import Findings, key_of, state_of


def found_in(path: Path, *keys: str) -> list[Any]:
    with Findings(path) as findings:
        return [findings.find(key) for key in keys]


def test_what_was_found_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    with Findings(path) as findings:
        assert findings.find("a") is None
        findings.note("a", "killed", of="one")
        findings.note("b", {"outcomes": ["survived"]}, of="two")
        # Before it is closed, for it may be killed.
        assert found_in(path, "a", "b", "c") == ["killed", {"outcomes": ["survived"]}, None]
        findings.note("a", "survived", of="one")
    assert found_in(path, "a") == ["survived"], "the last one counts"
    assert [json.loads(line)["of"] for line in path.read_text().splitlines()] == [
        *("one", "two", "one")
    ]


def test_a_line_that_was_not_written_to_its_end_costs_that_one(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    with Findings(path) as findings:
        findings.note("a", "killed", of="one")
        findings.note("b", "killed", of="two")
    path.write_text(path.read_text()[:-5])
    with Findings(path) as findings:
        assert (findings.find("a"), findings.find("b"), findings.unreadable) == ("killed", None, 1)
        findings.note("c", "survived", of="three")
    assert found_in(path, "a", "b", "c") == ["killed", None, "survived"]


@pytest.mark.parametrize("line", ["[]", '{"found": 1}', '{"key": [], "found": 1}', "{"])
def test_any_other_line_is_passed_over(tmp_path: Path, line: str) -> None:
    path = tmp_path / "found.jsonl"
    path.write_text(line + "\n")
    with Findings(path) as findings:
        assert findings.unreadable == 1


def test_without_a_file_it_knows_what_it_was_told() -> None:
    with Findings() as findings:
        findings.note("a", "killed", of="one")
        assert findings.find("a") == "killed"


def test_keys_tell_parts_apart() -> None:
    assert len({key_of(), key_of(""), key_of("ab"), key_of("a", "b"), key_of("", "ab")}) == 5
    assert key_of("a", "b") == key_of("a", "b")


def test_a_state_is_another_one_after_any_change_of_a_source(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "inner"
    inner.mkdir(parents=True)
    (inner / "one.rs").write_text("1")
    (tmp_path / "b.py").write_text("no folder's")

    def state() -> str:
        return state_of(tmp_path, ["a", "none"])

    states = [state()]
    for change in (
        lambda: (inner / "one.rs").write_text("2"),
        lambda: (inner / "one.rs").rename(inner / "two.rs"),
        lambda: (tmp_path / "a" / "three.py").write_text("1"),
        lambda: (inner / "two.rs").unlink(),
    ):
        change()
        assert state() not in states
        states.append(state())
    (tmp_path / "b.py").write_text("2")
    (inner / "built.so").write_text("1")
    (inner / "survivors.toml").write_text("what is said of them")
    (inner / "target").mkdir()
    (inner / "target" / "made.rs").write_text("1")
    assert state() == states[-1]
