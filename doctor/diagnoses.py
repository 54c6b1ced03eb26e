"""What is wrong with an instance: each diagnosis looks at one kind of mistake. Pure.

A diagnosis says what is wrong, what was expected and what came, the likeliest cause, and what to
type. It says nothing where it does not know.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from doctor.diagnosis import Diagnosis, Look, follows
from doctor.document import Code, Finding
from doctor.engine_statements import SAID
from doctor.examination import Patient
from doctor.received_events import RECEIVED
from doctor.releases import releases
from doctor.served_requests import cache_reports, outcomes

DIAGNOSES: Final[Sequence[Look]] = (*SAID, *RECEIVED, outcomes, cache_reports, releases)
"""All of them, causes before what comes of them."""


_CAUSES: Final[Mapping[Code, tuple[Code, ...]]] = {
    Code.UNREACHED: (Code.EVENTS_OFF,),
    Code.NO_EVENTS: (Code.EVENTS_OFF, Code.PREFIX_CACHING_OFF),
    Code.LOST_BATCHES: (Code.DROPPED,),
    Code.MATCHES_NOTHING: (
        *(Code.EVENTS_OFF, Code.PREFIX_CACHING_OFF, Code.BLOCK_SIZE, Code.ATTENTION_ONLY),
    ),
    Code.MATCHES_LESS: (
        *(Code.RANKS, Code.BLOCK_SIZE, Code.LEFT_OUT, Code.LOST_BATCHES, Code.UNHELD_REMOVED),
    ),
    Code.MATCHES_MORE: (
        *(Code.PREFIX_CACHING_OFF, Code.ASLEEP, Code.RANKS),
        *(Code.NEVER_REMOVES, Code.LOST_BATCHES, Code.PARTIAL_REUSE, Code.ATTENTION_ONLY),
        *(Code.GROUPS_UNKNOWN, Code.DROPS_UNSAID),
    ),
    Code.OUTCOMES_DIFFER: (
        *(Code.RANKS, Code.BLOCK_SIZE, Code.PREFIX_CACHING_OFF, Code.ASLEEP, Code.NEVER_REMOVES),
    ),
}
"""What explains a finding, where it was found, too."""

_OF_WHAT_CAME: Final = (
    *(Code.BLOCK_SIZE, Code.DROPPED, Code.REPEATED_NUMBERS, Code.LEFT_OUT, Code.LOST_BATCHES),
)
"""Findings of what an engine has sent: true also after its end."""


def _told_apart(found: list[Diagnosis]) -> list[Diagnosis]:
    """A finding that follows from another one says that, in place of a remedy of its own; an engine
    that has ended is one finding, with what was wrong before.
    """
    gone = next((one for one in found if one.code is Code.DISCONNECTED), None)
    before = [one for one in found if one.code in _OF_WHAT_CAME]
    if gone is not None and before and set(gone.ranks) <= set(before[0].ranks or gone.ranks):
        found = [one for one in found if one is not gone and one not in before[1:]]
        more = f". Its link is down now: {gone.expected} gives no answer"
        found[found.index(before[0])] = before[0]._replace(cause=before[0].cause + more)
    unreached = next((one for one in found if one.code is Code.UNREACHED), None)
    no_engine = next((one for one in found if one.code is Code.NO_ENGINE), None)
    if unreached is not None and no_engine is not None:
        found = [one for one in found if one is not no_engine]
        found[found.index(unreached)] = unreached._replace(
            cause=f"{no_engine.cause} ({no_engine.got}). {unreached.cause}",
            remedy=f"{unreached.remedy}; {no_engine.remedy}",
        )
    causes = {one.code: one for one in found}
    return [_following(one, causes) for one in found]


def _following(one: Diagnosis, causes: Mapping[Code, Diagnosis]) -> Diagnosis:
    cause = next((causes[code] for code in _CAUSES.get(one.code, ()) if code in causes), None)
    if cause is None:
        return one
    code = cause.code.value
    is_property = cause.is_property and one.code is Code.MATCHES_MORE
    return one._replace(
        cause=follows(one.cause, code),
        remedy=f"see `{code}`" if is_property else f"mend `{code}` first, and look again",
        is_property=is_property,
    )


class InstanceFindings(NamedTuple):
    """What a look at an instance has shown.

    Attributes:
        findings: what is wrong with it, the likeliest cause of all first.
        notes: what is so of its model, likewise.
    """

    findings: list[Finding]
    notes: list[Finding]


def diagnose(patient: Patient, now: float) -> InstanceFindings:
    """All that is known of one instance."""
    found = _told_apart([one for look in DIAGNOSES for one in look(patient, now)])
    return InstanceFindings(
        [_finding(patient, one) for one in found if not one.is_property],
        [_finding(patient, one) for one in found if one.is_property],
    )


def _finding(patient: Patient, one: Diagnosis) -> Finding:
    tenant_id, model_name, _, _, instance_id = patient.stream
    every = tuple(rank.registration.dp_rank for rank in patient.ranks)
    return Finding(
        code=one.code.value,
        tenant_id=tenant_id,
        instance_id=instance_id,
        model_name=model_name,
        dp_ranks=list(one.ranks or every),
        cause=one.cause,
        expected=one.expected,
        got=one.got,
        remedy=one.remedy,
        since=one.since,
    )
