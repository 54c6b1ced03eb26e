"""README and docs/: their size, and that each link and each name of a document leads somewhere."""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

import schemas

ROOT = Path(schemas.__file__).parents[1]
TEXTS = frozenset({".md", ".py", ".yml", ".yaml", ".json", ".toml", ".js", ".html", ".txt", ".rs"})
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"\bdocs/[\w-]+\.md(?:#[\w-]+)?")


@cache
def tracked() -> list[Path]:
    """All files of the repository; of a tree without git, its documents."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0 and done.stdout:
        return [path for name in done.stdout.split("\0") if (path := ROOT / name).is_file()]
    return [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


def documents() -> list[Path]:
    return [path for path in tracked() if path.suffix == ".md"]


def docs() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


@cache
def anchors(path: Path) -> frozenset[str]:
    """What GitHub makes of a document's headings, and those that stand there."""
    found: dict[str, int] = {}
    names = set()
    text = FENCE.sub("", path.read_text())
    for title in re.findall(r"^#{1,6} (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = found.get(name, 0)
        found[name] = count + 1
        names.add(f"{name}-{count}" if count else name)
    return frozenset(names.union(re.findall(r'<a id="([\w-]+)">', text)))


def wrong(target: str, beside: Path) -> bool:
    """Whether a relative link leads nowhere."""
    name, _, anchor = target.partition("#")
    path = (beside.parent / name).resolve() if name else beside
    if not path.exists():
        return True
    return bool(anchor) and path.suffix == ".md" and anchor not in anchors(path)


def test_every_link_leads_somewhere() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in documents()
        for target in LINK.findall(FENCE.sub("", path.read_text()))
        if not re.match(r"[a-z]+:", target) and wrong(target, path)
    ]
    assert found == []


def test_every_document_that_is_named_exists() -> None:
    """In docstrings, texts of errors, alerts, dashboards and the page."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in tracked()
        if path.suffix in TEXTS or path.name in ("Makefile", "Dockerfile")
        for name in NAMED.findall(path.read_text(errors="replace"))
        if wrong(name, ROOT / "README.md")
    ]
    assert found == []


def test_no_two_headings_of_a_document_have_one_name() -> None:
    """The second one's anchor would change with the first."""
    twice = [
        f"{path.name}#{name}"
        for path in docs()
        for name in anchors(path)
        if (numbered := re.fullmatch(r"(.*)-\d+", name)) and numbered[1] in anchors(path)
    ]
    assert twice == []


def test_docs_are_few_and_each_says_who_needs_it() -> None:
    # One for each reader: the 13th is for who brings an engine, and needs none of the others.
    assert len(docs()) <= 13
    for path in docs():
        title, blank, line = path.read_text().splitlines()[:3]
        assert title.startswith("# ")
        assert blank == ""
        assert line.startswith("For people who "), path.name


def test_the_readme_is_read_in_one_sitting() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 160] == []


@pytest.mark.parametrize("path", docs(), ids=lambda path: path.stem)
def test_every_document_is_linked_from_the_readme(path: Path) -> None:
    assert f"(docs/{path.name}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", [ROOT / "README.md", *docs()], ids=lambda path: path.stem)
def test_every_file_that_a_document_names_exists(path: Path) -> None:
    """In backticks, with a folder of the repository before it; `*` stands for some of them.

    Files of `acme` and `borealis` are those that a reader adds.
    """
    folders = "|".join(sorted(one.name for one in ROOT.iterdir() if (one / "__init__.py").exists()))
    named = re.findall(rf"`((?:{folders}|monitoring|deploy)/[\w/.*-]+)`", path.read_text())
    here = [name for name in named if not re.search("acme|borealis", name)]
    assert [name for name in here if not list(ROOT.glob(name.rstrip("/")))] == []


@pytest.mark.parametrize("given", ["PORT=abc", "PORT=80000", "PORT=0", "port=70000"])
def test_make_says_what_a_port_is(given: str) -> None:
    # As a person calls it, also where these tests are themselves run by make.
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    own.pop("MFLAGS", None)
    done = subprocess.run(
        ["make", "port", given], cwd=ROOT, env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    got = given.partition("=")[2]
    assert done.stdout == f"Expected PORT to be a number from 1 to 65535, got: {got}\n"
