"""The past of the embedded service: queries as of a past position, from its history and its log.

DATA/history/   rows of the table, past ones included: `streams.history.store`
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from logs.interface import ReadableLog
from query_api.past_answers import PastAnswers
from query_api.ports import Positions
from schemas.errors import StorageError
from schemas.positions import Position
from streams.history.log_times import offset_at
from streams.history.past_fold import Past
from streams.history.past_tables import PastTables
from streams.history.recorder import HistoryRecorder
from streams.history.retention import HistoryRetention
from streams.history.store import HistoryStore
from streams.kernel.interface import Kernel


class EmbeddedHistory(PastAnswers):
    """Implements `query_api.ports.History`.

    Args:
        log: of the service.
        make_kernel: an empty one, as the table's.
        bytes_max: how much is kept.

    Attributes:
        recorder: what the table tells of what it writes.
    """

    def __init__(
        self,
        path: Path,
        log: ReadableLog,
        make_kernel: Callable[[], Kernel],
        *,
        bytes_max: int,
    ) -> None:
        """Raises StorageError where it cannot be opened."""
        self._store = HistoryStore(path)
        self._log = log
        self._retention = HistoryRetention(self._store, bytes_max)
        self._past_tables = PastTables([Past(self._store, lambda: log, make_kernel)], make_kernel)
        super().__init__(
            self._past_tables, positions_at=self._positions_of_time, is_of_one_writer=True
        )
        self.recorder = HistoryRecorder(self._store, seed=make_kernel().seed)

    def _positions_of_time(self, seconds: float) -> Positions:
        return (Position(0, offset_at(self._log, seconds, now=time.time())),)

    def retain(self) -> None:
        """See `HistoryRetention`."""
        self._retention.apply({0: int(self._log.complete_from)})

    @property
    def is_recording(self) -> bool:
        """Whether what the table writes can be kept now."""
        return not self.recorder.problem

    def size_bytes(self) -> int:
        """About how much of it is on the disk; 0 where that cannot be read."""
        with suppress(StorageError):
            return self._store.live_bytes()
        return 0

    def close(self) -> None:
        """Closes what is on the disk."""
        self._past_tables.forget()
        self._store.close()
