"""Many publishers in one process, sent round robin.

Run it as `python -m lab.benchmarks.distributed.fleet_process JOB`.

Prints a JSON line with its endpoints, encodes a stream of its own for each, waits for a subscriber
on each socket, and prints `SUBSCRIBED`. A line on its standard input sends everything; then it
prints a `FleetSent` and stays until standard input ends.
"""

import sys
import time
from typing import Final

import msgspec
import zmq

from lab.engines.publisher import HIGH_WATER_MARK
from lab.traffic.event_load import LoadPlan, encode_load

SUBSCRIBED: Final = "subscribed"
SUBSCRIBE_S: Final = 120.0
_SOCKETS_MAX: Final = 8192
LATE_S: Final = 0.1
"""A rate counts as kept where no message left later than this after its time."""


class FleetJob(msgspec.Struct, frozen=True, kw_only=True):
    """What each publisher sends, with a seed of its own, and how fast all of them are; 0: any."""

    plan: LoadPlan
    publishers: int
    rate_blocks_per_s: float = 0.0


class FleetSent(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent.

    Attributes:
        blocks, messages: of all publishers.
        last_sequence: of each.
        started: on the system's monotonic clock.
        seconds: until the last message was handed to ZeroMQ.
        late_s: how late the latest message was; 0.0 without a rate.
    """

    blocks: int
    messages: int
    last_sequence: int
    started: float
    seconds: float
    late_s: float


def run(job: FleetJob) -> None:
    """Publishes one job; ends when standard input does."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, _SOCKETS_MAX)
    sockets = [_open(context) for _ in range(job.publishers)]
    _say([socket.get_string(zmq.LAST_ENDPOINT) for socket in sockets])
    loads = [
        encode_load(msgspec.structs.replace(job.plan, seed=job.plan.seed + number))
        for number in range(job.publishers)
    ]
    for socket in sockets:
        if not socket.poll(int(SUBSCRIBE_S * 1000)):
            raise TimeoutError(f"Expected a subscriber within {SUBSCRIBE_S:.0f} s")
        socket.recv()
    _say(SUBSCRIBED)
    if sys.stdin.readline():
        blocks = sum(load.stored_blocks + load.removed_blocks for load in loads)
        payloads = [load.payloads for load in loads]
        _say(_send(sockets, payloads, blocks=blocks, rate=job.rate_blocks_per_s))
        sys.stdin.read()
    context.destroy(linger=0)


def _open(context: "zmq.Context[zmq.Socket[bytes]]") -> "zmq.Socket[bytes]":
    # As `lab.traffic.event_load`: it waits where the subscriber is slow, it does not drop.
    socket = context.socket(zmq.XPUB)
    socket.set_hwm(HIGH_WATER_MARK)
    socket.set(zmq.XPUB_NODROP, 1)
    socket.bind("tcp://127.0.0.1:0")
    return socket


def _send(
    sockets: "list[zmq.Socket[bytes]]", payloads: list[list[bytes]], *, blocks: int, rate: float
) -> FleetSent:
    messages = sum(map(len, payloads))
    pause_s = blocks / messages / rate if rate else 0.0
    started = time.monotonic()
    late_s = 0.0
    sent = 0
    for sequence, turn in enumerate(zip(*payloads, strict=True)):
        mark = sequence.to_bytes(8, "big")
        for socket, payload in zip(sockets, turn, strict=True):
            if pause_s:
                ahead_s = started + sent * pause_s - time.monotonic()
                late_s = max(late_s, -ahead_s)
                if ahead_s > 0:
                    time.sleep(ahead_s)
            socket.send_multipart((b"", mark, payload))
            sent += 1
    return FleetSent(
        blocks=blocks,
        messages=messages,
        last_sequence=len(payloads[0]) - 1,
        started=started,
        seconds=time.monotonic() - started,
        late_s=late_s,
    )


def _say(value: object) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


if __name__ == "__main__":
    run(msgspec.json.decode(sys.argv[1], type=FleetJob))
