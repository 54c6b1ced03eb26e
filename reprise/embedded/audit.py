"""The log of answers of the embedded service: what the queue kept is written here, window by
window.

DATA/answers/   a log of its own (`streams.log.embedded`), of `schemas.answer_records`

It costs the service nothing but what it takes: where it cannot be written, answers are given as
before, and are counted as dropped.
"""

import logging
import threading
import time
from pathlib import Path

from schemas.answer_records import encode_answers
from schemas.conditions import Conditions, Part
from schemas.errors import DamagedError, StorageError
from schemas.limits import (
    AUDIT_BYTES,
    AUDIT_RETRY_S,
    AUDIT_SYNC_S,
    AUDIT_WINDOW_S,
    LOG_RETENTION_CHECK_S,
    SHUTDOWN_S,
)
from storage.salvage import move_aside
from streams.audit.log import AnswersLog
from streams.kernel.interface import AuditQueue

logger = logging.getLogger(__name__)


class AnswerLog:
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
        self.queue = queue
        self.unwritten = 0
        self._log = _opened(path)
        self._seed = seed
        self._age_max_s = age_max_s
        self._conditions = conditions
        self._run_number = int(time.time() * 1e6)
        self._failed = False
        self._retry_at = 0.0
        self._sync_at = 0.0
        self._retain_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

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

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Writes what is left, and closes the log; within a bound."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(SHUTDOWN_S)
        try:
            self.write()
            self._log.close()
        except StorageError as error:
            logger.error("Cannot close the log of answers: %s", error)

    def _run(self) -> None:
        while not self._stopping.wait(AUDIT_WINDOW_S):
            try:
                self.write()
                self._maintain(time.monotonic())
            except Exception:
                logger.exception("Unexpected error in the log of answers; it goes on")

    def write(self) -> None:
        """Writes what the queue has now; on the disk's failure it is dropped and counted."""
        chunks = self.queue.take()
        if not chunks:
            return
        try:
            if self._failed:
                self._open_again()
            records = [encode_answers(self._run_number, self._seed, *chunk) for chunk in chunks]
            self._log.append(records, now=time.time())
        except StorageError as error:
            self.unwritten += sum(count for count, _ in chunks)
            self._note(error)

    def _open_again(self) -> None:
        if time.monotonic() < self._retry_at:
            raise StorageError("Cannot write the log of answers: it is tried again soon")
        self._log.reopen()
        self._failed = False
        self._conditions.clear(Part.AUDIT)

    def _note(self, error: StorageError) -> None:
        if not self._failed or time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + AUDIT_RETRY_S
            self._conditions.set(Part.AUDIT, "disk", str(error))
        self._failed = True

    def _maintain(self, now: float) -> None:
        if self._failed:
            return
        try:
            if now >= self._sync_at:
                self._sync_at = now + AUDIT_SYNC_S
                self._log.sync()
            if now >= self._retain_at:
                self._retain_at = now + LOG_RETENTION_CHECK_S
                self._log.retain(
                    bytes_max=AUDIT_BYTES,
                    age_max_s=self._age_max_s,
                    now=time.time(),
                    floor=self._log.end_offset,
                )
        except StorageError as error:
            self._note(error)


def _opened(path: Path) -> AnswersLog:
    try:
        return AnswersLog(path)
    except DamagedError as error:
        aside = move_aside(path, "the log of answers")
        logger.warning(
            "%s. It was moved to %s: the answers begin anew, and nothing else is lost", error, aside
        )
        return AnswersLog(path)
