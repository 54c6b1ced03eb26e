"""What is wrong with an instance: each diagnosis looks at one kind of mistake. Pure.

A diagnosis says what is wrong, what was expected and what came, the likeliest cause, and what to
type. It says nothing where it does not know.
"""

from collections.abc import Sequence
from typing import Final

from query_api.doctor.diagnosis import Look
from query_api.doctor.document import Finding
from query_api.doctor.examination import Patient
from query_api.doctor.received import RECEIVED
from query_api.doctor.said import SAID
from query_api.doctor.served import outcomes

DIAGNOSES: Final[Sequence[Look]] = (*SAID, *RECEIVED, outcomes)
"""All of them, causes before what comes of them."""


def diagnose(patient: Patient, now: float) -> list[Finding]:
    """All that is known to be wrong with one instance, the likeliest cause of all first."""
    tenant_id, model_name, _, _, instance_id = patient.stream
    found = [one for look in DIAGNOSES for one in look(patient, now)]
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
