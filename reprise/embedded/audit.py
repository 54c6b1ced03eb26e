"""The log of answers of the embedded service: what the queue kept is written here, window by
window.

DATA/answers/   a log of its own (`logs.embedded`), of `schemas.answer_records`
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from logs.window_log import WindowLog, WindowLogOptions, open_or_begin_anew
from schemas.answer_records import encode_answers
from schemas.conditions import Conditions, Part
from schemas.identities import Offset
from schemas.limits import AUDIT_BYTES
from streams.audit.log import AnswersLog
from streams.kernel.interface import AuditQueue

NAME: Final = "the log of answers"


class AnswerLog(WindowLog):
    """A thread that writes what a queue has.

    Args:
        path: of the log.
        queue: of answers.
        seed: of the prefix hash.
        age_max_s: how long answers are kept.
        conditions: set while it cannot be written.

    Attributes:
        queue: of answers.
        unwritten: answers that were taken from the queue and could not be written.
    """

    def __init__(
        self,
        path: Path,
        queue: AuditQueue,
        *,
        seed: int,
        age_max_s: float,
        conditions: Conditions,
    ) -> None:
        """Opens or creates it; a damaged one is set aside.

        Raises:
            DataDirectoryInUseError: another process has it open.
            StorageError: it cannot be opened, or a newer Reprise wrote it.
        """
        options = WindowLogOptions(NAME, "audit", Part.AUDIT, AUDIT_BYTES, age_max_s)

        def open_log() -> AnswersLog:
            return open_or_begin_anew(path, NAME, AnswersLog, lost="the answers begin anew")

        super().__init__(open_log, options, conditions, log=open_log())
        self.queue = queue
        self.unwritten = 0
        self._seed = seed
        self._run_number = int(time.time() * 1e6)
        self._taken = 0

    @property
    def written(self) -> int:
        """Answers in the log, of this run."""
        return self.queue.counts()[0] - self.unwritten

    @property
    def dropped(self) -> int:
        """Answers that were to be kept, and are not: the queue was full, or the disk failed."""
        return self.queue.counts()[1] + self.unwritten

    @property
    def unsettled(self) -> int:
        """Answers that were to be kept, and were given while a record was half folded."""
        return self.queue.counts()[2]

    def take(self) -> Sequence[bytes]:
        """See `WindowLog`."""
        chunks = self.queue.take()
        self._taken = sum(count for count, _ in chunks)
        return [encode_answers(self._run_number, self._seed, *chunk) for chunk in chunks]

    def appended(self, first: Offset) -> None:
        """See `WindowLog`."""

    def lost(self) -> None:
        """See `WindowLog`."""
        self.unwritten += self._taken
