"""Many publishers that seldom send, in one process: each has a socket of its own on loopback.

`python -m lab.benchmarks.scaling.fleet_process JOB` prints a JSON line with its endpoints, waits
for a subscriber on each socket, and prints `SUBSCRIBED`. A line on its standard input, a
`ScheduleStart`, starts the schedule: publisher `p` of `n` sends its batch `s` at `start + (s + p /
n) * period`. Each `told_every`th message is told as a `SentMessage`, after it was sent. At the end
it prints a `FleetSent`, and stays until standard input ends.

A batch removes the oldest one that is held, from the `held + 1`th batch on, and then stores blocks
of a new prompt, whose tokens anyone can compute (`batch_of`).
"""

import os
import sys
import time
from array import array
from random import Random
from typing import Final, NamedTuple

import msgspec
import zmq

from lab.benchmarks.sizes import BLOCK_SIZE
from lab.engines.publisher import HIGH_WATER_MARK
from lab.engines.wire import GPU, BlockRemoved, BlockStored, EngineEvent, EventEncoder

SUBSCRIBED: Final = "subscribed"
SUBSCRIBE_S: Final = 600.0
SLEEP_MAX_S: Final = 1.0
_TOKENS: Final = 131_072  # the size of today's vocabularies


class PublishersJob(msgspec.Struct, frozen=True, kw_only=True):
    """What the publishers of a process do.

    Attributes:
        address: of loopback, on which their sockets are bound to ports of the system's choice.
        first: number of the first publisher; the others follow.
        period_s: between two batches of one publisher.
        blocks: stored by a batch.
        held: batches whose blocks a publisher holds at the most.
        told_every: see above.
        seed: of all tokens and hashes.
    """

    address: str
    first: int
    publishers: int
    period_s: float
    blocks: int
    held: int
    told_every: int
    seed: int


class ScheduleStart(msgspec.Struct, frozen=True, kw_only=True):
    """When the schedule starts, on the system's monotonic clock, and how long it is, in seconds."""

    start: float
    seconds: float


class SentMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One message: whose, which, and when it had been handed to ZeroMQ, monotonic."""

    publisher: int
    sequence: int
    at: float


class FleetSent(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All that was sent.

    Attributes:
        last_sequences: of each publisher.
        late_s: how late the latest message was.
        cpu_s: of the process, from the start of the schedule to its end.
    """

    messages: int
    stored_blocks: int
    removed_blocks: int
    last_sequences: list[int]
    late_s: float
    cpu_s: float


class Batch(NamedTuple):
    """The blocks of one batch: all tokens of their prompt, and the engine's hashes."""

    tokens: list[int]
    hashes: list[int]


def batch_of(seed: int, publisher: int, sequence: int, blocks: int) -> Batch:
    """What a publisher stores by a batch. Cost O(blocks)."""
    random = Random(f"{seed}/{publisher}/{sequence}")
    hashes = array("Q", random.randbytes(8 * blocks)).tolist()
    words = array("I", random.randbytes(4 * blocks * BLOCK_SIZE))
    return Batch([word % _TOKENS for word in words], hashes)


def events_of(job: PublishersJob, publisher: int, sequence: int) -> list[EngineEvent]:
    """The events of a batch, in order."""
    events: list[EngineEvent] = []
    if sequence >= job.held:
        old = batch_of(job.seed, publisher, sequence - job.held, job.blocks)
        events.append(BlockRemoved(block_hashes=old.hashes[::-1], medium=GPU, group_idx=0))
    new = batch_of(job.seed, publisher, sequence, job.blocks)
    events.append(
        BlockStored(
            block_hashes=new.hashes,
            token_ids=new.tokens,
            block_size=BLOCK_SIZE,
            medium=GPU,
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )
    )
    return events


def run(job: PublishersJob) -> None:
    """Publishes one job; ends when standard input does, or its parent."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, job.publishers + 16)
    sockets = [_open(context, job.address) for _ in range(job.publishers)]
    _say([socket.get_string(zmq.LAST_ENDPOINT) for socket in sockets])
    end = time.monotonic() + SUBSCRIBE_S
    for socket in sockets:
        if not socket.poll(int(1000 * max(end - time.monotonic(), 0.0))):
            raise TimeoutError(f"Expected subscribers within {SUBSCRIBE_S:.0f} s")
        socket.recv()
    _say(SUBSCRIBED)
    line = sys.stdin.readline()
    if line:
        _say(_send(job, sockets, msgspec.json.decode(line, type=ScheduleStart)))
        sys.stdin.read()
    context.destroy(linger=0)


def _open(context: "zmq.Context[zmq.Socket[bytes]]", address: str) -> "zmq.Socket[bytes]":
    socket = context.socket(zmq.XPUB)  # as PUB, but it tells of subscribers
    socket.set_hwm(HIGH_WATER_MARK)
    socket.bind(f"tcp://{address}:0")
    return socket


def _send(
    job: PublishersJob, sockets: "list[zmq.Socket[bytes]]", begin: ScheduleStart
) -> FleetSent:
    parent = os.getppid()
    encoder = EventEncoder()
    last_sequences = [-1] * len(sockets)
    messages = removed = 0
    late_s = 0.0
    cpu_s = time.process_time()
    while True:
        sequence, place = divmod(messages, len(sockets))
        due = begin.start + (sequence + place / len(sockets)) * job.period_s
        if due >= begin.start + begin.seconds:
            break
        while (ahead_s := due - time.monotonic()) > 0:
            time.sleep(min(ahead_s, SLEEP_MAX_S))
        if os.getppid() != parent:
            raise SystemExit("its parent has ended")
        late_s = max(late_s, -ahead_s)
        publisher = job.first + place
        events = events_of(job, publisher, sequence)
        payload = encoder.encode(events, timestamp_s=time.time(), dp_rank=0)
        sockets[place].send_multipart((b"", sequence.to_bytes(8, "big"), payload))
        last_sequences[place] = sequence
        removed += job.blocks * (len(events) - 1)
        if messages % job.told_every == 0:
            _say(SentMessage(publisher=publisher, sequence=sequence, at=time.monotonic()))
        messages += 1
    return FleetSent(
        messages=messages,
        stored_blocks=messages * job.blocks,
        removed_blocks=removed,
        last_sequences=last_sequences,
        late_s=late_s,
        cpu_s=time.process_time() - cpu_s,
    )


def _say(value: object) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


if __name__ == "__main__":
    run(msgspec.json.decode(sys.argv[1], type=PublishersJob))
