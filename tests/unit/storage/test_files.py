"""Whatever a path names, opening it ends at once, and reading it at a bound."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.files import open_file, read_file, version_of


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_directory(path: Path) -> None:
    path.mkdir()


def make_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (make_pipe, "it is no regular file, but a pipe"),
        (make_socket, "it is no regular file, but a pipe, a socket"),
        (make_endless, "it is no regular file"),
        (make_directory, "Is a directory"),
        (make_loop, "Too many levels of symbolic links"),
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], why: str
) -> None:
    make(tmp_path / "it")
    with pytest.raises(OSError, match=why):
        read_file(tmp_path / "it", 10)


@pytest.mark.parametrize(
    ("name", "why"), [("a\0b", "its name has a NUL"), ("a" * 5_000, "File name too long")]
)
def test_a_name_that_no_file_has_is_refused(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(OSError, match=why):
        read_file(tmp_path / name, 10)
    assert version_of(tmp_path / name) is None


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"0123456789")
    assert read_file(path, 10) == b"0123456789"
    with pytest.raises(OSError, match="it has more than 9 bytes"):
        read_file(path, 9)


def test_a_link_is_its_file_unless_it_may_not_be_followed(tmp_path: Path) -> None:
    path, link = tmp_path / "it", tmp_path / "link"
    path.write_bytes(b"content")
    link.symlink_to(path)
    assert read_file(link, 10) == b"content"
    assert version_of(link) == version_of(path)
    with pytest.raises(OSError, match="a symbolic link"):
        open_file(link, follow_links=False)


def test_a_file_that_was_replaced_is_of_another_version(tmp_path: Path) -> None:
    path, other = tmp_path / "it", tmp_path / "other"
    assert version_of(path) is None
    path.write_bytes(b"a")
    before = version_of(path)
    other.write_bytes(b"b")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    assert before is not None
    assert version_of(path) not in (None, before)
