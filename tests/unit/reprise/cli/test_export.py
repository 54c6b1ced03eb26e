"""`reprise export`: a capture as Parquet and as a trace that the other commands read."""

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replay.capture.format import (
    CapturedPublisher,
    CaptureEntry,
    CaptureKind,
    Header,
    encode_frames,
)
from replay.capture.reader import Capture
from replay.capture.writer import CaptureWriter
from replay.traces.reader import read_trace
from replay.wire_batches import Outgoing
from reprise.cli.main import main
from tests.building import BLOCK, events_record, stored
from tests.unit.lab.exports.test_output import files_of_at_most
from tests.unit.replay.histories import history
from tests.unit.replay.test_block_events import capture_of


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def export(*arguments: object) -> Result:
    return run("export", *arguments)


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    return capture_of(tmp_path / "a.capture", history(200))


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    """Twenty prompts of which each goes on where an earlier one has ended."""
    records = []
    for at in range(20):
        first = 10 * at
        tokens = [first + 1 for _ in range(2 * BLOCK)]
        parent = 10 * (at // 2 - 1) + 1 if at > 1 else None
        records.append(
            events_record(at, at, [stored(at, [first, first + 1], tokens, parent=parent)])
        )
    return capture_of(tmp_path / "c.capture", records)


def test_a_trace_is_read_by_what_reads_traces(conversations: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    result = export(conversations, "--mooncake", path, "--join", 0)
    assert result.exit_code == 0, result.output
    assert f"exported 20 requests of 20 records to {path}; read it with --block-size 4" in (
        result.output
    )
    assert "requests that an engine had cached in full left no event, and are missing" in (
        result.output
    )
    trace = read_trace(path, block_size=BLOCK)
    assert (len(trace.requests), trace.notes) == (20, [])
    simulated = run(
        *("simulate", path, "--block-size", BLOCK, "--policy", "weighted", "--processes", 1)
    )
    assert simulated.exit_code == 0, simulated.output
    assert "a.jsonl: 20 requests in 19 s" in simulated.output
    curve = run("miss-ratio", path, "--block-size", BLOCK)
    assert curve.exit_code == 0
    assert "40 different ones" in curve.output


def test_frames_are_exported_as_the_records_that_they_become(
    conversations: Path, tmp_path: Path
) -> None:
    frames, as_records, as_frames = (tmp_path / name for name in ("f.capture", "r", "f"))
    header = Header(
        kind=CaptureKind.FRAMES,
        created_at=1.0,
        created_by="test",
        source="test",
        publishers=(CapturedPublisher(endpoint="tcp://127.0.0.1:5557"),),
    )
    with Capture(conversations) as capture, CaptureWriter(frames, header) as writer:
        for number, message in enumerate(Outgoing(capture)):
            writer.add(CaptureEntry(0, number, message.time, encode_frames(message.frames)))
    refused = export(frames, "--mooncake", as_frames)
    assert refused.exit_code == 1
    assert "Give --model and --block-size" in refused.stderr
    engine = ("--model", "m", "--block-size", BLOCK, "--instance", "a")
    assert export(frames, "--mooncake", as_frames, "--join", 0, *engine).exit_code == 0
    assert export(conversations, "--mooncake", as_records, "--join", 0).exit_code == 0
    assert as_frames.read_text() == as_records.read_text()
    curves = [run("miss-ratio", conversations), run("miss-ratio", frames, *engine)]
    tables = [curve.output.replace("f.capture", "c.capture") for curve in curves]
    assert tables[0] == tables[1]
    assert "40 blocks of 4 tokens accessed" in tables[0]


def test_parquet_is_written(capture: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    result = export(capture, "--parquet", path)
    assert result.exit_code == 0, result.output
    assert parquet.read_metadata(path).num_rows > 100
    assert f"rows of {200} records to {path}" in result.output
    assert "records that are not usual: malformed" in result.stderr


def test_what_is_there_is_replaced_by_force_alone(conversations: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("mine")
    result = export(conversations, "--mooncake", path)
    assert result.exit_code == 1
    assert "--force would replace" in result.stderr
    assert path.read_text() == "mine"
    assert export(conversations, "--mooncake", path, "--force").exit_code == 0
    assert path.read_text() != "mine"


def test_what_is_intact_of_a_damaged_capture_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replay.capture.writer.CAPTURE_BLOCK_ENTRIES_MAX", 5)
    records = [events_record(at, at, [stored(at, [at], range(BLOCK))]) for at in range(10)]
    path = capture_of(tmp_path / "a.capture", records)
    whole = path.read_bytes()
    second = whole.index(b"BLCK", whole.index(b"BLCK") + 4)
    path.write_bytes(whole[: second + 90] + b"xxxx" + whole[second + 94 :])
    for option, read in (("--mooncake", _lines), ("--parquet", _rows)):
        output = tmp_path / f"out{option}"
        result = export(path, option, output)
        assert result.exit_code == 1
        assert f"at byte {second}" in result.stderr
        assert read(output) == 5


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _rows(path: Path) -> int:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows: int = parquet.read_metadata(path).num_rows
    return rows


@pytest.mark.parametrize("option", ["--mooncake", "--parquet"])
def test_a_full_disk_leaves_nothing(conversations: Path, tmp_path: Path, option: str) -> None:
    pytest.importorskip("pyarrow")
    before = sorted(os.listdir(tmp_path))
    with files_of_at_most(500):
        result = export(conversations, option, tmp_path / "out")
    assert result.exit_code == 1
    assert f"Cannot write an export at {tmp_path / 'out'}" in result.stderr
    assert sorted(os.listdir(tmp_path)) == before


def test_a_trace_is_no_capture(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"timestamp": 0}))
    result = export(path, "--mooncake", tmp_path / "out")
    assert result.exit_code == 1
    assert "Expected a capture, got a file that does not begin as one" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Expected one of --parquet and --mooncake"),
        (["--parquet", "a", "--mooncake", "b"], "Expected one of --parquet and --mooncake"),
        (["--parquet", "a", "--join", "3"], "Expected --join with --mooncake only"),
        (["--mooncake", "a", "--model", "m", "--block-size", "4"], "a capture of frames only"),
        (["--mooncake", "none/a"], "Cannot write none/a: expected a directory"),
    ],
)
def test_what_cannot_be_is_named(capture: Path, arguments: list[str], message: str) -> None:
    result = export(capture, *arguments)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("package", ["pyarrow", "numpy"])
def test_without_the_extra_it_says_what_to_install(
    capture: Path, tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = export(capture, "--parquet", tmp_path / "a")
    assert result.exit_code == 1
    assert f"Expected {package}, which is not installed: `pip install {package}`" in (result.stderr)
    assert export(capture, "--mooncake", tmp_path / "b").exit_code == 0
