"""Asks an engine's replay socket for what it has sent, as `bridge.publisher.replay_client` does.

Blocking, for the thread that captures: what comes live meanwhile waits in the inbox.
"""

from collections.abc import Callable, Iterator

import zmq

from bridge.publisher.replay_client import END_SEQUENCE
from bridge.sockets.endpoints import check_endpoint
from replay.bounds import CAPTURE_LOOK_S
from schemas.clock import REAL_CLOCK
from schemas.errors import EndpointError
from schemas.limits import (
    MESSAGE_BYTES_MAX,
    REPLAY_BARREN_S,
    REPLAY_IDLE_S,
    REPLAY_MESSAGES_MAX,
    REPLAY_TOTAL_S,
)


class NoAnswerError(Exception):
    """The engine did not answer to its end; what came before was given."""


def ask_for(
    context: "zmq.Context[zmq.Socket[bytes]]",
    endpoint: str,
    first: int,
    stopped: Callable[[], bool],
    *,
    clock: Callable[[], float] = REAL_CLOCK.monotonic,
) -> Iterator[list[bytes]]:
    """The messages that the engine still has from this number on, as three frames each.

    Args:
        first: sequence number.
        clock: monotonic seconds.

    Raises:
        NoAnswerError: it fell silent, or did not come to an end within REPLAY_TOTAL_S.
        EndpointError: libzmq can make no connection to such an address.
    """
    check_endpoint(endpoint)
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.maxmsgsize = MESSAGE_BYTES_MAX
        socket.rcvhwm = REPLAY_MESSAGES_MAX
        socket.ipv6 = True
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            detail = f"Expected a ZMQ address, got `{endpoint[:200]}`: {error.strerror}"
            raise EndpointError(detail) from error
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        end_at = clock() + REPLAY_TOTAL_S
        silent_at = clock() + REPLAY_IDLE_S
        barren_at = clock() + REPLAY_BARREN_S
        while not stopped():
            now = clock()
            if now >= min(silent_at, end_at, barren_at):
                raise NoAnswerError
            if not socket.poll(int(1000 * CAPTURE_LOOK_S)):
                continue
            frames = socket.recv_multipart()
            silent_at = now + REPLAY_IDLE_S
            if len(frames) not in (3, 4) or frames[0] != b"":
                continue
            sequence, payload = frames[-2:]
            if sequence == END_SEQUENCE:
                return
            barren_at = now + REPLAY_BARREN_S
            yield [frames[1] if len(frames) == 4 else b"", sequence, payload]
