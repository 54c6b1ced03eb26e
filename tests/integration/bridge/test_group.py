"""Bridges that share the publishers: members come, go, fall silent and are replaced."""

import signal

import pytest

from schemas.records import RegisteredRecord, ResetRecord
from schemas.topics import encode_stream
from tests.integration.bridge.engine import Engines, Load
from tests.integration.bridge.process import Bridges, shares, until_live, until_shared
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


def test_a_rebalance_and_a_stop_under_load_lose_nothing_where_engines_cannot_replay(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    """The bridge that keeps a publisher keeps its socket, whatever happens in the group."""
    ones = [engines(name, replay=False) for name in "ab"]
    deployment.register(*(one.registration for one in ones))
    first = bridges(deployment.kafka)
    until_live(first, *ones)
    kafka = deployment.kafka
    with Load(*ones) as load:
        load.go_on_for(20)
        # A member that is given nothing: it has no partition to own.
        others = [bridges(kafka) for _ in range(kafka.registry_partitions)]
        until(lambda: sum(bool(share) for share in shares(first, *others)) >= 1, what="a share")
        load.go_on_for(50)
        for other in others:
            other.kill()
        load.go_on_for(50)
    until_live(first, *ones)
    for one in ones:
        one.publish()
    deployment.until_logged(*ones)
    fold = deployment.fold()
    assert fold.counters["log_holes"] == 0


def test_a_bridge_that_was_paused_past_its_session_writes_nothing_out_of_order(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    ones = [engines(name) for name in "abcdefgh"]
    deployment.register(*(one.registration for one in ones))
    first = bridges(deployment.kafka)
    until_live(first, *ones)
    with Load(*ones) as load:
        load.go_on_for(30)
        second = bridges(deployment.kafka)
        until_shared(first, second, *ones)
        first.signal(signal.SIGSTOP)
        until_live(second, *ones)
        load.go_on_for(50)
        first.signal(signal.SIGCONT)
        load.go_on_for(50)
        until_shared(first, second, *ones)
        load.go_on_for(20)
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


def test_a_broken_record_in_the_log_does_not_keep_a_bridge_from_taking_over(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    engine = engines("a")
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, engine)
    engine.publish(5)
    deployment.until_logged(engine)
    bridge.kill()
    deployment.write_events((encode_stream(engine.registration.stream), b"\xc1"))
    bridge.start()
    until_live(bridge, engine)
    engine.publish(5)
    until(
        lambda: bridge.metric("reprise_bridge_written_records_total") >= 1, what="written records"
    )
    assert "Skipping the message" in bridge.log()
    assert bridge.metric("reprise_bridge_gaps_total") == 0
