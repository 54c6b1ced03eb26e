"""Both readers against real sockets: what they say is the same."""

import ctypes
import logging
from collections.abc import Callable, Iterator
from itertools import accumulate, pairwise
from typing import Any

import pytest
import zmq

from bridge.sockets import reader as readers
from bridge.sockets.reader import (
    MessageReader,
    NativeReader,
    PlainReader,
    TakenMessages,
    open_reader,
)
from schemas.limits import BULK_BYTES, MESSAGE_FRAMES_MAX
from streams.kernel import message_run, socket_reader

PATIENCE_MS = 20_000
native = pytest.param(
    "native", marks=pytest.mark.skipif(socket_reader is None, reason="the Rust kernel is not built")
)


@pytest.fixture(params=["plain", native])
def reader(request: pytest.FixtureRequest) -> MessageReader:
    if request.param == "plain":
        return PlainReader()
    assert socket_reader is not None
    return NativeReader(socket_reader)


class Pair:
    """What one socket sends, the other has."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sender = self.context.socket(zmq.PUSH)
        self.socket = self.context.socket(zmq.PULL)
        for socket in (self._sender, self.socket):
            socket.linger, socket.hwm = 0, 0
        self._sender.bind("inproc://pair")
        self.socket.connect("inproc://pair")

    def send(self, *frames: bytes) -> None:
        self._sender.send_multipart(frames)

    def read(
        self,
        reader: MessageReader,
        *,
        messages_max: int = 1000,
        bytes_max: int = 1 << 30,
        seconds: float = 60.0,
    ) -> TakenMessages:
        self.socket.poll(100)
        return reader.read(
            self.socket, messages_max=messages_max, bytes_max=bytes_max, seconds=seconds
        )

    def close(self) -> None:
        for socket in (self._sender, self.socket):
            socket.close(linger=0)
        self.context.term()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def frames_of(taken: TakenMessages) -> list[list[bytes]]:
    """Of each message, in order."""
    return [
        frames
        for item in taken.items
        for frames in ([item] if isinstance(item, list) else map(item.message, range(len(item))))
    ]


def items_of(taken: TakenMessages) -> list[range]:
    """Which messages each item has."""
    ends = list(accumulate(1 if isinstance(item, list) else len(item) for item in taken.items))
    return [range(first, end) for first, end in pairwise([0, *ends])]


def test_all_that_has_arrived_is_taken_in_order(reader: MessageReader, pair: Pair) -> None:
    sent = [[b"", n.to_bytes(8, "big"), b"x" * n] for n in range(50)] + [[b""], [b"a", b"\0" * 5]]
    for frames in sent:
        pair.send(*frames)
    sizes = [sum(map(len, frames)) for frames in sent]
    taken = pair.read(reader)
    assert frames_of(taken) == sent
    assert sum(taken.sizes) == taken.size_bytes == sum(sizes)
    assert taken.sizes == [sum(sizes[at] for at in item) for item in items_of(taken)]
    assert (taken.messages, taken.is_all, taken.is_broken) == (52, True, False)
    nothing = TakenMessages([], [], 0, 0, is_all=True, is_broken=False)
    assert pair.read(reader) == nothing


def test_a_large_message_is_taken_whole(reader: MessageReader, pair: Pair) -> None:
    payload = bytes(range(256)) * 20_000
    pair.send(b"topic", bytes(8), payload)
    taken = pair.read(reader, bytes_max=1)
    size = len(payload) + 13
    assert taken == TakenMessages([[b"topic", bytes(8), payload]], [size], 1, size, False, False)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"messages_max": 3}, 3),
        ({"messages_max": 1}, 1),
        ({"bytes_max": 30}, 3),
        ({"bytes_max": 31}, 4),
        ({"seconds": 0.0}, 1),
        ({"messages_max": 9, "bytes_max": 10}, 1),
    ],
)
def test_no_more_is_taken_than_the_bounds_allow(
    reader: MessageReader, pair: Pair, bounds: dict[str, Any], expected: int
) -> None:
    for n in range(9):
        pair.send(b"", bytes(8), b"%02d" % n)
    taken = pair.read(reader, **bounds)
    assert [frames[2] for frames in frames_of(taken)] == [b"%02d" % n for n in range(expected)]
    assert taken.sizes == [10 * len(item) for item in items_of(taken)]
    assert taken.messages == expected
    assert (taken.size_bytes, taken.is_all) == (10 * expected, False)
    rest = pair.read(reader)
    assert rest.messages == len(frames_of(rest)) == 9 - expected
    assert rest.is_all


@pytest.mark.parametrize(
    "odd",
    [
        [b"", bytes(8)],
        [b"", bytes(7), b"p"],
        [b"", bytes(9), b"p"],
        [b"", bytes(8), b"p", b"q"],
        [b"", bytes(8), bytes(BULK_BYTES - 7)],
        [bytes(BULK_BYTES), bytes(8), b""],
        [b"alone"],
    ],
)
def test_what_is_large_or_of_another_form_comes_by_itself(
    reader: MessageReader, pair: Pair, odd: list[bytes]
) -> None:
    plain = [[b"t", n.to_bytes(8, "big"), b"p" * n] for n in range(4)]
    largest = [b"", bytes(8), bytes(BULK_BYTES - 8)]
    sent = [plain[0], odd, plain[1], plain[2], largest, odd, odd, plain[3]]
    for frames in sent:
        pair.send(*frames)
    taken = pair.read(reader)
    assert frames_of(taken) == sent
    sizes = [sum(map(len, frames)) for frames in sent]
    assert taken.sizes == [sum(sizes[at] for at in item) for item in items_of(taken)]
    if isinstance(reader, NativeReader):
        assert [len(item) for item in items_of(taken)] == [1, 1, 3, 1, 1, 1]
        assert [isinstance(item, list) for item in taken.items] == [True, True, False] + [True] * 3


@pytest.mark.skipif(message_run is None, reason="the Rust kernel is not built")
def test_a_run_is_cut_without_a_copy() -> None:
    assert message_run is not None
    sent = [[b"t" * n, n.to_bytes(8, "big"), b"p" * (90 * n)] for n in range(5)]
    run = message_run(sent)
    sizes = [sum(map(len, frames)) for frames in sent]
    assert (len(run), run.size_bytes) == (5, sum(sizes))
    inner = run.after(1).first(3)
    assert [inner.message(at) for at in range(len(inner))] == sent[1:4]
    assert inner.size_bytes == sum(sizes[1:4])
    assert [inner.begins(number) for number in range(4)] == [False, True, False, False]
    assert not run.after(9).begins(0)
    assert [len(run.first(9)), len(run.after(9)), run.after(9).size_bytes] == [5, 0, 0]
    with pytest.raises(ValueError, match="Expected a message, got number 3"):
        inner.message(3)
    first, both = sizes[1], sizes[1] + sizes[2]
    assert inner.fitting(9, 1 << 40, 1 << 40) == 3
    assert inner.fitting(2, 1 << 40, 1 << 40) == 2
    assert [inner.fitting(9, until, 1 << 40) for until in (0, 1, first, first + 1)] == [0, 1, 1, 2]
    assert [inner.fitting(9, 1 << 40, most) for most in (-1, first - 1, first, both)] == [
        0,
        0,
        1,
        2,
    ]


@pytest.mark.skipif(message_run is None, reason="the Rust kernel is not built")
@pytest.mark.parametrize(
    "frames", [[b"", bytes(8)], [b"", bytes(7), b""], [b"", bytes(8), b"", b""]]
)
def test_a_run_has_messages_of_the_usual_form_alone(frames: list[bytes]) -> None:
    assert message_run is not None
    with pytest.raises(ValueError, match="Expected topic, number of 8 bytes, payload"):
        message_run([[b"", bytes(8), b""], frames])


@pytest.mark.parametrize("beyond", [0, 1, 2, 1000])
def test_a_message_of_too_many_frames_is_not_read_to_its_end(
    reader: MessageReader, pair: Pair, beyond: int
) -> None:
    pair.send(b"whole")
    pair.send(*[b"f"] * (MESSAGE_FRAMES_MAX + beyond))
    taken = pair.read(reader)
    assert taken.items[0] == [b"whole"]
    assert len(taken.items[1]) == MESSAGE_FRAMES_MAX + min(beyond, 1)
    assert (taken.is_broken, taken.is_all) == (beyond > 1, beyond <= 1)


@pytest.mark.parametrize("when", ["closed", "terminated"])
def test_a_socket_that_cannot_be_read_raises(reader: MessageReader, pair: Pair, when: str) -> None:
    if when == "closed":
        pair.socket.close()
    else:
        ending = ctypes.CDLL(str(_library().__file__)).zmq_ctx_shutdown
        ending(ctypes.c_void_p(pair.context.underlying))
    with pytest.raises(zmq.ZMQError) as raised:
        reader.read(pair.socket, messages_max=1, bytes_max=1, seconds=1.0)
    assert raised.value.errno == (zmq.ENOTSOCK if when == "closed" else zmq.ETERM)


def _library() -> Any:
    import zmq.backend.cython._zmq as library

    return library


def test_the_fastest_reader_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    if socket_reader is not None:
        assert isinstance(open_reader(socket_reader), NativeReader)
    assert isinstance(open_reader(None), PlainReader)
    assert not caplog.messages


def test_without_libzmqs_functions_pyzmq_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(readers, "_FUNCTIONS", ("zmq_msg_init", "zmq_no_such_function"))
    made: list[Callable[..., Any]] = []
    assert isinstance(open_reader(lambda *given: made.append(given[0])), PlainReader)
    assert not made
    (said,) = caplog.messages
    assert "zmq_no_such_function" in said


@pytest.mark.skipif(socket_reader is None, reason="the Rust kernel is not built")
@pytest.mark.parametrize("addresses", [[0] * 8, [1] * 7 + [0], [1] * 7])
def test_addresses_that_are_none_are_refused(addresses: list[int]) -> None:
    assert socket_reader is not None
    with pytest.raises(ValueError, match=r"Expected|length"):
        socket_reader(addresses, MESSAGE_FRAMES_MAX, BULK_BYTES)


@pytest.mark.skipif(socket_reader is None, reason="the Rust kernel is not built")
def test_a_libzmq_whose_messages_may_have_another_form_is_read_by_pyzmq(
    caplog: pytest.LogCaptureFixture,
) -> None:
    number = ctypes.POINTER(ctypes.c_int)

    def write(major: Any, minor: Any, patch: Any) -> None:
        major[0], minor[0], patch[0] = 5, 1, 0

    version = ctypes.CFUNCTYPE(None, number, number, number)(write)

    def native(addresses: list[int], *bounds: int) -> Any:
        assert socket_reader is not None
        other = ctypes.cast(version, ctypes.c_void_p).value
        return socket_reader([*addresses[:-1], other], *bounds)

    caplog.set_level(logging.INFO)
    assert isinstance(open_reader(native), PlainReader)
    (said,) = caplog.messages
    assert "Expected libzmq 4, got 5.1.0" in said
