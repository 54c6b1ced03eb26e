"""A hostile client, as a process: `http_attacker HOST PORT SEED COUNT`; it reports as JSON.

What it sends follows from its seed. Requests that are whole are pipelined on connections that stay
open, and each must be answered; the others get a connection each, and only its end is waited for.
"""

import json
import os
import socket
import sys
from collections import Counter
from contextlib import suppress
from random import Random

from tests.fuzz.requests import Requests

WAIT_S = 60.0  # for an answer, or for the end of a connection: a bound, not a measurement
KEPT = 8
NICENESS = 10
NAMED_MAX = 5
ENDPOINT_REFUSED = b"Failed to subscribe"  # with status 500, as Conductor has it


class UnansweredError(Exception):
    """A connection ended before the answer."""


class Answers:
    """Reads the answers of one connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self.is_open = True

    def status(self, method: str) -> tuple[int, bytes]:
        """Of the next answer, with its body.

        Raises:
            UnansweredError: there is none.
        """
        while b"\r\n\r\n" not in self._received:
            self._receive()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        status = int(head[9:12])
        if status == 100:
            return self.status(method)
        lines = head.lower().split(b"\r\n")
        self.is_open = self.is_open and b"connection: close" not in lines
        sizes = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
        if method == "HEAD" or status == 204:
            return status, b""
        if not sizes:
            raise UnansweredError(f"an answer without a length: {head!r}")
        while len(self._received) < sizes[0]:
            self._receive()
        body, self._received = self._received[: sizes[0]], self._received[sizes[0] :]
        return status, body

    def rest(self) -> bytes:
        """What comes until the end, once no more is sent."""
        received = []
        with suppress(ConnectionError):
            self.socket.shutdown(socket.SHUT_WR)
            while part := self.socket.recv(65_536):
                received.append(part)
        self.socket.close()
        return b"".join(received)

    def _receive(self) -> None:
        part = self.socket.recv(65_536)
        if not part:
            raise UnansweredError(f"ended after: {self._received[:200]!r}")
        self._received += part


class Attacker:
    """Attributes:
    statuses: how many answers had which.
    faults: what should not have been, the first of it.
    """

    def __init__(self, address: tuple[str, int], seed: int) -> None:
        self._address = address
        self._random = Random(seed)
        self._requests = Requests(seed)
        self._kept: list[Answers | None] = [None] * KEPT
        self.statuses: Counter[str] = Counter()
        self.faults: list[str] = []

    def send(self, count: int) -> None:
        while count > 0:
            content, methods = self._requests.next(count)
            place = self._random.randrange(KEPT)
            count -= 1 if methods is None else len(methods)
            try:
                if methods is None:
                    self._send_broken(content)
                else:
                    self._send_whole(place, content, methods)
            except (OSError, UnansweredError) as error:
                self._kept[place] = None
                self._fault(content, repr(error))

    def _send_broken(self, content: bytes) -> None:
        connection = Answers(self._address)
        with suppress(ConnectionError):  # refused before all of it was sent
            connection.socket.sendall(content)
        found = connection.rest()
        status = found[9:12].decode("latin-1") if found.startswith(b"HTTP/1.1 ") else "none"
        self.statuses[status] += 1
        if status == "500" and ENDPOINT_REFUSED not in found:
            self._fault(content, found[:300].decode("latin-1"))

    def _send_whole(self, place: int, content: bytes, methods: list[str]) -> None:
        connection = self._kept[place] or Answers(self._address)
        self._kept[place] = connection
        connection.socket.sendall(content)
        for number, method in enumerate(methods):
            if not connection.is_open:
                raise UnansweredError(f"closed before number {number}")
            status, body = connection.status(method)
            self.statuses[str(status)] += 1
            if status == 500 and ENDPOINT_REFUSED not in body:
                self._fault(content, f"{body!r} of number {number}")
        if not connection.is_open:
            connection.socket.close()
            self._kept[place] = None

    def _fault(self, content: bytes, what: str) -> None:
        self.statuses["fault"] += 1
        if len(self.faults) < NAMED_MAX:
            self.faults.append(f"{what} after {len(content)} bytes: {content[:3000]!r}")


def main(host: str, port: str, seed: str, count: str) -> None:
    os.nice(NICENESS)
    attacker = Attacker((host, int(port)), int(seed))
    attacker.send(int(count))
    print(json.dumps({"statuses": attacker.statuses, "faults": attacker.faults}))


if __name__ == "__main__":
    main(*sys.argv[1:])
