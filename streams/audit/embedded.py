"""The log of answers of the embedded service.

DATA/answers/   a log of its own (`logs.embedded`), of `schemas.answer_records`
"""

from pathlib import Path

from logs.embedded_writer import EmbeddedWriter
from logs.kept_log import KeptLog, KeptLogOptions
from schemas.clock import REAL_CLOCK, Clock
from schemas.conditions import Conditions, Part
from schemas.limits import AUDIT_BYTES
from streams.audit.log import AnswersLog
from streams.audit.source import AnswersSource
from streams.kernel.interface import AuditQueue


class AnswerLog(EmbeddedWriter[tuple[int, bytes]]):
    """Writes what a queue has.

    Attributes:
        answers: the queue, with what became of its answers.
    """

    def __init__(
        self,
        path: Path,
        queue: AuditQueue,
        *,
        seed: int,
        age_max_s: float,
        conditions: Conditions,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Opens or creates the log; a damaged one is set aside.

        Args:
            path: of the log.
            queue: of answers.
            seed: of the prefix hash.
            age_max_s: how long answers are kept.
            conditions: set while it cannot be written.
            clock: of the process.

        Raises:
            DataDirectoryInUseError: another process has it open.
            StorageError: it cannot be opened, or a newer Reprise wrote it.
        """
        options = KeptLogOptions(
            path,
            "the log of answers",
            "the answers begin anew",
            bytes_max=AUDIT_BYTES,
            age_max_s=age_max_s,
            part=Part.AUDIT,
        )
        log = KeptLog(options, AnswersLog, conditions, clock=clock)
        log.opened()
        self.answers = AnswersSource(queue, seed=seed, clock=clock.unix)
        super().__init__(self.answers, log, thread="audit")
