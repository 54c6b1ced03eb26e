"""Proof of a table: the digests that a fresh fold of the whole log gives."""

from collections.abc import Iterator
from pathlib import Path

from logs.embedded import ReadOnlyLog
from logs.interface import ReadableLog
from schemas.identities import Offset
from schemas.limits import TABLE_FLUSH_CHANGES_MAX
from streams.kernel import open_kernel
from streams.kernel.interface import ReadOnlyKernel
from streams.table.fold import NO_OFFSET, Fold


def fresh_fold(fold: Fold, log: ReadableLog) -> int:
    """Folds a whole log into an empty fold: the truth to which any recovery is compared.

    Returns:
        How many records the log has.

    Raises:
        DiskError: the log cannot be read to its end.
    """
    assert fold.offset == NO_OFFSET, "a fresh fold starts empty"
    if log.complete_from > 0:
        fold.distrust(log.complete_from)
    records = 0
    for entry in log.read(Offset(0)):
        records += 1
        fold.apply(entry.offset, entry.value)
        if fold.kernel.pending_changes() >= TABLE_FLUSH_CHANGES_MAX:
            fold.take_changes()
    return records


def digest_lines(kernel: ReadOnlyKernel) -> Iterator[str]:
    """The digest of each context, for people and for comparing."""
    for view in kernel.contexts():
        context = " / ".join(map(str, view.context))
        yield f"{view.digest:016x}  {view.entries:>10} entries  {context}"


def context_digests(kernel: ReadOnlyKernel) -> dict[str, str]:
    """By context, its digest and how many entries it has, in words; empty ones left out."""
    return {
        " / ".join(map(str, view.context)): f"{view.digest:016x} ({view.entries} entries)"
        for view in kernel.contexts()
        if view.entries
    }


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
        yield from digest_lines(fold.kernel)
    finally:
        log.close()
