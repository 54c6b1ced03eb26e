"""Hostile publishers against `reprise up` as a process, beside a neighbour."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from bridge.publisher.held_batches import HELD_BATCHES_MAX
from schemas.limits import KIB, MIB
from storage.rocksdb import DATABASE_WRITE_BUFFER_BYTES
from tests.fuzz.neighbour import Neighbour
from tests.fuzz.zmq_attacker import PUBLISHERS
from tests.processes import Service, until

pytestmark = pytest.mark.timeout(1800)

MESSAGES = 1_000_000
HONEST = 40_000
CHUNK = 10_000  # two of them at once are sent and not taken: the service is never idle
# What may come on top: two write buffers of the log and of the table each, all that may be held of
# the publisher whose replay socket lies, what is under way (some of it twice), and slack.
GROWTH_BYTES_MAX = (
    4 * DATABASE_WRITE_BUFFER_BYTES + (HELD_BATCHES_MAX + 4 * CHUNK) * 2 * KIB + 64 * MIB
)


class Attackers:
    """`tests.fuzz.zmq_attacker` as a process."""

    def __init__(self, seed: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.zmq_attacker", str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the attacker has ended"
        return json.loads(line)

    def send(self, kind: str, count: int) -> None:
        """Has it send so many more; returns once ZeroMQ has them."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind} {count}\n")
        self._process.stdin.flush()
        assert self.read() == count

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def received(service: Service) -> float:
    return sum(
        service.metric("reprise_bridge_messages_total", instance=f"attacker-{number}")
        for number in range(len(PUBLISHERS))
    )


def test_messages_that_nobody_expects(
    service: Service, seed: int, scaled: Callable[[int], int]
) -> None:
    count = scaled(MESSAGES)
    attackers = Attackers(seed)
    try:
        with Neighbour(service, seed).beside() as neighbour:
            attack(service, neighbour, attackers, count)
            # What one of them has said of a shared pool counts for the neighbour, until it goes.
            for number in range(len(PUBLISHERS)):
                target = {"instance_id": f"attacker-{number}", "dp_rank": 0}
                assert service.post("/unregister", target)[0] == 200
            neighbour.check_once_quiet()
    except BaseException as error:
        error.add_note(f"--seed {seed}")
        raise
    finally:
        attackers.end()
    assert service.metric("reprise_internal_errors_total") == 0, service.log()
    assert service.first_traceback() == ""


def attack(service: Service, neighbour: Neighbour, attackers: Attackers, count: int) -> None:
    endpoints: list[dict[str, str]] = attackers.read()
    for number, endpoint in enumerate(endpoints):
        service.register(**endpoint, instance_id=f"attacker-{number}")
    neighbour.measure(500)
    before = service.peak_bytes()
    # What the same load costs the neighbour where nothing is wrong with it.
    neighbour.begin()
    sent = flood(service, neighbour, attackers, "honest", HONEST, sent=0)
    busy_ms = neighbour.p99_ms()
    neighbour.begin()
    flood(service, neighbour, attackers, "hostile", count, sent=sent)
    neighbour.check_p99(busy_ms)
    assert service.peak_bytes() - before < GROWTH_BYTES_MAX


def flood(
    service: Service,
    neighbour: Neighbour,
    attackers: Attackers,
    kind: str,
    count: int,
    *,
    sent: int,
) -> int:
    """So many more messages, up to two chunks of them at once; how many were sent in all then."""
    until_sent = sent + count
    while sent < until_sent:
        await_received(service, sent - CHUNK)
        chunk = min(CHUNK, until_sent - sent)
        attackers.send(kind, chunk)
        sent += chunk
        neighbour.check()
    await_received(service, sent)
    return sent


def await_received(service: Service, count: int) -> None:
    until(lambda: received(service) >= count, what=f"{count} messages", timeout_s=60)
