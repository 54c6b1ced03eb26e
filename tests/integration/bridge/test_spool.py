"""A bridge while Kafka is away."""

import pytest

from devtools.broker import Broker
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
