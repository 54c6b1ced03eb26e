"""`reprise capture`, and `reprise replay` of what it has written."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from replay.capture import from_kafka
from replay.capture.reader import Capture
from reprise.cli.main import main
from tests.small_disks import mounted
from tests.unit.replay.histories import history, write_log

OF_ENGINE = ("capture", "--out", "x", "--from-zmq", "y", "--model", "m")


def ran(*arguments: object, code: int = 0) -> str:
    """What the command printed; it must end with this code."""
    done = CliRunner().invoke(main, [str(one) for one in arguments])
    assert done.exit_code == code, done.output
    return done.output


def digest_lines(printed: str) -> list[str]:
    return sorted(re.findall(r"^[0-9a-f]{16} .*$", printed, re.MULTILINE))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["capture", "--out", "x"], "Expected one of --data, --kafka and --from-zmq"),
        (["capture", "--out", "x", "--data", ".", "--for", "3"], "--for with --from-zmq only"),
        (["capture", "--out", "x", "--data", ".", "--since", "yesterday"], "Unix seconds, got: y"),
        (["capture", "--out", "x", "--data", ".", "--since", "-3"], "expected a time since 1970"),
        (["capture", "--out", "x", "--data", ".", "--since", "2026-01-01"], "with its offset"),
        (["capture", "--out", "x", "--data", ".", "--from", "12"], "a position such as `0:592`"),
        (
            ["capture", "--out", "x", "--data", ".", "--since", "5", "--until", "4"],
            "--since before --until",
        ),
        ([*OF_ENGINE], "--block-size"),
        ([*OF_ENGINE, "--block-size", "4", "--type", "Other"], "Expected --type"),
    ],
)
def test_wrong_options_are_refused_with_what_was_expected(
    tmp_path: Path, options: list[str], said: str
) -> None:
    places = {".": tmp_path, "x": tmp_path / "x"}
    printed = ran(*(places.get(one, one) for one in options), code=2)
    assert said in printed.replace("\n", " ").replace("  ", " ")


def test_kafka_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_kafka, "TAIL_REACH_S", 0.0)
    said = ran("capture", "--kafka", "127.0.0.1:1", "--out", tmp_path / "x", code=1)
    assert "Expected Kafka to answer at 127.0.0.1:1" in said
    assert not (tmp_path / "x").exists()


def test_a_full_disk_in_mid_capture_says_so_and_leaves_what_had_room(tmp_path: Path) -> None:
    # Different each time, so that it does not fit when it is compressed.
    records = [value for seed in range(10) for value in history(700, seed=seed)]
    data = write_log(tmp_path / "data", records)
    with mounted(tmp_path / "small", "128k") as disk:
        out = disk.path / "cut"
        said = ran("capture", "--data", data, "--out", out, code=1)
        assert f"Cannot write a capture at {out}: no space left on its file system" in said
        with Capture(out) as capture:
            assert capture.entries > 1000
            assert capture.damage is None
            assert capture.notes
        assert "The capture " in ran("replay", out)


def test_a_damaged_capture_is_folded_up_to_the_damage(tmp_path: Path) -> None:
    data = write_log(tmp_path / "data", history(60) * 100)
    out = tmp_path / "damaged"
    ran("capture", "--data", data, "--out", out)
    with Capture(out) as capture:
        block, whole = capture.blocks[1], capture.blocks[0].entries
    content = bytearray(out.read_bytes())
    content[block.body_offset + 5] ^= 1
    out.write_bytes(content)
    said = ran("replay", out, code=1)
    assert f"at byte {block.offset} of {out}" in said
    folded = re.search(r"^folded (\d+)  skipped: (.*)$", said, re.MULTILINE)
    assert folded is not None
    skipped = sum(int(one.rsplit(" ", 1)[1]) for one in folded[2].split(", "))
    assert int(folded[1]) + skipped == whole
    assert digest_lines(said)
