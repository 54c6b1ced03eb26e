"""Anything at all at the three sockets of LMCache's controller, beside a worker that behaves."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import msgpack
import pytest
import zmq

from devtools.broker import free_ports
from lmcache_adapter.sockets.links import LMCACHE_LINK_BYTES
from lmcache_adapter.worker.keys import LMCACHE_KEYS_MAX
from schemas.limits import KIB, MIB
from tests.fuzz.mutation import Base, Mutator
from tests.lmcache import ScriptedWorker
from tests.processes import Service, until

pytestmark = pytest.mark.timeout(900)

MESSAGES = 300_000
CHUNK = 1_000
HELD = 200
VECTORS = Path(__file__).parents[1] / "vectors" / "lmcache" / "messages-0.5.6.jsonl"
# The keys that it may have, what waits in three sockets, and slack.
GROWTH_BYTES_MAX = 80 * LMCACHE_KEYS_MAX + 6 * LMCACHE_LINK_BYTES + 256 * MIB


class Attacker:
    """Three links; what is sent follows from the seed: messages of a worker, each with
    something wrong, and those of workers that nobody has heard of.
    """

    def __init__(self, ports: list[int], seed: int) -> None:
        self.random = Random(seed)
        self._mutator = Mutator(self.random)
        lines = VECTORS.read_text().splitlines()
        documents = [json.loads(line)["decoded"] for line in lines]
        self._bases = [Base(one) for one in documents if isinstance(one, dict)]
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._push = self._connect(zmq.PUSH, ports[0])
        self._asking = [self._connect(zmq.DEALER, port) for port in ports[1:]]

    def _connect(self, kind: int, port: int) -> "zmq.Socket[bytes]":
        connected = self._context.socket(kind)
        connected.linger = 0
        connected.sndtimeo = 60_000
        connected.connect(f"tcp://127.0.0.1:{port}")
        return connected

    def payload(self) -> bytes:
        base = self.random.choice(self._bases)
        match self.random.randrange(6):
            case 0:
                return self.random.randbytes(self.random.randrange(60))
            case 1:
                return b"{" + self.random.randbytes(self.random.randrange(40))
            case 2:
                encoded = bytearray(base.encoded)
                encoded[self.random.randrange(len(encoded))] = self.random.randrange(256)
                return bytes(encoded)
            case 3:
                named = base.value | {"instance_id": f"stranger-{self.random.randrange(3000)}"}
                return bytes(msgpack.packb(named))
            case 4:
                return base.encoded
        return self._encoded(self._mutator.changed(base))

    def _encoded(self, value: object) -> bytes:
        return Base(value).encoded

    def send(self, count: int) -> None:
        for _ in range(count):
            parts = [self.payload() for _ in range(self.random.choice((1, 1, 1, 2, 3, 60)))]
            if self.random.randrange(2):
                self._push.send_multipart(parts)
                continue
            asking = self.random.choice(self._asking)
            asking.send_multipart([b"", parts[0]] if self.random.randrange(8) else parts)
            while asking.poll(0):
                asking.recv_multipart()

    def close(self) -> None:
        self._context.destroy(linger=0)


@contextmanager
def attacked(ports: list[int], seed: int) -> Iterator[Attacker]:
    attacker = Attacker(ports, seed)
    try:
        yield attacker
    except BaseException as error:
        error.add_note(f"--seed {seed}")
        raise
    finally:
        attacker.close()


def test_messages_that_nobody_expects(
    tmp_path: Path, seed: int, scaled: Callable[[int], int]
) -> None:
    ports = free_ports(3)
    listed = ",".join(map(str, ports))
    options = ("--lmcache", f"127.0.0.1:{listed}", "--set", "lmcache.model=m")
    with (
        Service(tmp_path / "data", *options) as service,
        ScriptedWorker(ports, "neighbour", peer="127.0.0.1:8200") as worker,
        attacked(ports, seed) as attacker,
    ):
        worker.register()
        before = service.peak_bytes()
        held: list[int] = []
        for number in range(max(scaled(MESSAGES) // CHUNK, 1)):
            attacker.send(CHUNK)
            worker.admit([number])
            held.append(number)
            if len(held) > HELD:
                worker.evict([held.pop(0)])
            assert not worker.heartbeat(), "nothing of it was lost"

        def is_right() -> bool:
            fields = {"model": "m", "block_size": 256, "seq_hashes": held}
            status, answer, _ = service.exchange("/query_by_hash?detail=1", fields)
            assert status == 200
            found = answer["default"].get("neighbour", {})
            return (found.get("CPU"), found.get("state")) == (256 * len(held), "exact")

        until(is_right, what="the neighbour's chunks, exact", timeout_s=60)
        assert service.metric("reprise_lmcache_dropped_total", reason="malformed") > 0
        assert service.metric("reprise_internal_errors_total") == 0, service.log()
        assert service.first_traceback() == ""
        grown = service.peak_bytes() - before
        print(f"{grown // KIB} KiB more")
        assert grown < GROWTH_BYTES_MAX
