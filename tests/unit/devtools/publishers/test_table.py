"""The table of docs/compatibility.md: its rows, their order, how they get there, and that they are
what is decoded.
"""

from pathlib import Path

import pytest

from devtools.publishers import __main__ as command
from devtools.publishers import lmcache, table
from devtools.publishers.releases import RELEASES
from devtools.publishers.table import CODE, FRAMES, Row
from devtools.publishers.trial import CapturedFileError, captured_files, try_captured

REMEDY = "`make publishers` writes the table anew"


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A document with an empty table."""
    path = tmp_path / "publishers.md"
    path.write_text(f"before\n{table.BEGIN}{table.END}after\n")
    monkeypatch.setattr(table, "DOCUMENT", path)
    return path


def row(version: str, kind: str = "vLLM", how: str = CODE) -> Row:
    return Row(kind, version, how, f"| {kind} | {version} | {how} | anything |\n")


def test_frames_of_no_kind_are_no_row(tmp_path: Path) -> None:
    with pytest.raises(CapturedFileError, match="begins with one of"):
        try_captured(tmp_path / "nobody-1.0.jsonl")


def test_rows_stand_in_the_order_of_version_numbers(document: Path) -> None:
    versions = ("0.10.2", "0.9.1", "0.33.0", "0.33.0-dp3", "1.0")
    table.write([row("2.0", kind="SGLang"), *map(row, versions)])
    ordered = [one.version for one in table.in_document()]
    assert ordered == ["2.0", "0.9.1", "0.10.2", "0.33.0", "1.0", "0.33.0-dp3"]


def test_a_table_is_put_where_the_old_one_was(document: Path) -> None:
    for version in ("1.0", "2.0"):
        table.write([row(version)])
        assert table.in_document() == [row(version)]
    text = document.read_text()
    assert text.startswith(f"before\n{table.BEGIN}{table.HEAD}|")
    assert text.endswith(f"|\n{table.END}after\n")


def test_rows_of_releases_that_are_not_here_stay(
    document: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("devtools.publishers.releases.DIRECTORY", document.parent)
    release = RELEASES[0]
    tried = row(release.version, kind=release.kind)
    table.write([tried, row("0.0.1"), row("0.9.0", how=FRAMES)])
    command.make_table(into_document=True)
    rows = table.in_document()
    assert tried in rows
    assert {one.how for one in rows if one.version == "0.0.1"} == set()
    assert len(rows) == 1 + len(captured_files()) + len(lmcache.captured_files())
    assert str(release) in capsys.readouterr().err


@pytest.mark.parametrize(
    "path", [*captured_files(), *lmcache.captured_files()], ids=lambda path: path.stem
)
def test_every_captured_file_has_its_row_in_the_document(path: Path) -> None:
    tried = (try_captured if path in captured_files() else lmcache.try_captured)(path)
    assert tried.unused == 0
    assert table.row(tried) in table.in_document(), REMEDY


def test_the_document_has_a_row_for_each_release_and_each_file_and_no_other() -> None:
    rows = table.in_document()
    code = {(one.kind, one.version) for one in rows if one.how == CODE}
    assert code == {(release.kind, release.version) for release in RELEASES}, REMEDY
    files = [*captured_files(), *lmcache.captured_files()]
    assert len(rows) == len(files) + len(RELEASES), REMEDY
