import threading

from bridge.sockets.inbox import Inbox
from bridge.sockets.raw_message import RawMessage
from tests.unit.bridge.messages import registration

ONE = registration().publisher
TWO = registration(instance_id="w-2").publisher


def messages(count: int, size_bytes: int = 1) -> list[RawMessage]:
    return [RawMessage(ONE, [bytes([i]) * size_bytes], 0.0) for i in range(count)]


def test_messages_come_out_in_order_and_no_more_than_asked_for() -> None:
    inbox = Inbox()
    sent = messages(5)
    inbox.put(sent[:2])
    inbox.put(sent[2:])
    assert inbox.take(3, 0) == sent[:3]
    assert (len(inbox), inbox.size_bytes) == (2, 2)
    assert inbox.take(3, 0) == sent[3:]
    assert (len(inbox), inbox.size_bytes) == (0, 0)


def test_an_empty_inbox_gives_nothing_when_the_time_is_over() -> None:
    assert Inbox().take(3, 0.01) == []


def test_messages_beyond_the_bound_are_dropped_and_counted_by_publisher() -> None:
    inbox = Inbox(messages_max=2)
    sent = messages(3)
    inbox.put([*sent, RawMessage(TWO, [b""], 0.0)])
    assert inbox.take(9, 0) == sent[:2]
    assert inbox.dropped() == {ONE: 1, TWO: 1}


def test_bytes_beyond_the_bound_are_dropped_and_counted() -> None:
    inbox = Inbox(bytes_max=10)
    sent = messages(3, size_bytes=5)
    inbox.put(sent)
    assert inbox.take(9, 0) == sent[:2]
    assert inbox.dropped() == {ONE: 1}
    inbox.put(sent)
    assert len(inbox) == 2


def test_a_waiting_take_returns_when_a_message_comes() -> None:
    inbox = Inbox()
    taken: list[RawMessage] = []
    thread = threading.Thread(target=lambda: taken.extend(inbox.take(9, 30)))
    thread.start()
    inbox.put(messages(1))
    thread.join(20)
    assert taken == messages(1)


def test_a_waiting_take_returns_when_it_is_woken() -> None:
    inbox = Inbox()
    thread = threading.Thread(target=lambda: inbox.take(9, 30))
    thread.start()
    inbox.wake()
    thread.join(20)
    assert not thread.is_alive()


def test_being_woken_before_it_waits_counts_once() -> None:
    inbox = Inbox()
    inbox.wake()
    inbox.wake()
    assert inbox.take(9, 30) == []
    assert not inbox._woken


def test_a_publisher_s_waiting_messages_can_be_dropped() -> None:
    inbox = Inbox()
    other = RawMessage(TWO, [b"abc"], 0.0)
    inbox.put([*messages(2), other])
    inbox.discard(ONE)
    assert inbox.size_bytes == 3
    assert inbox.take(9, 0) == [other]
