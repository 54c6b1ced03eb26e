"""A proxy of messages between an engine's PUB sockets and who subscribes: it loses, delays,
reorders and repeats those of chosen numbers. What TCP itself may do is in `tests.proxy`.
"""

import threading
from collections.abc import Collection, Mapping

import zmq


class MessageProxy:
    """Forwards all that the engine publishes, in order, but for what it is told.

    Args:
        endpoints: of the engine's PUB sockets, one for each rank.
        lost: numbers that are never forwarded.
        behind: by number, how many further ones are forwarded before it.
        twice: numbers that are forwarded two times.

    Attributes:
        endpoint: of its own PUB socket.
        subscribers: who is subscribed to it now; who has connected gets nothing before.
    """

    def __init__(
        self,
        *endpoints: str,
        lost: Collection[int] = (),
        behind: Mapping[int, int] | None = None,
        twice: Collection[int] = (),
    ) -> None:
        self._lost, self._behind, self._twice = lost, dict(behind or {}), twice
        self._late: list[tuple[int, list[bytes]]] = []  # how many are to come before it
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._from = self._context.socket(zmq.SUB)
        self._to = self._context.socket(zmq.XPUB)
        for socket in (self._from, self._to):
            socket.linger = 0
            socket.set_hwm(0)
        self._to.setsockopt(zmq.XPUB_VERBOSER, 1)  # each subscription, not only the first and last
        self.subscribers = 0
        self._from.ipv6 = True
        self._from.subscribe(b"")
        for endpoint in endpoints:
            self._from.connect(endpoint)
        self.endpoint = f"tcp://127.0.0.1:{self._to.bind_to_random_port('tcp://127.0.0.1')}"
        self._stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        poller = zmq.Poller()
        for socket in (self._from, self._to):
            poller.register(socket, zmq.POLLIN)
        while not self._stopping:
            ready = dict(poller.poll(20))
            if self._to in ready:
                self.subscribers += 1 if self._to.recv()[:1] == b"\x01" else -1
            if self._from in ready:
                self._take(self._from.recv_multipart())

    def _take(self, message: list[bytes]) -> None:
        number = int.from_bytes(message[1], "big")
        if number in self._lost:
            return
        if number in self._behind:
            self._late.append((self._behind[number], message))
            return
        for _ in range(2 if number in self._twice else 1):
            self._to.send_multipart(message)
        self._late = [(count - 1, late) for count, late in self._late]
        for count, late in self._late:
            if count <= 0:
                self._to.send_multipart(late)
        self._late = [one for one in self._late if one[0] > 0]

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self._context.destroy(linger=0)
