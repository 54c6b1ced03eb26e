from pathlib import Path

import pytest

from reprise.embedded.fold_thread import FoldLoop
from reprise.troubles import Part, Troubles
from schemas.errors import StorageError
from schemas.identities import Offset
from streams.kernel import open_kernel
from streams.log.embedded import EmbeddedLog
from streams.table.fold import Fold
from streams.table.store import TableStore
from tests.building import events_record, stored


class Panic(BaseException):
    """As a panic of the kernel arrives: no `Exception`."""


class PanickingFold(Fold):
    def apply(self, offset: Offset, encoded: bytes) -> None:
        raise Panic("for a test")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_end_of_the_thread_is_told_and_nobody_waits_for_ever(
    tmp_path: Path, log: EmbeddedLog, store: TableStore
) -> None:
    troubles = Troubles()
    fold = PanickingFold(open_kernel(1337, name="reference"))
    folding = FoldLoop(fold, store, log, flush_s=0.01, troubles=troubles)
    folding.start()
    folding.submit(Offset(0), [b"record"])
    with pytest.raises(StorageError, match="has ended"):
        folding.wait()
    assert "Panic" in troubles.problem
    with pytest.raises(StorageError, match="has ended"):
        folding.submit(Offset(1), [b"record"])
    folding.stop()


def test_stopping_folds_and_flushes_what_was_submitted(log: EmbeddedLog, store: TableStore) -> None:
    fold = Fold(open_kernel(1337, name="reference"))
    folding = FoldLoop(fold, store, log, flush_s=60.0, troubles=Troubles())
    folding.start()
    record = events_record(0, 0, [stored(0, [1], range(4))])
    folding.submit(log.append([record]), [record])
    folding.stop()
    assert fold.offset == 0
    assert store.covered() == 0


def test_each_part_is_mended_by_its_own_success() -> None:
    troubles = Troubles()
    troubles.note(Part.TABLE, StorageError("table"))
    troubles.note(Part.LOG, StorageError("log"))
    troubles.end(Part.LOG)
    assert troubles.problem == "table"
    troubles.end(Part.TABLE)
    assert troubles.problem == ""
    assert troubles.disk_errors == 2
