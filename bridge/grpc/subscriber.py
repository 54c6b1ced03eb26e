"""All publishers that stream: a thread for each stream, and one that asks their servers whether
they are there. Any thread may call it, as `bridge.sockets.subscriber`.
"""

import logging
import threading
from collections.abc import Iterable
from typing import Final

from bridge.grpc.bounds import STREAM_LOOK_S, STREAMS_MAX
from bridge.grpc.connection import StreamConnection
from bridge.link_numbers import NO_LINK, LinkNumber
from bridge.sockets.inbox import Inbox
from bridge.sockets.raw_message import RawMessage
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import OpenFilesError, RegistrationConflictError
from schemas.identities import PublisherKey
from schemas.limits import SHUTDOWN_S
from schemas.registration import Registration
from schemas.routing_records import LoadSample, Target

_END_S: Final = 2.0  # for a stream to end that is followed no more

_logger = logging.getLogger(__name__)


class StreamSubscriber:
    """See the module, and `bridge.publisher.ports.Receiver`.

    Attributes:
        unexpected_errors: of ours, in streams.
    """

    def __init__(self, inbox: Inbox, clock: Clock = REAL_CLOCK) -> None:
        self.unexpected_errors = 0
        self._inbox, self._clock = inbox, clock
        self._connections: dict[PublisherKey, StreamConnection] = {}  # the one look-up
        self._changed: dict[PublisherKey, None] = {}  # a set, in order
        self._loads: dict[Target, LoadSample] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reprise-streams", daemon=True)

    # What streams hand on: see `StreamOwner`

    def take(self, message: RawMessage) -> None:
        """See there."""
        with self._lock:
            if self._connections.get(message.publisher) is not None:
                self._inbox.put((message,))
                self._changed[message.publisher] = None

    def take_load(self, sample: LoadSample) -> None:
        """See there: the latest counts."""
        with self._lock:
            self._loads[sample.target] = sample

    def note_changed(self, connection: StreamConnection) -> None:
        """See there."""
        with self._lock:
            self._changed[connection.publisher] = None

    def count_fault(self) -> None:
        """See there."""
        self.unexpected_errors += 1

    def take_loads(self) -> list[LoadSample]:
        """What engines have said since the last call, the latest of each."""
        if not self._loads:
            return []
        with self._lock:
            loads, self._loads = self._loads, {}
        return list(loads.values())

    # Publishers

    def follow(self, registration: Registration) -> None:
        """Asks for the publisher's stream once `place` has said where the log ends, or a while
        later; and again whenever it ends.

        Raises:
            EndpointError: nothing can ever come of it.
            RegistrationConflictError: it is followed already.
            OpenFilesError: there are STREAMS_MAX.
        """
        connection = StreamConnection(registration, self, self._clock)
        with self._lock:
            if registration.publisher in self._connections:
                detail = f"Expected a new publisher, got: {registration.publisher}"
                raise RegistrationConflictError(detail)
            if len(self._connections) >= STREAMS_MAX:
                raise OpenFilesError(f"{STREAMS_MAX} streams are followed, and no more may be")
            self._connections[registration.publisher] = connection
            if self._thread.ident is None:
                self._thread.start()
        connection.start()

    def unfollow(self, publisher: PublisherKey) -> None:
        """Ends the publisher's stream, and drops its waiting messages, if it is followed."""
        with self._lock:
            connection = self._connections.pop(publisher, None)
        if connection is not None:
            connection.stop()
            connection.join(_END_S)
            self._inbox.discard(publisher)

    def place(self, publisher: PublisherKey, sequence: int) -> None:
        """The log has all of the publisher up to this batch; -1 for nothing."""
        connection = self._connections.get(publisher)
        if connection is not None:
            connection.place(sequence)

    def ask_whole(self, publisher: PublisherKey) -> None:
        """Something of the publisher is missing; see `StreamConnection.ask_whole`."""
        connection = self._connections.get(publisher)
        if connection is not None:
            connection.ask_whole(self._clock.monotonic())

    def connected(self, publisher: PublisherKey) -> bool:
        """Whether its stream is up."""
        connection = self._connections.get(publisher)
        return connection is not None and connection.connected

    def links(self, publisher: PublisherKey) -> LinkNumber:
        """The last stream that has come up: how often one has."""
        connection = self._connections.get(publisher)
        return NO_LINK if connection is None else connection.links

    def is_silent(self, publisher: PublisherKey) -> bool:
        """Whether its stream is up, and its server does not answer."""
        connection = self._connections.get(publisher)
        return connection is not None and connection.is_silent

    def trouble(self, publisher: PublisherKey) -> str:
        """Why no stream comes up; "" where nothing tells."""
        connection = self._connections.get(publisher)
        return "" if connection is None else connection.trouble

    def received_until(self, publisher: PublisherKey) -> float:
        """See `Receiver`."""
        now = self._clock.monotonic()
        connection = self._connections.get(publisher)
        return now if connection is None else min(now, connection.known_until)

    def changed(self) -> tuple[float, Iterable[PublisherKey]]:
        """See `Receiver`."""
        with self._lock:
            changed, self._changed = self._changed, {}
        return self._clock.monotonic(), changed

    def stop(self) -> None:
        """Ends all streams, within SHUTDOWN_S; may be called again."""
        self._stopping.set()
        with self._lock:
            connections = list(self._connections.values())
        for connection in connections:
            connection.stop()
        end_at = self._clock.monotonic() + SHUTDOWN_S
        if not all(one.join(max(0.0, end_at - self._clock.monotonic())) for one in connections):
            _logger.error("Some streams did not end within %g s; leaving them", SHUTDOWN_S)
        if self._thread.ident is not None:
            self._thread.join(_END_S)

    # The thread

    def _run(self) -> None:
        while not self._stopping.wait(STREAM_LOOK_S):
            with self._lock:
                connections = list(self._connections.values())
            for connection in connections:
                try:
                    connection.look(self._clock.monotonic())
                except Exception:
                    self.count_fault()
                    _logger.exception("Unexpected error while a server was asked; going on")
