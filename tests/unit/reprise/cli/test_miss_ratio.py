"""`reprise miss-ratio`, of traces and of captures."""

import csv
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reprise.cli.main import main
from tests.building import BLOCK, events_record, removed, stored
from tests.unit.replay.test_block_events import capture_of


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    lines = [
        {
            "timestamp": 100 * at,
            "input_length": 1200,
            "output_length": 3,
            "hash_ids": [0, 1 + at % 3, 100 + at],
        }
        for at in range(30)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    tokens = list(range(3 * BLOCK))
    records = [
        events_record(1, 1, [stored(1, [1, 2, 3], tokens)]),
        events_record(2, 2, [removed(2, [1, 2, 3])]),
        events_record(50, 50, [stored(50, [1, 2], tokens[: 2 * BLOCK])]),
    ]
    return capture_of(tmp_path / "small.capture", records)


def miss_ratio(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["miss-ratio", *map(str, arguments)])


def test_a_trace_alone_is_enough(trace: Path) -> None:
    result = miss_ratio(trace)
    assert result.exit_code == 0
    assert "small.jsonl: 90 blocks of 512 tokens accessed" in result.output
    # Of 30 requests 29 hit the first block and 27 the second, 512 of 1,200 tokens each.
    assert "34 different ones; at most 62.2 % of blocks hit, 79.6 % of tokens" in result.output
    assert "one cache for all requests; of several engines each with its own: " in result.output
    sampled = miss_ratio(trace, "--sample", 0.1)
    assert "too few to say how many hit: a larger --sample does" in sampled.output
    assert "hit % of blocks" not in sampled.output
    sizes = miss_ratio(trace, "--size", "1k,2k")
    assert "give the option once for each capacity" in sizes.stderr


def test_sizes_are_tokens_or_blocks(trace: Path) -> None:
    result = miss_ratio(trace, "--size", "2blocks", "--size", "50k")
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines() if line.startswith("   ")]
    assert [row[:2] for row in rows[1:]] == [["2", "1,024"], ["97", "49,664"]]
    assert rows[2][2] == "62.2"


def test_a_capture_has_regret_too(capture: Path, tmp_path: Path) -> None:
    result = miss_ratio(capture, "--regret", "10,60", "--size", "3blocks", "--json", tmp_path / "j")
    assert result.exit_code == 0, result.output
    assert "small.capture / default / m: 5 blocks of 4 tokens accessed" in result.output
    assert "small.capture / default / m / GPU: 3 blocks removed, 5 stored" in result.output
    found = json.loads((tmp_path / "j").read_text())
    assert found["curves"][0]["points"][0]["block_hit_rate"] == pytest.approx(0.4)
    assert found["regrets"][0]["scope"]["medium"] == "GPU"
    within = [
        (one["seconds"], one["stored_again"], one["open"]) for one in found["regrets"][0]["within"]
    ]
    assert within == [(10, 0, 0), (60, 2, 1)]


def test_all_files_are_written(trace: Path, capture: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    outputs = [tmp_path / name for name in ("r.json", "r.csv", "r.png")]
    result = miss_ratio(
        *(trace, capture, "--sample", 0.9, "--json", outputs[0], "--csv", outputs[1]),
        *("--plot", outputs[2]),
    )
    assert result.exit_code == 0, result.output
    assert len(json.loads(outputs[0].read_text())["curves"]) == 2
    rows = list(csv.DictReader(outputs[1].read_text().splitlines()))
    assert {row["what"] for row in rows} == {"hit_rate", "regret"}
    assert {row["source"] for row in rows} == {"small.jsonl", "small.capture"}
    assert [row["seconds"] for row in rows if row["what"] == "regret"] == ["60", "300", "3600"]
    assert outputs[2].read_bytes().startswith(b"\x89PNG")


def test_what_stands_before_a_broken_line_is_used(trace: Path) -> None:
    trace.write_text(trace.read_text() + '{"timestamp": -5}\n')
    result = miss_ratio(trace)
    assert result.exit_code == 1
    assert "error: small.jsonl: line 31: expected an object with timestamp" in result.stderr
    assert "small.jsonl: 90 blocks of 512" in result.output


def test_what_stands_before_damage_is_used(tmp_path: Path) -> None:
    records = [events_record(at, at, [stored(at, [at], range(BLOCK))]) for at in range(10)]
    path = capture_of(tmp_path / "a.capture", records)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    cut = miss_ratio(path)
    assert cut.exit_code == 0
    assert "interrupted or cut off" in cut.stderr
    assert "10 blocks of 4 tokens accessed" in cut.output
    path.write_bytes(whole[:200] + b"xxxx" + whole[204:])
    damaged = miss_ratio(path)
    assert damaged.exit_code == 1
    assert "at byte" in damaged.stderr
    assert "Traceback" not in damaged.output


def test_files_of_one_name_are_told_apart(trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / trace.name
    other.parent.mkdir()
    other.write_text(trace.read_text())
    result = miss_ratio(trace, other)
    assert f"2: {other}: 90 blocks" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "much"], "Expected a capacity in tokens"),
        (["--size", "unbounded"], "Expected a --size with an end"),
        (["--sample", "0"], "0"),
        (["--sample", "nan"], "nan"),
        (["--regret", "60,-1"], "-1"),
        (["--regret", ",".join(["1"] * 17)], "expected at most 16 numbers, got 17"),
        (["--json", "none/r.json"], "Cannot write none/r.json: expected a directory"),
    ],
)
def test_what_cannot_be_is_named(trace: Path, arguments: list[str], message: str) -> None:
    result = miss_ratio(trace, *arguments)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_trace_has_no_regret(trace: Path) -> None:
    result = miss_ratio(trace, "--regret", "60")
    assert result.exit_code == 0
    assert "a trace says nothing of removals" in result.stderr


def test_without_matplotlib_a_plot_says_what_to_install(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = miss_ratio(trace, "--plot", tmp_path / "r.png")
    assert result.exit_code == 1
    assert "Expected matplotlib, which is not installed: `pip install matplotlib`" in (
        result.stderr
    )
    assert miss_ratio(trace).exit_code == 0


def test_a_full_disk_names_the_file(trace: Path) -> None:
    result = miss_ratio(trace, "--csv", "/dev/full")
    assert result.exit_code == 1
    assert "Cannot write a result at /dev/full: no space left" in result.stderr
