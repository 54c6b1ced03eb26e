"""What one run of a bridge tells the next of its workers."""

from pathlib import Path

import msgspec
import pytest

from lmcache_adapter.bounds import LMCACHE_WORKERS_MAX
from lmcache_adapter.controller.member import RememberedWorker
from lmcache_adapter.state_file import (
    LMCACHE_STATE_BYTES_MAX,
    RUN_INCARNATIONS,
    State,
    StateFile,
    begin_run,
)
from schemas.errors import NewerVersionError, StorageError
from tests.fakes import registration

KNOWN = RememberedWorker(registration("a"), ("LocalCPUBackend",))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "data")
    assert file.read() == State()
    file.write(State(incarnations=5, workers=(KNOWN,)))
    assert file.read() == State(incarnations=5, workers=(KNOWN,))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"incarnations":-1}', b"\xff" * 100])
def test_what_cannot_be_read_is_as_if_there_was_none(tmp_path: Path, content: bytes) -> None:
    file = StateFile(tmp_path)
    file.path.write_bytes(content)
    assert file.read() == State()
    file.write(State(incarnations=1))
    assert file.read().incarnations == 1


def test_a_file_of_any_size_is_not_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    with file.path.open("wb") as opened:
        opened.truncate(LMCACHE_STATE_BYTES_MAX + 1)
    assert file.read() == State()


def test_more_workers_than_there_may_be_are_not_written(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    many = tuple(
        RememberedWorker(registration(f"i{number}")) for number in range(LMCACHE_WORKERS_MAX + 1)
    )
    file.write(State(workers=many))
    assert len(file.read().workers) == LMCACHE_WORKERS_MAX


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the directory should be")
    with pytest.raises(StorageError):
        StateFile(tmp_path / "data").write(State())


def test_incarnations_of_a_run_are_above_those_of_the_one_before(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    first = begin_run(file, 1_795_000_000.0)
    assert first.incarnations == 1_795_000_000_000
    assert begin_run(file, 1.0).incarnations == first.incarnations + RUN_INCARNATIONS
    later = begin_run(file, 1_895_000_000.0)
    assert later.incarnations == 1_895_000_000_000
    assert msgspec.json.decode(file.path.read_bytes())["incarnations"] == later.incarnations


def test_the_workers_of_the_run_before_are_kept(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    file.write(State(incarnations=1, workers=(KNOWN,)))
    assert begin_run(file, 1.0).workers == (KNOWN,)
    assert file.read().workers == (KNOWN,)


def test_that_of_a_newer_version_is_left_to_it(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    content = b'{"version":2,"incarnations":{"another":"form"}}'
    file.path.write_bytes(content)
    expected = f"version `1` or older, got `2` at {file.path}: a newer Reprise wrote it"
    with pytest.raises(NewerVersionError, match=expected):
        begin_run(file, 1_795_000_000.0)
    assert file.path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file.path]
