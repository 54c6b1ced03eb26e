"""Decisions and reports, made short."""

from typing import Any

from schemas.routing_records import (
    CandidateRecord,
    DecidedScope,
    Decision,
    FeedbackReport,
    OutcomeEvent,
    Phase,
    Target,
)

SCOPE = DecidedScope("default", "m", "", 16, "")
A, B = Target("default", "a", 0), Target("default", "b", 0)


def candidate(instance_id: str = "a", dp_rank: int = 0, **fields: Any) -> CandidateRecord:
    """One that would compute for a second, unless it is said otherwise."""
    return CandidateRecord(instance_id, dp_rank, **{"prefill_s": 1.0, **fields})


def decision(number: int, time: float = 100.0, **fields: Any) -> Decision:
    """Of a prompt of 1,000 tokens, sent to `a`, which computes it for a second."""
    values: dict[str, Any] = {
        "request_id": f"r{number}",
        "scope": SCOPE,
        "policy": "wait-and-work",
        "positions": (),
        "state": "exact",
        "prompt_tokens": 1000,
        "expected_output_tokens": 100,
        "phase": Phase.COMBINED,
        "ttft_slo_s": 0.0,
        "tbt_slo_s": 0.0,
        "priority": 0,
        "session_id": "",
        "tie": 0,
        "class_tokens": 0,
        "is_hot": False,
        "costs": (),
        "candidates": (candidate("a"), candidate("b")),
        "chosen": 0,
        "decode": -1,
        "predicted_s": 1.0,
        **fields,
    }
    return Decision(number=number, time=time, **values)


def outcome(number: int, event: OutcomeEvent, time: float = 100.0, **fields: Any) -> FeedbackReport:
    """A report."""
    return FeedbackReport(number, event, time, **fields)
