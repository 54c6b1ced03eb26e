"""The log of answers, where `--audit` has it kept."""

from typing import TYPE_CHECKING, Final

from reprise.metrics.family import Family, counter

if TYPE_CHECKING:
    from reprise.embedded.audit import AnswerLog

AUDIT: Final[tuple[Family["AnswerLog"], ...]] = (
    counter(
        "reprise_audit_written",
        "Answers to queries that were written to the log of answers, or are about to be.",
        lambda audit: audit.written,
    ),
    counter(
        "reprise_audit_dropped",
        "Answers to queries that --audit had chosen and that are not in the log of answers: too"
        " many waited, or the disk could not be written.",
        lambda audit: audit.dropped,
    ),
    counter(
        "reprise_audit_unsettled",
        "Answers to queries that --audit had chosen and that were given while a record of the log"
        " was half folded: no position has them, so they are not in the log of answers.",
        lambda audit: audit.unsettled,
    ),
)
