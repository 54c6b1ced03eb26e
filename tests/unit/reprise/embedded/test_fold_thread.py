import time
from pathlib import Path

import pytest

from reprise.embedded.fold_thread import FoldLoop
from schemas.conditions import Conditions
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
    conditions = Conditions(time.time)
    fold = PanickingFold(open_kernel(1337, name="reference"))
    folding = FoldLoop(fold, store, log, flush_s=0.01, conditions=conditions)
    folding.start()
    folding.submit(Offset(0), [b"record"])
    with pytest.raises(StorageError, match="has ended"):
        folding.wait()
    assert "Panic" in conditions.problem
    with pytest.raises(StorageError, match="has ended"):
        folding.submit(Offset(1), [b"record"])
    folding.stop()


def test_stopping_folds_and_flushes_what_was_submitted(log: EmbeddedLog, store: TableStore) -> None:
    fold = Fold(open_kernel(1337, name="reference"))
    folding = FoldLoop(fold, store, log, flush_s=60.0, conditions=Conditions(time.time))
    folding.start()
    record = events_record(0, 0, [stored(0, [1], range(4))])
    folding.submit(log.append([record]), [record])
    folding.stop()
    assert fold.offset == 0
    assert store.covered() == 0
