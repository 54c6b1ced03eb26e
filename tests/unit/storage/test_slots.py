import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from schemas.errors import StorageError
from storage.slots import lock_file, take_slot

_PROGRAM = """
import sys, time
from pathlib import Path
from storage.slots import take_slot
print(take_slot(Path(sys.argv[1]), 3).number, flush=True)
time.sleep(60)
"""


@contextmanager
def other_process(data: Path) -> Iterator[tuple[int, int]]:
    """One that has taken a slot: its process id, and the number of the slot."""
    command = [sys.executable, "-c", _PROGRAM, str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def test_each_process_has_a_slot_of_its_own_and_one_that_is_killed_frees_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with other_process(data) as (pid, first), other_process(data) as (_, second):
        assert [first, second] == [1, 2]
        third = take_slot(data, 3)
        assert (third.number, third.path) == (3, data / "slot-3")
        assert third.path.is_dir()
        with pytest.raises(StorageError, match="have them all"):
            take_slot(data, 3)
        (data / "slot-1" / "kept").write_text("waits")
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        again = take_slot(data, 3)
        assert again.number == 1
        assert (again.path / "kept").read_text() == "waits"
        os.close(again.lock)
        os.close(third.lock)


def test_a_slot_that_is_closed_is_free(tmp_path: Path) -> None:
    slot = take_slot(tmp_path, 1)
    assert lock_file(tmp_path / "slot-1.lock") is None
    os.close(slot.lock)
    os.close(take_slot(tmp_path, 1).lock)


def test_a_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Cannot take a part"):
        take_slot(tmp_path / "file", 1)
