"""`reprise trace import`, and what reads what it writes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reprise.cli import trace
from reprise.cli.main import main
from tests.unit.replay.traces.test_conversations import conversation, request, sub_agent, write


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two conversations; of the blocks 0 of 2 + 2 of 3 + 0 of 1 hit, and 0 of 2 + 1 of 2."""
    folder = tmp_path / "traces"
    folder.mkdir()
    first = conversation(request(0, [1, 2]), sub_agent(5, request(0, [9])), request(9, [1, 2, 3]))
    write(folder / "a.json", first)
    write(folder / "b.json", conversation(request(0, [1, 2]), request(4, [1, 3]), id="trace_0002"))
    return folder


def test_a_folder_becomes_a_trace_whose_sessions_hit_what_they_hold(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "agents.jsonl"
    result = run("trace", "import", folder, "--out", out, "--every", 30)
    assert result.exit_code == 0, result.output
    assert (
        f"imported 5 requests of 2 conversations to {out}, 0.00 MiB; 1 of them are of 1 sub-agent;"
        " read it with --block-size 64\n"
    ) in result.stdout
    assert "requests of a conversation: min 2, P10 2, P25 2, median 2, P75 3" in result.stdout
    assert "input tokens of a request: min 71, P10 97, P25 135, median 135" in result.stdout
    assert set(tmp_path.iterdir()) == {folder, out}
    rates = (
        "2 sessions, hit % of the blocks of each in one cache for all that never evicts:"
        " min 25.0, P25 27.1, median 29.2, P75 31.2, max 33.3, mean 29.2\n"
    )
    ratio = run("miss-ratio", out, "--block-size", 64, "--json", tmp_path / "r.json")
    assert ratio.exit_code == 0, ratio.output
    assert rates in ratio.stdout
    document = json.loads((tmp_path / "r.json").read_bytes())
    assert document["sessions"]["agents.jsonl"]["max"] == pytest.approx(1 / 3)
    simulated = run(
        *("simulate", out, "--block-size", 64, "--policy", "least-loaded", "--processes", 1),
        *("--json", tmp_path / "s.json", "--report", tmp_path / "s.html"),
    )
    assert simulated.exit_code == 0, simulated.output
    assert rates in simulated.stdout
    assert f"<p>{rates.strip()}</p>" in (tmp_path / "s.html").read_text()
    [facts] = json.loads((tmp_path / "s.json").read_bytes())["traces"]
    assert facts["session_hits"] == document["sessions"]["agents.jsonl"]


def test_blocks_that_all_share_hit_in_the_next_conversation(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "agents.jsonl"
    # Of 200 tokens of tools and system prompt half are one whole block.
    result = run("trace", "import", folder, "--out", out, "--warm-prefix", 0.5, "--every", 30)
    assert result.exit_code == 0, result.output
    ratio = run("miss-ratio", out, "--block-size", 64)
    assert "min 33.3, P25 37.5, median 41.7, P75 45.8, max 50.0" in ratio.stdout


def test_files_that_cannot_be_read_are_left_out_and_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "IMPORT_ERRORS_SHOWN", 1)
    write(folder / "0.json", "{}")
    write(folder / "1.json", "{}")
    out = tmp_path / "agents.jsonl"
    result = run("trace", "import", folder, "--out", out)
    assert result.exit_code == 1
    assert f"error: {folder}/0.json: expected a conversation" in result.stderr
    assert "1.json" not in result.stderr
    assert "error: 2 files of 4 left out" in result.stderr
    assert "imported 5 requests of 2 conversations" in result.stdout


def test_nothing_is_written_where_there_is_no_request(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "agents.jsonl"
    empty = write(tmp_path / "c.json", conversation())
    result = run("trace", "import", empty, "--out", out)
    assert result.exit_code == 1
    assert "Expected a request in 1 file, got none" in result.output
    assert not out.exists()
    out.write_text("mine")
    refused = run("trace", "import", folder, "--out", out)
    assert "got one that --force would replace" in refused.output
    assert out.read_text() == "mine"
    assert run("trace", "import", folder, "--out", out, "--force").exit_code == 0
    assert len(out.read_text().splitlines()) == 5
