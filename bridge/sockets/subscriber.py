"""The bridge's socket thread: one SUB socket for each publisher, all read in turn into the inbox.

The thread owns every socket. Other threads hand it commands through a queue and wake it through an
inproc pair; each waits for its answer.

A turn costs what has happened, not what is followed: the system tells which descriptors have
something to say, where libzmq's own poll asks every socket. A descriptor tells of a change only
once (`PublisherConnection.pending`), and each link is looked at when that is due: one that is up
within LINKS_LOOK_S, by a look that costs little unless it has brought much (`is_at_rest`), one
whose engine is away as often as that is asked for (`look_at`). What a link brings of a message that
has no end shows nowhere but in the memory of the process: that is looked at every
LINK_GROWTH_LOOK_S.
"""

import heapq
import logging
import math
import queue
import resource
import selectors
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Final

import zmq

from bridge.bounds import (
    LINK_SILENT_S,
    LINK_WATCH_S,
    RECEIVE_BURST_MAX,
    SUBSCRIBER_ERROR_PAUSE_S,
)
from bridge.link_numbers import NO_LINK, LinkNumber
from bridge.sockets.bounds import SUBSCRIBER_TURN_S
from bridge.sockets.connection import PublisherConnection, descriptor_of
from bridge.sockets.inbox import Inbox
from bridge.sockets.memory_growth import MemoryGrowth
from bridge.sockets.probing import LinkProbes
from bridge.sockets.raw_message import count_of
from bridge.sockets.reader import MessageReader, PlainReader
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import OpenFilesError, RegistrationConflictError
from schemas.identities import PublisherKey
from schemas.limits import (
    LINK_GROWTH_BYTES,
    LINK_GROWTH_LOOK_S,
    PUBLISHER_FILES_LEFT_MAX,
    PUBLISHER_FILES_SHARE,
    PUBLISHERS_MAX,
    SHUTDOWN_S,
)
from schemas.registration import Registration

LINKS_WATCHED_MAX: Final = 256  # links at once
LINKS_LOOK_S: Final = 1.0  # all that are up are looked at within this
LINKS_LOOK_MIN: Final = 16  # of them at once, where that takes less: so often a few are

assert LINKS_LOOK_S + LINK_WATCH_S < LINK_SILENT_S, (
    "who is silent is seen to be asked before the time to answer is over"
)

_SOCKETS_PER_PUBLISHER: Final = 3  # SUB, and both ends of its monitor
_WAKE_ADDRESS: Final = "inproc://wake"

_logger = logging.getLogger(__name__)


class Subscriber:
    """Receives from all followed publishers until it is stopped; any thread may call it.

    Nothing that a publisher sends ends the thread: an unexpected error is logged and counted in
    `unexpected_errors`, and the loop continues.

    Args:
        reader: of sockets; pyzmq's where none is given.
    """

    def __init__(
        self, inbox: Inbox, reader: MessageReader | None = None, clock: Clock = REAL_CLOCK
    ) -> None:
        self._clock = clock
        self.unexpected_errors = 0
        self._inbox = inbox
        self._reader = PlainReader(clock.monotonic) if reader is None else reader
        self._connections: dict[PublisherKey, PublisherConnection] = {}  # the one look-up
        self._by_socket: dict[int, PublisherConnection] = {}  # by descriptor
        self._by_monitor: dict[int, PublisherConnection] = {}
        self._pending: dict[PublisherConnection, None] = {}  # a set, in order
        self._probing: LinkProbes[PublisherConnection] = LinkProbes(clock.monotonic)
        self._due: list[
            tuple[float, int, PublisherConnection]
        ] = []  # a heap: when each is looked at again
        self._looks = count()
        self._to_check: list[PublisherConnection] = []  # in this round
        self._round_at = 0.0  # the next one begins no sooner, were nobody left to look at
        self._checked_at_once = LINKS_LOOK_MIN
        self._changed: dict[PublisherConnection, None] = {}  # likewise
        self._changed_lock = threading.Lock()
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self._watch_at = 0.0
        self._growth = MemoryGrowth()
        self._turned_at = self._clock.monotonic()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        limit = self._context.get(zmq.SOCKET_LIMIT)
        wanted = _SOCKETS_PER_PUBLISHER * (PUBLISHERS_MAX + 1) + 2  # one may be renewed
        self._context.set(zmq.MAX_SOCKETS, min(limit, wanted))
        self._wake_lock = threading.Lock()
        self._wake_receiver = self._context.socket(zmq.PAIR)
        self._wake_receiver.bind(_WAKE_ADDRESS)
        self._wake_sender = self._context.socket(zmq.PAIR)
        self._wake_sender.connect(_WAKE_ADDRESS)
        self._selector = selectors.DefaultSelector()
        self._selector.register(descriptor_of(self._wake_receiver), selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="reprise-subscriber", daemon=True)

    def start(self) -> None:
        """Starts the thread; once."""
        self._thread.start()

    def follow(self, registration: Registration) -> None:
        """Connects to the publisher and keeps trying; it need not be up yet.

        Raises:
            EndpointError: the endpoint can never be connected to.
            RegistrationConflictError: the publisher is followed already.
            OpenFilesError: this process can open no more sockets.
        """
        self._call(lambda: self._follow(registration))

    def follow_once(self, registration: Registration, *, leaves: bool = False) -> None:
        """Connects to the publisher where it is now, for one link. Nothing changes where it has
        one, or something of the last one is yet to be received; where it `leaves` that, what has
        come over it and waits is dropped.

        Raises:
            EndpointError: as `follow`.
            OpenFilesError: as `follow`.
        """
        self._call(lambda: self._follow_once(registration, leaves=leaves))

    def unfollow(self, publisher: PublisherKey) -> None:
        """Closes the publisher's socket and drops its waiting messages, if it is followed."""
        self._call(lambda: self._unfollow(publisher))

    def connected(self, publisher: PublisherKey) -> bool:
        """Whether the link to the publisher was up when last heard of."""
        connection = self._connections.get(publisher)
        return connection is not None and connection.connected

    def links(self, publisher: PublisherKey) -> LinkNumber:
        """The last link to the publisher that has come up: how often one has."""
        connection = self._connections.get(publisher)
        return NO_LINK if connection is None else connection.links

    def is_silent(self, publisher: PublisherKey) -> bool:
        """Whether the link to the publisher is up, and its engine's socket does not answer."""
        connection = self._connections.get(publisher)
        return connection is not None and connection.life.is_silent

    def trouble(self, publisher: PublisherKey) -> str:
        """See `Receiver`."""
        connection = self._connections.get(publisher)
        return "" if connection is None else connection.trouble

    def received_until(self, publisher: PublisherKey) -> float:
        """All that had been sent by then over the publisher's link is in the inbox, as far as that
        can be known; monotonic seconds.
        """
        connection = self._connections.get(publisher)
        if connection is None:
            return self._turned_at
        until = min(self._turned_at, connection.life.known_until)
        return until if connection.behind_since is None else min(connection.behind_since, until)

    def changed(self) -> tuple[float, Iterable[PublisherKey]]:
        """See `Receiver`."""
        turned_at = self._turned_at  # what was received before that is marked
        with self._changed_lock:
            changed, self._changed = self._changed, {}
        return turned_at, [connection.publisher for connection in changed]

    def stop(self) -> None:
        """Closes all sockets and ends the thread, within SHUTDOWN_S; may be called again."""
        self._stopping = True
        if self._thread.ident is None:
            self._close()
            return
        self._wake()
        self._thread.join(SHUTDOWN_S)
        if self._thread.is_alive():
            _logger.error(
                "The socket thread did not stop within %g s; leaving it behind", SHUTDOWN_S
            )

    # Called by other threads

    def _call(self, command: Callable[[], None]) -> None:
        """Runs the command in the thread; returns, or raises, when it has."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                command()
            except Exception as error:  # noqa: BLE001 -- the waiting caller gets it, whatever it is
                done.set_exception(error)
            else:
                done.set_result(None)

        with self._wake_lock:
            if self._stopping or not self._thread.is_alive():
                raise RuntimeError("the subscriber is not running")
            self._commands.put(run)
        self._wake()
        done.result(SHUTDOWN_S)

    def _wake(self) -> None:
        with self._wake_lock, suppress(zmq.Again):  # a full pair wakes as well
            if not self._wake_sender.closed:
                self._wake_sender.send(b"", zmq.NOBLOCK)

    # Called by the thread

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except BaseException:  # noqa: BLE001 -- nobody would notice that the thread has ended
                self.unexpected_errors += 1
                # What a descriptor has told of them is not told again.
                self._pending |= dict.fromkeys(self._connections.values())
                with suppress(BaseException):
                    self._pause()
        self._close()

    def _pause(self) -> None:
        _logger.exception(
            "Unexpected error while receiving; continuing in %g s", SUBSCRIBER_ERROR_PAUSE_S
        )
        self._clock.sleep(SUBSCRIBER_ERROR_PAUSE_S)

    def _turn(self) -> None:
        wait_s = LINK_GROWTH_LOOK_S if self._connections else LINK_WATCH_S
        told = self._selector.select(0 if self._pending else wait_s)
        started = self._clock.monotonic()
        ready, self._pending = self._pending, {}
        commanded = False
        for key, _ in told:
            if connection := self._by_socket.get(key.fd):
                ready[connection] = None
            elif connection := self._by_monitor.get(key.fd):
                self._watch(connection)
            else:
                commanded = True
        longest = 0
        for connection in ready:
            longest = max(longest, self._receive(connection))
        if commanded:
            self._run_commands()
        if started >= self._watch_at:
            self._watch_at = started + LINK_WATCH_S
            self._look_at_due(started)
        if self._growth.take() > LINK_GROWTH_BYTES:
            self._look_at_what_brings_much()
        self._turned_at = started
        if longest < RECEIVE_BURST_MAX and (longest or self._pending):
            self._clock.sleep(max(0.0, started + SUBSCRIBER_TURN_S - self._clock.monotonic()))

    def _receive(self, connection: PublisherConnection) -> int:
        """How many messages the connection had."""
        if connection.closed:
            return 0  # renewed, or gone
        received = connection.receive()
        self._inbox.put(received)
        if received or connection.behind_since is not None:
            self._mark(connection)
        self._note(connection)
        return count_of(received)

    def _mark(self, connection: PublisherConnection) -> None:
        with self._changed_lock:
            self._changed[connection] = None

    def _watch(self, connection: PublisherConnection) -> None:
        if not connection.closed:
            self._look(connection, connection.watch)

    def _look(self, connection: PublisherConnection, look: Callable[[], None]) -> None:
        before = (connection.connected, connection.links, connection.life.is_silent)
        look()
        if (connection.connected, connection.links, connection.life.is_silent) != before:
            self._mark(connection)
            self._look_later(connection)
        self._note(connection)

    def _look_at_due(self, now: float) -> None:
        """LINKS_WATCHED_MAX of those that are due, whoever has waited longest first."""
        for connection, answers in self._probing.ended():
            connection.note_answer(answers=answers)
            self._note(connection)
            self._look_later(connection)
        for _ in range(LINKS_WATCHED_MAX):
            if not self._due or self._due[0][0] > now:
                break
            _, number, connection = heapq.heappop(self._due)
            if connection.closed or connection.look_number != number:
                continue
            try:
                self._look(connection, connection.look)
            finally:
                self._look_later(connection)

        if not self._to_check and now >= self._round_at:
            at_once = LINKS_LOOK_MIN / LINK_WATCH_S
            self._round_at = now + min(len(self._connections) / at_once, LINKS_LOOK_S)
            self._to_check = [one for one in self._connections.values() if one.connected]
            in_time = math.ceil(len(self._to_check) * LINK_WATCH_S / LINKS_LOOK_S)
            self._checked_at_once = max(LINKS_LOOK_MIN, in_time)
        checked = self._to_check[-self._checked_at_once :]
        del self._to_check[-self._checked_at_once :]
        for connection in checked:
            self._check(connection)

    def _check(self, connection: PublisherConnection) -> None:
        was_silent, was_open = connection.life.is_silent, connection.life.is_open
        if connection.closed:
            return
        is_to_be_watched = connection.is_to_be_watched(self._growth.latest_bytes)
        if connection.life.is_silent != was_silent or connection.life.known_until < self._turned_at:
            self._mark(connection)
        if connection.life.is_open and not was_open:
            self._look_later(connection)
        if is_to_be_watched:
            self._watch(connection)

    def _look_at_what_brings_much(self) -> None:
        """Something has grown by much: it may be a message that has no end. Cost O(links), 6 us."""
        for connection in list(self._connections.values()):
            if connection.connected:
                self._check(connection)

    def _look_later(self, connection: PublisherConnection) -> None:
        connection.look_number = next(self._looks)  # the only one that counts
        at = None if connection.is_at_rest else connection.look_at
        if at is not None and not connection.closed:
            heapq.heappush(self._due, (at, connection.look_number, connection))

    def _note(self, connection: PublisherConnection) -> None:
        if connection.broken:
            self._renew(connection)
        elif connection.pending:
            self._pending[connection] = None

    def _run_commands(self) -> None:
        with suppress(zmq.Again):
            while True:
                self._wake_receiver.recv(zmq.NOBLOCK)
        with suppress(queue.Empty):
            while True:
                self._commands.get_nowait()()

    def _follow(self, registration: Registration, *, once: bool = False) -> None:
        publisher = registration.publisher
        if publisher in self._connections:
            raise RegistrationConflictError(f"Expected a new publisher, got: {publisher}")
        try:
            connection = PublisherConnection(
                self._context, registration, reader=self._reader, probing=self._probing, once=once
            )
        except zmq.ZMQError as error:
            raise OpenFilesError(str(error.strerror)) from error
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        left = min(limit // PUBLISHER_FILES_SHARE, PUBLISHER_FILES_LEFT_MAX)
        if limit != resource.RLIM_INFINITY and max(connection.descriptors()) >= limit - left:
            connection.close()
            raise OpenFilesError(f"all but {left} of {limit} are open, and others need those")
        self._add(connection)

    def _follow_once(self, registration: Registration, *, leaves: bool) -> None:
        connection = self._connections.get(registration.publisher)
        if connection is None:
            self._follow(registration, once=True)
            return
        try:
            replaced = connection.replaced(registration, leaves=leaves)
        except zmq.ZMQError as error:
            raise OpenFilesError(str(error.strerror)) from error
        self._note(connection)
        if replaced is not None:
            self._remove(connection)
            if leaves:
                self._inbox.discard(connection.publisher)
            self._add(replaced)
            self._mark(connection)

    def _unfollow(self, publisher: PublisherKey) -> None:
        connection = self._connections.get(publisher)
        if connection is None:
            return
        self._remove(connection)
        self._inbox.discard(publisher)

    def _renew(self, connection: PublisherConnection) -> None:
        renewed = connection.renewed()
        self._remove(connection)
        self._add(renewed)
        self._mark(connection)

    def _add(self, connection: PublisherConnection) -> None:
        self._connections[connection.publisher] = connection
        self._pending[connection] = None
        self._look_later(connection)
        of_socket, of_monitor = connection.descriptors()
        self._by_socket[of_socket] = self._by_monitor[of_monitor] = connection
        for descriptor in (of_socket, of_monitor):
            self._selector.register(descriptor, selectors.EVENT_READ)

    def _remove(self, connection: PublisherConnection) -> None:
        del self._connections[connection.publisher]
        self._pending.pop(connection, None)
        of_socket, of_monitor = connection.descriptors()
        del self._by_socket[of_socket], self._by_monitor[of_monitor]
        for descriptor in (of_socket, of_monitor):
            self._selector.unregister(descriptor)
        connection.close()

    def _close(self) -> None:
        with self._wake_lock:  # from here on no command comes in
            if self._wake_sender.closed:
                return
            self._wake_sender.close(linger=0)
        self._run_commands()  # so that no caller is left waiting
        while self._connections:
            self._connections.popitem()[1].close()
        self._probing.close()
        self._selector.close()
        self._growth.close()
        self._wake_receiver.close(linger=0)
        self._context.term()
