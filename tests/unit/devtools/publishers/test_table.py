"""The table of docs/compatibility.md: its rows, their order, and how they get there.

`tests/integration/test_publishers_document.py` holds it against what is decoded.
"""

from pathlib import Path

import pytest

from devtools.publishers import __main__ as command
from devtools.publishers import lmcache, table
from devtools.publishers.releases import RELEASES
from devtools.publishers.table import CODE, FRAMES, Row
from devtools.publishers.trial import CapturedFileError, captured_files, try_captured


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
