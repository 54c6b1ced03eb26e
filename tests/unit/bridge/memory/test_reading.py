"""What a look at a directory finds, whatever is in it."""

import errno
import os
import socket
import struct
from collections import Counter
from pathlib import Path

import pytest

from bridge.memory.reading import Reading, Scan, read_segments
from schemas import limits
from tests.memory_segments import GIB, Segment


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "shm"
    path.mkdir()
    return path


def put(directory: Path, name: str, content: bytes) -> None:
    (directory / name).write_bytes(content)


def numbers(total: int, used: int = 0, preallocated: int = 0) -> bytes:
    return struct.pack("<3q", total, used, preallocated)


def look(directory: Path, prefix: str = "kvcached_", **options: object) -> Scan:
    return read_segments(directory, prefix, is_there=lambda group: False, **options)  # type: ignore[arg-type]


def test_a_segment_is_read_as_it_is_mapped(directory: Path) -> None:
    with Segment(directory / "kvcached_engine", 40 * GIB, 12 * GIB, 2 * GIB) as segment:
        assert look(directory).readings == {
            "kvcached_engine": Reading(segment.inode, 40 * GIB, 12 * GIB, 2 * GIB, None)
        }
        segment.write(40 * GIB, 13 * GIB, 0)
        assert look(directory).readings["kvcached_engine"][1:4] == (40 * GIB, 13 * GIB, 0)


def test_only_names_with_the_prefix_are_segments(directory: Path) -> None:
    put(directory, "kvcached_a", numbers(1))
    put(directory, "b", numbers(2))
    assert set(look(directory).readings) == {"kvcached_a"}
    assert set(look(directory, "").readings) == {"kvcached_a", "b"}
    assert set(look(directory, "b").readings) == {"b"}
    assert look(directory).skipped == Counter(), "what has another name is nobody's business"


def test_nothing_is_written_or_left_open(directory: Path) -> None:
    put(directory, "kvcached_a", numbers(5))
    (directory / "kvcached_a").chmod(0o444)
    directory.chmod(0o555)
    opened = set(os.listdir("/proc/self/fd"))
    try:
        assert len(look(directory).readings) == 1
    finally:
        directory.chmod(0o755)
    assert len(os.listdir("/proc/self/fd")) == len(opened)
    assert (directory / "kvcached_a").read_bytes() == numbers(5)


def test_what_is_being_written_is_left_for_the_next_look(directory: Path) -> None:
    with Segment(directory / "kvcached_a", 10) as segment, segment.locked():
        scan = look(directory)
        assert scan.readings == {}
        assert scan.present == {"kvcached_a"}
        assert scan.named == (("kvcached_a", "locked"),)
    assert set(look(directory).readings) == {"kvcached_a"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "wrong_size"),
        (numbers(1)[:-1], "wrong_size"),
        (numbers(1) + b"\0", "wrong_size"),
        (numbers(0), "empty"),
        (numbers(-1), "bad_numbers"),
        (numbers(10, -1), "bad_numbers"),
        (numbers(10, 0, -(2**63)), "bad_numbers"),
        (numbers(limits.MEMORY_BYTES_MAX + 1), "bad_numbers"),
        (numbers(10, 2**63 - 1), "bad_numbers"),
    ],
)
def test_a_file_that_is_no_segment_is_counted_and_named(
    directory: Path, content: bytes, reason: str
) -> None:
    put(directory, "kvcached_a", content)
    put(directory, "kvcached_b", numbers(7))
    scan = look(directory)
    assert set(scan.readings) == {"kvcached_b"}, "its neighbours are read"
    assert scan.skipped == {reason: 1}
    assert scan.named == (("kvcached_a", reason),)
    assert "kvcached_a" in scan.present, "it is there, whatever it is"


def test_numbers_may_be_as_large_as_they_can_be_and_above_the_limit(directory: Path) -> None:
    most = limits.MEMORY_BYTES_MAX
    put(directory, "kvcached_a", numbers(most, most, most))
    put(directory, "kvcached_b", numbers(1, 5, 6))
    readings = look(directory).readings
    assert readings["kvcached_a"][1:4] == (most, most, most)
    assert readings["kvcached_b"][1:4] == (1, 5, 6), "a limit may be set below what is used"


def test_no_link_socket_fifo_or_directory_is_opened(directory: Path, tmp_path: Path) -> None:
    outside = tmp_path / "secret"
    outside.write_bytes(numbers(9))
    (directory / "kvcached_link").symlink_to(outside)
    (directory / "kvcached_loop").symlink_to(directory / "kvcached_loop")
    os.mkfifo(directory / "kvcached_fifo")
    (directory / "kvcached_dir").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(directory / "kvcached_sock"))
        scan = look(directory)
    assert scan.readings == {}
    assert scan.skipped == {"symbolic_link": 2, "no_file": 3}


def test_names_that_could_not_be_shown_are_left_out(directory: Path) -> None:
    put(directory, "kvcached_\x1b[2J", numbers(1))
    put(directory, "kvcached_\u202e", numbers(1))
    (Path(os.fsdecode(os.fsencode(directory) + b"/kvcached_\xff"))).write_bytes(numbers(1))
    scan = look(directory)
    assert (scan.readings, scan.skipped) == ({}, {"bad_name": 3})
    assert scan.present == frozenset()


def test_of_too_many_segments_those_that_were_known_come_first(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.memory.reading.MEMORY_SEGMENTS_READ_MAX", 3)
    put(directory, "kvcached_z", numbers(1))
    for number in range(5):
        put(directory, f"kvcached_{number}", numbers(1))
    scan = look(directory, known=["kvcached_z"])
    assert set(scan.readings) == {"kvcached_z", "kvcached_0", "kvcached_1"}
    assert scan.skipped == {"too_many": 3}


def test_a_directory_with_too_many_names_is_not_read_to_its_end(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"kvcached_{number}" for number in range(20)]
    for name in names:
        put(directory, name, numbers(1))
    monkeypatch.setattr("bridge.memory.reading.MEMORY_ENTRIES_MAX", 5)
    scan = look(directory, known=[*names, "kvcached_gone"])
    assert set(scan.readings) == set(names), "those that are known are looked for by name"
    assert scan.skipped == {"too_many": 1}
    assert len(look(directory).readings) == 5


def test_what_is_named_is_bounded_and_all_is_counted(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.memory.reading.MEMORY_NAMES_SHOWN_MAX", 2)
    for number in range(5):
        put(directory, f"kvcached_{number}", b"")
    scan = look(directory)
    assert (len(scan.named), scan.skipped) == (2, {"wrong_size": 5})


def test_a_directory_that_cannot_be_read_is_said(directory: Path, tmp_path: Path) -> None:
    missing = look(tmp_path / "none")
    assert (missing.reason, missing.readings) == ("no_directory", {})
    assert str(tmp_path / "none") in missing.error
    (tmp_path / "file").write_bytes(b"")
    assert look(tmp_path / "file").reason == "no_directory"
    assert look(tmp_path / "a\0b").reason == "unreadable"


def test_what_may_not_be_read_is_denied(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(directory, "kvcached_a", numbers(1))
    system_open = os.open

    def refuse(path: str | Path, flags: int, *, dir_fd: int | None = None) -> int:
        """As for one who is not root, which the tests may be."""
        if path == refused:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return system_open(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr("bridge.memory.reading.os.open", refuse)
    refused: str | Path = "kvcached_a"
    assert look(directory).skipped == {"denied": 1}
    refused = directory
    assert look(directory).reason == "denied"


def test_the_process_group_in_a_name_is_looked_for(directory: Path) -> None:
    put(directory, "kvcached_vLLM_4711_g2", numbers(1))
    put(directory, "kvcached_mine", numbers(1))
    asked: list[int] = []
    scan = read_segments(directory, is_there=lambda group: not asked.append(group))  # type: ignore[func-returns-value]
    assert asked == [4711]
    assert scan.readings["kvcached_vLLM_4711_g2"].has_writers is True
    assert scan.readings["kvcached_mine"].has_writers is None
