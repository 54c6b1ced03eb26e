"""The publishers' process: `lab.traffic.event_load` on several sockets, in phases sent on demand.

`python -m lab.benchmarks.embedded.publisher_process JOB` prints a JSON line with its endpoints,
encodes the stream, prints `ENCODED`, waits for a subscriber on each socket, and prints
`SUBSCRIBED`. Each line on its standard input then sends the next phase from every socket, and
prints a `SentPhase`.

A stream of the pattern `removed` or `cleared` has two phases, all that is stored and then the
rest; any other has one.
"""

import sys
import time
from typing import Final

import msgspec

from lab.traffic.event_load import Load, LoadPlan, LoadPublisher, encode_load

ENCODED: Final = "encoded"
SUBSCRIBED: Final = "subscribed"
SUBSCRIBE_S: Final = 60.0


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to publish, from how many sockets, to how many subscribers of each, and how fast."""

    plan: LoadPlan
    publishers: int = 1
    subscribers: int = 1
    blocks_per_s: float = 0.0


class SentPhase(msgspec.Struct, frozen=True, kw_only=True):
    """One phase.

    Attributes:
        blocks: of all sockets.
        last_sequence: of each socket.
        started: on the system's monotonic clock.
        seconds: until the last batch was handed to ZeroMQ.
    """

    blocks: int
    last_sequence: int
    started: float
    seconds: float


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


def run(job: Job) -> None:
    """Publishes one job; ends when standard input does."""
    publishers = [LoadPublisher() for _ in range(job.publishers)]
    _say([publisher.endpoint for publisher in publishers])
    phases = phases_of(job.plan, encode_load(job.plan))
    _say(ENCODED)
    for publisher in publishers:
        for _ in range(job.subscribers):
            if not publisher.wait_for_subscriber(SUBSCRIBE_S):
                raise TimeoutError(f"Expected a subscriber within {SUBSCRIBE_S:.0f} s")
    _say(SUBSCRIBED)
    step = job.plan.sequence_step
    sent = 0
    for phase, _ in zip(phases, sys.stdin, strict=False):
        started = time.monotonic()
        for publisher in publishers:
            publisher.send(phase, rate_blocks_per_s=job.blocks_per_s, sequence_step=step)
        seconds = time.monotonic() - started
        sent += step * len(phase.payloads)
        blocks = (phase.stored_blocks + phase.removed_blocks) * len(publishers)
        _say(SentPhase(blocks=blocks, last_sequence=sent - step, started=started, seconds=seconds))
    sys.stdin.read()
    for publisher in publishers:
        publisher.close(0)


def _say(value: object) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


if __name__ == "__main__":
    run(msgspec.json.decode(sys.argv[1], type=Job))
