"""`reprise get --every` in a terminal beside the API of a service as a process."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte
import pytest

from lab.engines.cache import CacheSizes
from lab.engines.engine import EngineOptions
from lab.engines.process import EngineProcess, stop_engines
from lab.engines.publisher import PublisherOptions
from lab.traffic.http_json import JsonConnection
from tests.contract.deployments import memory_options
from tests.memory_segments import SegmentProcess
from tests.processes import Service, until

COLUMNS, LINES = 160, 30


class Terminal:
    """A pseudo-terminal with a program in it; what it shows is read by pyte."""

    def __init__(self, *command: str) -> None:
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = pty.openpty()
        os.set_blocking(self._master, False)
        environment = dict(os.environ) | {
            "TERM": "xterm-256color",
            "LINES": str(LINES),
            "COLUMNS": str(COLUMNS),
        }
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True
        )
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    @property
    def text(self) -> str:
        """What it shows now."""
        while select.select([self._master], [], [], 0.05)[0]:
            try:
                self._stream.feed(os.read(self._master, 65_536))
            except OSError:  # the program has ended
                break
        return "\n".join(line.rstrip() for line in self._screen.display)

    def row(self, name: str) -> str:
        """The line of an instance, "" for none."""
        lines = [line for line in self.text.splitlines() if re.match(rf" *\S+ +{name} ", line)]
        return lines[0] if lines else ""

    def ended(self) -> int:
        until(lambda: (self.text, self.process.poll())[1] is not None, what="it has ended")
        return self.process.returncode


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data", *memory_options(tmp_path / "shm")) as running:
        yield running


@pytest.fixture
def engines(service: Service) -> Iterator[list[EngineProcess]]:
    sizes = CacheSizes(block_size=16, gpu_blocks=100, cpu_blocks=0)
    found = [
        EngineProcess(
            EngineOptions(instance_id=name, model="m", sizes=sizes, publisher=PublisherOptions())
        )
        for name in ("left", "right")
    ]
    for name, engine in zip(("left", "right"), found, strict=True):
        ready = engine.await_ready()
        (rank,) = ready.ranks
        service.register(
            rank.endpoint,
            instance_id=name,
            modelname="m",
            replay_endpoint=rank.replay_endpoint,
            memory_segment="node-1/kvcached_*" if name == "left" else "",
        )
        api = JsonConnection(f"http://127.0.0.1:{ready.http_port}", 20.0)
        for number in range(3 if name == "left" else 5):
            api.request("POST", "/generate", {"token_ids": [number] * 32})
        api.close()
    yield found
    stop_engines(found)


def entries(service: Service, name: str) -> int:
    return sum(one["entries"] for one in service.digest()["contexts"] if one["instance_id"] == name)


def following(service: Service, *arguments: str) -> Terminal:
    command = (sys.executable, "-m", "reprise", "get", "--url", service.base_url)
    names = ("tenant_id", "instance_id", "state", "blocks", "pressure")
    columns = (word for name in names for word in ("-c", name))
    return Terminal(*command, "/ui/instances", "--every", "0.25", *columns, *arguments)


def test_what_a_terminal_shows_is_what_the_api_says(
    service: Service, engines: list[EngineProcess], tmp_path: Path
) -> None:
    until(lambda: entries(service, "left") > 0 and entries(service, "right") > 0, what="blocks")
    writer = SegmentProcess(tmp_path / "shm")
    try:
        writer.write(1000, 250, 250)
        with following(service) as terminal:
            until(lambda: "exact" in terminal.row("right"), what="the second engine is shown")
            listed = {one["InstanceID"]: one for one in service.get("/services")[1]["services"]}
            for name in ("left", "right"):
                words = terminal.row(name).split()
                assert words[:3] == ["default", name, listed[name]["State"]]
                assert str(entries(service, name)) in words
            until(lambda: "0.5" in terminal.row("left").split(), what="the pressure of its memory")
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.ended() == 130
        with following(service, "--filter", "right") as terminal:
            until(lambda: terminal.row("right"), what="the one that is wanted")
            assert not terminal.row("left")
    finally:
        writer.kill()


def test_a_service_that_is_killed_is_said_and_what_was_known_stays(
    service: Service, engines: list[EngineProcess]
) -> None:
    with following(service) as terminal:
        until(lambda: terminal.row("left"), what="an engine is shown")
        service.kill()
        until(lambda: "Is the service up?" in terminal.text, what="that it is away")
        assert terminal.row("left"), "what was known stays"
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.ended() == 130
