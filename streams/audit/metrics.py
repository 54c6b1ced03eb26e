"""The log of answers, where `audit.rate` has it kept."""

from typing import Final, Protocol

from schemas.metric_family import Family, counter
from streams.audit.source import AnswersSource


class AnswersRun(Protocol):
    """What writes them, to a log on the disk or to a topic."""

    source: AnswersSource


AUDIT: Final[tuple[Family[AnswersRun], ...]] = (
    counter(
        "reprise_audit_written",
        "Answers to queries that were written to the log of answers, or are about to be.",
        lambda run: run.source.written,
    ),
    counter(
        "reprise_audit_dropped",
        "Answers to queries that audit.rate had chosen and that are not in the log of answers: too"
        " many waited, or neither disk nor Kafka took more.",
        lambda run: run.source.dropped,
    ),
    counter(
        "reprise_audit_unsettled",
        "Answers to queries that audit.rate had chosen and that were given while a record of the"
        " log was half folded, or a flush half applied: no position has them, so they are not in"
        " the log of answers.",
        lambda run: run.source.unsettled,
    ),
)
