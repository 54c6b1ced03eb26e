"""One engine's replays: bridges ask the relay's ROUTER socket, and it asks the engine's.

The engine answers each request at the socket that it came from and says nothing else of whose it
was, so each bridge's socket has one of its own towards the engine. A bridge takes another for every
request; which of them are done is known by the end marker, or by silence.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import zmq

from bridge.bounds import RECEIVE_BURST_MAX, RELAY_REPLAYS_MAX
from bridge.publisher.replay_client import END_SEQUENCE
from bridge.relay.relay_settings import RelayedEngine
from bridge.relay.sockets import open_bound
from bridge.sockets.curve import KeyPair
from schemas.clock import REAL_CLOCK
from schemas.errors import ConfigurationError
from schemas.limits import MESSAGE_BYTES_MAX, REPLAY_MESSAGES_MAX

RELAY_REPLIES_BURST_MAX: Final = 32  # of one replay before the next one's turn, and live batches'
RELAY_REPLIES_WAITING_MAX: Final = 256  # for one bridge; more are not taken of the engine's
RELAY_REPLAY_IDLE_S: Final = 30.0  # a replay of which so long nothing came is over
RELAY_REPLAY_DONE_S: Final = 1.0  # so long after the end marker: whoever asks again may

_logger = logging.getLogger(__name__)


class _Replay:
    """A bridge's socket, and the one towards the engine that stands for it."""

    __slots__ = ("client", "ends_at", "held", "socket")

    def __init__(self, client: bytes, socket: "zmq.Socket[bytes]") -> None:
        self.client = client
        self.socket = socket
        self.held: list[bytes] | None = None  # a reply for which the bridge has no room yet
        self.ends_at = 0.0


class Replays:
    """See the module; for the relay's thread only.

    Args:
        context: of the relay's sockets; ZAP answers in it.
        pair: the relay's keys.

    Attributes:
        replies: of the engine, that were handed on.
        given_up: replays that were ended for others, RELAY_REPLAYS_MAX being under way.

    Raises:
        ConfigurationError: the address cannot be bound.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        pair: KeyPair,
        engine: RelayedEngine,
        *,
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        self.requests = self.replies = self.given_up = 0
        self._context = context
        self._pair = pair
        self._engine = engine
        self._monotonic = monotonic
        self._under_way: OrderedDict[bytes, _Replay] = OrderedDict()  # least recently used first
        self._bound: zmq.Socket[bytes] | None = None
        self._bind()

    def __len__(self) -> int:
        return len(self._under_way)

    def sockets(self) -> "Iterator[zmq.Socket[bytes]]":
        """Those of which something may be received."""
        if self._bound is not None:
            yield self._bound
        for replay in self._under_way.values():
            if replay.held is None:
                yield replay.socket

    @property
    def has_held(self) -> bool:
        """Whether a reply waits for room, of which no socket tells."""
        return self._bound is None or any(one.held for one in self._under_way.values())

    def turn(self) -> bool:
        """Hands on requests and replies; whether there may be more."""
        if self._bound is None:
            # The one before may be about to end, or no file is left for now.
            with suppress(ConfigurationError, zmq.ZMQError):
                self._bind()
            return False
        now = self._monotonic()
        is_more = self._take_requests(self._bound, now)
        for replay in list(self._under_way.values()):
            is_more = self._hand_on(self._bound, replay, now) or is_more
            if now >= replay.ends_at:
                self._end(replay)
        return is_more

    def _take_requests(self, bound: "zmq.Socket[bytes]", now: float) -> bool:
        for _ in range(RECEIVE_BURST_MAX):
            try:
                client, *frames = bound.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self.requests += 1
            replay = self._under_way.get(client) or self._begin(client)
            if replay is None:
                continue
            replay.ends_at = now + RELAY_REPLAY_IDLE_S
            self._under_way.move_to_end(client)
            with suppress(zmq.Again):  # the engine takes none now: the bridge asks again
                replay.socket.send_multipart(frames, zmq.NOBLOCK)
        return True

    def _begin(self, client: bytes) -> _Replay | None:
        while len(self._under_way) >= RELAY_REPLAYS_MAX:
            self.given_up += 1
            self._end(next(iter(self._under_way.values())))
        try:
            socket = self._context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            _logger.warning(
                "Cannot open a socket to ask an engine for a replay: %s. Its bridge asks again",
                error.strerror,
            )
            return None
        socket.linger = 0
        socket.maxmsgsize = MESSAGE_BYTES_MAX
        socket.rcvhwm = REPLAY_MESSAGES_MAX
        socket.ipv6 = True
        socket.connect(self._engine.replay_endpoint)
        replay = self._under_way[client] = _Replay(client, socket)
        return replay

    def _hand_on(self, bound: "zmq.Socket[bytes]", replay: _Replay, now: float) -> bool:
        """Some of the engine's replies, if the bridge has room for them: with RELAY_REPLAYS_MAX
        under way, a turn of all must not outlast a bridge's patience.
        """
        for _ in range(RELAY_REPLIES_BURST_MAX):
            frames, replay.held = replay.held, None
            if frames is None:
                try:
                    frames = replay.socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    return False
            try:
                bound.send_multipart([replay.client, *frames], zmq.NOBLOCK)
            except zmq.Again:
                replay.held = frames
                return False
            except zmq.ZMQError:  # the bridge is gone (EHOSTUNREACH)
                replay.ends_at = now
                return False
            self.replies += 1
            is_end = frames[-2:-1] == [END_SEQUENCE]
            replay.ends_at = now + (RELAY_REPLAY_DONE_S if is_end else RELAY_REPLAY_IDLE_S)
        return True

    def _bind(self) -> None:
        bound = open_bound(self._context, zmq.ROUTER, self._pair)
        bound.router_mandatory = True
        bound.sndhwm = RELAY_REPLIES_WAITING_MAX
        try:
            bound.bind(self._engine.listen_replay)
        except zmq.ZMQError as error:
            bound.close()
            raise ConfigurationError(
                f"Cannot listen on {self._engine.listen_replay}: {error.strerror}. Stop what"
                " listens there, or choose another address with --listen-replay"
            ) from error
        self._bound = bound

    def drop_links(self) -> None:
        """Ends the links of all bridges; those that are listed ask again."""
        if self._bound is not None:
            self._bound.close()
            self._bound = None
        for replay in list(self._under_way.values()):
            self._end(replay)

    def _end(self, replay: _Replay) -> None:
        replay.socket.close()
        del self._under_way[replay.client]

    def close(self) -> None:
        """Ends it; what was asked for gets no more replies."""
        self.drop_links()
