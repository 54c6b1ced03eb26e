"""The log of answers, where `audit.rate` has it kept."""

from typing import Final, Protocol

from schemas.metric_family import Family, counter


class AnswerStore(Protocol):
    """What keeps them: a log on the disk, or a topic."""

    @property
    def written(self) -> int:
        """Answers in the log, of this run, or about to be."""
        ...

    @property
    def dropped(self) -> int:
        """Answers that were to be kept, and are not."""
        ...

    @property
    def unsettled(self) -> int:
        """Answers that were to be kept, and that no position has."""
        ...


AUDIT: Final[tuple[Family[AnswerStore], ...]] = (
    counter(
        "reprise_audit_written",
        "Answers to queries that were written to the log of answers, or are about to be.",
        lambda audit: audit.written,
    ),
    counter(
        "reprise_audit_dropped",
        "Answers to queries that audit.rate had chosen and that are not in the log of answers: too"
        " many waited, or neither disk nor Kafka took more.",
        lambda audit: audit.dropped,
    ),
    counter(
        "reprise_audit_unsettled",
        "Answers to queries that audit.rate had chosen and that were given while a record of the"
        " log was half folded, or a flush half applied: no position has them, so they are not in"
        " the log of answers.",
        lambda audit: audit.unsettled,
    ),
)
