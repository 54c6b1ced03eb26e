"""`reprise simulate`: one command from a trace to a report."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner, Result

from reprise.cli.main import main


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    lines = [
        {
            "timestamp": 100 * at,
            "input_length": 1500,
            "output_length": 3,
            "hash_ids": [0, 1 + at % 3, 100 + at],
        }
        for at in range(30)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["simulate", "--processes", "1", *map(str, arguments)])


def test_a_trace_alone_is_enough(trace: Path) -> None:
    result = simulate(trace)
    assert result.exit_code == 0
    assert "small.jsonl: 30 requests in 3 s" in result.output
    assert result.output.startswith("Too short to say what pays: small.jsonl has 30 requests. ")
    assert "\nCache (least-delay): " in result.output
    for label in ("round-robin", "least-loaded", "least-delay", "shared pool", "ideal"):
        assert f"\n{label} " in result.output
    assert "\n  least-loaded: who would begin first" in result.output, "each is explained"
    every = simulate(trace, "--all")
    assert "\nalgorithm-1:fetch=off " in every.output
    assert "Expected --policy or --all" in simulate(trace, "--all", "--policy", "random").stderr
    assert "Cost model: " in result.output


def test_all_files_are_written(trace: Path, tmp_path: Path) -> None:
    result = simulate(
        *(trace, "--policy", "weighted", "--sweep", "delay=0,1", "--report", tmp_path / "r.html"),
        *("--json", tmp_path / "r.json", "--csv", tmp_path / "r.csv", "--plots", tmp_path / "p"),
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "r.html").read_text().count("<img ") == 3
    written = json.loads((tmp_path / "r.json").read_text())
    assert len(written["runs"]) == 10
    assert written["conclusions"][0]["sentences"][0] in result.output
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 11
    names = sorted(path.name for path in (tmp_path / "p").iterdir())
    assert names == ["capacity.png", "delay.png", "policies.png"]


def test_a_report_begins_with_its_conclusion_and_sweeps_where_that_is_asked_for(
    trace: Path, tmp_path: Path
) -> None:
    result = simulate(trace, "--report", tmp_path / "r.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "r.html").read_text()
    assert page.index("Best of the 5 compared") < page.index("<h2>") < page.index("Cost model")
    assert '<tr class="best">' in page
    assert "<h3>delay</h3>" not in page
    result = simulate(trace, "--sweep", "usual", "--report", tmp_path / "r.html")
    assert result.exit_code == 0, result.output
    page = (tmp_path / "r.html").read_text()
    for group in ("policies", "capacity", "delay", "loss", "weighted.alpha", "one-cache"):
        assert f"<h3>{group}</h3>" in page


def test_options_reach_the_runs(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    result = simulate(
        *(trace, "--policy", "algorithm-1", "--nodes", 4, "--capacity", "20blocks"),
        *("--cpu-capacity", "10k", "--leases", "lease_s=3", "--index-delay", 2, "--rate", 1.5),
        *("--index-loss", 0.25, "--announce", "finish", "--slo-ttft", 60, "--seed", 9),
        *("--costs", "prefill_tokens_per_s=500", "--json", path, "--refusal", "predict"),
        *("--load-age", 2.5, "--no-bookings", "--estimate-error", 0.25, "--decoders", 3),
        *("--slo-tbt", 0.5, "--decode-load", 0.75, "--decode-costs", "request_s=0.01"),
        *("--index", "decisions", "--decisions", 90, "--sessions"),
        *("--act", 7.5),
    )
    assert result.exit_code == 0, result.output
    assert "the router knows decisions, for 90 s, sessions preferred" in result.output
    setup = json.loads(path.read_text())["runs"][0]["outcome"]["setup"]
    assert setup["leases"]["lease_s"] == 3
    assert setup["costs"]["prefill_tokens_per_s"] == 500
    assert setup["decode_costs"]["request_s"] == 0.01
    of_others = ("leases", "costs", "decode_costs")
    assert {name: setup[name] for name in setup if name not in of_others} == {
        "index": "decisions",
        "decisions_s": 90,
        "sessions": True,
        "refusal": "predict",
        "load_age_s": 2.5,
        "bookings": False,
        "estimate_error": 0.25,
        "decoders": 3,
        "slo_tbt_s": 0.5,
        "decode_load": 0.75,
        "act_s": 7.5,
        "policy": "algorithm-1",
        "nodes": 4,
        "gpu_blocks": 20,
        "cpu_blocks": 19,
        "pool_blocks": 0,
        "index_delay_s": 2,
        "index_loss": 0.25,
        "announce": "finish",
        "rate": 1.5,
        "slo_ttft_s": 60,
        "seed": 9,
    }


def test_traces_stand_side_by_side_also_where_their_names_are_equal(
    trace: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other" / trace.name
    other.parent.mkdir()
    other.write_text(trace.read_text())
    result = simulate(trace, other, "--policy", "random")
    assert result.exit_code == 0
    assert f"\n2: {other}: 30 requests" in result.output


def test_what_stands_before_a_broken_line_is_run(trace: Path) -> None:
    trace.write_text(trace.read_text() + '{"timestamp": -5}\n')
    result = simulate(trace, "--policy", "weighted")
    assert result.exit_code == 1
    assert "Error: small.jsonl: line 31: expected an object with timestamp" in result.stderr
    assert result.stdout.startswith("Only a part of small.jsonl was read: line 31: ")
    assert "Used before it: 30 requests; not read after it: 0 lines" in result.stdout
    assert "\nweighted " in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "fastest"], "Expected a policy of round-robin, random,"),
        (["--policy", "weighted:gamma=1"], "expected parameters of alpha, beta"),
        (["--capacity", "much"], "Expected a capacity in tokens"),
        (["--leases", "lease_s=-1"], "lease_s must be a number of at least 0, in"),
        (["--leases", "time=1"], "expected parameters of lease_s"),
        (["--costs", "speed=1"], "expected parameters of fixed_s, prefill_tokens_per_s"),
        (
            ["--costs", "prefill_tokens_per_s=0"],
            "prefill_tokens_per_s must be a number above 0, in",
        ),
        (["--sweep", "delay"], "Expected a sweep as"),
        (["--index-delay", "nan"], "nan"),
        (["--index-delay", "5ms"], "expected seconds, as 0.005, got: 5ms"),
        (["--index-loss", "20%"], "expected a share from 0 to 1, as 0.2, got: 20%"),
        (["--costs", "prefill=9000"], "Cannot use --costs: expected parameters of"),
        (["--policy", "random,weighted"], "give --policy once for each"),
        (["--capacity", "24GB"], "1 GiB has 3,276 tokens"),
        (["--block-size", "4"], "--block-size 512 fits all of them"),
        (["--report", "none/r.html"], "Cannot write none/r.html: expected a directory"),
    ],
)
def test_what_cannot_be_is_named(trace: Path, arguments: list[str], message: str) -> None:
    result = simulate(trace, *arguments)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_what_is_probably_meant_otherwise_is_asked(trace: Path, tmp_path: Path) -> None:
    result = simulate(trace, "--policy", "random", "--capacity", 600)
    assert "--capacity is 1 block of 512 tokens, less than the mean prompt of 3" in result.stderr
    fast = tmp_path / "fast.jsonl"
    line = {"timestamp": 0, "input_length": 12_000, "output_length": 3, "hash_ids": [*range(24)]}
    fast.write_text(
        "".join(json.dumps({**line, "timestamp": 0.4 * at}) + "\n" for at in range(500))
    )
    result = simulate(fast, "--policy", "random")
    assert "timestamp is in ms; are these seconds?" in result.stderr


def test_an_interruption_says_how_far_it_was_and_writes_nothing(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, when_done: Callable[[], None], **__: object) -> NoReturn:
        when_done()
        raise KeyboardInterrupt

    monkeypatch.setattr("lab.whatif.sweep.run_all", interrupt)
    result = simulate(trace, "--policy", "random", "--json", tmp_path / "r.json")
    assert result.exit_code == 130
    assert (
        result.stderr == "Interrupted after 1 of 8 runs, 0% of all requests: nothing is written\n"
    )
    assert not (tmp_path / "r.json").exists()


def test_a_disk_that_is_full_is_told_with_the_file(trace: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    result = simulate(trace, "--policy", "random", "--json", "/dev/full")
    assert result.exit_code == 1
    assert "Cannot write /dev/full: No space left on device" in result.stderr
    assert "\nrandom " in result.output  # what was computed is told all the same


def test_a_file_without_requests_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    result = simulate(tmp_path / "empty.jsonl")
    assert result.exit_code == 1
    assert "expected a request a line, got an empty file" in result.stderr


def test_the_policies_are_listed() -> None:
    result = simulate("--list-policies")
    assert result.exit_code == 0
    assert "weighted         alpha * cached share" in result.output
    assert "kvcache_balancing_threshold=1.5" in result.output


def test_without_matplotlib_a_report_says_what_to_install(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = simulate(trace, "--report", tmp_path / "r.html")
    assert result.exit_code == 1
    assert "Expected matplotlib, which is not installed: `pip install matplotlib`" in (
        result.stderr
    )
    assert simulate(trace, "--policy", "random").exit_code == 0
