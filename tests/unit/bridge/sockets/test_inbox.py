import pytest

from bridge.sockets.inbox import INBOX_SHARE_MESSAGES, Inbox
from bridge.sockets.raw_message import RawMessage
from schemas.identities import PublisherKey
from tests.unit.bridge.messages import registration

ONE = registration().publisher
TWO = registration(instance_id="w-2").publisher
THREE = registration(instance_id="w-3").publisher
FOUR = registration(instance_id="w-4").publisher


def messages(count: int, size_bytes: int = 1) -> list[RawMessage]:
    return [RawMessage(ONE, [bytes([i % 256]) * size_bytes], 0.0) for i in range(count)]


def test_messages_come_out_in_order_and_no_more_than_asked_for() -> None:
    inbox = Inbox()
    sent = messages(5)
    inbox.put(sent[:2])
    inbox.put(sent[2:])
    assert inbox.take(3) == sent[:3]
    assert (len(inbox), inbox.size_bytes) == (2, 2)
    assert inbox.take(3) == sent[3:]
    assert (len(inbox), inbox.size_bytes) == (0, 0)


def test_an_empty_inbox_gives_nothing() -> None:
    assert Inbox().take(3) == []


def test_messages_beyond_the_bound_are_dropped_and_counted_by_publisher() -> None:
    inbox = Inbox(messages_max=4)
    sent = messages(3)
    others = [RawMessage(TWO, [b""], 0.0), RawMessage(TWO, [b""], 0.0)]
    inbox.put([*sent, *others])
    assert inbox.take(9) == [*sent[:2], others[0]]
    assert inbox.dropped() == {ONE: 1, TWO: 1}


def test_bytes_beyond_the_bound_are_dropped_and_counted() -> None:
    inbox = Inbox(bytes_max=20)
    sent = messages(3, size_bytes=5)
    inbox.put(sent)
    assert inbox.take(9) == sent[:2]
    assert inbox.dropped() == {ONE: 1}
    inbox.put(sent)
    assert len(inbox) == 2


@pytest.mark.parametrize("bound", ["messages_max", "bytes_max"])
def test_who_sends_more_than_there_is_room_for_leaves_room_for_others(bound: str) -> None:
    """One publisher's flood would have the inbox drop what another one sends."""
    inbox = Inbox(messages_max=120) if bound == "messages_max" else Inbox(bytes_max=120)
    many = {of: [RawMessage(of, [b"m"], 0.0)] * 200 for of in (ONE, TWO)}
    for _ in range(20):
        for of in (ONE, TWO):
            inbox.put(many[of])
            inbox.take(1)  # whoever sends is faster
    assert len(inbox) <= 81, "two of them have two thirds of it, and what was there before"
    few = [RawMessage(THREE, [b"f"], 0.0)] * 15
    inbox.put(few)
    assert inbox.dropped().keys() == {ONE, TWO}
    left = inbox.take(1000)
    assert left.count(few[0]) == 15
    inbox.put(many[ONE])
    assert len(inbox) == 60, "half of it, once it is empty again"


def test_who_had_no_room_counts_as_waiting_until_that_was_told() -> None:
    """Else its answers would stay exact while another one floods the inbox."""
    inbox = Inbox(messages_max=4)
    inbox.put([RawMessage(ONE, [b"t", b"n", b"p"], float(at)) for at in range(3)])
    inbox.put([RawMessage(TWO, [b"t", b"2", b"p"], float(at)) for at in (5, 6)])
    assert (inbox.waiting_since(ONE), inbox.waiting_since(TWO)) == (0.0, 5.0)
    inbox.take(2)  # all of the first one's
    assert inbox.waiting_since(ONE) == 2.0
    assert inbox.take_overflowed() == {ONE: [b"t", b"n"]}, "though the other one's still wait"
    assert inbox.waiting_since(ONE) is None
    inbox.take(2)
    assert inbox.waiting_since(TWO) == 6.0
    assert inbox.take_overflowed() == {TWO: [b"t", b"2"]}
    inbox.put([RawMessage(TWO, [b"t", b"2", b"p"], 7.0)] * 3)
    inbox.discard(TWO)
    assert (inbox.waiting_since(TWO), inbox.size_bytes) == (None, 0)
    assert inbox.take_overflowed() == {}


def test_the_taker_is_woken_where_all_that_came_had_no_room() -> None:
    woken: list[int] = []
    inbox = Inbox(messages_max=2, when_filled=lambda: woken.append(len(inbox)))
    inbox.pause(ONE)
    inbox.put([RawMessage(ONE, [b"t", b"n", b"p"], 0.0)])
    assert woken == []
    inbox.put([RawMessage(TWO, [b"t", b"2", b"p"], 0.0)])
    assert woken == [2]
    assert len(inbox.take(9)) == 1
    inbox.put([RawMessage(ONE, [b"t", b"n", b"p"], 0.0)])
    assert woken == [2, 1]


def test_a_turn_takes_no_more_bytes_than_asked_for_but_one_message_at_least() -> None:
    inbox = Inbox()
    sent = messages(5, size_bytes=4)
    inbox.put(sent)
    assert inbox.take(9, bytes_max=9) == sent[:2]
    assert inbox.size_bytes == 12
    assert inbox.take(9, bytes_max=3) == sent[2:3]
    assert inbox.take(9, bytes_max=8) == sent[3:]
    assert (len(inbox), inbox.size_bytes) == (0, 0)


def test_who_has_no_room_in_a_turn_is_the_first_of_the_next() -> None:
    inbox = Inbox()
    large = RawMessage(TWO, [b"x" * 8], 0.0)
    small = messages(2 * INBOX_SHARE_MESSAGES, size_bytes=1)
    inbox.put([*small, large])
    assert inbox.take(999, bytes_max=INBOX_SHARE_MESSAGES + 7) == small[:INBOX_SHARE_MESSAGES]
    inbox.put([RawMessage(THREE, [b"x"], 0.0)])
    assert inbox.take(999, bytes_max=8) == [large]


def test_the_taker_is_woken_when_there_is_something_to_take_again() -> None:
    woken: list[int] = []
    inbox = Inbox(messages_max=4, when_filled=lambda: woken.append(len(inbox)))
    inbox.put([])
    assert woken == []
    inbox.put(messages(1))
    inbox.put(messages(1))
    inbox.put(messages(1))
    assert woken == [1]
    inbox.take(1)
    inbox.put(messages(1))
    assert woken == [1], "what was left shows that there is more"
    inbox.take(9)
    inbox.put(messages(2))
    assert woken == [1, 2]


def test_a_publisher_s_waiting_messages_can_be_dropped() -> None:
    inbox = Inbox()
    other = RawMessage(TWO, [b"abc"], 0.0)
    inbox.put([*messages(2), other])
    inbox.discard(ONE)
    assert inbox.size_bytes == 3
    assert inbox.take(9) == [other]


def test_what_comes_of_a_paused_publisher_waits_and_counts() -> None:
    woken: list[int] = []
    inbox = Inbox(messages_max=7, when_filled=lambda: woken.append(len(inbox)))
    first, second, third = messages(3)
    other = RawMessage(TWO, [b"x"], 5.0)
    inbox.put([first])
    inbox.pause(ONE)
    inbox.pause(ONE)
    inbox.put([second])
    assert (len(inbox), bool(inbox), inbox.take(9)) == (2, False, [])
    inbox.put([other, third])
    assert woken == [1, 4], "there was nothing to take but of a paused one"
    assert inbox.take(9) == [other]
    assert (len(inbox), inbox.size_bytes, inbox.waiting_since(ONE)) == (3, 3, 0.0)
    inbox.put([other, other, other])
    assert inbox.dropped() == {TWO: 1}, "what waits counts"
    inbox.resume(ONE)
    inbox.resume(ONE)
    assert inbox.take(9) == [other, other, first, second, third]
    assert (len(inbox), inbox.size_bytes) == (0, 0)
    inbox.pause(ONE)
    inbox.put([first])
    inbox.resume(ONE)
    assert woken == [1, 4, 5, 1], "by the end of the pause, too"


def test_a_pause_ends_with_what_waits_of_the_publisher() -> None:
    inbox = Inbox()
    inbox.pause(ONE)
    inbox.put(messages(2))
    inbox.discard(ONE)
    assert (len(inbox), inbox.size_bytes) == (0, 0)
    sent = messages(1)
    inbox.put(sent)
    assert inbox.take(9) == sent


def test_what_was_dropped_of_a_paused_publisher_is_told_after_what_waits() -> None:
    woken: list[int] = []
    inbox = Inbox(messages_max=1, when_filled=lambda: woken.append(len(inbox)))
    inbox.pause(ONE)
    inbox.put([RawMessage(TWO, [b""], 0.0), RawMessage(ONE, [b"t", b"n", b"p"], 0.0)])
    assert len(inbox.take(9)) == 1
    assert inbox.take_overflowed() == {}
    inbox.resume(ONE)
    assert woken == [1, 0], "nothing of it waits, and nothing else may ever come"
    assert inbox.take_overflowed() == {ONE: [b"t", b"n"]}
    assert inbox.take_overflowed() == {}


def named(publisher: PublisherKey, number: int) -> RawMessage:
    return RawMessage(publisher, [bytes(1 + number)], 0.0)


def test_what_is_given_back_comes_first_again_in_the_turns_of_its_publishers() -> None:
    inbox = Inbox()
    sent = [named(ONE, 0), named(ONE, 1), named(TWO, 0), named(THREE, 0)]
    inbox.put(sent)
    later = [named(TWO, 1), named(FOUR, 0)]
    taken = inbox.take(100)
    inbox.put(later)
    inbox.give_back(taken[1:])
    assert len(inbox) == 5
    assert inbox.size_bytes == sum(one.size_bytes for one in (*taken[1:], *later))
    assert inbox.take(100) == [sent[1], sent[2], later[0], sent[3], later[1]]
    assert (len(inbox), inbox.size_bytes) == (0, 0)


def test_what_is_given_back_of_a_paused_publisher_waits_before_what_came_meanwhile() -> None:
    inbox = Inbox()
    first, second = named(ONE, 0), named(ONE, 1)
    inbox.put([first])
    taken = inbox.take(100)
    inbox.pause(first.publisher)
    inbox.put([second])
    inbox.give_back(taken)
    assert inbox.take(100) == []
    inbox.resume(first.publisher)
    assert inbox.take(100) == [first, second]


@pytest.mark.parametrize("is_paused", [False, True])
def test_it_is_known_who_has_used_most_of_its_room(is_paused: bool) -> None:
    inbox = Inbox(messages_max=80, bytes_max=80_000)
    assert not inbox.is_filling(ONE)
    if is_paused:
        inbox.pause(ONE)
    inbox.put([RawMessage(ONE, [b"m"], 0.0)] * 30)
    assert not inbox.is_filling(ONE)
    inbox.put([RawMessage(ONE, [b"m"], 0.0)])
    assert inbox.is_filling(ONE), "of the forty that it may use alone"
    assert not inbox.is_filling(TWO)
    inbox.discard(ONE)
    inbox.put([RawMessage(ONE, [bytes(30_001)], 0.0)])
    assert inbox.is_filling(ONE), "in bytes, too"


def test_what_was_dropped_is_counted_since_the_start_whatever_is_discarded_meanwhile() -> None:
    inbox = Inbox(messages_max=2)
    inbox.put(messages(3))
    inbox.discard(ONE)
    assert (inbox.dropped(), inbox.take_overflowed()) == ({ONE: 2}, {})
    inbox.put(messages(2))
    assert inbox.dropped() == {ONE: 3}
