"""The connection to Kafka cut, frozen and slowed by a proxy, of one role or of all at once.

Each role reaches the broker through a proxy of its own. A fault is held until it shows in what the
roles say of themselves, so that none of them passes unnoticed.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

import pytest

from brokers.broker_settings import KafkaSettings
from devtools.broker import Broker, Listener, free_ports
from tests.deployment import Deployment, check_once_quiet, query_for
from tests.kafka_fixtures import started_broker
from tests.load import Load
from tests.proxy import Proxy
from tests.roles import Role

NAMES = ["bridge-1", "bridge-2", "streams-1", "streams-2", "serve-1", "serve-2"]
FAULTS = ["cut", "freeze", "slow"]
TARGETS = ["bridge", "streams", "serve", "all"]


@pytest.fixture
def proxies() -> Iterator[Mapping[str, Proxy]]:
    """By the name of the role that it serves."""
    opened = {name: Proxy(port) for name, port in zip(NAMES, free_ports(6), strict=True)}
    yield opened
    for proxy in opened.values():
        proxy.close()


@pytest.fixture
def broker(tmp_path: Path, proxies: Mapping[str, Proxy]) -> Iterator[Broker]:
    """With a listener for each proxy, which tells clients to come through it."""
    listeners = [
        Listener(f"PROXIED{letter}", advertised_port=proxy.port)
        for letter, proxy in zip("ABCDEF", proxies.values(), strict=True)
    ]
    for broker in started_broker(tmp_path / "broker", extra_listeners=listeners):
        for listener, proxy in zip(listeners, proxies.values(), strict=True):
            proxy.start(broker.address(listener.name))
        yield broker


@pytest.fixture
def deployment(
    tmp_path: Path, broker: Broker, proxies: Mapping[str, Proxy]
) -> Iterator[Deployment]:
    kafka = KafkaSettings(
        bootstrap=broker.bootstrap,
        topic_prefix="faults",
        events_partitions=4,
        registry_partitions=4,
    )
    through = {name: proxy.address for name, proxy in proxies.items()}
    opened = Deployment(tmp_path, kafka, broker, through)
    yield opened
    opened.end()


def is_held_up(bridge: Role) -> bool:
    """Whether it says that Kafka is away, or owns nothing, as in the middle of a rebalance."""
    health = bridge.health()
    return bool(health["problem"]) or not health["partitions"]


class Faults:
    """Begins faults, waits until they show, and ends them."""

    def __init__(
        self, deployment: Deployment, proxies: Mapping[str, Proxy], load: Load, rng: random.Random
    ) -> None:
        self._deployment = deployment
        self._proxies = proxies
        self._load = load
        self._rng = rng
        self._query = query_for(load.prompt(0))

    def victims(self, target: str) -> list[Role]:
        """One role of the kind, or all roles."""
        ones = [one for one in self._deployment.roles if one.name.startswith(target)]
        return [self._rng.choice(ones)] if ones else self._deployment.roles

    def inflict(self, fault: str, victims: Sequence[Role]) -> None:
        proxies = [self._proxies[one.name] for one in victims]
        self._until(lambda: all(one.connections for one in proxies), "all are connected")
        before = [(one.resets, one.frozen_bytes, one.slowed_bytes) for one in proxies]
        for proxy in proxies:
            if fault == "slow":
                # A worker opens its tables in some forty round trips. Where that takes several of
                # its sessions, here of three seconds, workers take each other's partitions away.
                delay_s = self._rng.uniform(0.01, 0.04)
                proxy.slow(delay_s=delay_s, bytes_per_s=self._rng.uniform(500_000, 2_000_000))
            else:
                getattr(proxy, fault)()
        place = FAULTS.index(fault)

        def went_through() -> bool:
            now = [(one.resets, one.frozen_bytes, one.slowed_bytes) for one in proxies]
            return all(new[place] > old[place] for old, new in zip(before, now, strict=True))

        self._until(went_through, f"{fault} at work")
        if fault == "slow":
            self._deployment.until_moving()
        else:
            for victim in victims:
                self._await_notice(victim, alone=len(victims) == 1)
        for proxy in proxies:
            proxy.heal()

    def _await_notice(self, victim: Role, *, alone: bool) -> None:
        """Until the role says that it is cut off, and the other one of its kind has its work."""
        if victim in self._deployment.replicas:
            self._until(lambda: victim.state(self._query) == "stale", f"{victim.name} stale")
            return
        if victim in self._deployment.bridges:
            self._until(lambda: is_held_up(victim), f"{victim.name} has a problem")
        if alone:
            kind = next(
                kind
                for kind in (self._deployment.bridges, self._deployment.workers)
                if victim in kind
            )
            (other,) = [one for one in kind if one is not victim]
            self._until(lambda: len(other.health()["partitions"]) == 4, f"{other.name} has all")

    def _until(self, holds: Callable[[], object], what: str) -> None:
        self._deployment.until(holds, what=what)


@pytest.mark.timeout(600)
def test_cut_frozen_and_slow_connections_lose_and_repeat_nothing(
    deployment: Deployment, proxies: Mapping[str, Proxy], load: Load, seed: int
) -> None:
    rng = random.Random(seed)
    deployment.start(load)
    faults = Faults(deployment, proxies, load, rng)
    order = rng.sample(list(product(FAULTS, TARGETS)), len(FAULTS) * len(TARGETS))
    for fault, target in order:
        faults.inflict(fault, faults.victims(target))
    spooled = [one.metric("reprise_bridge_spooled_records_total") for one in deployment.bridges]
    assert sum(spooled) > 0, "the bridges have had to wait for Kafka"
    check_once_quiet(deployment, load, seed=seed)
