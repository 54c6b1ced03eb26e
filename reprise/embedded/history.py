"""The past of the embedded service: queries as of a past position, from its history and its log.

DATA/history/   rows of the table, past ones included: `streams.history.store`
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from query_api.past_view import past_view
from query_api.ports import Asked, AsOf
from query_api.table_view import TableView
from schemas.errors import PastError, StorageError
from schemas.identities import Offset
from schemas.limits import HISTORY_ANSWERS_MAX
from schemas.positions import Position
from streams.history.explain import Explanation, Question, explain
from streams.history.log_times import offset_at
from streams.history.past import Blocks, Past
from streams.history.recorder import HistoryRecorder
from streams.history.store import HistoryStore
from streams.kernel.interface import Kernel
from streams.log.interface import ReadableLog

T = TypeVar("T")
logger = logging.getLogger(__name__)


class EmbeddedHistory:
    """Implements `query_api.ports.History`.

    Args:
        path: of the history.
        log: of the service; called each time.
        make_kernel: an empty one, as the table's.
        bytes_max: how much is kept.

    Attributes:
        recorder: what the table tells of what it writes.
    """

    def __init__(
        self,
        path: Path,
        log: Callable[[], ReadableLog],
        make_kernel: Callable[[], Kernel],
        *,
        bytes_max: int,
    ) -> None:
        """Raises StorageError where it cannot be opened."""
        self._store = HistoryStore(path)
        if self._store.damage:
            logger.warning(
                "%s. It was moved aside: the past begins anew, and nothing else is lost",
                self._store.damage,
            )
        self._log = log
        self._bytes_max = bytes_max
        self._past = Past(self._store, log, make_kernel)
        self.recorder = HistoryRecorder(self._store, seed=make_kernel().seed)
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._dropped_to = 0

    async def view_as_of(self, as_of: AsOf, asked: Asked) -> TableView:
        """See `History`."""
        return await self._in_turn(lambda: self._view(as_of, asked))

    async def explain(self, as_of: AsOf, question: Question) -> Explanation:
        """See `History`."""
        return await self._in_turn(lambda: explain(self._past, question, self._offset(as_of)))

    async def _in_turn(self, answer: Callable[[], T]) -> T:
        """Calls it in a thread, once those before it are done."""
        if self._waiting >= HISTORY_ANSWERS_MAX:
            raise PastError(
                "as_of_busy",
                f"Expected at most {HISTORY_ANSWERS_MAX} queries of the past at once; try again",
                status=503,
            )
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(answer)
        finally:
            self._waiting -= 1

    def _view(self, as_of: AsOf, asked: Asked) -> TableView:
        offset = self._offset(as_of)
        blocks = Blocks(asked.prefixes, asked.lora_name)
        fold = self._past.fold_as_of(offset, asked.includes, name=asked[:3], blocks=blocks)
        return past_view(fold, (Position(0, offset),))

    def _offset(self, as_of: AsOf) -> Offset:
        if as_of.seconds is not None:
            return offset_at(self._log(), as_of.seconds, now=time.time())
        positions = as_of.positions or ()
        if [position.partition for position in positions] != [0]:
            raise PastError(
                "as_of_of_another_log",
                "Expected a position of this log, which has one partition, 0:OFFSET",
            )
        return Offset(positions[0].offset)

    def retain(self) -> None:
        """Drops what the log no longer reaches, and the oldest of what is above the bound.

        Raises:
            DiskError: some of it may still be there.
        """
        floor = int(self._log().complete_from) - 1
        size_bytes = self._store.live_bytes()
        if size_bytes > self._bytes_max:
            runs = self._store.runs()
            if runs:
                spare = 1 - self._bytes_max / size_bytes
                first, last = min(one.first for one in runs), max(one.last for one in runs)
                floor = max(floor, first + int((last - first) * spare))
        if floor > self._dropped_to:
            self._store.drop_before(floor)
            self._dropped_to = floor

    def size_bytes(self) -> int:
        """About how much of it is on the disk; 0 where that cannot be read."""
        with suppress(StorageError):
            return self._store.live_bytes()
        return 0

    def close(self) -> None:
        """Closes what is on the disk."""
        self._past.forget()
        self._store.close()
