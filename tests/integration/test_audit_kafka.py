"""Answers of two replicas while engines publish: all that they kept is proven from the topics,
beside the deployment, and a changed number is found.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import msgspec
import pytest

from brokers.broker_settings import KafkaSettings
from brokers.clients import Clients
from brokers.options import client_options
from brokers.reading import opened_reader, read_to_end
from devtools.broker import Broker
from streams.audit.source import ANSWERS_TOPIC
from tests.kafka_fixtures import settings_for
from tests.load import Engine, Load
from tests.processes import until
from tests.roles import Role

ANSWERS = 2_000
"""At least so many are asked of the two replicas."""


@pytest.fixture
def load(seed: int) -> Iterator[Load]:
    engines = [Engine("a"), Engine("a", dp_rank=1), Engine("b"), Engine("c"), Engine("d")]
    opened = Load(seed, engines, prompts=200)
    yield opened
    opened.close()


@pytest.fixture
def roles(tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[list[Role]]:
    """A bridge, a worker, and two replicas that keep every answer."""
    made = [Role(name, tmp_path / name, kafka_settings) for name in ("bridge", "streams")]
    for number in (1, 2):
        made.append(
            Role("serve", tmp_path / f"serve-{number}", kafka_settings, "--set", "audit.rate=1")
        )
    yield made
    for role in made:
        role.kill()


def verify(kafka: KafkaSettings) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "reprise", "audit", "verify", "--kafka", kafka.bootstrap]
    ended = subprocess.run(
        [*command, "--topic-prefix", kafka.topic_prefix],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stdout.splitlines() or ended.stderr.splitlines()


def test_all_that_replicas_kept_is_proven_and_a_changed_number_is_found(
    kafka_settings: KafkaSettings, roles: list[Role], load: Load
) -> None:
    code, lines = verify(kafka_settings)
    assert code == 1
    assert "`reprise serve` with audit.rate" in lines[0]
    for role in roles:
        role.start()
    replicas = roles[2:]
    for replica in replicas:
        until(replica.is_ready, what="a replica is ready")
    for engine in load.engines:
        replicas[0].post("/register", engine.registration())
    load.start()
    given = ask(replicas, load, ANSWERS)
    code, lines = verify(kafka_settings)
    assert (code, lines[-1].split("disagreed ")[1]) == (0, "0, beyond the log 0"), lines
    written = sum(replica.metric("reprise_audit_written_total") for replica in replicas)
    unsettled = sum(replica.metric("reprise_audit_unsettled_total") for replica in replicas)
    assert written + unsettled == given
    assert written > 0.5 * given
    assert replicas[0].metric("reprise_audit_dropped_total") == 0
    terminate(replicas[0])
    replicas[0].start()
    until(replicas[0].is_ready, what="it is ready again")
    ask(replicas[:1], load, 500)
    written += replicas[0].metric("reprise_audit_written_total")
    terminate(replicas[0])  # which writes what is left
    load.stop()
    code, lines = verify(kafka_settings)
    assert (code, lines[-1].split(": ")[1]) == (
        0,
        f"agreed {written:.0f}, disagreed 0, beyond the log 0",
    ), lines
    tampered = asyncio.run(tamper(kafka_settings))
    code, lines = verify(kafka_settings)
    assert code == 1
    assert sum("disagrees: answer" in line for line in lines) == 1
    assert f".{tampered} of " in lines[0]
    assert "disagreed 1," in lines[-1]


def terminate(replica: Role) -> None:
    """Ends it in order."""
    assert replica.process is not None
    replica.process.terminate()
    assert replica.process.wait(30) == 0
    replica.kill()


def ask(replicas: list[Role], load: Load, count: int) -> int:
    """Asks them in turns; returns how often."""
    queries = [
        {"model": "m", "block_size": 16, "token_ids": prompt, "tenant_id": "default"}
        for prompt in load.sample()
    ]
    paths = ("/query", "/query", "/query?detail=1", "/query?hits_only=1")
    asked = zip(cycle(replicas), cycle(paths), cycle(queries[:-1]), strict=False)
    for replica, path, query in islice(asked, count):
        replica.post(path, query)
    return count


async def tamper(kafka: KafkaSettings) -> int:
    """Adds a block to what an instance is said to hold, in a record of its own at the end."""
    options = client_options(kafka)
    values: list[bytes] = []
    async with opened_reader(options, committed=True) as reader:
        starts: dict[int, int | None] = dict.fromkeys(
            range(kafka.topic(ANSWERS_TOPIC).partitions), 0
        )
        await read_to_end(
            reader,
            kafka.topic(ANSWERS_TOPIC).name,
            starts,
            lambda message: values.append(message.value or b""),
        )
    for value in values:
        record = msgspec.msgpack.decode(value)
        for fields in record["answers"]:
            if fields[6] and fields[6][0][1]:
                fields[6][0][1] += 16
                fields[-1] += 1_000_000
                changed = msgspec.msgpack.encode(record | {"answers": [fields]})
                producer = Clients(options).entry_producer()
                await producer.start()
                await producer.send_and_wait(
                    kafka.topic(ANSWERS_TOPIC).name, key=b"1", value=changed
                )
                await producer.stop()
                return int(fields[-1])
    raise AssertionError("Expected an answer that names a hit")


def test_while_kafka_is_away_queries_go_on_and_what_they_got_is_proven_later(
    tmp_path: Path, own_broker: Broker, seed: int
) -> None:
    kafka = settings_for(own_broker)
    made = [Role(name, tmp_path / name, kafka) for name in ("bridge", "streams")]
    replica = Role("serve", tmp_path / "serve", kafka, "--set", "audit.rate=1")
    load = Load(seed, [Engine("a"), Engine("b")], prompts=200)
    try:
        for role in (*made, replica):
            role.start()
        until(replica.is_ready, what="the replica is ready")
        for engine in load.engines:
            replica.post("/register", engine.registration())
        load.start()
        given = ask([replica], load, 300)
        own_broker.kill()
        given += ask([replica], load, 300)
        until(lambda: "audit" in conditions_of(replica), what="it says so", timeout_s=60)
        assert replica.is_ready()
        own_broker.start()
        until(
            lambda: "audit" not in conditions_of(replica), what="answers are written", timeout_s=60
        )
        given += ask([replica], load, 300)
        load.stop()
        until(lambda: verify(kafka)[0] == 0, what="the topic can be read", timeout_s=60)
        counted = {
            name: replica.metric(f"reprise_audit_{name}_total")
            for name in ("written", "dropped", "unsettled")
        }
        terminate(replica)
        code, lines = verify(kafka)
        assert code == 0, lines
        assert counted["dropped"] == 0, "the queue had room for them"
        assert sum(counted.values()) == given
        agreed = int(counted["written"])
        assert f"agreed {agreed}, disagreed 0, beyond the log 0" in lines[-1]
        replica.start()
        until(replica.is_ready, what="the replica is ready")
        ask([replica], load, 10)
        own_broker.kill()
        until(
            lambda: ask([replica], load, 10) > 0 and "audit" in conditions_of(replica),
            what="some wait for Kafka",
            timeout_s=60,
        )
        terminate(replica)
        assert "Kafka did not take" in replica.output()
    finally:
        load.close()
        for role in (*made, replica):
            role.kill()


def conditions_of(replica: Role) -> set[str]:
    return {condition["part"] for condition in replica.health()["conditions"]}
