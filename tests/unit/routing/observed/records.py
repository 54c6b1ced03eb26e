"""Decisions and outcomes as a test needs them."""

from collections.abc import Sequence
from typing import Any

from schemas.routing_records import (
    CandidateRecord,
    DecidedScope,
    Decision,
    FeedbackReport,
    OutcomeEvent,
    Phase,
    PrefixMark,
)

SCOPE = DecidedScope("default", "llama", "", 16, "")
RUN = 7


def scope_of(model: str) -> DecidedScope:
    return SCOPE._replace(model_name=model)


def marks_of(*prefixes: tuple[int, int]) -> tuple[PrefixMark, ...]:
    return tuple(PrefixMark(blocks, prefix) for blocks, prefix in prefixes)


def a_decision(
    number: int = 0,
    *,
    prompt: int = 1000,
    cached: int = 0,
    candidates: Sequence[CandidateRecord] | None = None,
    chosen: int = 0,
    decode: int = -1,
    **given: Any,
) -> Decision:
    """Of `a`, which holds `cached` tokens, where no candidates are given."""
    plain: dict[str, Any] = {
        "time": 0.0,
        "request_id": "",
        "scope": SCOPE,
        "policy": "wait-and-work",
        "positions": (),
        "state": "exact",
        "expected_output_tokens": 0,
        "phase": Phase.COMBINED,
        "ttft_slo_s": 0.0,
        "tbt_slo_s": 0.0,
        "priority": 0,
        "session_id": "",
        "tie": 0,
        "class_tokens": 0,
        "is_hot": False,
        "costs": (),
    }
    if candidates is None:
        candidates = (CandidateRecord("a", 0, cached=cached, prefix=cached),)
    return Decision(
        number=number,
        prompt_tokens=prompt,
        candidates=tuple(candidates),
        chosen=chosen,
        decode=decode,
        **{**plain, **given},
    )


def an_outcome(
    number: int = 0, event: OutcomeEvent = OutcomeEvent.FIRST_TOKEN, **given: Any
) -> FeedbackReport:
    return FeedbackReport(number=number, event=event, time=0.0, **given)
