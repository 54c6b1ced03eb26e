"""Who is subscribed to a socket that publishes."""

import zmq


class CountedPublisher:
    """A socket of libzmq that is PUB on the wire, and that counts its subscribers.

    A link is up before the subscription has reached the publisher; a subscriber that is counted
    gets all that is published from then on. For one thread.

    Attributes:
        socket: publishes.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self.socket = context.socket(zmq.XPUB)
        self.socket.set(zmq.XPUB_VERBOSER, 1)  # each subscription, not only the first and the last
        self._count = 0

    @property
    def subscribers(self) -> int:
        """How many there are now."""
        while self.socket.poll(0):
            self._count += 1 if self.socket.recv()[:1] == b"\1" else -1
        return self._count
