"""Each role is replaced by that of another version, one process after the other, under load, and
taken back.

The other version is the `reprise` that REPRISE_TEST_OLDER names; `make upgrades FROM=...` installs
an older one and names it. Else it is this one, and what is tried is the handing over.

    what routers were told == what the engines held == a fresh fold of the log == every replica
"""

import asyncio
import time
import urllib.error
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from brokers.broker_settings import KafkaSettings
from devtools.broker import Broker
from logs.embedded import ReadOnlyLog
from schemas.codec import decode_routing
from schemas.identities import Offset, StreamKey
from streams.index_settings import DEFAULT_SEED
from streams.kernel import open_kernel
from streams.table.fold import Fold
from tests.building import events_record
from tests.deployment import (
    Deployment,
    Logged,
    Place,
    check_once_quiet,
    digests_by_fold,
    held_by_fold,
    last_batches,
    read_events,
)
from tests.integration.test_routing_kafka import Log, await_quiet, read_encoded
from tests.load import Load
from tests.processes import THIS, Service, until
from tests.roles import Role
from tests.upgrades import (
    WAIT_S,
    Key,
    Routers,
    Served,
    Told,
    older,
    routing_digest,
    wrong_answers,
)

pytestmark = pytest.mark.timeout(600)

_USED = {
    "checkpoints",
    "jumps",
    "not_owned",
    "records",
    "repeated_rows",
    "rows",
    "skipped_duplicate_record",
}
"""Outcomes of records and rows that were not passed over for their form."""
_PASSED_OVER = {
    "reprise_bridge_unusable_entries_total",
    "reprise_internal_errors_total",
    "reprise_registry_skipped_total",
    "reprise_routing_skipped_total",
    "reprise_table_rows_total",
    "reprise_worker_records_total",
    "reprise_worker_routing_records_total",
}


@pytest.fixture
def load(seed: int) -> Iterator[Load]:
    """Of three engines that can replay all that they send, and know what they held when."""
    opened = Load(seed, [Served(f"engine-{number}") for number in range(3)])
    yield opened
    opened.close()


@pytest.fixture
def deployment(
    tmp_path: Path, own_broker: Broker, deployment_settings: KafkaSettings
) -> Iterator[Deployment]:
    """Of the older version."""
    opened = Deployment(tmp_path, deployment_settings, own_broker, program=older())
    yield opened
    opened.end()


def passed_over(role: Role) -> dict[str, float]:
    """What a process could not read, or failed at, since it was started."""
    lines = [
        line
        for line in role.metrics().decode().splitlines()
        if line.startswith(tuple(_PASSED_OVER))
    ]
    return {
        f"{role.name} {sample.name} {sample.labels}": sample.value
        for family in text_string_to_metric_families("\n".join(lines) + "\n")
        for sample in family.samples
        if sample.name in _PASSED_OVER
        and sample.labels.get("outcome") not in _USED
        and sample.value
    }


def replace(
    deployment: Deployment, roles: Sequence[Role], program: Sequence[str], routers: Routers
) -> None:
    """One after the other; both versions are beside each other, and answers are exact, before the
    next one.
    """
    deployment.until(routers.told_exact(), what="routers are told `exact`")
    for role in list(roles):
        assert passed_over(role) == {}
        deployment.replace(role, program)
        deployment.until_moving()
        deployment.until(routers.told_exact(), what="routers are told `exact` again")


def check_answers(routers: Routers, load: Load, log: Sequence[Logged]) -> None:
    engines = [engine for engine in load.engines if isinstance(engine, Served)]
    assert wrong_answers(routers.told, engines, log, load)[:5] == []
    assert {one.state for one in routers.told} >= {"exact"}
    assert {name for one in routers.told for name in one.matched} == {
        engine.instance_id for engine in engines
    }


def check_ledger(found: Any) -> None:
    """That of `GET /gaps`: nothing is lost or incomplete."""
    totals = [one["totals"] for one in found["publishers"]]
    assert totals
    assert all(one["lost"] == one["incomplete"] == {} for one in totals), totals


def check_routing(deployment: Deployment, decided: Sequence[Key], program: Sequence[str]) -> None:
    """Each decision that a router was given is in the log once, and every replica has folded it."""
    last = await_quiet(deployment.replicas)
    log = asyncio.run(read_encoded(deployment.kafka))
    records = [(offset, decode_routing(value)) for offset, value in log]
    assert set(map(tuple, decided)) <= Log(records).decided
    assert len(set(decided)) == len(decided)
    assert {one["digest"] for one in last} == {routing_digest(program, log)}


def routes(replica: Role) -> bool:
    """Whether its version does."""
    try:
        replica.get("/routing")
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return False
    return True


def check_quiet(
    deployment: Deployment, load: Load, routers: Routers, seed: int, program: Sequence[str]
) -> None:
    """All of what this module says; every role is of this program now."""
    routers.stop()
    fresh = check_once_quiet(deployment, load, seed=seed)
    assert fresh.skipped == {}, "a batch is in the log twice"
    for role in deployment.roles:
        assert passed_over(role) == {}
    check_answers(routers, load, read_events(deployment.kafka))
    assert len({one.by for one in routers.told}) == 2 * len(deployment.replicas), "old and new"
    if all(map(routes, deployment.replicas)):
        check_routing(deployment, routers.decided, program)


def test_each_role_is_replaced_under_load_and_taken_back(
    deployment: Deployment, load: Load, seed: int
) -> None:
    deployment.start(load)
    upgrade = Routers(seed, deployment.replicas, load)
    upgrade.start()
    try:
        for roles in (deployment.replicas, deployment.workers, deployment.bridges):
            replace(deployment, roles, THIS, upgrade)
    finally:
        upgrade.stop()
    check_quiet(deployment, load, upgrade, seed, THIS)
    for replica in deployment.replicas:
        check_ledger(replica.get("/gaps"))
    if older() == THIS:
        return  # the way back hands over nothing else

    load.start()
    deployment.until_moving()
    downgrade = Routers(seed, deployment.replicas, load)
    downgrade.start()
    try:
        for roles in (deployment.bridges, deployment.workers, deployment.replicas):
            replace(deployment, roles, older(), downgrade)
    finally:
        downgrade.stop()
    check_quiet(deployment, load, downgrade, seed, older())


# The embedded form


def folded(service: Service) -> int:
    return int(service.metric("reprise_publisher_folded_sequence"))


def until_moving(service: Service) -> None:
    goal = folded(service) + 20
    until(lambda: folded(service) > goal, what=f"what is published is folded:\n{service.log()}")


def read_log_of(data: Path) -> list[Logged]:
    log = ReadOnlyLog(data / "log")
    try:
        return [Logged(Place(0, entry.offset), b"", entry.value) for entry in log.read(Offset(0))]
    finally:
        log.close()


def held(log: Sequence[Logged]) -> tuple[Fold, dict[Place, str]]:
    """A fresh fold, and what it has passed over."""
    fold = Fold(open_kernel(DEFAULT_SEED, name="reference"))
    skipped = {}
    for logged in log:
        problem = fold.apply(Offset(logged.place.offset), logged.value)
        if problem is not None:
            skipped[logged.place] = problem.reason
    return fold, skipped


def started(service: Service) -> bool:
    """False where it refuses what a newer version wrote; nothing of it was changed then."""
    try:
        service.start()
    except AssertionError:
        if service.program == THIS or "a newer Reprise wrote it" not in service.log():
            raise
        service.kill()
        return False
    return True


@pytest.mark.smoke
def test_the_embedded_service_goes_on_under_load_and_is_taken_back(
    tmp_path: Path, load: Load, seed: int
) -> None:
    data = tmp_path / "data"
    with Service(data, program=older()) as service:
        for engine in load.engines:
            service.post("/register", engine.registration())
        load.start()
        until_moving(service)
        routers = Routers(seed, [service], load, patience_s=WAIT_S)
        routers.start()
        try:
            for program in (THIS, older()):
                assert service.stop() == 0, service.log()
                service.program = program
                if not started(service):  # the log is of a format that it does not know
                    service.program = THIS
                    service.start()
                until_moving(service)
                until(routers.told_exact(), what=f"`exact`:\n{service.log()}")
                status, found = service.get("/gaps")
                if status == 200:  # an older one keeps no ledger
                    check_ledger(found)
        finally:
            routers.stop()
        load.stop()
        last = {engine.instance_id: engine.published - 1 for engine in load.engines}

        def is_whole() -> bool:
            return last_batches(held(read_log_of(data))[0]) == last

        until(is_whole, what=f"the log has all that was sent:\n{service.log()}", timeout_s=60)
        log = read_log_of(data)
        fold, skipped = held(log)
        assert skipped == {}
        assert (fold.counters["gaps"], fold.counters["log_holes"]) == (0, 0)
        assert held_by_fold(fold) == {engine.instance_id: engine.held() for engine in load.engines}
        expected = digests_by_fold(fold)

        def agrees() -> bool:
            contexts = service.digest()["contexts"]
            return {one["instance_id"]: one["digest"] for one in contexts} == expected

        until(agrees, what="the service equals a fresh fold")
        check_answers(routers, load, log)


# The judgement itself


def test_an_answer_that_no_engine_would_give_is_found(load: Load) -> None:
    (engine, *_) = load.engines
    assert isinstance(engine, Served)
    name = engine.instance_id
    log = []
    for number in (3, 3 + 30, 3 + 30):
        engine.serve(load.prompt(number))
        record = events_record(
            engine.published - 1,
            engine.published - 1,
            [],
            stream=StreamKey("default", "m", 16, "", name),
        )
        log.append(Logged(Place(1, 10 + engine.published), b"", record))
    until(lambda: engine.publisher.published == 3, what="all is sent")
    engine.note_sent()
    right = engine.cache.longest_held(load.prompt(33))
    told = Told(1, time.monotonic(), 33, "unconfirmed", {1: 12}, {name: right})
    late = told._replace(asked_at=told.asked_at + 60, state="exact", position={1: 11})
    late = late._replace(matched={name: 32})
    later = told._replace(position={1: 12})
    assert right > 32
    assert wrong_answers([told, late, later], [engine], log, load) == []
    for wrong in (
        told._replace(matched={name: right + 16}),
        told._replace(matched={}),
        told._replace(matched={name: 32}),
    ):
        assert len(wrong_answers([wrong], [engine], log, load)) == 1
    stale = late._replace(by=2, position={1: 10}, matched={})
    known = stale._replace(state="stale", position={1: 11}, matched={name: 32})
    assert len(wrong_answers([stale, known], [engine], log, load)) == 1
    assert wrong_answers([stale._replace(state="stale"), known], [engine], log, load) == []
