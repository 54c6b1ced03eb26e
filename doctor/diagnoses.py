"""What is wrong with an instance: each diagnosis looks at one kind of mistake. Pure.

A diagnosis says what is wrong, what was expected and what came, the likeliest cause, and what to
type. It says nothing where it does not know.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from doctor.diagnosis import Diagnosis, Look
from doctor.document import Code, Finding
from doctor.examination import Patient
from doctor.received import RECEIVED
from doctor.said import SAID
from doctor.served import outcomes

DIAGNOSES: Final[Sequence[Look]] = (*SAID, *RECEIVED, outcomes)
"""All of them, causes before what comes of them."""


_CAUSES: Final[Mapping[Code, tuple[Code, ...]]] = {
    Code.UNREACHED: (Code.EVENTS_OFF,),
    Code.NO_EVENTS: (Code.EVENTS_OFF, Code.PREFIX_CACHING_OFF),
    Code.MATCHES_NOTHING: (Code.EVENTS_OFF, Code.PREFIX_CACHING_OFF, Code.BLOCK_SIZE),
    Code.MATCHES_LESS: (Code.RANKS, Code.BLOCK_SIZE, Code.LEFT_OUT, Code.LOST_BATCHES),
    Code.MATCHES_MORE: (
        *(Code.PREFIX_CACHING_OFF, Code.ASLEEP, Code.RANKS),
        *(Code.NEVER_REMOVES, Code.LOST_BATCHES),
    ),
}
"""What explains a finding, where it was found, too."""


def _told_apart(found: list[Diagnosis]) -> list[Diagnosis]:
    """A finding that follows from another one says that, in place of a remedy of its own."""
    codes = {one.code for one in found}
    return [_following(one, codes) for one in found]


def _following(one: Diagnosis, codes: Collection[Code]) -> Diagnosis:
    cause = next((code for code in _CAUSES.get(one.code, ()) if code in codes), None)
    if cause is None:
        return one
    words = one.cause.partition(" The likeliest cause:")[0].rstrip(".")
    return one._replace(
        cause=f"{words}. This may well follow from `{cause.value}`",
        remedy=f"mend `{cause.value}` first, and look again",
    )


def diagnose(patient: Patient, now: float) -> list[Finding]:
    """All that is known to be wrong with one instance, the likeliest cause of all first."""
    tenant_id, model_name, _, _, instance_id = patient.stream
    found = _told_apart([one for look in DIAGNOSES for one in look(patient, now)])
    every = tuple(one.registration.dp_rank for one in patient.ranks)
    return [
        Finding(
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
        for one in found
    ]
