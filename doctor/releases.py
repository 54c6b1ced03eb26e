"""What releases of engines do beside their events, by the version that an engine says it has. Pure.

None of it is a mistake of anybody here, and nothing on the wire tells whether it matters: so it is
a note. docs/compatibility.md and docs/fail.md say the same of each.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from doctor.diagnosis import Diagnosis
from doctor.document import Code
from doctor.examination import Patient, facts_of
from schemas.registration import SGLANG, VLLM, PublisherKind

Version = tuple[int, int, int]


class ReleaseFault(NamedTuple):
    """Of the releases of a kind from one version on to before another one.

    Attributes:
        does: what of its events is not so.
        remedy: what makes answers right all the same.
    """

    kind: PublisherKind
    since: Version
    before: Version
    does: str
    remedy: str


FAULTS: Final = (
    ReleaseFault(
        VLLM,
        (0, 0, 0),
        (0, 17, 0),
        "its events do not say salts and images: blocks that have one count for a plain prompt",
        "let it serve one salt, or none, and no images; or a release from 0.17.0 on",
    ),
    ReleaseFault(
        VLLM,
        (0, 19, 0),
        (0, 30, 0),
        "with SimpleCPUOffloadConnector it says of removals from its CPU that they are of its GPU",
        "let it offload by OffloadingConnector, or not; or a release from 0.30.0 on",
    ),
    ReleaseFault(
        SGLANG,
        (0, 5, 1),
        (0, 5, 6),
        "its events do not say what a page hangs on: only the first pages of a prompt are found",
        "a release from 0.5.6 on",
    ),
    ReleaseFault(
        SGLANG,
        (0, 0, 0),
        (0, 5, 10),
        "with --enable-hierarchical-cache it publishes clears alone",
        "leave it off, or register it with the type `none`; or a release from 0.5.12 on",
    ),
    ReleaseFault(
        SGLANG,
        (0, 0, 0),
        (0, 5, 18),
        "its events do not say salts: pages that have one count for a plain prompt",
        "let it serve one salt, or none; or a release from 0.5.18 on",
    ),
    ReleaseFault(
        SGLANG,
        (0, 5, 12),
        (0, 5, 21),
        "with --enable-hierarchical-cache it does not say what comes back to its GPU",
        "take `longest_matched` of it, not the tiers; or a release from 0.5.21 on",
    ),
)
"""Those that were read or seen."""

_NUMBERS: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?")


def version_of(text: str) -> Version | None:
    """The first numbers of a version; None where it is none, as of a build without a tag."""
    found = _NUMBERS.match(text)
    if found is None:
        return None
    major, minor, patch = found.groups(default="0")
    return int(major), int(minor), int(patch)


def releases(patient: Patient, now: float) -> Iterator[Diagnosis]:
    """What its release does."""
    said = sorted({facts.version for one in patient.ranks if (facts := facts_of(one)) is not None})
    for text in said:
        version = version_of(text)
        if version is None or version[:2] == (0, 0):
            continue
        for fault in FAULTS:
            if patient.kind == fault.kind and fault.since <= version < fault.before:
                yield Diagnosis(
                    Code.RELEASE,
                    f"it is {fault.kind} {text}, and {fault.does}",
                    fault.remedy,
                    got=text,
                    is_property=True,
                )
