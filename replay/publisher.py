"""Sends a capture out as the engines did: a PUB socket for each publisher, and a replay socket.

One thread does all: it sends when it is time, and answers replay requests between two messages, in
the form of vLLM since 0.26 (`bridge.publisher.replay_client` has the protocol). A subscriber that
is slower than what is sent delays it, and loses nothing.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import zmq

from bridge.publisher.replay_client import END_SEQUENCE
from bridge.sockets.endpoints import split_endpoint
from replay.bounds import CAPTURE_LOOK_S, CAPTURE_TOLD_RECORDS
from replay.capture.errors import CaptureError
from replay.folding import ReplayPace
from replay.wire_batches import WireMessage
from schemas.clock import REAL_CLOCK
from schemas.limits import MIB, PORT_MAX
from schemas.progress import Progress, StopCheck, Tell, never, silent

PUBLISHED_BUFFER_BATCHES: Final = 10_000  # that can be replayed, as vLLM's `buffer_steps`
PUBLISHED_BUFFER_BYTES: Final = 256 * MIB  # of them
PUBLISHED_QUEUE_MESSAGES: Final = 10_000  # that a subscriber has not taken; then it is waited for
PUBLISHED_LINGER_MS: Final = 2_000  # for what is queued to leave, at the end
PUBLISHED_REPLIES_MAX: Final = 64  # replay requests that are answered before what is live goes on

_logger = logging.getLogger(__name__)


def rising(endpoint: str, number: int) -> str:
    """The endpoint of publisher `number`: its port is so much higher; port 0 is any for each.

    Raises:
        CaptureError: it is no TCP address, or has no such port.
    """
    host, port = split_endpoint(endpoint)
    if not host or not (port.isascii() and port.isdigit()):
        raise CaptureError(f"Expected an address such as `tcp://127.0.0.1:5557`, got: {endpoint}")
    wanted = int(port) + number if int(port) else 0
    if wanted > PORT_MAX:
        raise CaptureError(
            f"Expected {number + 1} ports from {endpoint} on, but the last port is {PORT_MAX}"
        )
    return f"tcp://{host}:{wanted}"


class CapturePublisher:
    """The sockets of one publisher; one thread.

    Args:
        replay_endpoint: of the ROUTER socket; "" for none.

    Attributes:
        endpoint, replay_endpoint: as bound.
        sent: messages.
        replayed: messages that were sent again.

    Raises:
        CaptureError: an address cannot be bound.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, replay_endpoint: str
    ) -> None:
        self.subscriptions = self.sent = self.replayed = 0
        self._buffer: deque[tuple[int, list[bytes]]] = deque()
        self._buffer_bytes = 0
        self._live = context.socket(zmq.XPUB)  # as PUB on the wire; it also says who subscribes
        self._live.set(zmq.XPUB_VERBOSER, 1)
        self._live.set(zmq.XPUB_NODROP, 1)
        self._live.set_hwm(PUBLISHED_QUEUE_MESSAGES)
        self._live.linger = PUBLISHED_LINGER_MS
        self._router: zmq.Socket[bytes] | None = None
        self.replay_endpoint = ""
        try:
            self.endpoint = _bind(self._live, endpoint)
            if replay_endpoint:
                self._router = context.socket(zmq.ROUTER)
                # A whole replay fits, so that none is cut short silently.
                self._router.set(zmq.SNDHWM, 2 * (PUBLISHED_BUFFER_BATCHES + 1))
                self._router.linger = PUBLISHED_LINGER_MS
                self.replay_endpoint = _bind(self._router, replay_endpoint)
        except BaseException:
            self.close()
            raise

    def sockets(self) -> "list[zmq.Socket[bytes]]":
        """Those that have something to say."""
        return [self._live] if self._router is None else [self._live, self._router]

    def close(self) -> None:
        """Sends what is queued, for a while, and closes."""
        for socket in self.sockets():
            socket.close()

    def try_send(self, message: WireMessage) -> bool:
        """Sends a message; False where a subscriber has no room for it now."""
        try:
            self._live.send_multipart(message.frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        self.sent += 1
        if message.sequence is not None and self._router is not None:
            self._keep(message.sequence, message.frames)
        return True

    def _keep(self, sequence: int, frames: list[bytes]) -> None:
        """For replays: of this incarnation, as an engine has them."""
        if self._buffer and sequence <= self._buffer[-1][0]:
            self._buffer.clear()
            self._buffer_bytes = 0
        self._buffer.append((sequence, frames))
        self._buffer_bytes += sum(map(len, frames))
        while (
            len(self._buffer) > PUBLISHED_BUFFER_BATCHES
            or self._buffer_bytes > PUBLISHED_BUFFER_BYTES
        ):
            _, dropped = self._buffer.popleft()
            self._buffer_bytes -= sum(map(len, dropped))

    def serve(self) -> None:
        """Takes subscriptions and replay requests; never waits."""
        while True:
            try:
                said = self._live.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            if said[:1] in (b"\0", b"\1"):
                self.subscriptions += 1 if said[:1] == b"\1" else -1
        if self._router is None:
            return
        for _ in range(PUBLISHED_REPLIES_MAX):
            self._router.get(zmq.EVENTS)  # has libzmq count what has left for the client
            try:
                request = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(request) != 3 or request[1] or len(request[2]) != 8:
                _logger.warning(
                    "Expected a replay request of 3 frames, with a number of 8 bytes, got %d"
                    " frames;"
                    " it is not answered",
                    len(request),
                )
                continue
            self._replay(self._router, request[0], int.from_bytes(request[2], "big"))

    def _replay(self, router: "zmq.Socket[bytes]", client: bytes, first: int) -> None:
        for sequence, frames in self._buffer:
            if sequence >= first:
                router.send_multipart([client, b"", *frames])
                self.replayed += 1
        router.send_multipart([client, b"", b"", END_SEQUENCE, b""])


def _bind(socket: "zmq.Socket[bytes]", endpoint: str) -> str:
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise CaptureError(f"Cannot listen at {endpoint}: {error.strerror}") from error
    return socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")


class CapturePublishers:
    """All publishers of a capture; one thread.

    Args:
        numbers: which publishers, by their numbers in the capture.
        endpoint: of the first; those of the others rise.
        replay_endpoint: likewise, or "".
        stopped: whether to end.
        clock: monotonic seconds.

    Raises:
        CaptureError: an address cannot be bound.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        endpoint: str,
        replay_endpoint: str = "",
        *,
        stopped: StopCheck = never,
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        self._stopped = stopped
        self._clock = clock
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.publishers: dict[int, CapturePublisher] = {}
        try:
            for place, number in enumerate(numbers):
                replay = replay_endpoint and rising(replay_endpoint, place)
                self.publishers[number] = CapturePublisher(
                    self._context, rising(endpoint, place), replay
                )
        except BaseException:
            self.close()
            raise
        self._poller = zmq.Poller()
        for publisher in self.publishers.values():
            for socket in publisher.sockets():
                self._poller.register(socket, zmq.POLLIN)

    def close(self) -> None:
        """Sends what is queued, for a while, and closes."""
        for publisher in self.publishers.values():
            publisher.close()
        self._context.term()

    def serve(self, seconds: float) -> None:
        """Answers for so long, or until something was to be answered."""
        if self._poller.poll(max(0, int(1000 * seconds))):
            for publisher in self.publishers.values():
                publisher.serve()

    def serve_until(self, done: Callable[[], bool], *, seconds: float | None = None) -> bool:
        """Answers until that is so, or so much time is over, or it is to end; whether it is so."""
        end_at = None if seconds is None else self._clock() + seconds
        while not done() and not self._stopped():
            left = CAPTURE_LOOK_S if end_at is None else end_at - self._clock()
            if left <= 0:
                break
            self.serve(min(left, CAPTURE_LOOK_S))
        return done()

    def are_subscribed(self) -> bool:
        """Whether every publisher has a subscriber."""
        return all(publisher.subscriptions > 0 for publisher in self.publishers.values())

    def publish(
        self, messages: Iterable[WireMessage], *, speed: float | None = None, tell: Tell = silent
    ) -> bool:
        """Sends the messages of these publishers; whether it came to the end.

        Args:
            speed: see `ReplayPace`.
        """
        pace = ReplayPace(speed, stopped=self._stopped, clock=self._clock, sleep=self.serve)
        for number, message in enumerate(messages):
            publisher = self.publishers.get(message.publisher)
            if publisher is None:
                continue
            pace.wait(message.time)
            if speed is not None or not number % CAPTURE_TOLD_RECORDS:
                tell(Progress(number, None, sum(one.sent for one in self.publishers.values())))
                self.serve(0)
            while not publisher.try_send(message):
                if self._stopped():
                    return False
                self.serve(CAPTURE_LOOK_S / 100)
            if self._stopped():
                return False
        return True
