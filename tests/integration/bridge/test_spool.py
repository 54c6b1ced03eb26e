"""A bridge while Kafka is away."""

from pathlib import Path

import pytest

from brokers.broker_settings import KafkaSettings
from devtools.broker import Broker
from schemas.records import EventsRecord, GapRecord
from tests.integration.bridge.engine import Engines, Load
from tests.integration.bridge.process import Bridges, until_live
from tests.integration.bridge.topics import Deployment, assert_exact
from tests.kafka_fixtures import settings_for
from tests.processes import until


@pytest.mark.smoke
def test_what_comes_while_kafka_is_away_is_spooled_and_drained_in_order(
    own_broker: Broker, engines: Engines, bridges: Bridges
) -> None:
    deployment = Deployment(settings_for(own_broker))
    ones = [engines(name, replay=False) for name in "ab"]
    deployment.register(*(one.registration for one in ones))
    bridge = bridges(deployment.kafka)
    until_live(bridge, *ones)
    with Load(*ones) as load:
        load.go_on_for(30)
        own_broker.kill()
        load.go_on_for(100)
        until(lambda: bridge.health()["spool_records"] > 20, what="records in the spool")
        assert bridge.health()["problem"]
        load.go_on_for(100)
        own_broker.start()
        load.go_on_for(100)
    deployment.until_logged(*ones)
    until(lambda: bridge.health()["spool_records"] == 0, what="an empty spool")
    until(lambda: bridge.health()["problem"] == "", what="no problem")
    assert_exact(deployment, *ones)


def test_the_spool_survives_a_bridge_that_is_killed_while_kafka_is_away(
    own_broker: Broker, engines: Engines, bridges: Bridges
) -> None:
    deployment = Deployment(settings_for(own_broker))
    engine = engines("a", replay=False)
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, engine)
    with Load(engine) as load:
        load.go_on_for(30)
        own_broker.kill()
        load.go_on_for(200)
    until(lambda: bridge.states()["a"] == "spooling", what="spooling")
    until(
        lambda: bridge.health()["publishers"][0]["sequence"] == engine.published() - 1, what="all"
    )
    until(lambda: bridge.health()["queue_bytes"] == 0, what="an empty queue")
    bridge.kill()
    bridge.start()
    own_broker.start()
    until_live(bridge, engine)
    deployment.until_logged(engine)
    engine.publish(5)
    deployment.until_logged(engine)
    fold = assert_exact(deployment, engine)
    assert fold.counters["resets"] == 0


@pytest.mark.parametrize("replay", [False, True])
def test_what_the_spool_has_no_room_for_is_a_gap_of_exactly_that_or_is_replayed(
    own_broker: Broker, engines: Engines, bridges: Bridges, replay: bool
) -> None:
    deployment = Deployment(settings_for(own_broker))
    engine = engines("a", replay=replay)
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka, "--set", f"bridge.spool_gib={40_000 / 2**30}")
    until_live(bridge, engine)
    with Load(engine) as load:
        load.go_on_for(30)
        own_broker.kill()
        load.go_on_for(50)
        until(lambda: bridge.states()["a"] == "dropping", what="a full spool")
        load.go_on_for(50)
    own_broker.start()
    if replay:
        deployment.until_logged(engine)
        assert_exact(deployment, engine)
        return
    until(lambda: bridge.states()["a"] == "live", what="room in the spool")
    engine.publish(3)
    deployment.until_logged(engine)
    records = deployment.records(engine.registration.publisher)
    sequenced = [one for one in records if isinstance(one, EventsRecord | GapRecord)]
    assert sum(isinstance(one, GapRecord) for one in sequenced) == 1
    # What was under way when the lease ran out may have been written, and is written again.
    ranges = list(dict.fromkeys((one.first_sequence, one.last_sequence) for one in sequenced))
    ends = [-1, *(last for _, last in ranges)]
    assert [first for first, _ in ranges] == [end + 1 for end in ends[:-1]]
    dropped = bridge.metric("reprise_bridge_dropped_total", reason="spool_full")
    assert dropped > 0


def test_a_bridge_without_kafka_says_so_and_stops_when_it_is_told(
    tmp_path: Path, bridges: Bridges
) -> None:
    bridge = bridges(KafkaSettings(bootstrap="127.0.0.1:9"))
    assert bridge.health()["problem"]
    assert bridge.stop() == 0
