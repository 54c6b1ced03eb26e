"""One publisher's SUB socket and what is known of its link; for the subscriber's thread only."""

import logging
import math
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from bridge.bounds import LINK_WATCH_S, RECEIVE_BURST_MAX
from bridge.link_numbers import NO_LINK, LinkNumber, next_of
from bridge.sockets.bounds import (
    LINK_PROBE_AWAY_S,
    LINK_PROBE_S,
    LINK_QUIET_S,
    LINK_REPLACE_S,
    LINK_RETRY_FIRST_MS,
    SUBSCRIBER_TURN_S,
)
from bridge.sockets.curve import CURVE, HANDSHAKE_FAILED, why_refused
from bridge.sockets.endpoints import check_endpoint, names_host, path_of
from bridge.sockets.link_bytes import LinkBytes
from bridge.sockets.link_options import set_options
from bridge.sockets.lookup import LOOKUPS, Addresses
from bridge.sockets.probing import Address, LinkProbes, address_of
from bridge.sockets.raw_message import RawMessage, RawRun, Received
from bridge.sockets.reader import MessageReader, PlainReader
from bridge.sockets.received_bytes import TELLS_PROGRESS
from schemas.errors import EndpointError
from schemas.limits import KIB, MESSAGE_FRAMES_MAX
from schemas.registration import Registration

RECEIVE_BURST_BYTES: Final = 256 * KIB  # of one socket in a turn; so 50 MB/s of it at most
RECEIVE_BURST_S: Final = 0.004  # the same in time
LINK_WARN_S: Final = 5.0  # a publisher that is not there by then is logged, once
LINK_BREACH_S: Final = 5.0  # a link that was dropped for what it sent is down for this long
LINK_REWATCH_S: Final = 10.0  # a link that is up is watched so often, whatever it brings
LINK_AWAY_S: Final = 60.0  # a link that has been down for this long is asked for

_logger = logging.getLogger(__name__)
_monitor_numbers = count()


class PublisherConnection:
    """Keeps one publisher's socket connected, however long that takes.

    libzmq reconnects by itself, except after a breach of protocol, such as a message above the
    bound or another kind of server on the port: then it silently gives up the endpoint. And a name
    may stand for several addresses, and for others later; and each of its attempts costs a lot. So
    a link that has been down for LINK_REPLACE_S is taken from it. From then on it is asked every
    LINK_PROBE_S, and after LINK_AWAY_S every LINK_PROBE_AWAY_S, whether somebody listens at the
    address, of a name at each one, looked up anew after the last one; where somebody does, libzmq
    has the link again (`bridge.sockets.probing`).

    Taking it drops what the link has brought. It may have come up since the thread last looked, and
    the engine may have sent: so it is done only while libzmq waits before its next attempt, or once
    it has given up, and not before everything has been received.

    A message of more frames than any that an engine sends is not read to its end, which may be a
    million frames away, and one that has no end is noticed by what the link has received and not
    handed on: libzmq keeps a message until it is whole, and bounds single frames only. Either way
    the link is to be dropped, and made anew after LINK_BREACH_S (`renewed`).

    Args:
        context: of the socket.
        registration: the publisher and its endpoint.
        wait_s: before it is connected to.
        reader: of its messages; pyzmq's where none is given.
        probing: of the thread, and its clock; one of its own where none is given.
        once: whether it is over when its link has ended, for another process may have the address
            by then; what it has brought is still received.
        probe_s: how often an address is asked at first where nobody answers; LINK_PROBE_S where
            nothing is given.
        links: the last one that others in its place have had.

    A peer that does not answer ZMTP's heartbeats is known to be silent (`life`) long before its
    link is taken down: that is once its host is known to be gone (LINK_DEAD_MS), or after
    LINK_UNANSWERED_MS, for a link that is made anew costs more than one that is kept. Of links that
    are not TCP, and where the system does not tell, libzmq alone finds out.

    Attributes:
        broken: whether such a message is under way.
        is_over: whether its only link has ended.
        links: the last one that has come up.
        life: whether its peer answers, as of the last look at it.
        trouble: why no link comes up, in the words of the system; "" where nothing tells.
        look_number: its place in the queue of those that are to be looked at; the owner's.
        behind_since: since when more has arrived than was taken, monotonic seconds; None where all
            was taken at the last look.
        pending: whether there may be something to receive that the socket's descriptor no longer
            tells: it tells of a change once, to whoever next calls the socket, whatever the call.

    Raises:
        EndpointError: the endpoint can never be connected to.
        zmq.ZMQError: no socket is left.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        registration: Registration,
        *,
        wait_s: float = 0.0,
        reader: MessageReader | None = None,
        probing: "LinkProbes[PublisherConnection] | None" = None,
        once: bool = False,
        probe_s: float | None = None,
        links: LinkNumber = NO_LINK,
    ) -> None:
        check_endpoint(registration.endpoint)
        self.publisher = registration.publisher
        self._context = context
        self._probing: LinkProbes[PublisherConnection] = (
            LinkProbes() if probing is None else probing
        )
        self._reader = PlainReader(self._probing.clock) if reader is None else reader
        self._registration = registration
        self._name = f"{registration.service_key} ({registration.model_name})"
        self.endpoint = registration.endpoint
        self.connected = False
        self.is_over = False
        self._once = once
        self._probe_s = LINK_PROBE_S if probe_s is None else probe_s
        self.broken = False
        self.closed = False
        self.pending = True
        self._breach = ""
        self._is_encrypted = bool(registration.curve_server_key)
        self._bytes = LinkBytes(is_encrypted=self._is_encrypted, clock=self._probing.clock)
        self.life = self._bytes.life
        self._paid_at = 0.0  # when it may be received from again, monotonic seconds
        self.links, self.look_number = links, 0
        self.behind_since: float | None = None
        # The link over which all that is still to come was sent, or NO_LINK. It is the next one as
        # long as there was none: its first message may be here before `watch` has seen it come up.
        self._sent_over = next_of(links)
        self._by_name = names_host(self.endpoint)
        self._lookup: Future[Addresses] | None = None
        self._addresses: Addresses = []  # of the name, not tried yet
        self._named: Addresses = []  # all of them
        self._look_up_at = 0.0  # not before
        self._address: str | None = None  # what the socket connects to
        self._asked: str | None = None  # where it is being asked whether somebody listens
        self._asked_at = 0.0
        self._place: tuple[str, Address | None] = ("", None)  # of the last one
        self._is_away = False  # it is asked first
        self._pause_s = 0.0  # until the next time
        self.trouble = ""
        self.socket = context.socket(zmq.SUB)
        self._monitor: zmq.Socket[bytes] | None = None
        try:
            tells_life = TELLS_PROGRESS and not path_of(self.endpoint)
            set_options(self.socket, reconnects=not once, tells_life=tells_life)
            CURVE.secure(self.socket, registration.curve_server_key)
            self._monitor = self.socket.get_monitor_socket(
                zmq.EVENT_CONNECTED
                | zmq.EVENT_HANDSHAKE_SUCCEEDED
                | zmq.EVENT_DISCONNECTED
                | zmq.EVENT_CONNECT_RETRIED
                | zmq.EVENT_CLOSED
                | sum(HANDSHAKE_FAILED),
                f"inproc://monitor-{next(_monitor_numbers)}",
            )
            with suppress(zmq.Again):  # its descriptor tells of nothing that nobody has looked for
                self._monitor.recv_multipart(zmq.NOBLOCK)
            if not (wait_s or once):
                self._connect()
        except BaseException:
            self.close()
            raise
        self._watched_at = self._probing.clock()
        self._connect_at = self._watched_at + wait_s if wait_s else math.inf
        self._quiet_from = self._quiet_until = math.inf
        self._start_waiting(self._watched_at)
        if once:  # libzmq tries but once: not before somebody listens
            self._is_away, self._retry_at = True, self._watched_at

    def descriptors(self) -> tuple[int, int]:
        """Those that tell of something to receive, and of a change of the link."""
        assert self._monitor is not None
        return descriptor_of(self.socket), descriptor_of(self._monitor)

    def receive(self) -> list[Received]:
        """What has arrived, up to RECEIVE_BURST_MAX messages, RECEIVE_BURST_BYTES, or
        RECEIVE_BURST_S: where other threads have the interpreter, each message waits for it.

        Never waits; one message is taken whatever its size, and the next one only after as long as
        smaller ones of that size would have taken.
        """
        received_at = self._probing.clock()
        link = self._sent_over
        self.pending = True
        if received_at < self._paid_at or self.broken:
            return []  # it was behind then, and is
        taken = self._reader.read(
            self.socket,
            messages_max=RECEIVE_BURST_MAX,
            bytes_max=RECEIVE_BURST_BYTES,
            seconds=RECEIVE_BURST_S,
        )
        self.pending = not taken.is_all
        if taken.is_broken:
            self._break(f"a message of more than {MESSAGE_FRAMES_MAX} frames")
        received: list[Received] = [
            RawMessage(self.publisher, item, received_at, link, counted_bytes=size_bytes)
            if isinstance(item, list)
            else RawRun(self.publisher, item, received_at, link)
            for item, size_bytes in zip(taken.items, taken.sizes, strict=True)
        ]
        self._bytes.note_taken(taken.messages, taken.size_bytes)
        if received:
            beyond_bytes = max(0, taken.size_bytes - RECEIVE_BURST_BYTES)
            self._paid_at = received_at + beyond_bytes * SUBSCRIBER_TURN_S / RECEIVE_BURST_BYTES
        if not self.pending:
            self.behind_since = None
        elif self.behind_since is None:
            self.behind_since = received_at
        return received

    def renewed(self) -> "PublisherConnection":
        """Another one in place of this one, which is to be closed; it connects after a while.

        Raises:
            zmq.ZMQError: no socket is left.
        """
        _logger.warning(
            "Dropping the link to %s of %s for %g s: it sent %s",
            self.endpoint,
            self._name,
            LINK_BREACH_S,
            self._breach,
        )
        self.watch()  # it may have come up since the last look
        return PublisherConnection(
            self._context,
            self._registration,
            wait_s=LINK_BREACH_S,
            reader=self._reader,
            probing=self._probing,
            once=self._once,
            probe_s=self._probe_s,
            links=self.links,
        )

    def replaced(
        self, registration: Registration, *, leaves: bool = False
    ) -> "PublisherConnection | None":
        """Another one in place of this one, which is to be closed, for one link to where the
        publisher is now; None where this one has a link, or something left to receive, and is not
        left with that.

        Raises:
            EndpointError, zmq.ZMQError: see the class.
        """
        self.watch()
        if not leaves and (self.connected or self._has_arrived()):
            return None
        return PublisherConnection(
            self._context,
            registration,
            reader=self._reader,
            probing=self._probing,
            once=True,
            links=self.links,
        )

    def look(self) -> None:
        """The same as `watch`, which costs more, where time alone may have changed something."""
        if self._address is None and not self.connected:
            self._wait(self._probing.clock())
        else:
            self.watch()

    def is_to_be_watched(self, memory_bytes: int) -> bool:
        """Whether more has come since it was last watched than heartbeats and a few messages, or
        that is long ago. Costs a quarter of that, and tells whether the peer answers.

        Args:
            memory_bytes: that the process takes now, or shortly before.
        """
        brings_much = self._bytes.brings_much(memory_bytes)
        return brings_much or self._probing.clock() >= self._watched_at + LINK_REWATCH_S

    @property
    def is_at_rest(self) -> bool:
        """Whether `is_to_be_watched`, asked now and then, tells all that may change of it."""
        return self.connected and bool(self._sent_over) and not self.life.is_open

    @property
    def look_at(self) -> float | None:
        """When it is to be looked at again, monotonic seconds; None where the next thing that
        happens is an answer of `LinkProbes`.
        """
        if self._asked is not None or self.is_over:
            return None
        if self.connected and self._sent_over:  # until that is known, nothing proves anything
            return self.life.look_at(self._probing.clock())
        if self.connected or self._address is not None or self._lookup is not None:
            return self._probing.clock() + LINK_WATCH_S
        return self._retry_at if math.isinf(self._connect_at) else self._connect_at

    def watch(self) -> None:
        """Follows the link's state; logs once when it changes or stays down; never waits."""
        assert self._monitor is not None
        looked_at = self._probing.clock()
        with suppress(zmq.Again):
            while _has_message(self._monitor):
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
                if event["event"] == zmq.EVENT_CONNECTED:
                    self._bytes.follow(event["value"])
                    continue
                if event["event"] == zmq.EVENT_CLOSED:
                    self._note_attempt_ended(looked_at)
                    continue
                if event["event"] in HANDSHAKE_FAILED:  # that the link is down comes next
                    reason = why_refused(event, is_encrypted=self._is_encrypted)
                    self.trouble = reason or self.trouble
                    continue
                if event["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    self._bytes.close()
                if event["event"] == zmq.EVENT_CONNECT_RETRIED:
                    # Not before the last look, when there was no such event.
                    self._quiet_from = self._watched_at
                    self._quiet_until = self._watched_at + event["value"] / 1000
                    continue
                # Where libzmq does not give the link up, its next event says that it is retried.
                self._quiet_from = looked_at + LINK_RETRY_FIRST_MS / 1000
                self._quiet_until = math.inf
                self._set_connected(event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._watched_at = looked_at
        if not self._sent_over and not self._has_arrived():
            self._sent_over = self.links if self.connected else next_of(self.links)
        if self.connected:
            breach = self._bytes.breach(has_arrived=self._has_arrived())
            if breach:
                self._break(breach)
        else:
            self._wait(self._probing.clock())

    def _break(self, breach: str) -> None:
        self.broken, self._breach = True, breach

    def close(self) -> None:
        """Drops the socket with whatever has not been received."""
        self.closed = True
        self._probing.give_up(self)
        self._bytes.close()
        self.socket.disable_monitor()
        if self._monitor is not None:
            self._monitor.close(linger=0)
        self.socket.close(linger=0)

    def _connect(self) -> None:
        """Connects to the next address that the endpoint's name has, or begins to look them up;
        asks first whether somebody listens there, where nobody has for a while.
        """
        if not self._by_name:
            self._try(self.endpoint)
            return
        now = self._probing.clock()
        if not self._addresses and now < self._look_up_at:
            self._addresses = list(self._named)
        if self._addresses:
            self._try(self._addresses.pop(0))
        elif self._lookup is None:
            self._lookup = LOOKUPS.look_up(self.endpoint)

    def _try(self, address: str) -> None:
        if not self._is_away:
            self._connect_to(address)
            return
        if self._place[0] != address:
            self._place = (address, address_of(address))
        place = self._place[1]
        self._asked, self._asked_at = address, self._probing.clock()
        answers = True if place is None else self._probing.begin(self, place)
        if answers is not None:
            self.note_answer(answers=answers)

    def note_answer(self, *, answers: bool) -> None:
        """Somebody listens at the address that was asked, or nobody."""
        address, self._asked = self._asked, None
        if address is None:
            return
        now = self._probing.clock()
        if answers:
            self._retry_at = now + LINK_REPLACE_S
            self._connect_to(address)
        elif self._addresses:
            self._retry_at = now
        else:
            self._retry_at = self._asked_at + self._pause_s
            for_long = now >= self._away_from + LINK_AWAY_S
            self._pause_s = LINK_PROBE_AWAY_S if for_long else self._probe_s

    def _connect_to(self, address: str) -> None:
        self.pending = True
        try:
            self.socket.connect(address)
            self._address = address
        except zmq.ZMQError as error:
            detail = f"Expected a ZMQ address, got `{self.endpoint[:200]}`: {error.strerror}"
            raise EndpointError(detail) from error

    def _set_connected(self, connected: bool) -> None:
        if connected == self.connected:
            return
        self.connected = connected
        if connected:
            self.links = next_of(self.links)
            self.trouble = ""
            _logger.info("Connected to %s of %s", self.endpoint, self._name)
        else:
            self._sent_over = NO_LINK  # what waits may be of the link that is down
            _logger.info("Disconnected from %s of %s", self.endpoint, self._name)
            self._start_waiting(self._probing.clock())
            self.is_over = self._once

    def _note_attempt_ended(self, now: float) -> None:
        """An attempt has failed. libzmq says when it makes the next one, unless it is to make but
        one: then the address is asked again whether somebody listens.
        """
        if self._once and not self.connected:
            self._quiet_from, self._quiet_until = now, math.inf
            self._retry_at = min(self._retry_at, now + self._probe_s)

    def _start_waiting(self, now: float) -> None:
        self._away_from = now
        self._warn_at: float | None = now + LINK_WARN_S
        self._retry_at = now + LINK_REPLACE_S
        self._is_away = False
        # Who were registered, or lost, together are not asked together for good.
        self._pause_s = self._probing.chance() * self._probe_s

    def _wait(self, now: float) -> None:
        if self.is_over:
            return
        if now >= self._connect_at:
            self._connect_at = math.inf
            self._connect()
        if self._warn_at is not None and now >= self._warn_at:
            self._warn_at = None
            why = self.trouble or ("its name is being looked up" if self._lookup else "")
            _logger.warning(
                "No publisher at %s after %g s%s; still trying, for %s",
                self.endpoint,
                LINK_WARN_S,
                f" ({why})" if why else "",
                self._name,
            )
        if self._lookup is not None:
            self._take_addresses(self._lookup, now)
        elif self._asked is None and now >= self._retry_at and self._is_idle(now):
            self._retry_at = now + LINK_REPLACE_S
            self._quiet_from = math.inf
            if self._address is not None:
                with suppress(zmq.ZMQError):  # libzmq has given it up already
                    self.socket.disconnect(self._address)
                self._address = None
            self._is_away = True
            self._connect()

    def _take_addresses(self, lookup: "Future[Addresses]", now: float) -> None:
        if not lookup.done():
            return
        self._lookup = None
        error = lookup.exception()
        if error is None:
            self.trouble, self._named = "", lookup.result()
            self._addresses = list(self._named)
            self._retry_at = self._look_up_at = now + LINK_REPLACE_S
            self._connect()
        else:
            self.trouble = str(error)
            self._retry_at = now + LINK_REPLACE_S

    def _is_idle(self, now: float) -> bool:
        """Whether no attempt is under way or about to be, and nothing is left to receive."""
        if self._address is None:
            return math.isinf(self._connect_at)
        quiet = self._quiet_from <= now < self._quiet_until - LINK_QUIET_S
        return quiet and not self._has_arrived()

    def _has_arrived(self) -> bool:
        self.pending = _has_message(self.socket) or self.pending
        return self.pending


def descriptor_of(socket: "zmq.Socket[bytes]") -> int:
    """The one that tells that the socket is to be called; see `PublisherConnection.pending`."""
    descriptor = socket.getsockopt(zmq.FD)
    assert isinstance(descriptor, int)
    return descriptor


def _has_message(socket: "zmq.Socket[bytes]") -> bool:
    """The same as `poll(0)` and as a `recv` that raises, which cost several times this."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
