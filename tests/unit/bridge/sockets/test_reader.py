"""Both readers against real sockets: what they say is the same."""

import ctypes
import logging
from collections.abc import Callable, Iterator
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
from schemas.limits import MESSAGE_FRAMES_MAX
from streams.kernel import socket_reader

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


def test_all_that_has_arrived_is_taken_in_order(reader: MessageReader, pair: Pair) -> None:
    sent = [[b"", n.to_bytes(8, "big"), b"x" * n] for n in range(50)] + [[b""], [b"a", b"\0" * 5]]
    for frames in sent:
        pair.send(*frames)
    sizes = [sum(map(len, frames)) for frames in sent]
    assert pair.read(reader) == TakenMessages(sent, sizes, sum(sizes), is_all=True, is_broken=False)
    assert pair.read(reader) == TakenMessages([], [], 0, is_all=True, is_broken=False)


def test_a_large_message_is_taken_whole(reader: MessageReader, pair: Pair) -> None:
    payload = bytes(range(256)) * 20_000
    pair.send(b"topic", bytes(8), payload)
    taken = pair.read(reader, bytes_max=1)
    size = len(payload) + 13
    assert taken == TakenMessages([[b"topic", bytes(8), payload]], [size], size, False, False)


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
    assert [frames[2] for frames in taken.messages] == [b"%02d" % n for n in range(expected)]
    assert taken.sizes == [10] * expected
    assert (taken.size_bytes, taken.is_all) == (10 * expected, False)
    rest = pair.read(reader)
    assert len(rest.messages) == 9 - expected
    assert rest.is_all


@pytest.mark.parametrize("beyond", [0, 1, 2, 1000])
def test_a_message_of_too_many_frames_is_not_read_to_its_end(
    reader: MessageReader, pair: Pair, beyond: int
) -> None:
    pair.send(b"whole")
    pair.send(*[b"f"] * (MESSAGE_FRAMES_MAX + beyond))
    taken = pair.read(reader)
    assert taken.messages[0] == [b"whole"]
    assert len(taken.messages[1]) == MESSAGE_FRAMES_MAX + min(beyond, 1)
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
        socket_reader(addresses, MESSAGE_FRAMES_MAX)


@pytest.mark.skipif(socket_reader is None, reason="the Rust kernel is not built")
def test_a_libzmq_whose_messages_may_have_another_form_is_read_by_pyzmq(
    caplog: pytest.LogCaptureFixture,
) -> None:
    number = ctypes.POINTER(ctypes.c_int)

    def write(major: Any, minor: Any, patch: Any) -> None:
        major[0], minor[0], patch[0] = 5, 1, 0

    version = ctypes.CFUNCTYPE(None, number, number, number)(write)

    def native(addresses: list[int], frames_max: int) -> Any:
        assert socket_reader is not None
        other = ctypes.cast(version, ctypes.c_void_p).value
        return socket_reader([*addresses[:-1], other], frames_max)

    caplog.set_level(logging.INFO)
    assert isinstance(open_reader(native), PlainReader)
    (said,) = caplog.messages
    assert "Expected libzmq 4, got 5.1.0" in said
