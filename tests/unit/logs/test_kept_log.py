"""A log beside the events: there when it is needed, and again after the disk has failed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from logs.checkpoint import FoldedLog, start_behind
from logs.declaration import EmbeddedParts, LogDeclaration
from logs.embedded import EmbeddedLog
from logs.kept_log import KeptLog
from schemas.clock import REAL_CLOCK
from schemas.conditions import Conditions, Part
from schemas.errors import DiskError, StorageError
from schemas.identities import Offset
from schemas.positions import LogBounds
from tests.unit.logs.alarms import AlarmFold


class Disk:
    """Opens logs; may be full. The clock is the test's."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.conditions = Conditions(lambda: 0.0)
        self.data, self.path = path, path / "beside" / "log"
        self._append = EmbeddedLog.append
        self.is_full = False
        self.clock = REAL_CLOCK._replace(monotonic=lambda: self.now)
        monkeypatch.setattr(EmbeddedLog, "append", self._appending())

    def _appending(self) -> Callable[..., Offset]:
        def append(log: EmbeddedLog, values: list[bytes], *, now: float = 0.0) -> Offset:
            if self.is_full:
                raise DiskError(action="append to the log", path="log", detail="no space left")
            return self._append(log, values, now=now)

        return append

    def log(self, retry_s: float = 10.0) -> KeptLog:
        declared = LogDeclaration(
            name="the log of x",
            path=self.path.relative_to(self.data),
            lost="x begins anew",
            bytes_max=1 << 20,
            age_max_s=1e9,
            part=Part.AUDIT,
            retry_s=retry_s,
        )
        return KeptLog(declared, EmbeddedParts(self.data, self.conditions, self.clock))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def test_it_takes_no_files_until_something_is_written(disk: Disk) -> None:
    log = disk.log()
    log.retain(Offset(0))
    assert (log.end_offset, disk.path.exists()) == (0, False)
    assert log.append([b"1", b"2"]) == 0
    assert (log.end_offset, disk.path.exists()) == (2, True)
    log.close()


def test_after_a_failure_it_fails_at_once_until_its_time_and_is_then_opened_again(
    disk: Disk,
) -> None:
    log = disk.log()
    log.append([b"1"])
    disk.is_full = True
    with pytest.raises(DiskError):
        log.append([b"2"])
    disk.is_full = False
    assert disk.conditions.has(Part.AUDIT)
    disk.now = 9.9
    with pytest.raises(StorageError, match="it is tried again soon"):
        log.append([b"3"])
    disk.now = 10.0
    assert log.append([b"4"]) == 1
    assert not disk.conditions.has(Part.AUDIT)
    log.close()


def test_one_that_waits_for_nothing_is_opened_again_by_the_next_record(disk: Disk) -> None:
    log = disk.log(retry_s=0.0)
    disk.is_full = True
    with pytest.raises(DiskError):
        log.append([b"1"])
    assert log.has_failed
    disk.is_full = False
    log.append([b"2"])
    assert not log.has_failed
    log.close()


LOG = FoldedLog("the log of x", staying="x stays", unknown="what x was")


@pytest.mark.parametrize(
    ("offset", "bounds", "start", "said"),
    [
        (-1, LogBounds(0, 0), 0, ""),
        (-1, LogBounds(3, 9), 3, ""),
        (4, LogBounds(0, 9), 5, ""),
        (4, LogBounds(5, 5), 5, ""),
        (4, LogBounds(6, 9), 6, "The log of x has dropped records 5 to 5 before"),
        (4, LogBounds(1, 4), 1, "The log of x ends at 4, before what was folded of it, 4"),
    ],
)
def test_where_a_log_is_folded_on_behind_a_checkpoint(
    offset: int, bounds: LogBounds, start: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    fold = AlarmFold(offset)
    assert start_behind(fold, bounds, LOG) == start
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)
    assert fold.offset == (start - 1 if "ends" in said else offset)
