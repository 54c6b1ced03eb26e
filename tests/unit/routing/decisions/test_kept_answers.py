"""What a client may ask for again."""

import gc

from routing.decisions.answers import KeptAnswers, Question
from schemas.identities import PrefixScope
from schemas.routing_records import DecidedScope, Phase, PrefixMark
from tests.unit.routing.sample_decisions import SCOPE, decision

RUN = 7
QUESTION = Question(PrefixScope(*SCOPE), 40, b"", Phase.COMBINED, None)


def kept(count: int) -> KeptAnswers:
    answers = KeptAnswers()
    for number in range(count):
        answers.keep_chosen(QUESTION, RUN, decision(number, request_id=f"r{number}"), "", None)
    return answers


def test_what_is_forgotten_is_found_by_its_decision() -> None:
    answers = kept(3)
    tenant = SCOPE.tenant_id
    assert answers.forget((RUN, 1)) == (tenant, "r1")
    assert answers.forget((RUN, 1)) is None
    assert [answers.has(f"r{number}") for number in range(3)] == [True, False, True]
    answers.keep_chosen(QUESTION, RUN, decision(9, request_id="r2"), "", None)  # in its place
    assert answers.forget((RUN, 2)) is None
    assert answers.forget((RUN, 9)) == (tenant, "r2")


def test_an_answer_leaves_the_garbage_collector_little_to_look_at() -> None:
    """16,384 of twenty objects each would hold up all threads for 200 ms."""
    answers = KeptAnswers()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1000):
        marks = tuple(PrefixMark(blocks, number) for blocks in range(8))
        made = decision(number, scope=DecidedScope(*SCOPE), marks=marks)
        answers.keep_chosen(QUESTION, RUN, made, "", None)
    del made, marks
    gc.collect()
    assert len(gc.get_objects()) - before <= 4000
    assert answers.has("r999")
