"""`reprise republish` as a process: of a data directory that grows, and of Kafka."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from logs.embedded import EmbeddedLog
from replay.capture.replay_request import ask_for
from schemas.progress import never
from tests.integration.test_tail import produce, record, source

BOUND_S = 40.0
TOPICS = {b"kv@a@m", b"kv@b@m"}


class Republishing:
    """The process, and one who reads it."""

    def __init__(self, process: subprocess.Popen[str], context: "zmq.Context[zmq.Socket[bytes]]"):
        assert process.stdout is not None
        self.process = process
        endpoint, _, self.replay_endpoint = process.stdout.readline().split()
        self.subscriber = context.socket(zmq.SUB)
        self.subscriber.rcvtimeo = int(BOUND_S * 1000)
        self.subscriber.subscribe(b"kv@")
        self.subscriber.connect(endpoint)

    def read(self, count: int) -> list[list[bytes]]:
        """The next messages."""
        return [self.subscriber.recv_multipart() for _ in range(count)]

    def terminate(self) -> tuple[int, str]:
        """The exit code, and what it said."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(BOUND_S)
        assert self.process.stdout is not None
        return code, self.process.stdout.read()


@contextmanager
def republishing(*arguments: str) -> Iterator[Republishing]:
    anywhere = ("--bind", "tcp://127.0.0.1:0", "--replay-socket", "tcp://127.0.0.1:0")
    command = [sys.executable, "-m", "reprise", "republish", *arguments, *anywhere]
    with (
        zmq.Context() as context,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            found = Republishing(process, context)
            yield found
            found.subscriber.close(0)
        finally:
            process.kill()


def numbers(messages: list[list[bytes]]) -> list[int]:
    assert {frames[0] for frames in messages} <= TOPICS
    return [int.from_bytes(frames[1], "big") for frames in messages]


def test_a_log_is_sent_from_its_begin_and_as_it_grows(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.append([record(0, "a")[1], record(0, "b")[1], record(1, "a")[1]])
    log.sync()
    with republishing("--data", str(tmp_path)) as sent:
        first = sent.read(3)
        log.append([record(1, "b")[1]])
        log.sync()
        whole = first + sent.read(1)
        assert numbers(whole) == [0, 1, 2, 3]
        with zmq.Context() as context:
            again = list(ask_for(context, sent.replay_endpoint, 1, never))
        assert [frames[-2:] for frames in again] == [frames[-2:] for frames in whole[1:]]
        code, said = sent.terminate()
    log.close()
    assert (code, said) == (0, "sent 4 batches of 2 ranks\n")


def test_the_events_of_kafka_are_sent(kafka_settings: KafkaSettings) -> None:
    asyncio.run(asyncio.wait_for(ensure_topics(kafka_settings), BOUND_S))
    produce(kafka_settings, [record(number, name) for number in range(3) for name in "ab"])
    with republishing(*source(kafka_settings)) as sent:
        assert numbers(sent.read(6)) == list(range(6))
        produce(kafka_settings, [record(3, "a")])
        assert numbers(sent.read(1)) == [6]
        assert sent.terminate() == (0, "sent 7 batches of 2 ranks\n")
