"""The start of the write path: until the table has what the log has, however long that takes."""

import logging
import threading
import time
from pathlib import Path

from reprise.embedded.data import TABLE, EmbeddedData
from reprise.embedded.data_watch import DataWatch
from reprise.embedded.fold_thread import FoldThread
from reprise.embedded.loss_watch import LossWatch
from schemas.conditions import Conditions, Level, Part
from schemas.errors import DamagedError, DiskError, StorageError
from schemas.limits import LOG_RETRY_S
from streams.table.driver import recover
from streams.table.recovery import RecoveryAction

logger = logging.getLogger(__name__)


class EmbeddedRecovery:
    """Recovers one table; the role is not ready meanwhile.

    Args:
        data: open.
        losses: what the log has lost is noted there.

    Attributes:
        recovery_s: how long it took.
        watch: over the directories, as they were then.
    """

    def __init__(
        self, data: EmbeddedData, folding: FoldThread, losses: LossWatch, conditions: Conditions
    ) -> None:
        self.recovery_s = 0.0
        self.watch = DataWatch((), conditions)
        self._data = data
        self._folding = folding
        self._losses = losses
        self._conditions = conditions
        conditions.set(Part.RECOVERY, "recovering", "recovering", Level.UNAVAILABLE, logged=False)

    def run(self, stopping: threading.Event) -> None:
        """Returns once the table is recovered, or `stopping` is set.

        Raises:
            DamagedError: the log is damaged.
            NewerVersionError: a newer Reprise wrote the table.
        """
        while not stopping.is_set():
            try:
                self._recover()
                return
            except DiskError as error:
                if isinstance(error, DamagedError) and Path(error.path) == self._data.log.path:
                    raise  # to try again mends nothing
                self._note(error)
            if not stopping.wait(LOG_RETRY_S):
                self._reopen()

    def _note(self, error: StorageError) -> None:
        self._conditions.set(Part.LOG, "disk", str(error))

    def _reopen(self) -> None:
        for database in (self._data.log, self._data.table):
            try:
                database.reopen()
            except StorageError as error:
                self._note(error)

    def _recover(self) -> None:
        started = time.monotonic()
        log, table = self._data.log, self._data.table
        if log.torn:
            self._losses.found(f"the log has lost its end ({log.torn})")
        recovered = recover(table, log)
        self._folding.recovered()
        fold = self._folding.fold
        self.recovery_s = time.monotonic() - started
        logger.info(
            "Recovered in %.2f s: %s (%s), %d records folded, %d publishers registered",
            self.recovery_s,
            recovered.plan.action,
            recovered.plan.reason,
            recovered.records,
            len(fold.registrations),
        )
        if recovered.plan.action is RecoveryAction.ADOPT:
            self._losses.found(
                "the log has lost its end or is gone, and `reprise verify` can no longer prove what"
                " was before"
            )
        self._losses.begin(fold)
        self.watch = DataWatch((log.path, log.path.with_name(TABLE)), self._conditions)
        self._conditions.clear(Part.LOG)
