"""What the embedded service has on the disk: its log, its table and their past.

DATA/log/     the records, `logs.embedded`
DATA/table/   the table's rows, `streams.table.table`
DATA/history/  rows of the table, past ones too: `streams.history.store`
DATA/loss.json  while it is not known yet what the log has lost, `streams.log.losses`
"""

from contextlib import ExitStack
from functools import partial
from typing import Final

from logs.embedded import EmbeddedLog
from query_api.change_signal import ChangeSignal
from reprise.embedded.history import EmbeddedHistory
from reprise.settings import Settings
from streams.kernel import open_kernel
from streams.kernel.interface import AuditQueue, Kernel
from streams.log.losses import LossNote
from streams.table.fold import Fold
from streams.table.history_interface import NO_HISTORY
from streams.table.table import Table

LOG: Final = "log"
TABLE: Final = "table"
HISTORY: Final = "history"
"""Directories of the data directory."""


class EmptyFolds:
    """Makes the kernels and the folds of a service, which have nothing yet.

    Args:
        seed: of the prefix hash.
        kernel: its name; None for the fastest there is.
        audit: keeps answers of the kernels that queries are answered from; None: nothing does.
        changes: told by the states of a fold.
    """

    def __init__(
        self, seed: int, kernel: str | None, audit: AuditQueue | None, changes: ChangeSignal
    ) -> None:
        self._seed = seed
        self._name = kernel
        self._audit = audit
        self._changes = changes

    def kernel(self) -> Kernel:
        """One of a past table, of which no answers are kept."""
        return open_kernel(self._seed, name=self._name)

    def fold(self) -> Fold:
        """One that queries are answered from."""
        kernel = self.kernel()
        if self._audit is not None:
            kernel.audit_into(self._audit)
        fold = Fold(kernel, when_folded=partial(kernel.note_position, 0))
        fold.states.on_change = self._changes.changed
        return fold


class EmbeddedData:
    """The log, the table and the history, open; closed in the other order.

    Args:
        log: of the service.
        history: of the table; None: no past is kept.
    """

    def __init__(
        self, log: EmbeddedLog, table: Table, history: EmbeddedHistory | None = None
    ) -> None:
        self.log = log
        self.table = table
        self.history = history

    def close(self) -> None:
        """Closes all of them, also where one fails; raises StorageError then."""
        with ExitStack() as closing:
            closing.callback(self.log.close)
            if self.history is not None:
                closing.callback(self.history.close)
            closing.callback(self.table.close)


def open_data(settings: Settings, folds: EmptyFolds) -> EmbeddedData:
    """Opens the data directory.

    Raises:
        DataDirectoryInUseError: another process uses it.
        NewerVersionError: a newer Reprise wrote it; nothing was changed.
        StorageError: it cannot be opened.
    """
    LossNote(settings.data).read()  # while nothing is open yet: a newer one is refused
    with ExitStack() as opened:
        log = EmbeddedLog(settings.data / LOG)
        opened.callback(log.close)
        history: EmbeddedHistory | None = None
        if settings.history_bytes:
            path, bytes_max = settings.data / HISTORY, settings.history_bytes
            history = EmbeddedHistory(path, log, folds.kernel, bytes_max=bytes_max)
            opened.callback(history.close)
        recorder = NO_HISTORY if history is None else history.recorder
        table = Table(settings.data / TABLE, folds.fold, log=log, history=recorder)
        opened.pop_all()
    return EmbeddedData(log, table, history)
