"""What the keeper and the successor of a publisher wait for, by their clocks."""

import math

import pytest

from bridge.link_numbers import LinkNumber
from bridge.membership.bounds import (
    HANDOVER_FINISH_S,
    HANDOVER_IDLE_S,
    HANDOVER_OVERLAP_S,
    HANDOVER_S,
    HANDOVER_WAIT_S,
)
from bridge.membership.handover import HANDOVER_MATCH_S, Arrival, Departure
from bridge.publisher.anchor import Joint
from schemas.limits import LINK_SETTLE_S
from schemas.topics import Handover

OURS, KEEPER, OTHER = "ours", "keeper", "other"
LINK = LinkNumber(3)
LINKED_AT = 101.0
UNTIL = 100.0 + HANDOVER_S


def departure(successor: str = OTHER) -> Departure:
    return Departure(0, LINK, UNTIL, successor, LINKED_AT, messages=7)


def arrival(done: Handover | None = None, *, told_link: int = LINK, whole: bool = True) -> Arrival:
    made = Arrival(0, KEEPER, whole, 100.0 + HANDOVER_WAIT_S, told_link=LinkNumber(told_link))
    made.look(100.0, LINK)
    made.done, made.done_at = done, 102.0
    return made


# The keeper


def test_nothing_is_given_up_before_another_bridge_has_linked_or_the_time_is_over() -> None:
    kept = Departure(0, LINK, UNTIL)
    assert kept.common_at(is_linked=True, messages=9) == math.inf
    assert kept.common_at(is_linked=False, messages=9) == math.inf, "what has come is kept"
    assert not kept.is_late(UNTIL - HANDOVER_FINISH_S - 0.01)
    assert kept.is_late(UNTIL - HANDOVER_FINISH_S)


def test_both_receive_the_same_for_a_while_before_the_keeper_is_done() -> None:
    assert departure().common_at(is_linked=True, messages=8) == LINKED_AT + HANDOVER_OVERLAP_S


def test_of_an_idle_publisher_the_link_has_to_prove_itself() -> None:
    one = departure()
    assert one.common_at(is_linked=True, messages=7) == LINKED_AT + HANDOVER_IDLE_S
    overlap_at = LINKED_AT + HANDOVER_OVERLAP_S
    assert one.common_at(is_linked=False, messages=7) == overlap_at, "there is nothing to wait for"


# The successor


def test_it_says_that_it_has_linked_once_its_subscription_has_arrived() -> None:
    one = arrival(told_link=0)
    assert not one.is_to_tell(100.0 + LINK_SETTLE_S - 0.01)
    assert one.is_to_tell(100.0 + LINK_SETTLE_S)
    one.look(100.1, LinkNumber(0))
    assert not one.is_to_tell(101.0), "the link is down"
    one.look(101.0, LinkNumber(LINK + 1))
    assert not one.is_to_tell(101.0 + LINK_SETTLE_S - 0.01)
    assert one.is_to_tell(101.0 + LINK_SETTLE_S)


def test_it_is_said_once_and_not_after_the_keeper_is_done() -> None:
    assert not arrival().is_to_tell(110.0)
    assert not arrival(Handover(KEEPER, is_done=True), told_link=0).is_to_tell(110.0)


def test_a_keeper_that_falls_silent_is_waited_for_within_a_time() -> None:
    one = arrival()
    assert not one.is_over(100.0 + HANDOVER_WAIT_S - 0.01, is_common=True)
    assert one.is_over(100.0 + HANDOVER_WAIT_S, is_common=False)
    assert one.joint(OURS) == Joint(LinkNumber(0), is_whole=True), (
        "a batch that both have can tell the rest"
    )


def test_the_last_batch_of_the_keeper_is_waited_for_within_a_time() -> None:
    one = arrival(Handover(KEEPER, OURS, True, True))
    assert one.is_over(102.0, is_common=True)
    assert not one.is_over(102.0 + HANDOVER_MATCH_S - 0.01, is_common=False)
    assert one.is_over(102.0 + HANDOVER_MATCH_S, is_common=False)


def test_there_is_none_of_an_idle_publisher() -> None:
    one = arrival(Handover(KEEPER, OURS, True, True, is_idle=True))
    assert one.is_over(102.0, is_common=False)
    assert one.joint(OURS) == Joint(LINK, is_whole=True)


@pytest.mark.parametrize(
    ("done", "link"),
    [
        (Handover(KEEPER, OTHER, True, True, is_idle=True), LINK),
        (Handover(KEEPER, OURS, True, False, is_idle=True), LINK),
        (Handover(KEEPER, OURS, True, True, is_idle=False), LINK),
        (Handover(KEEPER, OURS, True, True, is_idle=True), LINK + 1),
        (Handover(KEEPER, OURS, True, True, is_idle=True), 0),
    ],
    ids=["for another bridge", "not proven", "not idle", "another link", "no link"],
)
def test_no_link_is_proven_by_what_was_said_of(done: Handover, link: int) -> None:
    one = arrival(done, whole=False)
    one.look(101.9, LinkNumber(link))
    assert one.joint(OURS).link == 0
