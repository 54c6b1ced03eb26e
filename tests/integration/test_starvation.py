"""A service that gets no core for seconds, beside publishers that go on: no link is made anew."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devtools.broker import free_ports
from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import BlockStored
from tests.processes import Service, until
from tests.proxy import Proxy

PUBLISHERS = 8
PERIOD_S = 0.1
STOPPED_S = 2.0
DELAY_S = 0.2
"""Of each way to a publisher and back."""
RUNS_S = 0.2
"""Long enough to ask the publishers for a sign of life, and too short to take their answers."""


def block(number: int) -> BlockStored:
    tokens = [number] * 16
    return BlockStored(block_hashes=[number], token_ids=tokens, block_size=16, medium="GPU")


class Fleet:
    """Publishers without replay sockets behind slow links, each of which sends all the time."""

    def __init__(self) -> None:
        self.publishers = [
            Publisher(PublisherOptions(replay_endpoint="")) for _ in range(PUBLISHERS)
        ]
        self.proxies = [Proxy(port) for port in free_ports(PUBLISHERS)]
        for proxy, publisher in zip(self.proxies, self.publishers, strict=True):
            proxy.start(publisher.endpoint)
            proxy.slow(delay_s=DELAY_S, bytes_per_s=1e9)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _publish(self) -> None:
        number = 1
        while not self._ending.wait(PERIOD_S):
            for publisher in self.publishers:
                publisher.publish([block(number)])
            number += 1

    def stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        self.stop()
        for proxy in self.proxies:
            proxy.close()
        for publisher in self.publishers:
            publisher.close()


@contextmanager
def stopped(service: Service) -> Iterator[None]:
    assert service.process is not None
    pid = service.process.pid
    try:
        os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    opened = Fleet()
    yield opened
    opened.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data") as running:
        yield running


def test_a_service_that_gets_no_core_makes_no_new_link_and_loses_nothing(
    service: Service, fleet: Fleet
) -> None:
    for number, proxy in enumerate(fleet.proxies):
        service.register(f"tcp://{proxy.address}", instance_id=f"w-{number}")
    until(lambda: all(one.subscribers for one in fleet.publishers), what="subscriptions")
    fleet.start()

    def all_exact() -> bool:
        services = service.get("/services")[1]["services"]
        return {one["State"] for one in services} == {"exact"}

    until(all_exact, what="exact answers")
    for _ in range(4):
        with stopped(service):
            time.sleep(STOPPED_S)
        time.sleep(RUNS_S)
    with stopped(service):
        time.sleep(2 * STOPPED_S)
    fleet.stop()

    def all_folded() -> bool:
        services = service.get("/services")[1]["services"]
        found = {one["InstanceID"]: one["Sequence"] for one in services}
        return all(
            found[f"w-{number}"] == publisher.published - 1
            for number, publisher in enumerate(fleet.publishers)
        )

    until(all_folded, what="all batches")
    until(all_exact, what=f"exact answers again:\n{service.log()}")
    assert service.metric("reprise_bridge_links_total") == PUBLISHERS
    assert service.metric("reprise_bridge_lost_batches_total") == 0
