"""Engines' events through one bridge into the log."""

import pytest

from schemas.records import EventsRecord, RegisteredRecord
from tests.integration.bridge.engine import Engines
from tests.integration.bridge.process import Bridges, until_live
from tests.integration.bridge.topics import Deployment, assert_exact, digests, truth
from tests.processes import until


def test_events_arrive_in_order_and_decode(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    one, two = engines("a"), engines("b")
    bridge = bridges(deployment.kafka)
    deployment.register(one.registration, two.registration)
    until_live(bridge, one, two)
    for _ in range(50):
        one.publish(3)
        two.publish(2)
    deployment.until_logged(one, two)
    for engine in (one, two):
        records = deployment.records(engine.registration.publisher)
        assert isinstance(records[0], RegisteredRecord)
        sequences = [
            (record.first_sequence, record.last_sequence)
            for record in records[1:]
            if isinstance(record, EventsRecord)
        ]
        assert len(sequences) == len(records) - 1
        assert [first for first, _ in sequences] == [0] + [last + 1 for _, last in sequences[:-1]]
    assert digests(deployment.fold()) == truth(one, two)
    assert bridge.stop() == 0
    assert "Traceback" not in bridge.log()


def test_what_was_sent_before_the_registration_is_replayed(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    engine = engines("a")
    engine.publish(200)
    until(lambda: engine.publisher.published == 200, what="200 batches")
    deployment.register(engine.registration)
    bridges(deployment.kafka)
    deployment.until_logged(engine)
    fold = deployment.fold()
    assert fold.counters["gaps"] == 0
    assert digests(fold) == truth(engine)


def test_an_engine_that_restarted_while_no_bridge_ran_is_reset_and_exact(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    """The new life has more batches than the log: its numbers alone would look like a gap."""
    engine = engines("a")
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, engine)
    engine.publish(20)
    deployment.until_logged(engine)
    assert bridge.stop() == 0
    engine.restart()
    engine.publish(60)
    bridge.start()
    deployment.until_logged(engine)
    fold = assert_exact(deployment, engine)
    assert fold.counters["resets"] == 1
    assert deployment.cursor(engine) == (2, 59)


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


def test_lost_live_messages_are_replayed_and_the_others_wait_for_nothing(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    one, two = engines("a"), engines("b")
    deployment.register(one.registration, two.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, one, two)
    for _ in range(10):
        one.publish(5)
        one.publish(3, lost=True)
        two.publish(4)
    one.publish()
    deployment.until_logged(one, two)
    assert_exact(deployment, one, two)
    assert bridge.metric("reprise_bridge_replayed_batches_total") >= 30


def test_without_a_window_each_message_is_a_record_of_its_own_soon(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    engine = engines("a")
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka, "--set", "bridge.window_ms=0")
    until_live(bridge, engine)
    engine.publish(20)
    deployment.until_logged(engine)
    assert_exact(deployment, engine)
