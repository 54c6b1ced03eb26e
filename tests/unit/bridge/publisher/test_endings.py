"""How a reply ends, and what a batch is to its stream: each case of each table."""

import itertools

import pytest

from bridge.publisher.repair import ENDINGS, RepairStep, ReplayRepair, ReplyEnding
from bridge.publisher.sequencer import Sequencer
from bridge.publisher.stream import BatchPlace, place_of
from bridge.publisher.tracker import OUTCOMES, Evidence, SequenceOutcome
from tests.unit.bridge.messages import registration

FACTS = (
    "is_joined",
    "is_without_anchor",
    "is_same_process",
    "is_beyond_reply",
    "is_short",
    "is_cut",
    "expects_reply",
    "taken",
)


def wanted(complete: bool, verified: bool, facts: dict[str, bool]) -> ReplyEnding:
    """The same in words: what is not known to be whole is asked for again."""
    if not verified:
        if not complete:
            return ReplyEnding.SILENT
        is_behind = facts["expects_reply"] and not facts["is_same_process"]
        return ReplyEnding.BEHIND if is_behind else ReplyEnding.EMPTY
    if not complete:
        return ReplyEnding.WHOLE if facts["is_joined"] else ReplyEnding.BROKEN
    if facts["is_without_anchor"]:
        return ReplyEnding.SAME if facts["is_same_process"] else ReplyEnding.UNANCHORED
    is_open = facts["is_beyond_reply"] or facts["is_short"] or facts["is_cut"]
    is_open = is_open or (facts["taken"] and not facts["is_joined"])
    return ReplyEnding.SHORT if is_open else ReplyEnding.WHOLE


@pytest.mark.parametrize(("complete", "verified"), list(itertools.product((False, True), repeat=2)))
def test_each_reply_ends_in_one_way(
    complete: bool, verified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for values in itertools.product((False, True), repeat=len(FACTS)):
        facts = dict(zip(FACTS, values, strict=True))
        repair = ReplayRepair(Sequencer(registration(), repairs=True))
        repair._verified, repair._taken = verified, int(facts["taken"])
        for name in FACTS[:-1]:
            monkeypatch.setattr(ReplayRepair, f"_{name}", lambda _, so=facts[name]: so)
        monkeypatch.setattr(ReplayRepair, "_has_begun_again", lambda _: False)
        monkeypatch.setattr(ReplayRepair, "_is_whole_without_reply", lambda _: True)
        found = next(ending for is_so, ending in repair._endings(complete) if is_so)
        assert found is wanted(complete, verified, facts)
        assert repair.end(complete=complete) is ENDINGS[found]
        assert repair._new_incarnation is (found is ReplyEnding.BEHIND)
        assert repair._ended_short is (found is ReplyEnding.UNANCHORED)
        assert repair._whole is (complete and not verified)
        monkeypatch.undo()


def test_what_ends_a_repair() -> None:
    assert ENDINGS.keys() == set(ReplyEnding)
    done = {ending for ending, answer in ENDINGS.items() if answer is RepairStep.DONE}
    assert done == {ReplyEnding.SAME, ReplyEnding.WHOLE, ReplyEnding.EMPTY}


@pytest.mark.parametrize("outcome", OUTCOMES[Evidence.PAYLOAD].values())
def test_each_batch_has_one_place(outcome: SequenceOutcome) -> None:
    for is_first, is_proven in itertools.product((False, True), repeat=2):
        place = place_of(outcome, is_first=is_first, is_proven=is_proven)
        if outcome is SequenceOutcome.DUPLICATE:
            assert place is BatchPlace.AGAIN
        elif outcome is SequenceOutcome.RESTART:
            assert place is BatchPlace.RESTART
        elif is_first:
            assert place is BatchPlace.FIRST
        else:
            assert place is (BatchPlace.NEXT if is_proven else BatchPlace.UNPROVEN)
