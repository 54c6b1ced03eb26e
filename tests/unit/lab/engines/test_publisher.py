from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest
import zmq

from lab.engines.publisher import END_SEQUENCE, Publisher, PublisherOptions, offset_port
from lab.engines.wire import AllBlocksCleared, BlockStored
from tests.processes import until
from tests.unit.lab.event_batch import EventBatch

WAIT_MS = 10_000
MESSAGES_MAX = 1000
"""More than any test here publishes: a socket that gives more gives them for ever."""
CLEARED = AllBlocksCleared()


@contextmanager
def publisher(options: PublisherOptions, dp_rank: int = 0) -> Iterator[Publisher]:
    opened = Publisher(options, dp_rank=dp_rank)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def connected(kind: int, endpoint: str) -> Iterator["zmq.Socket[bytes]"]:
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVTIMEO, WAIT_MS)
        if kind == zmq.SUB:
            socket.subscribe(b"")
        socket.connect(endpoint)
        yield socket


def replayed(socket: "zmq.Socket[bytes]", first: int) -> list[list[bytes]]:
    """Every message of a replay, the end marker included."""
    socket.send_multipart([b"", first.to_bytes(8, "big")])
    messages = [socket.recv_multipart()]
    while messages[-1][-2] != END_SEQUENCE:
        assert len(messages) < MESSAGES_MAX, "a replay has an end"
        messages.append(socket.recv_multipart())
    return messages


def sequences(messages: list[list[bytes]]) -> list[int]:
    return [int.from_bytes(frames[-2], "big") for frames in messages[:-1]]


def test_live_batches_are_three_frames_with_rising_sequences() -> None:
    event = BlockStored(block_hashes=[2**64 - 1], token_ids=[1], block_size=1, medium="GPU")
    options = PublisherOptions(topic="kv@e0@demo")
    with publisher(options, 3) as opened, connected(zmq.SUB, opened.endpoint) as subscriber:
        subscriber.set(zmq.RCVTIMEO, 20)
        received: list[list[bytes]] = []

        def publish_and_receive() -> bool:
            opened.publish([event])
            with suppress(zmq.Again):
                received.append(subscriber.recv_multipart())
            return len(received) >= 3

        # A subscription takes a moment, and what is published before it is lost.
        until(publish_and_receive, what="three live batches")
    numbers = [int.from_bytes(sequence, "big") for _, sequence, _ in received]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    for topic, sequence, payload in received:
        assert topic == b"kv@e0@demo"
        assert len(sequence) == 8
        batch = msgspec.msgpack.decode(payload, type=EventBatch)
        assert (batch.events, batch.dp_rank) == ([event], 3)


@pytest.mark.parametrize(
    ("wire", "header", "end"),
    [
        ("0.25", [b""], [b"", END_SEQUENCE, b""]),
        ("0.26", [b"", b"t"], [b"", b"", END_SEQUENCE, b""]),
        ("0.33", [b"", b"t"], [b"", b"", END_SEQUENCE, b""]),
    ],
)
def test_replay_has_the_frames_of_its_release(
    wire: str, header: list[bytes], end: list[bytes]
) -> None:
    options = PublisherOptions(topic="t", wire=wire)
    with publisher(options) as opened, connected(zmq.DEALER, opened.replay_endpoint) as dealer:
        for _ in range(4):
            opened.publish([CLEARED])
        messages = all_buffered(dealer, 4)
        assert messages[-1] == end
        assert [frames[: len(header)] for frames in messages[:-1]] == [header] * 4
        assert {len(frames) for frames in messages[:-1]} == {len(header) + 2}
        assert sequences(replayed(dealer, 2)) == [2, 3]
        assert replayed(dealer, 99) == [end]


def all_buffered(dealer: "zmq.Socket[bytes]", count: int) -> list[list[bytes]]:
    """Replays from 0 until `count` batches are there: publishing is asynchronous."""
    messages: list[list[bytes]] = []

    def all_there() -> bool:
        messages[:] = replayed(dealer, 0)
        return len(messages) >= count + 1

    until(all_there, what=f"a replay of {count} batches")
    return messages


def test_replay_begins_where_the_buffer_begins() -> None:
    options = PublisherOptions(buffer_batches=2)
    with publisher(options) as opened, connected(zmq.DEALER, opened.replay_endpoint) as dealer:
        for _ in range(5):
            opened.publish([CLEARED])
        until(lambda: sequences(replayed(dealer, 0)) == [3, 4], what="the last two batches")
        assert sequences(replayed(dealer, 0)) == [3, 4], "and it stays so"


def publish_until_received(opened: Publisher, subscriber: "zmq.Socket[bytes]") -> int:
    """Publishes until the subscriber has something to receive; returns how many there were."""
    published = 0

    def received() -> bool:
        nonlocal published
        opened.publish([CLEARED])
        published += 1
        return bool(subscriber.poll(20))

    until(received, what="a live batch")
    return published


def test_lost_batch_is_a_gap_that_can_be_replayed() -> None:
    with (
        publisher(PublisherOptions()) as opened,
        connected(zmq.SUB, opened.endpoint) as subscriber,
        connected(zmq.DEALER, opened.replay_endpoint) as dealer,
    ):
        before = publish_until_received(opened, subscriber)
        opened.publish([CLEARED], lost=True)
        opened.publish([CLEARED])
        live = [int.from_bytes(subscriber.recv_multipart()[1], "big")]
        while live[-1] < before + 1:
            live.append(int.from_bytes(subscriber.recv_multipart()[1], "big"))
        assert live == [*range(live[0], before), before + 1]
        assert sequences(replayed(dealer, live[-1] - 1))[:2] == [live[-1] - 1, live[-1]]


def test_malformed_replay_request_gets_no_answer_and_harms_nobody() -> None:
    with (
        publisher(PublisherOptions()) as opened,
        connected(zmq.DEALER, opened.replay_endpoint) as dealer,
    ):
        dealer.send_multipart([b"", b"short"])
        dealer.send(bytes(8))
        opened.publish([CLEARED])
        assert sequences(all_buffered(dealer, 1)) == [0]


def test_what_is_queued_is_sent_before_closing() -> None:
    options = PublisherOptions()
    with publisher(options) as opened, connected(zmq.SUB, opened.endpoint) as subscriber:
        published = publish_until_received(opened, subscriber) + 50
        for _ in range(50):
            opened.publish([CLEARED])
        opened.close()
        opened.publish([CLEARED])
        received = [int.from_bytes(subscriber.recv_multipart()[1], "big")]
        while received[-1] < published - 1:
            received.append(int.from_bytes(subscriber.recv_multipart()[1], "big"))
        assert received == list(range(received[0], published))
        assert not subscriber.poll(0)


def test_ranks_have_their_own_ports() -> None:
    assert offset_port("tcp://*:5557", 3) == "tcp://*:5560"
    assert offset_port("tcp://127.0.0.1:0", 3) == "tcp://127.0.0.1:0"
    assert offset_port("ipc:///tmp/x", 0) == "ipc:///tmp/x"
    with pytest.raises(ValueError, match="Expected a TCP endpoint for rank 1"):
        offset_port("ipc:///tmp/x", 1)


def test_taken_port_is_an_error_unless_any_will_do() -> None:
    with publisher(PublisherOptions(replay_endpoint="")) as first:
        taken = PublisherOptions(endpoint=first.endpoint, replay_endpoint="")
        with pytest.raises(zmq.ZMQError):
            Publisher(taken)
        with publisher(taken._replace(any_port_if_taken=True)) as second:
            assert second.endpoint != first.endpoint
            assert second.replay_endpoint == ""


def _live(frames: list[bytes]) -> list[bytes]:
    """The three frames of a replayed batch that a live one has."""
    return frames[1:]


def test_whoever_is_counted_as_a_subscriber_gets_what_is_published_next() -> None:
    with publisher(PublisherOptions()) as opened:
        for _ in range(2):
            with (
                connected(zmq.SUB, opened.endpoint) as one,
                connected(zmq.SUB, opened.endpoint) as other,
            ):
                until(lambda: opened.subscribers == 2, what="two subscribers")
                first = opened.published
                opened.publish([CLEARED])
                for subscriber in (one, other):
                    assert int.from_bytes(subscriber.recv_multipart()[1], "big") == first
            until(lambda: opened.subscribers == 0, what="no subscriber")
