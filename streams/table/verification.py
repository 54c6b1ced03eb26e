"""Proof of a table: the digests that a fresh fold of the whole log gives."""

from collections.abc import Iterator
from pathlib import Path

from schemas.identities import Offset
from streams.kernel import open_kernel
from streams.log.embedded import ReadOnlyLog
from streams.table.fold import Fold
from streams.table.recovery import fresh_fold


def verify_log(data: Path, seed: int) -> Iterator[str]:
    """Folds the log in the data directory, beside a running service, and yields lines to print.

    Raises:
        StorageError: there is no log, or it cannot be read.
    """
    log = ReadOnlyLog(data / "log")
    try:
        fold = Fold(open_kernel(seed))
        records = fresh_fold(fold, log)
        if log.complete_from > Offset(0):
            yield (
                f"The log is complete only from offset {log.complete_from}:"
                " blocks stored before it are not in this fold."
            )
        yield f"position 0:{fold.offset}  records {records}  seed {seed}"
        for view in fold.kernel.contexts():
            context = " / ".join(map(str, view.context))
            yield f"{view.digest:016x}  {view.entries:>10} entries  {context}"
    finally:
        log.close()
