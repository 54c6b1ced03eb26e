"""Takes what has arrived at a socket: by pyzmq, or by the Rust kernel, where there is one.

Both call libzmq, and say the same. pyzmq gives the interpreter's lock up for each frame, and waits
for it again; the kernel calls libzmq's functions, of the library that pyzmq has loaded, by their
addresses, for as many messages as there are. Messages of the usual form it leaves in one buffer, as
a run; what is large or of another form is an object of its own.
"""

import ctypes
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import zmq

from schemas.arrays import MessageRun
from schemas.clock import REAL_CLOCK
from schemas.limits import BULK_BYTES, MESSAGE_FRAMES_MAX

_FUNCTIONS: Final = (
    "zmq_msg_init",
    "zmq_msg_recv",
    "zmq_msg_data",
    "zmq_msg_size",
    "zmq_msg_more",
    "zmq_msg_close",
    "zmq_errno",
    "zmq_version",
)
_logger = logging.getLogger(__name__)


class TakenMessages(NamedTuple):
    """What was taken from a socket.

    Attributes:
        items: the frames of a message each, or several messages as a run.
        sizes: the bytes of each item.
        messages: how many there are.
        size_bytes: of all of them.
        is_all: whether nothing more had arrived.
        is_broken: whether the last one has more than MESSAGE_FRAMES_MAX frames; the others are
            still to come.
    """

    items: Sequence[list[bytes] | MessageRun]
    sizes: list[int]
    messages: int
    size_bytes: int
    is_all: bool
    is_broken: bool


class MessageReader(Protocol):
    """Takes messages from sockets."""

    def read(
        self,
        socket: "zmq.Socket[bytes]",
        *,
        messages_max: int,
        bytes_max: int,
        seconds: float,
    ) -> TakenMessages:
        """What has arrived, until one of the bounds is reached; at least one message, whatever its
        size. Never waits. Cost O(bytes).

        Args:
            socket: of the calling thread.
            bytes_max: after which no further one is taken.
            seconds: the same in time.

        Raises:
            zmq.ZMQError: nothing could be received.
        """
        ...


class PlainReader:
    """Reads by pyzmq.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = REAL_CLOCK.monotonic) -> None:
        self._clock = clock

    def read(
        self,
        socket: "zmq.Socket[bytes]",
        *,
        messages_max: int,
        bytes_max: int,
        seconds: float,
    ) -> TakenMessages:
        """See `MessageReader`."""
        messages: list[list[bytes]] = []
        sizes: list[int] = []
        until = self._clock() + seconds
        size_bytes, is_broken = 0, False
        while len(messages) < messages_max and size_bytes < bytes_max and not is_broken:
            try:
                frames, is_broken = _receive(socket)
            except zmq.Again:
                is_broken = False
                return TakenMessages(messages, sizes, len(messages), size_bytes, True, is_broken)
            messages.append(frames)
            sizes.append(sum(map(len, frames)))
            size_bytes += sizes[-1]
            if self._clock() >= until:
                break
        return TakenMessages(messages, sizes, len(messages), size_bytes, False, is_broken)


def _receive(socket: "zmq.Socket[bytes]") -> tuple[list[bytes], bool]:
    """One message, and whether it has too many frames. A frame knows whether more follow; asking
    the socket costs twice as much.
    """
    frame = socket.recv(zmq.NOBLOCK, copy=False)
    frames = [frame.bytes]
    while frame.more:
        if len(frames) > MESSAGE_FRAMES_MAX:
            return frames, True
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        frames.append(frame.bytes)
    return frames, False


class NativeReader:
    """Reads by the kernel.

    Raises:
        AttributeError, OSError: libzmq's functions were not found, or are of another major version.
    """

    def __init__(self, native: Callable[..., Any]) -> None:
        import zmq.backend.cython._zmq as library

        # Where a library is loaded already, this is that one; its functions are looked for in what
        # it was linked with, too.
        functions = ctypes.CDLL(str(library.__file__))
        addresses = [
            ctypes.cast(getattr(functions, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS
        ]
        self._native = native(addresses, MESSAGE_FRAMES_MAX, BULK_BYTES)

    def read(
        self,
        socket: "zmq.Socket[bytes]",
        *,
        messages_max: int,
        bytes_max: int,
        seconds: float,
    ) -> TakenMessages:
        """See `MessageReader`."""
        if socket.closed:
            raise zmq.ZMQError(zmq.ENOTSOCK)
        address = socket.underlying
        *taken, errno = self._native.read(address, messages_max, bytes_max, seconds)
        found = TakenMessages(*taken)
        if errno and not found.messages:
            raise zmq.ZMQError(errno)
        return found


def open_reader(native: Callable[..., Any] | None) -> MessageReader:
    """The fastest there is.

    Args:
        native: the kernel's `SocketReader`; None without the kernel.
    """
    if native is None:
        return PlainReader()
    try:
        return NativeReader(native)
    except (ImportError, AttributeError, OSError) as error:
        _logger.info("Receiving by pyzmq alone: libzmq's functions were not found (%s)", error)
        return PlainReader()
