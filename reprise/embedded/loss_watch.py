"""Says that the log has lost records, and keeps answers from being `exact`, for as long as it is
not known what that means.
"""

import logging
import time
from pathlib import Path

from schemas.conditions import Conditions, Part
from schemas.errors import StorageError
from schemas.identities import PrefixScope
from streams.log.losses import LogLoss, LossNote
from streams.table.fold import Fold
from streams.table.suspect_publishers import Suspects

logger = logging.getLogger(__name__)


class LossWatch:
    """Of one data directory. One thread; any other may ask `covers`.

    Args:
        data: the data directory, with the note of an earlier start.
    """

    def __init__(self, data: Path, conditions: Conditions) -> None:
        self._note = LossNote(data)
        self._conditions = conditions
        self._suspects: Suspects | None = None

    def found(self, what: str) -> None:
        """Notes that the log has lost records.

        Raises:
            DiskError: it is not noted.
        """
        self._note.add(LogLoss(what=what, at=time.time()))

    def begin(self, fold: Fold) -> None:
        """Suspects the publishers of the fold, which has all that the log has, where there is a
        note.
        """
        loss = self._note.read()
        if loss is None:
            return
        self._suspects = Suspects(loss, fold)
        until = "each of them has sent its next batch"
        if loss.registrations:
            until = "`reprise repair --all-registered` says that every engine is registered again"
        message = (
            f"{loss.what}: what came after the records that it has is missing where an engine does"
            f" not replay it; answers are degraded for {len(self._suspects)} publishers, until"
            f" {until}"
        )
        self._conditions.set(Part.LOSS, "records_lost", message, logged=False)
        logger.error("Records are lost, and answers say so: %s", message)

    def covers(self, scope: PrefixScope) -> bool:
        """Whether answers in the scope may lack what was lost."""
        return self._suspects is not None and self._suspects.are_in(scope)

    def check(self) -> None:
        """Ends it where every publisher has shown what it lost."""
        if self._suspects is None:
            return
        self._suspects.prune()
        if not self._suspects.are_cleared:
            return
        try:
            self._note.clear()
        except StorageError as error:
            self._conditions.set(Part.LOSS, "disk", str(error))
            return
        self._suspects = None
        self._conditions.clear(Part.LOSS)
        logger.info("Every publisher has shown what it lost with the records of the log")
