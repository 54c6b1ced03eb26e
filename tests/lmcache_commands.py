"""LMCache's REP socket by its script: commands as a worker takes them. Plain pyzmq and msgpack.

The messages are made and read by hand, as plain maps.
"""

import threading
from collections.abc import Callable
from typing import Any, Final, Self

import msgpack
import zmq

ANSWERS: Final = {
    "ClearWorkerMsg": "ClearWorkerRetMsg",
    "PinWorkerMsg": "PinWorkerRetMsg",
    "MoveWorkerMsg": "MoveWorkerRetMsg",
    "CompressWorkerMsg": "CompressWorkerRetMsg",
    "DecompressWorkerMsg": "DecompressWorkerRetMsg",
}
POLL_MS: Final = 20


def plain_answer(request: dict[str, Any]) -> dict[str, Any]:
    """As a worker that can do everything: as many tokens as were given, 7 where none are."""
    if request["type"] == "HealthWorkerMsg":
        return {"type": "HealthWorkerRetMsg", "error_code": 0}
    count = len(request["tokens"]) if request.get("tokens") else 7
    return {"type": ANSWERS[request["type"]], "num_tokens": count}


class CommandSocket:
    """A REP socket on a thread.

    Attributes:
        answer: what a request is answered by: a map, raw bytes, or None for nothing.
        requests: that came, in order.
        port: where.
    """

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self.answer: Callable[[dict[str, Any]], dict[str, Any] | bytes | None] = plain_answer
        self.requests: list[dict[str, Any]] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)  # as a REP, but it may be silent
        self._socket.linger = 0
        self._socket.bind(f"tcp://{host}:{port or '*'}")
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        self.port = int(endpoint.rstrip(b"\0").rpartition(b":")[2])
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_ending.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        while not self._is_ending.is_set():
            if not self._socket.poll(POLL_MS):
                continue
            *envelope, payload = self._socket.recv_multipart()
            request = msgpack.unpackb(payload)
            self.requests.append(request)
            answer = self.answer(request)
            if answer is not None:
                packed = answer if isinstance(answer, bytes) else msgpack.packb(answer)
                self._socket.send_multipart([*envelope, packed])
