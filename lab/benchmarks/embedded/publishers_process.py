"""The publishers' process: loads on several sockets, in phases that are sent on demand.

`python -m lab.benchmarks.embedded.publishers_process JOB` prints a JSON line with its `Addresses`,
encodes the loads, prints `ENCODED`, waits for the subscribers of each socket, and prints
`SUBSCRIBED`. Each line on its standard input then sends the next phase, a message of each publisher
in turn, and prints a `SentPhase`. It ends when standard input does.

A load of the pattern `removed` or `cleared` has two phases, all that is stored and then the rest;
any other has one.
"""

import sys
import threading
import time
from contextlib import suppress
from typing import Final

import msgspec
import zmq

from lab.engines.publisher import END_SEQUENCE, HIGH_WATER_MARK
from lab.traffic.event_load import Load, LoadPlan, encode_load

ENCODED: Final = "encoded"
SUBSCRIBED: Final = "subscribed"
SUBSCRIBE_S: Final = 600.0
PACE_S: Final = 0.002
"""A publisher that is ahead of its rate by less sends on."""


class PublishersJob(msgspec.Struct, frozen=True, kw_only=True):
    """What the publishers of a process do.

    Attributes:
        subscribers: of each.
        blocks_per_s: of all together; 0 for as fast as they can.
        own_prompts: whether each has a seed of its own; else all send the same.
        replays: whether each has a replay socket.
        address: of loopback, to which the sockets are bound.
    """

    plan: LoadPlan
    publishers: int = 1
    subscribers: int = 1
    blocks_per_s: float = 0.0
    own_prompts: bool = False
    replays: bool = False
    address: str = "127.0.0.1"


class Addresses(msgspec.Struct, frozen=True):
    """Where each publishes, and replays; "" where it does not."""

    endpoints: list[str]
    replays: list[str]


class SentPhase(msgspec.Struct, frozen=True, kw_only=True):
    """One phase.

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


def phases_of(plan: LoadPlan, load: Load) -> list[Load]:
    """The load cut where removals or clears begin."""
    if plan.pattern not in ("removed", "cleared"):
        return [load]
    stored_events = load.events // 2
    if stored_events % plan.events_per_batch:
        raise ValueError(f"Expected batches to end where storing ends, got: {plan}")
    cut = stored_events // plan.events_per_batch
    stored = msgspec.structs.replace(
        load, payloads=load.payloads[:cut], events=stored_events, removed_blocks=0
    )
    removed = msgspec.structs.replace(
        load, payloads=load.payloads[cut:], events=load.events - stored_events, stored_blocks=0
    )
    return [stored, removed]


class _Sockets:
    """The sockets of all publishers, and what each has sent."""

    def __init__(self, job: PublishersJob) -> None:
        self._job = job
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 2 * job.publishers + 16)
        self._live = [self._open(zmq.XPUB) for _ in range(job.publishers)]
        for socket in self._live:  # unlike an engine a publisher waits where a subscriber is slow
            socket.set(zmq.XPUB_NODROP, 1)
            socket.set(zmq.XPUB_VERBOSE, 1)
        self._replays = [self._open(zmq.ROUTER) for _ in self._live if job.replays]
        self._sent: list[list[bytes]] = [[] for _ in self._live]
        self._next = 0

    def _open(self, kind: int) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.set_hwm(HIGH_WATER_MARK)
        socket.bind(f"tcp://{self._job.address}:0")
        return socket

    @property
    def addresses(self) -> Addresses:
        def of(sockets: "list[zmq.Socket[bytes]]") -> list[str]:
            return [socket.get_string(zmq.LAST_ENDPOINT) for socket in sockets]

        return Addresses(of(self._live), of(self._replays) or [""] * len(self._live))

    def wait_subscribed(self) -> None:
        end = time.monotonic() + SUBSCRIBE_S
        for socket in self._live:
            for _ in range(self._job.subscribers):
                if not socket.poll(int(1000 * max(end - time.monotonic(), 0.0))):
                    raise TimeoutError(f"Expected subscribers within {SUBSCRIBE_S:.0f} s")
                socket.recv()
        threading.Thread(target=self._replay, daemon=True).start()

    def send(self, loads: list[Load]) -> SentPhase:
        """A message of each in turn."""
        blocks = sum(load.stored_blocks + load.removed_blocks for load in loads)
        messages = sum(len(load.payloads) for load in loads)
        rate, step = self._job.blocks_per_s, self._job.plan.sequence_step
        pause_s = blocks / messages / rate if rate else 0.0
        started, late_s, sent = time.monotonic(), 0.0, 0
        for turn in zip(*(load.payloads for load in loads), strict=True):
            mark = self._next.to_bytes(8, "big")
            for number, payload in enumerate(turn):
                if pause_s:
                    ahead_s = started + sent * pause_s - time.monotonic()
                    late_s = max(late_s, -ahead_s)
                    if ahead_s > PACE_S:
                        time.sleep(ahead_s)
                self._live[number].send_multipart((b"", mark, payload))
                sent += 1
                if self._replays:
                    self._sent[number].append(payload)
            self._next += step
        return SentPhase(
            blocks=blocks,
            messages=messages,
            last_sequence=self._next - step,
            started=started,
            seconds=time.monotonic() - started,
            late_s=late_s,
        )

    def _replay(self) -> None:
        """Of a thread: answers what is asked for again, as vLLM does."""
        poller = zmq.Poller()
        numbers = {socket: number for number, socket in enumerate(self._replays)}
        for socket in numbers:
            poller.register(socket, zmq.POLLIN)
        with suppress(zmq.ContextTerminated):
            while numbers:
                for socket, _ in poller.poll():
                    client, _, first = socket.recv_multipart()
                    start = int.from_bytes(first, "big")
                    again = self._sent[numbers[socket]][start:]
                    for sequence, payload in enumerate(again, start):
                        mark = sequence.to_bytes(8, "big")
                        socket.send_multipart((client, b"", b"", mark, payload))
                    socket.send_multipart((client, b"", b"", END_SEQUENCE, b""))


def run(job: PublishersJob) -> None:
    """Publishes one job; ends when standard input does."""
    sockets = _Sockets(job)
    _say(sockets.addresses)
    plan = job.plan
    seeds = [plan.seed + number for number in range(job.publishers if job.own_prompts else 1)]
    loads = [encode_load(msgspec.structs.replace(plan, seed=seed)) for seed in seeds]
    phases = list(zip(*(phases_of(plan, load) for load in loads), strict=True))
    _say(ENCODED)
    sockets.wait_subscribed()
    _say(SUBSCRIBED)
    for phase, _ in zip(phases, sys.stdin, strict=False):
        _say(sockets.send(list(phase) if job.own_prompts else [*phase] * job.publishers))
    sys.stdin.read()


def _say(value: object) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


if __name__ == "__main__":
    run(msgspec.json.decode(sys.argv[1], type=PublishersJob))
