"""Hostile publishers, as a process: what it sends follows from its seed.

Prints its endpoints as a JSON line; then takes how many messages it is to send next, a line each,
`honest 100` or `hostile 100`, and answers each line once it has handed them to ZeroMQ.
"""

import json
import os
import sys
from random import Random

import zmq

from bridge.wire import KINDS
from schemas.registration import PublisherKind, facts_of
from tests.fuzz.messages import Messages

PUBLISHERS = (
    *((kind, "other", False) for kind in KINDS if not facts_of(kind).is_self_registered),
    ("vLLM", "m", False),
    ("vLLM", "other", True),
)
"""Kind, model, and whether there is a replay socket, which lies."""
LIAR_ONE_IN = 20
HIGH_WATER_MARK = 1000
NICENESS = 10


class Attacker:
    """All publishers; what is not taken yet waits here, and nothing is dropped."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._live: list[zmq.Socket[bytes]] = []
        self._messages: list[Messages] = []
        self.endpoints = []
        for number, (kind, model, lies) in enumerate(PUBLISHERS):
            live = self._context.socket(zmq.XPUB)
            live.set_hwm(HIGH_WATER_MARK)
            live.set(zmq.XPUB_NODROP, 1)
            endpoint = {"type": kind, "modelname": model, "endpoint": _bound(live)}
            if lies:
                self._replay = self._context.socket(zmq.ROUTER)
                endpoint["replay_endpoint"] = _bound(self._replay)
            self.endpoints.append(endpoint)
            self._live.append(live)
            self._messages.append(Messages(seed + number, PublisherKind(kind)))
        self._lies = Messages(seed - 1, PublisherKind("vLLM"))

    def await_subscribers(self) -> None:
        for live in self._live:
            live.recv()

    def send(self, count: int, *, hostile: bool) -> None:
        liar = len(PUBLISHERS) - 1
        for _ in range(count):
            if not hostile:
                number = self._random.randrange(liar)
                self._live[number].send_multipart(self._messages[number].honest())
                continue
            is_liar = self._random.randrange(LIAR_ONE_IN) == 0
            number = liar if is_liar else self._random.randrange(liar)
            self._live[number].send_multipart(next(self._messages[number]))
            if is_liar:
                self.answer_replays()

    def answer_replays(self) -> None:
        """With anything at all, and seldom with the end of a replay."""
        while self._replay.poll(0):
            client = self._replay.recv_multipart()[0]
            for _ in range(self._random.randrange(20)):
                self._replay.send_multipart([client, b"", *next(self._lies)])
            if self._random.randrange(2):
                self._replay.send_multipart([client, b"", b"", b"\xff" * 8, b""])


def _bound(socket: "zmq.Socket[bytes]") -> str:
    socket.bind("tcp://127.0.0.1:0")
    return socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")


def main(seed: int) -> None:
    os.nice(NICENESS)
    attacker = Attacker(seed)
    print(json.dumps(attacker.endpoints), flush=True)
    attacker.await_subscribers()
    for line in sys.stdin:
        kind, count = line.split()
        attacker.send(int(count), hostile=kind == "hostile")
        print(count, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
