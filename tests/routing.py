"""Records of the routing log, for tests that care for a few of their fields."""

import time
from pathlib import Path

from logs.declaration import EmbeddedParts
from routing.log.declaration import ROUTING
from routing.log.embedded import RoutingLog
from schemas.clock import REAL_CLOCK
from schemas.conditions import Conditions
from schemas.routing_records import (
    CandidateRecord,
    DecidedScope,
    Decision,
    DecisionsRecord,
    FeedbackReport,
    LoadRecord,
    LoadSample,
    LoadSource,
    OutcomeEvent,
    OutcomesRecord,
    Phase,
    Target,
)

RUN = 1_790_000_000_000_000
NOW = 1_790_000_000.0
TARGET = Target("default", "a", 0)


def routing_log(data: Path) -> RoutingLog:
    """The routing log of a directory of data, open."""
    log = ROUTING.embedded(EmbeddedParts(data, Conditions(time.time), REAL_CLOCK, 1e9))
    log.open()
    return log


def decision(number: int, *, time: float = NOW, instance: str = "a", prompt: int = 800) -> Decision:
    """One that sends a request to an instance, which takes a tenth of a second."""
    candidate = CandidateRecord(instance, 0, prefill_s=0.1)
    return Decision(
        number,
        time,
        f"r-{number}",
        DecidedScope("default", "m", "", 16, ""),
        "wait-and-work",
        (),
        "exact",
        prompt,
        10,
        Phase.COMBINED,
        0.0,
        0.0,
        0,
        "",
        7,
        0,
        False,
        (),
        (candidate,),
        0,
        -1,
        predicted_s=0.1,
    )


def decisions(*numbers: int, run: int = RUN, time: float = NOW) -> DecisionsRecord:
    """A record of decisions."""
    return DecisionsRecord(
        run=run, time=time, decisions=tuple(decision(number, time=time) for number in numbers)
    )


def outcome(number: int, event: str = "completed", *, time: float = NOW) -> FeedbackReport:
    """A report that says nothing but what happened."""
    return FeedbackReport(number, OutcomeEvent(event), time)


def outcomes(
    *numbers: int, event: str = "completed", run: int = RUN, time: float = NOW
) -> OutcomesRecord:
    """A record of reports."""
    return OutcomesRecord(
        run=run, time=time, outcomes=tuple(outcome(number, event, time=time) for number in numbers)
    )


def load(waiting: int, *, time: float = NOW, target: Target = TARGET) -> LoadRecord:
    """A record of what an instance carries."""
    sample = LoadSample(target, time, LoadSource.POSTED, waiting=waiting)
    return LoadRecord(run=0, time=time, samples=(sample,))
