"""The distributed form on one machine: a broker of its own, and the roles as processes on it.

Everything is on loopback, in temporary directories, and ends with the block, by process id.
"""

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Self

from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from devtools.broker import Broker
from lab.benchmarks.embedded.service import POLL_S, START_S, Service, until

REGISTRY_PARTITIONS: Final = 4
HEAP_MIB: Final = 512

# Kafka's own defaults. On a busy machine the shorter ones of tests have the only broker declared
# dead.
_PATIENT: Final = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}


class Cluster:
    """A broker, and deployments on it, one after the other."""

    def __init__(self) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="reprise-bench-kafka-"))
        self.broker = Broker(self._root / "broker", heap_mib=HEAP_MIB, settings=_PATIENT)
        self._roles: list[Service] = []
        self._deployments = 0
        self.kafka = KafkaSettings(bootstrap="127.0.0.1:1")

    def __enter__(self) -> Self:
        try:
            self.broker.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for role in self._roles:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                role.__exit__()
        self.broker.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    def deploy(self, *, partitions: int) -> None:
        """Ends the roles there are; the next ones have new topics, and the broker no others."""
        for role in self._roles:
            role.__exit__()
        self._roles.clear()
        if self._deployments:
            asyncio.run(_delete_topics(self.kafka))
        self._deployments += 1
        self.kafka = KafkaSettings(
            bootstrap=self.broker.bootstrap,
            topic_prefix=f"bench{self._deployments}",
            events_partitions=partitions,
            registry_partitions=REGISTRY_PARTITIONS,
        )
        asyncio.run(ensure_topics(self.kafka))

    def start(self, name: str, *options: str) -> Service:
        """Starts `bridge`, `streams` or `serve` with an empty directory; it may not be ready."""
        kafka = self.kafka
        role = Service(
            *("--kafka", kafka.bootstrap, "--topic-prefix", kafka.topic_prefix),
            *("--set", f"kafka.events_partitions={kafka.events_partitions}"),
            *("--set", f"kafka.registry_partitions={kafka.registry_partitions}"),
            *options,
            role=name,
        )
        self._roles.append(role)
        role.launch()
        return role

    def start_all(
        self, *, bridge: tuple[str, ...] = (), worker: tuple[str, ...] = ()
    ) -> dict[str, Service]:
        """One of each; returns once the replica is ready and the worker has its partitions."""
        roles = {
            "bridge": self.start("bridge", *bridge),
            "worker": self.start("streams", *worker),
            "replica": self.start("serve"),
        }
        until(roles["replica"].is_ready, poll_s=POLL_S)
        self.wait_settled(roles["worker"])
        return roles

    def end(self, role: Service) -> None:
        """Ends one role in order."""
        role.stop()
        role.__exit__()
        self._roles.remove(role)

    def wait_settled(self, worker: Service, *, timeout_s: float = START_S) -> None:
        """Until the worker has all of its partitions."""
        wanted = self.kafka.events_partitions

        def settled() -> bool:
            lines = worker.get("/metrics").decode().splitlines()
            found = sum(one.startswith("reprise_table_flushed_offset{") for one in lines)
            return found == wanted

        until(settled, poll_s=POLL_S, timeout_s=timeout_s)

    def topic_bytes(self, topic: str) -> int:
        """Bytes of the topic's segments in the broker's directory."""
        total = 0
        for log in self.broker.segments(topic):
            with contextlib.suppress(FileNotFoundError):  # the cleaner has just replaced it
                total += log.stat().st_size
        return total


async def _delete_topics(kafka: KafkaSettings) -> None:
    """So that the broker does not compact them while the next deployment is measured."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([topic.name for topic in kafka.topics])
    finally:
        await admin.close()
