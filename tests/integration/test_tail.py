"""`reprise tail` as a process: on a real broker, and beside a running service."""

import asyncio
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]
from click.testing import CliRunner

from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from reprise.cli.main import main
from schemas.identities import StreamKey
from schemas.topics import encode_stream
from tests.building import events_record, stored
from tests.processes import Service

BOUND_S = 40.0


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "reprise", "tail", *map(str, arguments)]


def tail(*arguments: object) -> list[dict[str, Any]]:
    done = CliRunner().invoke(main, ["tail", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


class Following:
    """A tail that goes on; its lines arrive in a queue."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def next(self) -> dict[str, Any]:
        """The next line, but for heartbeats."""
        while True:
            found: dict[str, Any] = json.loads(self._lines.get(timeout=BOUND_S))
            if found.get("kind") != "heartbeat":
                return found

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C; returns the exit code and what it said."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(BOUND_S)
        assert self.process.stderr is not None
        return code, self.process.stderr.read()


@contextmanager
def following(*arguments: object) -> Iterator[Following]:
    with subprocess.Popen(
        command("--follow", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Following(process)
        finally:
            process.kill()


def record(number: int, instance: str) -> tuple[bytes, bytes]:
    stream = StreamKey("default", "m", 4, "", instance)
    event = stored(number, [number], [1, 2, 3, 4])
    return encode_stream(stream), events_record(number, number, [event], stream=stream)


def produce(
    settings: KafkaSettings, records: Sequence[tuple[bytes, bytes | None]], partition: int = 0
) -> None:
    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, acks="all")
        await producer.start()
        try:
            for key, value in records:
                await producer.send_and_wait(
                    settings.topics.events.name, value, key=key, partition=partition
                )
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(run(), BOUND_S))


@pytest.fixture
def topics(kafka_settings: KafkaSettings) -> KafkaSettings:
    asyncio.run(asyncio.wait_for(ensure_topics(kafka_settings), BOUND_S))
    return kafka_settings


def source(settings: KafkaSettings) -> list[str]:
    return ["--kafka", settings.bootstrap, "--topic-prefix", settings.topic_prefix]


def places(lines: Sequence[dict[str, Any]]) -> set[tuple[int, int]]:
    return {(line["partition"], line["offset"]) for line in lines}


def test_all_partitions_are_printed_and_then_it_ends(kafka_settings: KafkaSettings) -> None:
    topics = kafka_settings
    done = CliRunner().invoke(main, ["tail", *source(topics)])
    assert done.exit_code == 1
    missing = f"Topic does not exist: {topics.topics.events.name}. The roles create it"
    assert missing in done.output
    asyncio.run(asyncio.wait_for(ensure_topics(topics), BOUND_S))
    assert tail(*source(topics)) == []
    produce(topics, [record(0, "a"), record(1, "a")], partition=0)
    produce(topics, [record(0, "b"), record(1, "b")], partition=1)
    lines = tail(*source(topics))
    assert places(lines) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert [line["offset"] for line in lines if line["partition"] == 0] == [0, 1]
    assert {line["stream"]["instance_id"] for line in lines} == {"a", "b"}
    assert lines[0]["events"][0]["tokens"] == [1, 2, 3, 4]
    (line,) = tail(*source(topics), "--instance", "b", "--limit", 1, "--compact")
    assert (line["partition"], line["offset"], line["events"][0]["tokens"]) == (1, 0, 4)


def test_what_is_no_record_is_named_and_the_rest_goes_on(topics: KafkaSettings) -> None:
    key, value = record(0, "a")
    produce(topics, [(key, value), (key, b"\xc1"), (key, None), (key, value)])
    lines = tail(*source(topics))
    assert [set(line) == {"partition", "offset", "error"} for line in lines] == [
        False,
        True,
        True,
        False,
    ]


def test_following_on_kafka_until_ctrl_c(topics: KafkaSettings) -> None:
    produce(topics, [record(0, "a")])
    with following(*source(topics), "--from-beginning") as tailing:
        assert tailing.next()["offset"] == 0
        produce(topics, [record(1, "a")])
        assert tailing.next()["offset"] == 1
        assert tailing.interrupt() == (130, "")


def test_a_reader_that_goes_away_ends_it_without_a_word(topics: KafkaSettings) -> None:
    produce(topics, [record(0, "a")])
    with subprocess.Popen(
        command("--from-beginning", "--follow", *source(topics)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        produce(topics, [record(1, "a")])
        assert process.stderr.read() == b""
        assert process.wait(BOUND_S) == 0


def test_following_the_log_of_a_service_through_its_death(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Service(data) as service:
        service.register("tcp://127.0.0.1:1", instance_id="a")
        with following("--data", data, "--from-beginning", "--instance", "b") as tailing:
            service.register("tcp://127.0.0.1:2", instance_id="b")
            line = tailing.next()
            assert (line["kind"], line["stream"]["instance_id"]) == ("registered", "b")
            service.restart()
            status, _ = service.post(
                "/unregister",
                {
                    "type": "vLLM",
                    "modelname": "m",
                    "instance_id": "b",
                    "block_size": 16,
                    "dp_rank": 0,
                },
            )
            assert status == 200
            assert tailing.next()["kind"] == "unregistered"
            assert tailing.interrupt() == (130, "")
        kinds = [line["kind"] for line in tail("--data", data)]
        kinds = [kind for kind in kinds if kind != "heartbeat"]
        assert kinds == ["registered", "registered", "unregistered"]
