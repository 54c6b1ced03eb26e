"""`reprise memory`, on a directory and against a service."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reprise.cli.main import main
from reprise.cli.memory import size_text
from tests.memory_segments import GIB
from tests.unit.reprise.cli.answering import Handler, answering


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["memory", *arguments])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "shm"
    path.mkdir()
    for name, numbers in {
        "kvcached_a": (40 * GIB, 12 * GIB, 2 * GIB),
        "kvcached_b": (1000, 0, 0),
        "other": (1000, 1000, 0),
    }.items():
        (path / name).write_bytes(struct.pack("<3q", *numbers))
    return path


def test_a_directory_is_listed(directory: Path) -> None:
    result = run("list", "--dir", str(directory))
    assert result.exit_code == 0
    header, *lines = result.output.splitlines()
    assert header.split()[1:] == [
        *("SEGMENT", "STATE", "USED", "PREALLOCATED", "LIMIT", "PRESSURE", "READ", "INSTANCES")
    ]
    assert [line.split()[1:11] for line in lines] == [
        ["kvcached_a", "live", "12.0", "GiB", "2.0", "GiB", "40.0", "GiB", "35.0", "%"],
        ["kvcached_b", "live", "0", "B", "0", "B", "1000", "B", "0.0", "%"],
    ]


def test_names_and_prefixes_choose(directory: Path) -> None:
    def names(*arguments: str) -> list[str]:
        found = json.loads(run("list", "--json", "--dir", str(directory), *arguments).stdout)
        assert found["count"] == len(found["segments"])
        return [one["segment"] for one in found["segments"]]

    assert names() == ["kvcached_a", "kvcached_b"]
    assert names("*_b", "other") == ["kvcached_b"]
    assert names("--prefix", "") == ["kvcached_a", "kvcached_b", "other"]
    assert names("--prefix", "", "other") == ["other"]


def test_what_is_left_out_is_said_beside_the_list(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (directory / "kvcached_\x1b[2J").write_bytes(bytes(24))
    (directory / "kvcached_c").write_bytes(b"short")
    result = run("list", "--dir", str(directory))
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert result.stderr.splitlines() == [
        "Left out kvcached_\\x1b[2J: bad_name",
        "Left out kvcached_c: wrong_size",
    ]
    assert not caplog.records, "a log would reach the terminal as it is"
    for number in range(100):
        (directory / f"kvcached_d{number:02}").mkdir()
    lines = run("watch", "--dir", str(directory), "--looks", "2", "-n", "0.25").stderr.splitlines()
    assert len(lines) == 33
    assert lines[-1] == "Left out in all: bad_name 1, no_file 100, wrong_size 1"


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    result = run("list", "--dir", str(tmp_path / "none"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert str(tmp_path / "none") in result.stderr


def test_an_empty_directory_is_said(tmp_path: Path) -> None:
    result = run("list", "--dir", str(tmp_path))
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No memory segments are known.\n"


def test_names_that_nothing_has_are_said(directory: Path) -> None:
    result = run("list", "--dir", str(directory), "nothing")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No memory segments of these names are known, but 2 others.\n"


def test_it_is_watched_and_what_goes_is_shown_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def remove(seconds: float) -> None:
        nonlocal looks
        looks += 1
        assert seconds == 0.5
        if looks == 1:
            (directory / "kvcached_b").unlink()

    monkeypatch.setattr("reprise.cli.memory.time.sleep", remove)
    result = run("watch", "--dir", str(directory), "--json", "-n", "0.5", "--looks", "3")
    states = [
        {one["segment"]: one["state"] for one in json.loads(line)["segments"]}
        for line in result.output.splitlines()
    ]
    assert states == [
        {"kvcached_a": "live", "kvcached_b": "live"},
        {"kvcached_a": "live", "kvcached_b": "gone"},
        {"kvcached_a": "live"},
    ]


def test_a_watch_outlives_what_it_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reprise.cli.memory.time.sleep", lambda seconds: None)
    result = run("watch", "--dir", str(tmp_path / "none"), "--looks", "3")
    assert result.exit_code == 0
    assert result.stderr.count("cannot be read") == 3


# A service


@pytest.fixture
def url() -> Iterator[str]:
    with answering() as url:
        yield url


def document(**changes: object) -> dict[str, Any]:
    return {
        "host": "node-1",
        "segment": "kvcached_a",
        "state": "orphaned",
        "total": 1000,
        "used": 950,
        "preallocated": 100,
        "pressure": 1.05,
        "instances": [
            {
                "tenant_id": "default",
                "model_name": model,
                "instance_id": "engine-1",
                "dp_rank": 0,
                "state": "exact",
                "reason": "",
            }
            for model in ("m", "n")
        ],
        "writer": "gone",
        "age": 7.25,
        "observed_at": 1.0,
        "changed_at": 1.0,
        "since": 1.0,
        "inode": 1,
        "bridge": "b",
    } | changes


def test_a_service_is_asked_and_instances_choose(url: str) -> None:
    answer = {"count": 2, "segments": [document(), document(segment="x", instances=[])]}
    Handler.answer = 200, json.dumps(answer).encode()
    _, line = run("list", "--url", url, "engine-*").output.splitlines()
    assert " ".join(line.split()) == (
        "node-1 kvcached_a orphaned 950 B 100 B 1000 B 105.0 % 7.2 s ago engine-1"
    )
    assert Handler.asked == [("/memory", "application/json")]
    assert len(run("list", "--url", url).output.splitlines()) == 3


def test_names_from_elsewhere_cannot_write_to_the_terminal(url: str) -> None:
    answer = {"count": 1, "segments": [document(host="\x1b]0;owned\x07")]}
    Handler.answer = 200, json.dumps(answer).encode()
    output = run("list", "--url", url).output
    assert "\\x1b]0;owned" in output
    assert "\x1b" not in output


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((503, b'{"error":"not yet"}'), "not yet"),
        ((200, b"no json"), "Expected what GET /memory answers"),
        ((200, b"[]"), "Expected what GET /memory answers"),
        ((200, b"{}"), "Expected what GET /memory answers"),
        ((200, b'{"segments":[{"host":"h"}]}'), "Expected what GET /memory answers"),
    ],
)
def test_another_answer_is_an_error(url: str, answer: tuple[int, bytes], text: str) -> None:
    Handler.answer = answer
    result = run("list", "--url", url)
    assert result.exit_code == 1
    assert text in result.stderr


def test_a_service_that_is_away_is_an_error() -> None:
    result = run("list", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "Is the service up?" in result.stderr


def test_what_does_not_speak_http_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\r\n")  # as ZMTP

        thread = threading.Thread(target=greet)
        thread.start()
        result = run("list", "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert result.exit_code == 1
    assert "Is the service up?" in result.stderr


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 * GIB // 2, "1.5 GiB"),
        (2**60, "1024.0 PiB"),
    ],
)
def test_sizes_have_a_unit(size: int, text: str) -> None:
    assert size_text(size) == text
