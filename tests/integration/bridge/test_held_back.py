"""A publisher's flood, and how far the bridge writes it ahead of the workers: here the test commits
what they would.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-untyped]

from bridge.bounds import LAG_SILENT_S
from bridge.delivery.partition_lag import LAG_BYTES_FIRST
from brokers.broker_settings import KafkaSettings
from schemas.limits import TURN_BYTES_MAX
from schemas.records import encode_record
from schemas.setting import changed
from tests.integration.bridge.engine import Engine, Engines
from tests.integration.bridge.process import BridgeProcess, Bridges, until_live
from tests.integration.bridge.topics import Deployment, assert_exact
from tests.processes import until

WAITING = "waiting for the workers"
BATCHES = 6000
SLOWLY_S = LAG_SILENT_S / 5


@contextmanager
def slow_workers(kafka: KafkaSettings) -> Iterator[None]:
    """They fold one record of partition 0 after the other, and have much to do with each."""
    stopping, failed = threading.Event(), list[BaseException]()

    async def commit() -> None:
        place = TopicPartition(kafka.topics.events.name, 0)
        consumer = AIOKafkaConsumer(
            bootstrap_servers=kafka.servers,
            group_id=kafka.group("streams"),
            enable_auto_commit=False,
        )
        await consumer.start()
        try:
            consumer.assign([place])
            offset = 1
            while not stopping.is_set():
                await consumer.commit({place: offset})
                offset += 1
                await asyncio.sleep(SLOWLY_S)
        finally:
            await consumer.stop()

    def run() -> None:
        try:
            asyncio.run(commit())
        except BaseException as error:  # noqa: BLE001 -- raised below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
    assert not failed, failed


def logged_bytes(deployment: Deployment, engine: Engine) -> int:
    return sum(map(len, map(encode_record, deployment.records(engine.registration.publisher))))


def until_waiting(bridge: BridgeProcess, engine: Engine) -> None:
    name = engine.registration.instance_id
    until(lambda: bridge.states()[name] == WAITING, what="the flood waits for the workers")


def test_a_flood_waits_for_the_workers_and_its_neighbour_does_not(
    kafka_settings: KafkaSettings, engines: Engines, bridges: Bridges
) -> None:
    kafka = changed(kafka_settings, events_partitions=1)
    deployment = Deployment(kafka)
    flood, quiet = engines("flood"), engines("quiet")
    bridge = bridges(kafka)
    deployment.register(flood.registration, quiet.registration)
    until_live(bridge, flood, quiet)
    with slow_workers(kafka):
        flood.publish(BATCHES)
        until_waiting(bridge, flood)
        assert bridge.metric("reprise_bridge_held_back_publishers") == 1
        # How much may stand before the workers follows how fast they are: less than at first.
        assert bridge.metric("reprise_bridge_unfolded_bytes") > 0
        quiet.publish(3)
        deployment.until_logged(quiet)
        written = logged_bytes(deployment, flood)
        states = bridge.states()
        # Its engine may be asked for its last batch just now: that is not waiting either.
        assert states["flood"] == WAITING
        assert states["quiet"] in ("live", "repairing")
        assert written < LAG_BYTES_FIRST + 2 * TURN_BYTES_MAX
    # From now on they stand still: nobody waits for workers that may be gone.
    deployment.until_logged(flood, quiet)
    assert_exact(deployment, flood, quiet)
    assert logged_bytes(deployment, flood) > 2 * written, "the flood was one"
    assert bridge.metric("reprise_bridge_dropped_total") == 0
