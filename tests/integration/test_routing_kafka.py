"""Three replicas decide, and hear what came of each other's decisions, while they, workers and the
broker are killed.

    what clients were told  ==  a fresh fold of the routing log  ==  every replica
"""

import asyncio
import http.client
import random
import threading
import time
import urllib.error
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from brokers.reading import opened_reader, read_to_end
from devtools.broker import Broker
from routing.fold.fold import RoutingFold
from routing.log.recovery import recover_fold
from routing.log.topics import ROUTING_PARTITION, ROUTING_TOPIC, RoutingTopics
from schemas.codec import decode_routing
from schemas.routing_records import (
    ENDS,
    DecisionsRecord,
    OutcomesRecord,
    RoutingRecord,
    decision_id,
    parse_decision_id,
)
from tests.kafka_fixtures import settings_for
from tests.processes import until
from tests.roles import Role

pytestmark = pytest.mark.timeout(240)

SESSION = ("--set", "kafka.session_timeout_s=2")
CLIENTS = 3
PAUSE_S = 0.02
WAIT_S = 60.0
_GONE = (OSError, ValueError, http.client.HTTPException)
"""A replica that is killed, or was while it answered."""


class Given(NamedTuple):
    """A decision that a client was given."""

    run: int
    number: int
    replica: str
    at: float


class Clients:
    """Each has decisions made by any replica, and reports to any what came of most of them."""

    def __init__(self, seed: int, replicas: list[Role]) -> None:
        self.given: list[Given] = []
        self.ended: dict[tuple[int, int], str] = {}
        """Whom the end of a decision was reported to, who took it."""
        self.errors: list[BaseException] = []
        self._replicas = replicas
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed + number),))
            for number in range(CLIENTS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(WAIT_S)
        assert self.errors == []

    def _run(self, chance: random.Random) -> None:
        try:
            while not self._stopping.wait(PAUSE_S):
                self._request(chance)
        except BaseException as error:
            self.errors.append(error)
            raise

    def _request(self, chance: random.Random) -> None:
        replica = chance.choice(self._replicas)
        body = {
            "model": "m",
            "block_size": 16,
            "token_ids": [chance.randrange(50_000) for _ in range(64)],
            "candidates": [{"instance_id": name} for name in "abcd"],
        }
        try:
            answer = replica.post("/route", body)
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read()) from error
        except _GONE:
            time.sleep(0.05)
            return
        run, number = parse_decision_id(answer["decision_id"]) or (-1, -1)
        self.given.append(Given(run, number, replica.name, time.monotonic()))
        events = chance.choice((["first_token", "completed"], ["completed"], ["failed"], []))
        for event in events:
            self.report(chance, (run, number), event)

    def report(self, chance: random.Random, key: tuple[int, int], event: str) -> None:
        """Until a replica knows of the decision's run: one that was just started may not yet."""
        for _ in range(20):
            replica = chance.choice(self._replicas)
            try:
                answer = replica.post(
                    "/feedback", {"decision_id": decision_id(*key), "event": event}
                )
            except _GONE:
                continue
            if not answer["unknown"]:
                if event != "first_token":
                    self.ended[key] = replica.name
                return
            time.sleep(0.05)


async def read_encoded(settings: KafkaSettings) -> list[tuple[int, bytes]]:
    """All of the log, as it is written."""
    found: list[tuple[int, bytes]] = []
    async with opened_reader(client_options(settings), committed=True) as reader:
        await read_to_end(
            reader,
            settings.topic(ROUTING_TOPIC).name,
            {ROUTING_PARTITION: 0},
            lambda message: found.append((message.offset, message.value or b"")),
        )
    return found


async def read_log(settings: KafkaSettings) -> list[tuple[int, RoutingRecord]]:
    """All of it."""
    return [(offset, decode_routing(value)) for offset, value in await read_encoded(settings)]


def fold_of(records: list[tuple[int, RoutingRecord]]) -> RoutingFold:
    fold = RoutingFold()
    for offset, record in records:
        fold.apply(offset, record)
    return fold


class Log:
    """What the log has, by plain sets."""

    def __init__(self, records: list[tuple[int, RoutingRecord]]) -> None:
        self.decided: set[tuple[int, int]] = set()
        self.ended: set[tuple[int, int]] = set()
        for _, record in records:
            if isinstance(record, DecisionsRecord):
                self.decided |= {(record.run, one.number) for one in record.decisions}
            elif isinstance(record, OutcomesRecord):
                ends = (one for one in record.outcomes if one.event in ENDS)
                self.ended |= {(record.run, one.number) for one in ends}

    @property
    def under_way(self) -> set[tuple[int, int]]:
        return self.decided - self.ended


@pytest.fixture
def kafka(own_broker: Broker) -> KafkaSettings:
    return settings_for(own_broker, partitions=1)


@pytest.fixture
def workers(kafka: KafkaSettings, tmp_path: Path) -> Iterator[list[Role]]:
    made = [Role("streams", tmp_path / f"streams-{n}", kafka, *SESSION) for n in (1, 2)]
    yield made
    for role in made:
        role.kill()


@pytest.fixture
def replicas(kafka: KafkaSettings, tmp_path: Path) -> Iterator[list[Role]]:
    made = [Role("serve", tmp_path / f"serve-{n}", kafka) for n in (1, 2, 3)]
    yield made
    for role in made:
        role.kill()


@pytest.fixture
def clients(seed: int, replicas: list[Role]) -> Iterator[Clients]:
    made = Clients(seed, replicas)
    yield made
    made.stop()


def shown(replica: Role) -> dict[str, Any]:
    found: dict[str, Any] = replica.get("/routing")
    return found


def await_quiet(replicas: list[Role]) -> list[dict[str, Any]]:
    """Until nothing waits to be written, and all have folded all of the log."""
    seen: list[dict[str, Any]] = []

    def is_quiet() -> bool:
        seen[:] = [shown(replica) for replica in replicas]
        lags = sum(replica.metric("reprise_routing_lag_records") for replica in replicas)
        return (
            not lags
            and not any(one["counts"]["waiting"] for one in seen)
            and len({one["position"] for one in seen}) == 1
            and all(one["under_way"] == one["counts"]["under_way"] for one in seen)
        )

    try:
        until(is_quiet, what="the same of all replicas", timeout_s=WAIT_S)
    except AssertionError as error:
        said = [{k: v for k, v in one.items() if k != "targets"} for one in seen]
        raise AssertionError(f"{error}: {said}") from error
    return seen


def folded_offset(worker: Role) -> float:
    return worker.metric("reprise_worker_routing_folded_offset")


def last_offset(kafka: KafkaSettings) -> int:
    return asyncio.run(read_log(kafka))[-1][0]


def passes(holds: Callable[[], object], what: str) -> None:
    until(holds, what=what, timeout_s=WAIT_S)


def test_no_booking_is_lost_doubled_or_left_whatever_is_killed(
    own_broker: Broker,
    kafka: KafkaSettings,
    workers: list[Role],
    replicas: list[Role],
    clients: Clients,
    seed: int,
    tmp_path: Path,
) -> None:
    for role in (*workers, *replicas):
        role.start()
    for replica in replicas:
        passes(replica.is_ready, "a replica is ready")
    clients.start()
    passes(lambda: len(clients.given) > 200, "decisions")
    killed_run, killed_at = shown_run(replicas[1]), time.monotonic()
    replicas[1].kill()
    own = max(workers, key=folded_offset)
    own.kill()
    passes(lambda: len(clients.given) > 300, "decisions while a replica is away")
    replicas[1].start()
    passes(replicas[1].is_ready, "it is back")
    own_broker.kill()
    before = len(clients.given)
    passes(lambda: len(clients.given) > before + 100, "decisions while Kafka is away")
    passes(
        lambda: "routing" in {one["part"] for one in replicas[0].health()["conditions"]},
        "a condition that says so",
    )
    own_broker.start()
    own.start()
    before = len(clients.given)
    passes(lambda: len(clients.given) > before + 100, "decisions after that")
    clients.stop()

    last = await_quiet(replicas)
    records = asyncio.run(read_log(kafka))
    log, fold = Log(records), fold_of(records)
    assert {one["digest"] for one in last} == {fold.digest}
    assert {one["position"] for one in last} == {records[-1][0]}
    # Each once, by a sum that knows no rules.
    assert {booking.key for booking in fold.bookings.state().bookings} == log.under_way
    for one in last:
        targets = Counter({each["instance_id"]: each["requests"] for each in one["targets"]})
        assert targets.total() == one["under_way"] == len(log.under_way)
    # None is lost but what the killed replica had yet to write.
    told = {(one.run, one.number): one for one in clients.given}
    assert len(told) == len(clients.given)
    assert log.decided <= told.keys() | {key for key in log.decided if key[0] == killed_run}
    lost = [one for key, one in told.items() if key not in log.decided]
    assert all(one.run == killed_run and one.at > killed_at - 2.0 for one in lost), lost
    forgotten = [replica for key, replica in clients.ended.items() if key not in log.ended]
    assert set(forgotten) <= {replicas[1].name}

    # Nothing is left once all have ended.
    chance = random.Random(seed)
    for key in log.under_way:
        clients.report(chance, key, "cancelled")
    assert {one["under_way"] for one in await_quiet(replicas)} == {0}

    # What a worker has kept is what a fresh fold has, once it has read all.
    passes(
        lambda: last_offset(kafka) == max(map(folded_offset, workers)),
        "a worker has folded all",
    )
    for worker in workers:
        assert worker.process is not None
        worker.process.terminate()
        assert worker.process.wait(30) == 0, worker.output()[-3000:]
    recovered = asyncio.run(recover_fold(client_options(kafka), RoutingTopics.of(kafka)))
    records = asyncio.run(read_log(kafka))
    assert recovered.fold.offset == records[-1][0]
    assert recovered.fold.digest == fold_of(records).digest
    another = Role("serve", tmp_path / "serve-4", kafka)
    another.start()
    try:
        assert {one["digest"] for one in await_quiet([*replicas, another])} == {
            recovered.fold.digest
        }
    finally:
        another.kill()


def shown_run(replica: Role) -> int:
    """Names its decisions."""
    body = {
        "model": "m",
        "block_size": 16,
        "token_ids": [1] * 16,
        "candidates": [{"instance_id": "a"}],
        "reserve": False,
    }
    found = parse_decision_id(replica.post("/route", body)["decision_id"])
    assert found is not None
    return found[0]
