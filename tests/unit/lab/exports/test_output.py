"""A file stands in its place only once it is whole."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.exports.output import whole_file
from schemas.errors import ConfigurationError, DiskError


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """As on a disk that is full then: Python ignores the signal, and the write fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_what_was_written_is_the_file(path: Path) -> None:
    with whole_file(path, replace=False) as output:
        assert output.write(b"ab") == 2
        assert output.write(memoryview(b"cd")) == 2
        assert (output.tell(), output.writable(), path.exists()) == (4, True, False)
    assert path.read_bytes() == b"abcd"
    assert os.listdir(path.parent) == ["out"]


def test_one_that_is_there_stays_until_then(path: Path) -> None:
    path.write_bytes(b"before")
    with (
        pytest.raises(ConfigurationError, match="--force"),
        whole_file(path, replace=False) as output,
    ):
        output.write(b"x")
    with pytest.raises(TypeError), whole_file(path, replace=True) as output:
        output.write("no bytes")
    assert path.read_bytes() == b"before"
    with whole_file(path, replace=True) as output:
        output.write(b"after")
    assert path.read_bytes() == b"after"
    assert os.listdir(path.parent) == ["out"]


def test_a_full_disk_leaves_nothing(path: Path) -> None:
    with (
        pytest.raises(DiskError, match=f"Cannot write an export at {path}"),
        files_of_at_most(1000),
        whole_file(path, replace=False) as output,
    ):
        output.write(bytes(3000))
    assert os.listdir(path.parent) == []


def test_a_place_that_cannot_be_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none" / "out"
    with pytest.raises(DiskError, match="none/out"), whole_file(path, replace=False):
        pass
