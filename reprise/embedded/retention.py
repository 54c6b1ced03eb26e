"""How much of the log and of the past is kept, and that the log is durable."""

import time

from reprise.embedded.data import EmbeddedData
from reprise.embedded.fold_thread import FoldThread
from reprise.embedded.history import EmbeddedHistory
from reprise.settings import Settings
from schemas.conditions import Conditions, Part
from schemas.errors import DiskError, StorageError
from schemas.identities import Offset


class EmbeddedRetention:
    """Drops what is not to be kept, and syncs what is; what the disk refuses is tried again.

    Args:
        data: of which.
        folding: how far the table is durable; the log keeps what is not.
    """

    def __init__(
        self, settings: Settings, data: EmbeddedData, folding: FoldThread, conditions: Conditions
    ) -> None:
        self._settings = settings
        self._data = data
        self._folding = folding
        self._conditions = conditions

    def retain(self) -> None:
        """Drops what is older, or more, than is to be kept."""
        exempt = [one.offset for one in self._folding.fold.registrations.values()]
        try:
            self._data.log.retain(
                bytes_max=self._settings.log_retention_bytes,
                age_max_s=self._settings.log_retention_s,
                now=time.time(),
                floor=Offset(self._folding.durable_offset + 1),
                exempt=exempt,
            )
        except DiskError as error:
            self._note(Part.RETENTION, error)
        else:
            self._conditions.clear(Part.RETENTION)
        if self._data.history is not None:
            self._retain_past(self._data.history)

    def _retain_past(self, history: EmbeddedHistory) -> None:
        try:
            history.retain()
        except StorageError as error:
            self._note(Part.HISTORY, error)
        else:
            problem = history.recorder.problem
            if problem:
                self._conditions.set(Part.HISTORY, "disk", problem, logged=False)
            else:
                self._conditions.clear(Part.HISTORY)

    def sync(self) -> None:
        """Makes durable what was appended."""
        try:
            self._data.log.sync()
        except StorageError as error:
            self._note(Part.LOG_SYNC, error)
        else:
            self._conditions.clear(Part.LOG_SYNC)

    def _note(self, part: Part, error: StorageError) -> None:
        self._conditions.set(part, "disk", str(error))
