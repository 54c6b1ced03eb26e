"""Links and replays that lose, in both forms of the service: whatever happens on the way, each
batch is seen or lost, and the ledger says which, number for number; no answer is `exact` and wrong.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
import zmq

from devtools.broker import free_ports
from lab.engines.publisher import END_SEQUENCE, Publisher, PublisherOptions
from lab.engines.wire import BlockStored
from tests.contract.deployments import (
    Subscribed,
    Tenant,
)
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


class Release(NamedTuple):
    """How the replay socket of a release behaves.

    Attributes:
        queue: messages that its ROUTER keeps for one who does not read.
        topic: whether replies have a topic frame.
        first: of the batches that it still has.
        ends: whether it sends its end marker.
        missing: batches that it does not send.
    """

    queue: int = 1000
    topic: bool = True
    first: int = 0
    ends: bool = True
    missing: frozenset[int] = frozenset()


RELEASES = {
    "vLLM 0.25": Release(topic=False),
    "vLLM 0.32": Release(),
    "vLLM 0.33": Release(queue=2 * (10_000 + 1)),
    "SGLang 0.5.21": Release(topic=False, queue=500),
    "no end": Release(ends=False),
    "a short buffer": Release(first=LONG - 6_000),
    "holes": Release(missing=frozenset([17, 4_000, 4_001, LONG - 2])),
}


class LongEngine:
    """An engine with thousands of batches of 2 KiB; each removes blocks that nobody holds."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._publisher = CountedPublisher(self._context)
        self._live = self._publisher.socket
        self._replay = self._context.socket(zmq.ROUTER)
        self._replay.sndhwm = release.queue
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
            topic = [b"kv"] if self._release.topic else []
            begin = max(int.from_bytes(start, "big"), self._release.first)
            for number, message in enumerate(self._buffer[begin:], start=begin):
                if number not in self._release.missing:
                    self._replay.send_multipart([client, b"", *topic, *message])
            if self._release.ends:
                end = [b""] if topic else []
                self._replay.send_multipart([client, b"", *end, END_SEQUENCE, b""])

    def close(self) -> None:
        self._stopping = True
        self._thread.join()
        self._context.destroy(linger=0)


@pytest.fixture
def slow_proxy() -> Iterator[Callable[[str], Proxy]]:
    made: list[Proxy] = []

    def make(target: str) -> Proxy:
        made.append(Proxy(*free_ports(1)))
        made[-1].start(target)
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.faults
@pytest.mark.parametrize("name", RELEASES)
def test_a_long_replay_over_a_slow_link_ends_complete_or_as_an_exact_gap(
    tenant: Tenant, slow_proxy: Callable[[str], Proxy], name: str
) -> None:
    release = RELEASES[name]
    engine = LongEngine(release)
    try:
        proxy = slow_proxy(engine.replay_endpoint)
        proxy.slow(delay_s=0.001, bytes_per_s=16e6)
        register(tenant, engine, f"tcp://{proxy.address}")
        engine.publish()
        incarnation = tenant.await_batches(LONG + 1)
        expected = [*range(release.first), *sorted(release.missing)]
        told = [n for first, last in lost(incarnation) for n in range(first, last + 1)]
        assert told == expected
        assert incarnation["lost"]["batches"] == len(expected)
        assert incarnation["seen"]["batches"] == LONG + 1 - len(expected)
        # Without an end marker nothing tells that there is nothing newer.
        wanted = "degraded" if expected else "exact" if release.ends else "unconfirmed"
        tenant.until(lambda: tenant.state() == wanted, f"{wanted} answers")
    finally:
        engine.close()


@pytest.mark.faults
def test_a_replay_whose_connection_is_cut_again_and_again_ends_complete(
    tenant: Tenant, slow_proxy: Callable[[str], Proxy]
) -> None:
    engine = LongEngine(Release())
    try:
        proxy = slow_proxy(engine.replay_endpoint)
        proxy.slow(delay_s=0.002, bytes_per_s=8e6)
        register(tenant, engine, f"tcp://{proxy.address}")
        engine.publish()
        for _ in range(3):
            asked = engine.requests
            tenant.until(lambda asked=asked: engine.requests > asked, "a request")  # type: ignore[misc]
            proxy.cut()
            proxy.heal()
        incarnation = tenant.await_batches(LONG + 1)
        assert lost(incarnation) == []
        tenant.until(lambda: tenant.state() == "exact", "exact answers")
    finally:
        engine.close()


# A replay socket of another engine


@pytest.mark.faults
@pytest.mark.parametrize("live", [0, 1, 6])
@pytest.mark.parametrize(("has", "other_has"), [(10, 25), (25, 10), (10, 10)])
def test_the_replay_socket_of_another_engine_never_makes_answers_exact(
    tenant: Tenant, publisher: Publisher, has: int, other_has: int, live: int
) -> None:
    other = Publisher(PublisherOptions())
    try:
        for number in range(has):
            publisher.publish([block(number)])
        for number in range(other_has):
            other.publish([block(100 + number)])
        tenant.until(lambda: other.published == other_has, "all batches")
        register(tenant, publisher, other.replay_endpoint)
        states = set()
        for number in range(live):
            publisher.publish([block(has + number)])
        end = time.monotonic() + 6.0
        while time.monotonic() < end:
            states.add(tenant.state())
            time.sleep(0.05)
        assert "exact" not in states
        assert tenant.services()[0]["State"] in ("degraded", "unconfirmed")
    finally:
        other.close()
