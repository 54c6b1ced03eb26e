"""What is known of the process over a link: each case of the table."""

import itertools

from bridge.engine_http.watch import Effect, Life, Mark, ProcessFacts, ProcessVerdict, judged

ALL = [
    ProcessFacts(is_read, is_changed, begins, mark, *rest)
    for is_read, is_changed, begins, mark in itertools.product(
        (False, True), (False, True), (False, True), Mark
    )
    for rest in itertools.product((False, True), repeat=4)
]


def wanted(facts: ProcessFacts) -> ProcessVerdict:
    """The same in words."""
    if not facts.is_read:
        return ProcessVerdict(Life.UNKNOWN)
    if facts.is_changed:
        return ProcessVerdict(Life.CHANGED)
    mark = facts.mark
    if facts.begins:
        if mark is Mark.OTHER and facts.is_here:
            return ProcessVerdict(Life.CHANGED, Effect.CHANGES)
        return ProcessVerdict(Life.UNKNOWN, Effect.BEGINS)
    if mark is Mark.OTHER and not facts.has_batches:
        mark = Mark.UNKNOWN  # who was at the link last need not have published the first batch
    if mark is Mark.UNKNOWN:
        return ProcessVerdict(Life.OTHER if facts.is_later else Life.UNKNOWN)
    if mark is Mark.SAME:
        if facts.is_given:
            return ProcessVerdict(Life.UNKNOWN)
        return ProcessVerdict(Life.SAME, Effect.PROVES)
    if facts.is_here:
        return ProcessVerdict(Life.CHANGED, Effect.CHANGES)
    return ProcessVerdict(Life.OTHER)


def test_each_case_has_one_verdict() -> None:
    assert len(set(ALL)) == 384
    for facts in ALL:
        assert judged(facts) == wanted(facts), facts


def test_nothing_is_concluded_of_a_process_that_is_not_known() -> None:
    for facts in ALL:
        if not facts.is_read or facts.is_changed:
            assert judged(facts).effect is Effect.NOTHING
