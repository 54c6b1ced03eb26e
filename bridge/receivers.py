"""Receives from publishers over ZeroMQ and by gRPC alike: each by what its endpoint says."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bridge.link_numbers import LinkNumber
from bridge.sockets.inbox import Inbox
from bridge.sockets.subscriber import Subscriber
from schemas.clock import Clock
from schemas.identities import PublisherKey
from schemas.registration import Registration
from schemas.routing_records import LoadSample

if TYPE_CHECKING:
    from bridge.grpc.subscriber import StreamSubscriber


class Receivers:
    """See `bridge.publisher.ports.Receiver` and `StreamSource`. gRPC is imported once somebody
    streams.
    """

    def __init__(self, sockets: Subscriber, inbox: Inbox, clock: Clock) -> None:
        self._sockets, self._inbox, self._clock = sockets, inbox, clock
        self._streams: StreamSubscriber | None = None
        self._streaming: set[PublisherKey] = set()

    @property
    def unexpected_errors(self) -> int:
        """See `Subscriber`; of both."""
        streams = 0 if self._streams is None else self._streams.unexpected_errors
        return self._sockets.unexpected_errors + streams

    def _of(self, publisher: PublisherKey) -> "Subscriber | StreamSubscriber":
        is_streaming = publisher in self._streaming and self._streams is not None
        return self._streams if is_streaming and self._streams is not None else self._sockets

    def start(self) -> None:
        """See `Receiver`."""
        self._sockets.start()

    def follow(self, registration: Registration) -> None:
        """See `Receiver`."""
        if not registration.has_stream:
            self._sockets.follow(registration)
            return
        if self._streams is None:
            from bridge.grpc.subscriber import StreamSubscriber

            self._streams = StreamSubscriber(self._inbox, self._clock)
        self._streams.follow(registration)
        self._streaming.add(registration.publisher)

    def follow_once(self, registration: Registration, *, leaves: bool = False) -> None:
        """See `Receiver`."""
        self._sockets.follow_once(registration, leaves=leaves)

    def unfollow(self, publisher: PublisherKey) -> None:
        """See `Receiver`."""
        self._of(publisher).unfollow(publisher)
        self._streaming.discard(publisher)

    def connected(self, publisher: PublisherKey) -> bool:
        """See `Receiver`."""
        return self._of(publisher).connected(publisher)

    def links(self, publisher: PublisherKey) -> LinkNumber:
        """See `Receiver`."""
        return self._of(publisher).links(publisher)

    def is_silent(self, publisher: PublisherKey) -> bool:
        """See `Receiver`."""
        return self._of(publisher).is_silent(publisher)

    def trouble(self, publisher: PublisherKey) -> str:
        """See `Receiver`."""
        return self._of(publisher).trouble(publisher)

    def received_until(self, publisher: PublisherKey) -> float:
        """See `Receiver`."""
        return self._of(publisher).received_until(publisher)

    def changed(self) -> tuple[float, Iterable[PublisherKey]]:
        """See `Receiver`."""
        as_of, changed = self._sockets.changed()
        if self._streams is None:
            return as_of, changed
        _, streamed = self._streams.changed()
        # How far a stream is known to be received is asked of it: one that has sent nothing rests
        # no longer than its server's answers are awaited.
        return as_of, [*changed, *streamed, *self._streaming]

    def place(self, publisher: PublisherKey, sequence: int) -> None:
        """See `StreamSource`."""
        if self._streams is not None:
            self._streams.place(publisher, sequence)

    def ask_whole(self, publisher: PublisherKey) -> None:
        """See `StreamSource`."""
        if self._streams is not None:
            self._streams.ask_whole(publisher)

    def take_loads(self) -> list[LoadSample]:
        """See `StreamSource`."""
        return [] if self._streams is None else self._streams.take_loads()

    def stop(self) -> None:
        """See `Receiver`."""
        if self._streams is not None:
            self._streams.stop()
        self._sockets.stop()
