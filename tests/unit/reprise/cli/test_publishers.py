"""`reprise publishers check`, and `reprise capture` into a pipe."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from doctor.publishers.document import CheckDocument, Reading
from reprise.cli import publishers
from reprise.cli.main import main
from tests.unit.doctor.publishers.captures import (
    CLEARED,
    batches,
    borealis,
    removed,
    stored,
    write_frames,
)
from tests.unit.replay.histories import history, write_log


def ran(*arguments: object, given: bytes = b"") -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments], input=given)


def good(path: Path) -> Path:
    return write_frames(path, batches(stored([1], range(16)), removed([1]), CLEARED))


def test_what_is_whole_ends_with_0_and_prints_a_registration(tmp_path: Path) -> None:
    done = ran("publishers", "check", good(tmp_path / "c"), "--model", "deepseek")
    assert done.exit_code == 0, done.output
    assert '"type":"vLLM","model":"deepseek"' in done.output
    assert "verdict: all of it is used, as of the type vLLM: 3 events" in done.output


def test_what_is_used_in_part_ends_with_1_and_says_where(tmp_path: Path) -> None:
    file = write_frames(tmp_path / "c", batches(stored([1], range(16), pinned=True)))
    done = ran("publishers", "check", file)
    assert done.exit_code == 1
    assert "pinned" in done.output
    assert "NOT KNOWN: left out" in done.output
    assert "  at message 1 (number 0): BlockStored at `$[1][0]`, byte 11" in done.output


def test_what_no_kind_reads_ends_with_3_and_says_what_it_looks_like(tmp_path: Path) -> None:
    done = ran("publishers", "check", write_frames(tmp_path / "c", borealis()))
    assert done.exit_code == 3
    assert "Looks like tokens" in done.output
    assert "registration, for" not in done.output


def test_nothing_ends_with_1(tmp_path: Path) -> None:
    done = ran("publishers", "check", write_frames(tmp_path / "c", []))
    assert done.exit_code == 1
    assert "verdict: nothing came" in done.output


def test_json_has_all_of_it(tmp_path: Path) -> None:
    done = ran("publishers", "check", good(tmp_path / "c"), "--json")
    document = msgspec.json.decode(done.stdout_bytes, type=CheckDocument)
    [one] = document.publishers
    assert one.reading is Reading.WHOLE
    assert one.registrations[0]["block_size"] == 16


def test_a_capture_comes_by_a_pipe(tmp_path: Path) -> None:
    done = ran("publishers", "check", given=good(tmp_path / "c").read_bytes())
    assert done.exit_code == 0, done.output


def test_a_pipe_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers, "CHECK_STREAM_BYTES_MAX", 100)
    done = ran("publishers", "check", given=good(tmp_path / "c").read_bytes())
    assert done.exit_code == 1
    assert "Expected a capture of at most 100 bytes by a pipe, got more" in done.output


def test_capture_without_a_file_writes_into_the_pipe(tmp_path: Path) -> None:
    data = write_log(tmp_path / "data", history(20))
    ran("capture", "--data", data, "--out", tmp_path / "file")
    done = ran("capture", "--data", data)
    assert done.exit_code == 0
    assert done.stdout_bytes.startswith(b"RPRSECAP")
    assert "complete: 20 entries" in done.stderr
    (tmp_path / "piped").write_bytes(done.stdout_bytes)
    said = [ran("replay", tmp_path / name).output for name in ("file", "piped")]
    assert said[0] == said[1] != ""


def test_capture_into_a_terminal_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False
    )
    data = write_log(tmp_path / "data", history(20))
    done = ran("capture", "--data", data)
    assert done.exit_code == 2
    assert "Expected --out, or a pipe behind the command, got neither" in done.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--type", "Other"], "Expected --type vLLM or TensorRT-LLM"),
        (["--for", "3"], "--for, --limit and --replay with --from-zmq only"),
        (["x", "--from-zmq", "tcp://127.0.0.1:1"], "Expected a FILE or --from-zmq, got both"),
        (["absent"], "Expected a capture, but there is no file: absent"),
        (
            ["--from-zmq", "tcp://h:1", "--replay", "tcp://h:2", "--replay", "tcp://h:3"],
            "no more --replay than --from-zmq, got 2",
        ),
    ],
)
def test_wrong_options_are_refused(options: list[str], said: str) -> None:
    done = ran("publishers", "check", *options)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_records_are_no_frames(tmp_path: Path) -> None:
    data = write_log(tmp_path / "data", history(20))
    ran("capture", "--data", data, "--out", tmp_path / "c")
    done = ran("publishers", "check", tmp_path / "c")
    assert done.exit_code == 1
    assert "Expected a capture of frames" in done.output
