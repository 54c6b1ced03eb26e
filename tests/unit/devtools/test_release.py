"""Versions that do not agree are named, with the place."""

from pathlib import Path

import pytest

from devtools.release.__main__ import tags_of
from devtools.release.versions import problems, version_of

ROOT = Path(__file__).parents[3]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, content in (
        ("pyproject.toml", '[project]\nversion = "1.2.3"\n'),
        ("reprise/__init__.py", '__version__ = "1.2.3"\n'),
        ("streams/kernel/native/Cargo.toml", '[workspace.package]\nversion = "1.2.3"\n'),
        ("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n## 1.2.2 - 2026-10-01\n"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    return tmp_path


def test_this_repository_agrees() -> None:
    assert problems(ROOT, tags_of(ROOT)) == []


def test_what_agrees_has_no_problem(root: Path) -> None:
    assert version_of(root) == "1.2.3"
    assert problems(root) == []
    assert problems(root, ["other", "v1.x"]) == []


@pytest.mark.parametrize(
    ("path", "before", "after", "said"),
    [
        ("reprise/__init__.py", "1.2.3", "1.2.4", "1.2.3 in reprise/__init__.py, as in pyproject"),
        ("reprise/__init__.py", "__version__", "version", "got: nothing"),
        ("streams/kernel/native/Cargo.toml", "1.2.3", "1.2.2", "native/Cargo.toml"),
        ("CHANGELOG.md", "## Unreleased\n", "", "`## Unreleased` or 1.2.3 first"),
        ("CHANGELOG.md", "1.2.2 -", "1.2.4 -", "no release above 1.2.3"),
        ("CHANGELOG.md", "2026-10-01", "soon", "got: ## 1.2.2 - soon"),
        (
            "CHANGELOG.md",
            "2026-10-01\n",
            "2026-10-01\n## 1.10.0 - 2026-01-01\n",
            "latest one first",
        ),
        ("CHANGELOG.md", "## ", "", "got no heading"),
    ],
)
def test_what_does_not_is_named(root: Path, path: str, before: str, after: str, said: str) -> None:
    text = (root / path).read_text()
    assert before in text
    (root / path).write_text(text.replace(before, after))
    (problem,) = problems(root)
    assert said in problem


def test_a_tag_is_of_a_version_that_is_released(root: Path) -> None:
    assert any(
        "tag v1.2.3 of this commit, got: v1.2.2" in one for one in problems(root, ["v1.2.2"])
    )
    (problem,) = problems(root, ["v1.2.3"])
    assert "first in CHANGELOG.md, as it is tagged" in problem
    text = (root / "CHANGELOG.md").read_text()
    (root / "CHANGELOG.md").write_text(text.replace("Unreleased", "1.2.3 - 2026-11-27"))
    assert problems(root, ["v1.2.3"]) == []
