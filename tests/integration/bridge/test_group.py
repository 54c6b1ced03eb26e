"""Bridges that share the publishers: members come, go, fall silent and are replaced."""

import pytest

from schemas.records import RegisteredRecord, ResetRecord
from tests.integration.bridge.engine import Engines, Load
from tests.integration.bridge.process import Bridges, until_live, until_shared
from tests.integration.bridge.topics import Deployment, assert_exact
from tests.processes import until


@pytest.mark.smoke
def test_two_bridges_share_the_publishers_and_a_killed_one_is_replaced_without_a_gap(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    ones = [engines(name) for name in "abcdefgh"]
    deployment.register(*(one.registration for one in ones))
    first, second = bridges(deployment.kafka), bridges(deployment.kafka)
    until_shared(first, second, *ones)
    with Load(*ones) as load:
        load.go_on_for(50)
        first.kill()
        load.go_on_for(100)
        until_live(second, *ones)
        load.go_on_for(50)
        first.start()
        until_shared(first, second, *ones)
        load.go_on_for(20)
        second.kill()
        load.go_on_for(20)
    until_live(first, *ones)
    deployment.until_logged(*ones)
    assert_exact(deployment, *ones)


@pytest.mark.smoke
def test_a_stopped_bridge_leaves_at_once_and_the_next_one_writes_nothing_twice(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    engine = engines("a", replay=False)
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, engine)
    engine.publish(50)
    deployment.until_logged(engine)
    assert bridge.stop() == 0
    bridge.start()
    until_live(bridge, engine)
    engine.publish(5)
    deployment.until_logged(engine)
    fold = assert_exact(deployment, engine)
    assert fold.counters["duplicate_records"] == 0
    kinds = [type(one) for one in deployment.records(engine.registration.publisher)]
    assert kinds.count(RegisteredRecord) == 1
    assert ResetRecord not in kinds


@pytest.mark.smoke
def test_a_restart_under_a_bridge_is_a_reset(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    engine = engines("a")
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, engine)
    engine.publish(20)
    deployment.until_logged(engine)
    engine.restart()
    engine.publish(5)
    until(lambda: deployment.cursor(engine) == (2, 4), what="the new life")
    assert_exact(deployment, engine)
