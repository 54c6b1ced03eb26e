"""The registry as a bridge reads it."""

import re

from schemas.records import UnregisteredRecord
from schemas.topics import encode_publisher, encode_registration
from tests.integration.bridge.engine import Engines
from tests.integration.bridge.process import Bridges, until_live
from tests.integration.bridge.topics import Deployment, assert_exact, digests, truth
from tests.processes import until


def test_a_tombstone_unregisters_and_a_later_registration_begins_a_new_incarnation(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    engine = engines("a")
    publisher = engine.registration.publisher
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, engine)
    engine.publish(10)
    deployment.until_logged(engine)
    deployment.unregister(engine.registration)
    until(
        lambda: isinstance(deployment.records(publisher)[-1], UnregisteredRecord),
        what="the unregistered record",
    )
    assert digests(deployment.fold()) == {}
    assert bridge.health()["publishers"] == []
    deployment.register(engine.registration)
    until_live(bridge, engine)
    engine.publish(10)
    until(lambda: deployment.cursor(engine) == (2, 19), what="a new incarnation")
    assert_exact(deployment, engine)


def test_a_tombstone_that_came_while_no_bridge_ran_is_found(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    one, two = engines("a"), engines("b")
    deployment.register(one.registration, two.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, one, two)
    one.publish(5)
    two.publish(5)
    deployment.until_logged(one, two)
    assert bridge.stop() == 0
    deployment.unregister(one.registration)
    bridge.start()
    until(
        lambda: isinstance(deployment.records(one.registration.publisher)[-1], UnregisteredRecord),
        what="the unregistered record",
    )
    until_live(bridge, two)
    assert digests(deployment.fold()) == truth(two)


def test_unusable_entries_are_named_and_the_rest_goes_on(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    one, two = engines("a"), engines("b")
    deployment.write_registry(
        (b"\xc1", b"what?"),
        (encode_publisher(two.registration.publisher), b"\x00"),
        (encode_publisher(two.registration.publisher), encode_registration(one.registration)),
    )
    deployment.register(one.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, one)
    assert set(bridge.states()) == {"a"}
    named = re.findall(
        r"Skipping the entry in \S+\.registry, partition \d+, offset \d+", bridge.log()
    )
    assert len(named) == 3
    deployment.register(two.registration)
    until_live(bridge, one, two)
    two.publish(5)
    deployment.until_logged(two)
