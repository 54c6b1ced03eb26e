"""The commands of README.md and docs/, run as they are printed, in order, document by document.

What a reader has otherwise stands for what is here: the service's address, data directories, an
engine's sockets, a broker, a position in the log. Nothing else of a command is changed.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from devtools.broker import free_ports
from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import BlockStored
from tests.documented import ENDS_WITH, ROOT, SERVICES, Command, commands, why_elsewhere
from tests.integration.test_tail import produce, record
from tests.processes import Service, until
from tests.relays import make_keys

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]

BOUND_S = 120.0
ENGINES = (("engine-0", "demo"), ("engine-1", "demo"), ("first", "m"))
TOKENS = list(range(1, 49))
STARTED = re.compile(r"(?:Reprise answers on|Metrics on) (http://[^\s/]+)|waiting for a subscriber")
ASSIGNMENT = re.compile(r"^(?:export )?([A-Z_]+)=(.*)$", re.DOTALL)
SHELL = re.compile(r"[|;<>`]|\$\(|&&")

RUN = [one for one in commands() if not why_elsewhere(one)]
HERE = [one for one in RUN if not one.is_of_kafka]
ON_KAFKA = [one for one in RUN if one.is_of_kafka]
ASKS = [one for one in HERE if one.text.startswith(("curl ", "TOKENS="))]


def names(found: list[Command]) -> list[str]:
    return list(dict.fromkeys(one.document for one in found))


def of(name: str, found: list[Command]) -> list[Command]:
    return [one for one in found if one.document == name]


class World:
    """A service with two engines, and a data directory of which the service has ended."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.engines = [Publisher(PublisherOptions()) for _ in ENGINES]
        self.spare = Publisher(PublisherOptions())
        key = make_keys(directory / "service").path
        options = (
            "--set",
            "audit.rate=1",
            "--set",
            "routing.select_service=true",
            "--set",
            f"engines.curve_key={key}",
        )
        self.service = Service(directory / "data", *options)

    def begin(self) -> None:
        self.service.start()
        for (name, model), engine in zip(ENGINES, self.engines, strict=True):
            self.service.register(
                engine.endpoint,
                replay_endpoint=engine.replay_endpoint,
                modelname=model,
                instance_id=name,
            )
        until(lambda: all(engine.subscribers > 0 for engine in self.engines), what="the links")
        blocks = BlockStored(block_hashes=[1, 2, 3], token_ids=TOKENS, block_size=16)
        for engine in self.engines:
            engine.publish([blocks])
        for name, model in ENGINES:
            self._await_blocks(name, model)
        self.service.stop()
        shutil.copytree(self.service.data, self.directory / "ended")
        self.service.start()

    def _await_blocks(self, name: str, model: str) -> None:
        def are_there() -> bool:
            return self.service.longest(TOKENS, name, model=model) == len(TOKENS)

        until(are_there, what=f"the blocks of {name}")

    def has_spare(self) -> bool:
        """Whether the spare engine is registered, and linked."""
        services = self.service.get("/services")[1]["services"]
        return any(one["Connected"] and one["Endpoint"] == self.spare.endpoint for one in services)

    @property
    def position(self) -> str:
        found: str = self.service.digest()["position"]
        return found

    def forget_others(self) -> None:
        """What a document has registered: another one uses the same names."""
        for one in self.service.get("/services")[1]["services"]:
            if (one["InstanceID"], one["ModelName"]) not in ENGINES:
                body = {
                    "instance_id": one["InstanceID"],
                    "tenant_id": one["TenantID"],
                    "dp_rank": one["DPRank"],
                    "modelname": one["ModelName"],
                    "block_size": one["BlockSize"],
                }
                assert self.service.post("/unregister", body)[0] == 200

    def end(self) -> None:
        self.service.kill()
        for engine in (*self.engines, self.spare):
            engine.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("documented"))
    try:
        made.begin()
        yield made
    finally:
        made.end()


class Reader:
    """Somebody who types the commands of one document, in a directory of their own."""

    def __init__(self, world: World, directory: Path, kafka: KafkaSettings | None = None) -> None:
        self.world = world
        self.directory = directory
        self.kafka = kafka
        self.variables = {"KEY": "none", "REPRISE_URL": world.service.base_url}
        if kafka is not None:
            self.variables |= {
                "REPRISE_TOPIC_PREFIX": kafka.topic_prefix,
                "REPRISE_EVENTS_PARTITIONS": str(kafka.events_partitions),
                "REPRISE_REGISTRY_PARTITIONS": str(kafka.registry_partitions),
            }
        (directory / "data").symlink_to(world.service.data)
        shutil.copytree(world.directory / "ended", directory / "lib")
        query = {"model": "demo", "block_size": 16, "token_ids": TOKENS}
        (directory / "query.json").write_text(json.dumps(query))
        write_trace(directory / "conversation_trace.jsonl")
        write_conversations(directory / "kv-cache-tester" / "traces")
        write_programs(directory / "bin")

    def as_here(self, text: str) -> str:
        """The command with what is here in the place of what a reader has otherwise."""
        url = self.world.service.base_url
        engine = self.world.engines[0]
        ports = iter(free_ports(7))
        for printed, here in (
            ("http://127.0.0.1:13333", url),
            ("http://10.0.0.2:13333", url),
            ("/var/lib/reprise", str(self.directory / "lib")),
            ("/backups/", f"{self.directory}/backups-"),
            ("10.0.0.9:50051", "0.0.0.0:0"),
            ("--lmcache 0.0.0.0", f"--lmcache 127.0.0.1:{next(ports)},{next(ports)},{next(ports)}"),
            ("coordinator=0.0.0.0", f"coordinator=127.0.0.1:{next(ports)}"),
            ("0:592", self.world.position if self.kafka is None else ""),
            ("2026-11-24T21:00:00Z", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"),
            ("collector:4318", "127.0.0.1:9"),
        ):
            text = text.replace(printed, here)
        if "/workers" in text:
            text = text.replace("tcp://10.0.0.7:5557", self.world.spare.endpoint)
        if "--from-zmq" in text or "reprise relay" in text:
            text = text.replace("tcp://10.0.0.7:5557", engine.endpoint)
            text = text.replace("tcp://10.0.0.7:5558", engine.replay_endpoint)
            text = text.replace("tcp://127.0.0.1:5557", engine.endpoint)
            text = text.replace("tcp://127.0.0.1:5657", engine.replay_endpoint)
            text = text.replace("tcp://10.0.0.7:6557", f"tcp://127.0.0.1:{next(ports)}")
            text = text.replace("tcp://10.0.0.7:6657", f"tcp://127.0.0.1:{next(ports)}")
        if "--as-publisher" in text or "reprise republish" in text:
            text = re.sub(
                r"tcp://127\.0\.0\.1:\d+", lambda _: f"tcp://127.0.0.1:{next(ports)}", text
            )
        if self.kafka is not None:
            broker = self.kafka.bootstrap
            text = re.sub(r"127\.0\.0\.1:9092|10\.0\.0\.5:9092|HOST:PORT", broker, text)
        if SERVICES.search(text) and "reprise republish" not in text:
            role = re.findall(r"reprise (\w+)", text)[0]
            text = text.removesuffix("&").rstrip().replace("--data data", "")
            if "--data " not in text and role in ("up", "bridge", "streams", "serve"):
                text += " --data own"
            if role != "replay":
                text += " --port 0" if role in ("up", "serve") else " --metrics-port 0"
        return text

    @property
    def environment(self) -> Mapping[str, str]:
        path = f"{self.directory / 'bin'}:{os.environ['PATH']}"
        return dict(os.environ) | self.variables | {"PATH": path, "PYTHONPATH": str(ROOT)}

    def run(self, command: Command) -> None:
        """Types it, and sees that it ends as it should."""
        text = self.as_here(command.text)
        assigned = ASSIGNMENT.match(text)
        if assigned and not re.search(r"\breprise ", text):
            printed = self._typed(f"printf %s {assigned[2]}")
            assert printed.returncode == 0, command.place
            self.variables[assigned[1]] = printed.stdout
        elif SERVICES.search(text):
            self._serve(command, text)
        else:
            done = self._typed(text)
            said = f"{command.place}\n{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            assert done.returncode == expected_of(command), said
            if "/workers -H" in text:  # the next command asks for it
                until(self.world.has_spare, what="the link to the worker")

    def _typed(self, text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._arguments(text),
            cwd=self.directory,
            env=self._environment_of(text),
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )

    def _arguments(self, text: str) -> list[str]:
        """Of a plain `reprise ...` those of its process, which needs no shell; else a shell's."""
        words = (
            []
            if SHELL.search(text)
            else shlex.split(text.replace("$KEY", "none").replace("\\\n", " "))
        )
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        if words and words[0].removeprefix(".venv/bin/") == "reprise":
            return [sys.executable, "-m", "reprise", *words[1:]]
        return ["bash", "-c", text.replace(".venv/bin/", "")]

    def _environment_of(self, text: str) -> Mapping[str, str]:
        given = re.match(r"((?:[A-Z_]+=\S+ )+)(?:\.venv/bin/)?reprise ", text)
        pairs = dict(one.split("=", 1) for one in given[1].split()) if given else {}
        return dict(self.environment) | pairs

    def _serve(self, command: Command, text: str) -> None:
        """Starts it, waits until it is ready, and stops it."""
        with self.started(command, text) as running:
            running.await_ready()

    @contextmanager
    def started(self, command: Command, text: str) -> Iterator["Running"]:
        """A command that goes on until it is stopped, which it is in the end."""
        output = self.directory / f"{command.line}.output"
        with (
            output.open("w") as log,
            subprocess.Popen(
                self._arguments(text),
                cwd=self.directory,
                env=self._environment_of(text),
                stdout=log,
                stderr=log,
            ) as process,
        ):
            try:
                yield Running(command, process, output)
                process.send_signal(signal.SIGTERM)
                code = process.wait(BOUND_S)
                assert code == expected_of(command), (
                    f"{command.place}\n{output.read_text()[-3000:]}"
                )
            finally:
                process.kill()


class Running(NamedTuple):
    """A process of a documented command, and what it has said."""

    command: Command
    process: "subprocess.Popen[bytes]"
    output: Path

    def await_ready(self) -> None:
        until(self._is_ready, what=f"readiness of {self.command.place}", timeout_s=BOUND_S)

    def _is_ready(self) -> bool:
        said = self.output.read_text()
        assert self.process.poll() is None, f"{self.command.place}\n{said[-3000:]}"
        found = STARTED.search(said)
        if found is None or found[1] is None:
            return found is not None
        try:
            with urllib.request.urlopen(f"{found[1]}/ready", timeout=20) as response:
                return bool(response.status == HTTPStatus.OK)
        except OSError:
            return False


def expected_of(command: Command) -> int:
    """The exit code that the page shows."""
    for pattern, code, _ in ENDS_WITH:
        if re.search(pattern, command.text):
            return code
    return 0


def write_trace(path: Path) -> None:
    """Requests in Mooncake's format, small enough for many runs."""
    lines = [
        {
            "timestamp": 400 * number,
            "input_length": 512 * (2 + number % 4),
            "output_length": 20,
            "hash_ids": [
                number % 7,
                *(100 + 10 * (number % 20) + n for n in range(1 + number % 4)),
            ],
        }
        for number in range(200)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_conversations(folder: Path) -> None:
    """Of coding agents, as kv-cache-tester has them."""
    folder.mkdir(parents=True)
    for number in range(3):
        requests = [
            {"t": 20.0 * turn, "type": "n", "in": 64 * (32 + turn), "out": 20}
            | {"hash_ids": list(range(1, 33 + turn))}
            for turn in range(4)
        ]
        fields = {"id": f"trace_{number}", "block_size": 64, "tool_tokens": 1000}
        content = json.dumps(fields | {"requests": requests})
        (folder / f"trace_{number}.json").write_text(content)


def write_programs(folder: Path) -> None:
    """`reprise` and `python` of this environment, and a `curl` that fails where HTTP does."""
    folder.mkdir()
    for name, command in (
        ("reprise", f"{sys.executable} -m reprise"),
        ("python", sys.executable),
        ("curl", f"{shutil.which('curl')} --fail-with-body --max-time 60"),
    ):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o755)


@pytest.fixture
def readable(world: World) -> Iterator[World]:
    """The world, in which a document's registrations are gone once it was read."""
    yield world
    world.forget_others()


@pytest.mark.smoke
@pytest.mark.parametrize("name", names(ASKS))
def test_what_is_asked_by_curl_is_answered(name: str, readable: World, tmp_path: Path) -> None:
    reader = Reader(readable, tmp_path)
    for command in of(name, ASKS):
        reader.run(command)


@pytest.mark.parametrize("name", names(HERE))
def test_the_commands_of_a_document_run(name: str, readable: World, tmp_path: Path) -> None:
    reader = Reader(readable, tmp_path)
    if name == "offline.md":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
        reader.run(Command(name, 0, "reprise capture --data data --out hour.capture"))
    for command in of(name, HERE):
        if "--out hour.capture" in command.text:
            (tmp_path / "hour.capture").unlink()
        reader.run(command)


@pytest.mark.parametrize("name", names(ON_KAFKA))
def test_the_commands_of_a_document_run_on_kafka(
    name: str, world: World, tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    reader = Reader(world, tmp_path, kafka_settings)
    for _, block in groupby(of(name, ON_KAFKA), key=lambda one: one.block):
        with ExitStack() as stack:
            running = []
            for command in block:
                prepare(reader, command)
                text = reader.as_here(command.text)
                if SERVICES.search(text):
                    running.append(stack.enter_context(reader.started(command, text)))
                else:
                    reader.run(command)
            for one in running:
                one.await_ready()


def prepare(reader: Reader, command: Command) -> None:
    """What earlier commands of the page have made."""
    if "load all.capture" in command.text:
        reader.run(Command("", 0, "reprise capture --data data --out all.capture"))
    if "bridge-1.key_secret" in command.text:
        reader.run(Command("", 0, "reprise curve-key bridge-1"))
    if "reprise tail" in command.text:
        assert reader.kafka is not None
        asyncio.run(asyncio.wait_for(ensure_topics(reader.kafka), BOUND_S))
        produce(reader.kafka, [record(number, "worker-2") for number in (1, 2)])
