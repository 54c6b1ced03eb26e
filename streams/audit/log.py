"""The log of answers, where they are kept to be proven.

    DATA/answers     a log of its own (`logs.embedded`), of `schemas.answer_records`
    PREFIX.answers   the same records of all replicas; those of a run are in one partition

The data files of the first are never merged (`storage.rocksdb.ANSWERS`).
"""

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from logs.declaration import EmbeddedParts, LogDeclaration, ReplicaParts
from logs.embedded_writer import EmbeddedWriter
from logs.kept_log import KeptLog
from schemas.clock import Clock
from schemas.conditions import Part
from schemas.limits import AUDIT_BYTES
from storage import rocksdb
from streams.audit.metrics import AUDIT
from streams.audit.queue import open_audit_queue
from streams.audit.source import ANSWERS_TOPIC, AnswersSource

if TYPE_CHECKING:
    from streams.audit.topic import AnswersWriter


class AnswersSettings(Protocol):
    """What is read of the settings of a role that answers."""

    seed: int
    port: int
    audit_rate: float


class AnswerLog(EmbeddedWriter[tuple[int, bytes]]):
    """Writes them on this disk."""

    source: AnswersSource


class _AnswersLog(LogDeclaration):
    """Runs where a share of the answers is to be kept."""

    def embedded(self, parts: EmbeddedParts) -> AnswerLog | None:
        source = _source(parts.settings, parts.clock)
        if source is None:
            return None
        return AnswerLog(source, KeptLog(self, parts), thread="audit")

    def replica(self, parts: ReplicaParts) -> "AnswersWriter | None":
        from streams.audit.topic import AnswersWriter

        source = _source(parts.settings, parts.clock, host=socket.gethostname())
        if source is None:
            return None
        return AnswersWriter(parts.kafka, parts.options, source, parts.conditions)


def _source(settings: AnswersSettings, clock: Clock, host: str = "") -> AnswersSource | None:
    if settings.audit_rate <= 0:
        return None
    queue, replica = open_audit_queue(settings.audit_rate), host and f"{host}:{settings.port}"
    return AnswersSource(queue, seed=settings.seed, replica=replica, clock=clock.unix)


ANSWERS: Final = _AnswersLog(
    name="the log of answers",
    topics=(ANSWERS_TOPIC,),
    path=Path("answers"),
    preset=rocksdb.ANSWERS,
    lost="the answers begin anew",
    bytes_max=AUDIT_BYTES,
    part=Part.AUDIT,
    metrics=AUDIT,
)
