"""What goes wrong again and again is said when it begins, and seldom while it lasts."""

from bridge.delivery.complaints import Complaints
from schemas.limits import CONDITION_REPEAT_S

SOON = 0.1
NOT_YET = CONDITION_REPEAT_S - SOON


def test_what_goes_wrong_is_said_once_while_it_lasts() -> None:
    complaints = Complaints()
    assert complaints.is_news("disk", "full", 5.0)
    for number in range(1000):
        assert not complaints.is_news("disk", "full", 5.0 + number)


def test_another_reason_is_said_but_not_at_once() -> None:
    complaints = Complaints()
    assert complaints.is_news("disk", "full", 5.0)
    assert not complaints.is_news("disk", "broken", 5.0 + NOT_YET)
    assert complaints.is_news("disk", "broken", 5.0 + CONDITION_REPEAT_S)
    assert not complaints.is_news("disk", "broken", 5.0 + CONDITION_REPEAT_S + NOT_YET)
    assert not complaints.is_news("disk", "full", 5.0 + CONDITION_REPEAT_S + NOT_YET)


def test_of_others_it_says_nothing() -> None:
    complaints = Complaints()
    assert complaints.is_news("disk", "full", 5.0)
    assert complaints.is_news("other", "full", 5.0)


def test_it_ends_once_it_has_not_gone_wrong_for_so_long() -> None:
    complaints = Complaints()
    complaints.is_news("disk", "full", 5.0)
    complaints.is_news("disk", "full", 8.0)
    assert complaints.ended(8.0 + NOT_YET) == {}
    (ended,) = complaints.ended(8.0 + CONDITION_REPEAT_S).values()
    assert (ended.since, ended.last_at, ended.times) == (5.0, 8.0, 2)
    assert complaints.ended(8.0 + CONDITION_REPEAT_S) == {}
    assert complaints.is_news("disk", "full", 8.0 + CONDITION_REPEAT_S)


def test_what_nobody_asked_the_end_of_begins_anew_all_the_same() -> None:
    complaints = Complaints()
    complaints.is_news("disk", "full", 5.0)
    assert complaints.is_news("disk", "full", 5.0 + CONDITION_REPEAT_S)
    (ended,) = complaints.ended(5.0 + 2 * CONDITION_REPEAT_S).values()
    assert ended.times == 1
