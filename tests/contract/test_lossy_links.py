"""Links and replays that lose: whatever happens on the way, each batch is seen or lost, and the
ledger says which, number for number.
"""

import threading
import time
from contextlib import closing
from typing import Any

import msgspec
import pytest
import zmq

from devtools.broker import free_ports
from lab.engines.publisher import END_SEQUENCE, Publisher
from lab.engines.wire import BlockStored
from tests.contract.deployments import Subscribed, Tenant
from tests.message_proxy import MessageProxy
from tests.proxy import Proxy
from tests.subscriptions import CountedPublisher

pytestmark = pytest.mark.timeout(240)

LONG = 9_000


def lost(incarnation: dict[str, Any]) -> list[tuple[int, int]]:
    return [(one["first"], one["last"]) for one in incarnation["lost"]["intervals"]]


def tokens_of(number: int) -> list[int]:
    return [number] * 16


def block(number: int) -> BlockStored:
    return BlockStored(
        block_hashes=[1000 + number], token_ids=tokens_of(number), block_size=16, medium="GPU"
    )


def held(tenant: Tenant, count: int) -> list[int]:
    """Which of the first blocks the index says that the engine holds."""
    return [number for number in range(count) if tenant.longest(tokens_of(number)) == 16]


def register(tenant: Tenant, publisher: Subscribed, replay_endpoint: str = "") -> None:
    """Registers the endpoints, and waits for the subscription."""
    body = {
        "endpoint": publisher.endpoint,
        "replay_endpoint": replay_endpoint,
        "type": "vLLM",
        "modelname": "m",
        "instance_id": "a",
        "block_size": 16,
        "dp_rank": 0,
        "tenant_id": tenant.tenant_id,
    }
    status, answer = tenant.api.post("/register", body)
    assert status == 200, answer
    tenant.await_links(publisher)


# Messages that are lost, late, out of order or repeated

FAULTS = {"lost": [3, 4, 9, 17], "behind": {6: 1, 11: 4, 18: 1}, "twice": [5, 14]}


@pytest.mark.parametrize("replays", [True, False], ids=["replay", "no replay"])
def test_what_is_lost_late_or_repeated_on_the_way_is_told_number_for_number(
    tenant: Tenant, publisher: Publisher, replays: bool
) -> None:
    proxy = MessageProxy(publisher.endpoint, **FAULTS)  # type: ignore[arg-type]
    try:
        tenant.until(lambda: publisher.subscribers > 0, "the proxy's subscription")
        register(tenant, proxy, publisher.replay_endpoint if replays else "")
        tenant.until(lambda: proxy.subscribers > 0, "the bridge's subscription")
        for number in range(20):
            publisher.publish([block(number)])
            time.sleep(0.02)
        incarnation = tenant.await_batches(20)
        if replays:
            assert lost(incarnation) == []
            tenant.until(lambda: tenant.state() == "exact", "exact answers")
            assert held(tenant, 20) == list(range(20))
            return
        # What comes behind a later one is no longer waited for.
        missing = sorted([*FAULTS["lost"], *FAULTS["behind"]])
        assert [n for first, last in lost(incarnation) for n in range(first, last + 1)] == missing
        assert held(tenant, 20) == [number for number in range(20) if number not in missing]
        assert tenant.state() == "degraded"
    finally:
        proxy.close()


# Long replays


class LongEngine:
    """An engine with thousands of batches of 2 KiB, whose sockets are as vLLM 0.32 has them: what a
    reader that is slow has no room for is dropped, and the end marker with it.
    """

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._publisher = CountedPublisher(self._context)
        self._live = self._publisher.socket
        self._replay = self._context.socket(zmq.ROUTER)
        self._replay.sndbuf = 16 * 1024
        self.endpoint, self.replay_endpoint = (
            f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
            for socket in (self._live, self._replay)
        )
        self._hashes = [2**62 + number for number in range(200)]
        self._buffer: list[list[bytes]] = []
        for _ in range(LONG):
            self._append()
        self.requests = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _append(self) -> None:
        number = len(self._buffer)
        payload = msgspec.msgpack.encode([1e9 + number, [["BlockRemoved", self._hashes]], 0])
        self._buffer.append([number.to_bytes(8, "big"), payload])

    @property
    def subscribers(self) -> int:
        return self._publisher.subscribers

    def publish(self) -> None:
        self._append()
        self._live.send_multipart([b"", *self._buffer[-1]])

    def _answer(self) -> None:
        while not self._stopping:
            if not self._replay.poll(20):
                continue
            client, _, start = self._replay.recv_multipart()
            self.requests += 1
            for message in self._buffer[int.from_bytes(start, "big") :]:
                self._replay.send_multipart([client, b"", b"kv", *message])
            self._replay.send_multipart([client, b"", b"", END_SEQUENCE, b""])

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self._context.destroy(linger=0)


@pytest.mark.faults
def test_a_long_replay_over_a_slow_link_ends_complete(tenant: Tenant) -> None:
    """Of which the socket drops much; how each release behaves: `test_long_replays`."""
    engine = LongEngine()
    with closing(Proxy(*free_ports(1))) as proxy, closing(engine):
        proxy.start(engine.replay_endpoint)
        proxy.slow(delay_s=0.001, bytes_per_s=16e6)
        register(tenant, engine, f"tcp://{proxy.address}")
        engine.publish()
        incarnation = tenant.await_batches(LONG + 1)
        assert lost(incarnation) == []
        assert incarnation["seen"]["batches"] == LONG + 1
        tenant.until(lambda: tenant.state() == "exact", "exact answers")
        assert engine.requests > 1, "its socket has dropped some"
