"""One engine's events: from the relay's link to it to a PUB socket, which is there while it is."""

import logging
import math
from collections.abc import Callable
from typing import Final

import zmq

from bridge.bounds import LINK_WATCH_S
from bridge.relay.followers import Followers
from bridge.relay.relay_settings import RelayedEngine
from bridge.relay.sockets import open_bound
from bridge.sockets.connection import PublisherConnection
from bridge.sockets.curve import KeyPair
from bridge.sockets.probing import LinkProbes
from bridge.sockets.raw_message import each_of
from bridge.sockets.reader import MessageReader
from schemas.clock import REAL_CLOCK
from schemas.identities import BlockSize
from schemas.registration import VLLM, Registration

CURVE_FRAME_BYTES: Final = 35  # of a frame that is encrypted, beside what is in it
RELAY_PROBE_S: Final = 0.25  # an engine that is away, and on the same host, is asked for so often
RELAY_LINGER_S: Final = 2.0  # for what an engine said before its link ended to reach the bridges
RELAY_WARN_S: Final = 5.0  # an address that cannot be bound is logged then, and so often
RELAY_QUEUE_MESSAGES_MAX: Final = 65_536  # that wait for one bridge; what is above is lost to it

_logger = logging.getLogger(__name__)


class Publication:
    """See the module; for the relay's thread only.

    A link to the engine is one connection of TCP, and so is what bridges then have: when the first
    has ended, and all that it brought is on its way, the second is ended, and bound anew once the
    engine is there again. A bridge that went on without a break would take another process of the
    engine for the one before. Likewise while the engine does not answer: bridges see no other sign
    of that.

    Args:
        context: of the relay's sockets; ZAP answers in it.
        pair: the relay's keys.

    Attributes:
        messages: that were handed on.
        links: how often the engine's link has come up.
        dropped_bridges: links of bridges that took too little.

    Raises:
        zmq.ZMQError: no socket is left.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        pair: KeyPair,
        engine: RelayedEngine,
        *,
        reader: MessageReader,
        probing: "LinkProbes[PublisherConnection]",
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        self.engine = engine
        self.messages = self.sent_bytes = self.links = 0
        self._context = context
        self._pair = pair
        self._reader = reader
        self._probing = probing
        self._monotonic = monotonic
        self.dropped_bridges = 0
        self._wire_bytes = 0  # of what was sent, as it is encrypted
        self._bound: zmq.Socket[bytes] | None = None
        self._followers: Followers | None = None
        self._warn_at = math.inf
        self._look_at = self._follow_at = 0.0
        self._away_since = monotonic()
        self._registration = Registration(
            endpoint=engine.endpoint,
            kind=VLLM,  # whatever it is: its frames are not looked into
            model_name="relayed",
            instance_id=engine.listen,
            block_size=BlockSize(1),
        )
        self._connection = self._connect()

    def _connect(self) -> PublisherConnection:
        return PublisherConnection(
            self._context,
            self._registration,
            reader=self._reader,
            probing=self._probing,
            once=True,
            probe_s=RELAY_PROBE_S,
        )

    @property
    def has_link(self) -> bool:
        """Whether the engine is there, and answers."""
        return self._connection.connected and not self._connection.life.is_silent

    @property
    def is_away(self) -> bool:
        """Whether the engine has not been there for RELAY_WARN_S."""
        return not self.has_link and self._monotonic() >= self._away_since + RELAY_WARN_S

    @property
    def is_behind(self) -> bool:
        """Whether something may have come of which no descriptor tells."""
        return self._connection.pending

    def descriptors(self) -> tuple[int, int]:
        """See `PublisherConnection`."""
        return self._connection.descriptors()

    def turn(self, *, is_told: bool) -> bool:
        """Hands on what has come.

        Args:
            is_told: whether one of the descriptors has told of something.

        Returns:
            Whether something had come.
        """
        now = self._monotonic()
        if is_told or now >= self._look_at:
            self._look_at = now + LINK_WATCH_S
            self._look(is_told=is_told)
        if self._followers is not None and now >= self._follow_at:
            self._follow_at = now + LINK_WATCH_S
            self.dropped_bridges += self._followers.look(self._wire_bytes)
        connection = self._connection
        if connection.life.is_silent and self._bound is not None:
            self._away_since = now
            self._unbind()
        if connection.connected and self._bound is None and not (self.has_link and self._bind(now)):
            return False  # what has come waits, until somebody can have it
        # Without a link, too: that nothing is left is known by that, and then it is made anew.
        received = connection.receive()
        for message in each_of(received):
            if self._bound is not None:  # else no bridge could have had a link before it came
                self._bound.send_multipart(message.frames, zmq.NOBLOCK)
                self.messages += 1
                self.sent_bytes += message.size_bytes
                self._wire_bytes += message.size_bytes + CURVE_FRAME_BYTES * len(message.frames)
        if connection.broken:
            self._replace(now, connection.renewed)
        elif connection.is_over and not connection.pending:
            self._replace(now, self._connect)
        return bool(received)

    def look_at_memory(self, memory_bytes: int) -> None:
        """The process has grown by much, perhaps by a message of this link that has no end.

        Args:
            memory_bytes: that it takes now.
        """
        if self._connection.connected and self._connection.is_to_be_watched(memory_bytes):
            self._look(is_told=True)

    def _look(self, *, is_told: bool) -> None:
        before = self._connection.links
        if is_told:
            self._connection.watch()
        else:
            self._connection.look()
        self.links += self._connection.links - before

    def _bind(self, now: float) -> bool:
        bound = followers = None
        try:
            bound = open_bound(self._context, zmq.PUB, self._pair)
            # What a bridge has not taken beyond this is lost to it, as it would be to any PUB
            # socket; it sees that by the numbers, and asks for a replay.
            bound.sndhwm = RELAY_QUEUE_MESSAGES_MAX
            followers = Followers(bound)
            bound.bind(self.engine.listen)
        except zmq.ZMQError as error:
            if followers is not None:
                followers.close()
            if bound is not None:
                bound.close(linger=0)
            # The socket before may be about to end: libzmq closes it in its own time.
            self._warn(now, f"Cannot listen on {self.engine.listen}: {error.strerror}")
            return False
        self._warn_at, self._bound, self._followers = math.inf, bound, followers
        _logger.info("Relaying %s at %s", self.engine.endpoint, self.engine.listen)
        return True

    def _warn(self, now: float, problem: str) -> None:
        """Logs what has lasted for RELAY_WARN_S, and each RELAY_WARN_S while it does."""
        if now >= self._warn_at:
            _logger.error("%s; trying again until it can be had", problem)
        if math.isinf(self._warn_at) or now >= self._warn_at:
            self._warn_at = now + RELAY_WARN_S

    def drop_links(self) -> None:
        """Ends the links of all bridges; those that are listed connect again."""
        self._unbind()

    def _unbind(self) -> None:
        if self._followers is not None:
            self._followers.close()
            self._followers = None
        if self._bound is not None:
            self._bound.close(linger=round(1000 * RELAY_LINGER_S))
            self._bound = None
            _logger.info("Not relaying %s now", self.engine.endpoint)

    def _replace(self, now: float, connect: Callable[[], PublisherConnection]) -> None:
        if self._bound is not None:
            self._away_since = now
        self._unbind()
        try:
            connection = connect()
        except zmq.ZMQError as error:  # no file is left; this one is replaced in another turn
            self._warn(now, f"Cannot connect to {self.engine.endpoint}: {error.strerror}")
            return
        self._connection.close()
        self._connection = connection

    def close(self) -> None:
        """Ends it: what was handed on goes out within RELAY_LINGER_S."""
        self._unbind()
        self._connection.close()
