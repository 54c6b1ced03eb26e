"""The past in the distributed form: what one replica answered is what another one, which keeps a
history, says later that was answered then.
"""

import asyncio
import json
import operator
import shutil
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from tests.kafka_fixtures import Kafka, delete_topics
from tests.load import Engine, Load
from tests.processes import until
from tests.roles import Role

pytestmark = pytest.mark.timeout(600)


class Answer(NamedTuple):
    """One answer, and when it was given."""

    position: str
    body: bytes
    query: object
    time: float


class Past:
    """The roles: `plain` answers live, `keeper` has the past, too."""

    def __init__(self, directory: Path, kafka: KafkaSettings) -> None:
        self.bridge = Role("bridge", directory / "bridge", kafka)
        self.worker = Role("streams", directory / "streams", kafka)
        self.plain = Role("serve", directory / "plain", kafka)
        self.keeper = Role("serve", directory / "keeper", kafka, "--history")

    @property
    def roles(self) -> list[Role]:
        return [self.bridge, self.worker, self.plain, self.keeper]

    def start(self, load: Load) -> None:
        for role in self.roles:
            role.start()
        for role in (self.plain, self.keeper):
            until(role.is_ready, what=f"{role.name} is ready:\n{role.output()}", timeout_s=120)
        for engine in load.engines:
            self.plain.post("/register", engine.registration())
        load.start()


def ask(role: Role, query: object, as_of: str = "") -> Answer:
    body, headers = role.exchange(f"/query?as_of={as_of}" if as_of else "/query", query)
    return Answer(headers["Reprise-Position"], body, query, time.time())


def ask_settled(role: Role, query: object) -> Answer:
    """An answer that was not given while a flush was half applied: the next two are the same."""
    answers = [ask(role, query)]
    while len({(one.position, one.body) for one in answers[-3:]}) > 1 or len(answers) < 3:
        assert len(answers) < 300, "the table never rests"
        answers.append(ask(role, query))
    return answers[-1]


def refusal(role: Role, query: object, as_of: str) -> tuple[int, str, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(role, query, as_of)
    said = json.loads(caught.value.read())
    return caught.value.code, said["reason"], said["error"]


def queries(load: Load) -> list[object]:
    return [{"model": "m", "block_size": 16, "token_ids": prompt} for prompt in load.sample()]


def compare(role: Role, given: list[Answer]) -> None:
    for answer in given:
        again = ask(role, answer.query, answer.position)
        assert again.body == answer.body, answer.position
        assert again.position == answer.position


@pytest.fixture
def settings(kafka: Kafka, topic_prefix: str) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=kafka.bootstrap,
        topic_prefix=topic_prefix,
        events_partitions=3,
        registry_partitions=2,
    )


@pytest.fixture
def past(tmp_path: Path, settings: KafkaSettings) -> Iterator[Past]:
    opened = Past(tmp_path, settings)
    yield opened
    for role in opened.roles:
        role.kill()


@pytest.fixture
def load(seed: int) -> Iterator[Load]:
    engines = [Engine(f"engine-{number}", gpu_blocks=150, cpu_blocks=200) for number in range(4)]
    opened = Load(seed, engines, prompts=200)
    yield opened
    opened.close()


def test_what_was_answered_is_told_later_across_kills_and_a_deleted_history(
    past: Past, load: Load, seed: int
) -> None:
    past.start(load)
    given: list[Answer] = []
    for number in range(3):
        until(
            lambda number=number: load.published() > 300 * (number + 1),  # type: ignore[misc]
            what="the engines publish",
            timeout_s=120,
        )
        for query in queries(load):
            given.append(ask_settled(past.plain, query))
            time.sleep(0.03)  # the table moves on
        past.keeper.kill()
        past.keeper.start()
        until(past.keeper.is_ready, what="the keeper is ready", timeout_s=120)
    load.stop()
    assert len({answer.position for answer in given}) > 10, f"the table has moved, seed {seed}"
    compare(past.keeper, given)
    oldest, newest = given[0], given[-1]

    # A time leads to a position.
    at_time = ask(past.keeper, newest.query, f"{newest.time:.3f}")
    assert at_time.body == ask(past.keeper, newest.query, at_time.position).body
    assert at_time.position.count(",") == 2

    # What cannot be answered says what can.
    code, reason, text = refusal(past.keeper, oldest.query, "0:1")
    assert (code, reason) == (400, "as_of_of_another_log")
    assert "3 partitions: 0:OFFSET,1:OFFSET,2:OFFSET; got: 0:1" in text
    assert refusal(past.keeper, oldest.query, "0:1,1:1,2:99999999")[:2] == (400, "as_of_in_future")
    assert refusal(past.keeper, oldest.query, str(time.time() + 60))[:2] == (400, "as_of_in_future")
    assert refusal(past.keeper, oldest.query, "1970-01-02")[:2] == (400, "as_of_too_old")
    assert refusal(past.plain, oldest.query, oldest.position)[:2] == (400, "no_history")

    # It follows to the end, and says how far it is.
    until(
        lambda: past.keeper.metric("reprise_history_behind_records") == 0,
        what="the keeper has all",
        timeout_s=60,
    )
    assert past.keeper.metric("reprise_history_recording") == 1
    assert past.keeper.metric("reprise_history_bytes") > 0

    # Lost altogether, it is made again from the log.
    past.keeper.kill()
    for path in past.keeper.data.iterdir():
        shutil.rmtree(path)
    past.keeper.start()
    until(past.keeper.is_ready, what="the keeper is ready", timeout_s=120)
    compare(past.keeper, given)


async def end_offsets(settings: KafkaSettings) -> list[int]:
    """Of each partition of the events topic."""
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.bootstrap)
    await consumer.start()
    try:
        topic = settings.topics.events
        places = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        ends = await consumer.end_offsets(places)
        return [ends[place] for place in places]
    finally:
        await consumer.stop()


def test_a_log_that_was_made_anew_and_is_longer_by_now_is_told_from_the_old_one(
    past: Past, load: Load, settings: KafkaSettings, tmp_path: Path, seed: int
) -> None:
    past.start(load)
    until(lambda: load.published() > 150, what="the engines publish", timeout_s=120)
    load.stop()
    until(
        lambda: past.keeper.metric("reprise_history_behind_records") == 0,
        what="the keeper has all",
        timeout_s=60,
    )
    before = asyncio.run(end_offsets(settings))
    for role in past.roles:
        role.kill()
    asyncio.run(delete_topics(settings.bootstrap, f"{settings.topic_prefix}."))
    asyncio.run(ensure_topics(settings))

    # Engines, bridge and worker that know nothing of the log before; the keeper does.
    past.bridge = Role("bridge", tmp_path / "bridge-2", settings)
    past.worker = Role("streams", tmp_path / "streams-2", settings)
    engines = [Engine(one.instance_id, gpu_blocks=150, cpu_blocks=200) for one in load.engines]
    again = Load(seed + 1, engines, prompts=200)
    try:
        for role in (past.bridge, past.worker, past.plain):
            role.start()
        until(past.plain.is_ready, what="the replica is ready", timeout_s=120)
        for engine in engines:
            past.plain.post("/register", engine.registration())
        again.start()
        until(
            lambda: all(map(operator.gt, asyncio.run(end_offsets(settings)), before)),
            what="the log is longer than the one before",
            timeout_s=120,
        )
        given = []
        for query in queries(again):
            given.append(ask_settled(past.plain, query))
            time.sleep(0.03)
        past.keeper.start()
        until(past.keeper.is_ready, what="the keeper is ready", timeout_s=120)
        until(
            lambda: "is not the one that its table was folded from" in past.keeper.output(),
            what=f"the keeper tells the logs apart, seed {seed}",
            timeout_s=60,
        )
        again.stop()
        until(
            lambda: past.keeper.metric("reprise_history_recording") == 1,
            what="the keeper records",
            timeout_s=60,
        )
        compare(past.keeper, given)
    finally:
        again.close()


def test_explain_names_the_record_and_its_partition(
    past: Past, load: Load, tmp_path: Path, seed: int
) -> None:
    past.start(load)
    until(lambda: load.published() > 400, what="the engines publish", timeout_s=120)
    load.stop()
    query = {"model": "m", "block_size": 16, "token_ids": load.prompt(7)}
    for engine in load.engines:
        asked = query | {"instance_id": engine.instance_id}
        held = engine.cache.longest_held(load.prompt(7))
        # Nothing in the keeper knows of what is still on its way from an engine's socket.
        until(
            lambda asked=asked, held=held: (  # type: ignore[misc]
                past.keeper.post("/explain", asked).get("longest_matched") == held
            ),
            what=f"the keeper has what {engine.instance_id} sent last, seed {seed}",
            timeout_s=60,
        )
        (tmp_path / "query.json").write_text(json.dumps(asked))
        command = [sys.executable, "-m", "reprise", "get", "--url", past.keeper.base_url]
        command += ["/explain", "--body", str(tmp_path / "query.json"), "--json"]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        told = json.loads(ran.stdout)
        assert told["instance_id"] == engine.instance_id
        assert (told["longest_matched"], told["prompt_tokens"]) == (
            held,
            len(load.prompt(7)),
        ), f"seed {seed}"
        partition = told["position"].split(":")[0]
        assert partition in {"0", "1", "2"}
        changes = (told["ended_by"] or {"changes": []})["changes"]
        assert {change["position"].split(":")[0] for change in changes} <= {partition}, told
