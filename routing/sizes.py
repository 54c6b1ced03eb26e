"""What is remembered, in bytes: bounds on numbers alone would let long names fill the memory.

Estimates, the same for every reader of the log, so that folds that go by them have the same state.
"""

from typing import Final

from schemas.routing_records import Decision, Target

OBJECT_SIZE: Final = 512
"""Of what is kept of one decision, beside its names and prefixes."""

MARK_SIZE: Final = 128
"""Of one of its prefixes."""


def text_bytes(*texts: str) -> int:
    """Of names; where not all are ASCII, they count as Python's widest. Some 0.3 us."""
    joined = "".join(texts)
    return len(joined) if joined.isascii() else 4 * len(joined)


def target_bytes(target: Target | None) -> int:
    """Of its names."""
    return 0 if target is None else text_bytes(target.tenant_id, target.instance_id)


def decision_bytes(decision: Decision) -> int:
    """Of a decision, with all of its candidates. Cost O(candidates)."""
    scope = decision.scope
    size = OBJECT_SIZE * (1 + len(decision.candidates)) + MARK_SIZE * len(decision.marks)
    names = [*scope[:3], scope.additional_salt, decision.policy]
    names += decision.request_id, decision.session_id, decision.class_name
    for one in decision.candidates:
        names += one.instance_id, one.fetch_from
    return size + text_bytes(*names)
