"""One condition that two can set: it ends when both have ended."""

from logs.shared_condition import SharedCondition
from schemas.conditions import Conditions, Part


def test_it_is_set_while_any_of_them_is() -> None:
    conditions = Conditions(lambda: 0.0)
    shared = SharedCondition(conditions, Part.ROUTING)
    shared.note("writer", "unreachable", "cannot write")
    shared.note("reader", "unreachable", "cannot read")
    assert conditions.problem == "cannot write"
    shared.clear("writer")
    assert conditions.problem == "cannot read"
    shared.clear("writer")
    assert conditions.problem == "cannot read"
    shared.clear("reader")
    assert not conditions.has(Part.ROUTING)


def test_what_one_says_anew_is_shown_anew() -> None:
    conditions = Conditions(lambda: 0.0)
    shared = SharedCondition(conditions, Part.ROUTING)
    shared.note("writer", "unreachable", "no answer")
    shared.note("writer", "refused", "not allowed")
    assert [one.reason for one in conditions.all()] == ["refused"]
