"""`reprise up --demo` as a newcomer meets it: run it, ask it, kill it, start it again, stop it."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from reprise.demo import BASE_PORT_VARIABLE
from tests.processes import START_S, Service, until

ENGINES = 4
PORTS = 20 * ENGINES
CLEAN_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO   |WARNING) \S+: .+")

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/cmdline").exists(), reason="processes are counted in /proc"
)


def free_ports() -> int:
    """The first of as many ports in a row as a demo and its service need.

    Below those that the system gives away, and by chance, so that parallel runs do not meet.
    """
    firsts = range(18_000, 25_000, PORTS + 1)
    for first in random.SystemRandom().sample(firsts, len(firsts)):
        try:
            for port in range(first, first + PORTS + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


@pytest.fixture
def base_port() -> Iterator[int]:
    first = free_ports()
    yield first
    for pid in engine_pids(first):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def demo(tmp_path: Path, base_port: int) -> Iterator[Service]:
    service = Service(
        tmp_path / "data",
        *("--demo", "--port", str(base_port + PORTS)),
        environment={BASE_PORT_VARIABLE: str(base_port)},
    )
    yield service
    service.kill()


def engine_pids(base_port: int) -> set[int]:
    """The engine processes of this demo, by their command lines."""
    ports = [f'"http_port":{base_port + 20 * n + 19},'.encode() for n in range(ENGINES)]
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            command = path.read_bytes()
            if any(port in command for port in ports):
                found.add(int(path.parent.name))
    return found


def said(demo: Service, begin: str) -> str:
    """The next line that begins so; the demo always says something after a few seconds."""
    assert demo.process is not None
    assert demo.process.stdout is not None
    for line in demo.process.stdout:
        if line.startswith(begin):
            return line.rstrip("\n")
    raise AssertionError(f"the demo ended without a line `{begin}`:\n{demo.log()}")


def paste(command: str) -> dict[str, Any]:
    run = subprocess.run(["bash", "-c", command], capture_output=True, check=True, timeout=START_S)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def longest(answer: dict[str, Any]) -> int:
    return max((one["longest_matched"] for one in answer["default"].values()), default=0)


def verified(data: Path) -> tuple[str, dict[str, str]]:
    """The position and each engine's digest, of a fold of the log in another process."""
    run = subprocess.run(
        [sys.executable, "-m", "reprise", "verify", "--data", str(data)],
        capture_output=True,
        text=True,
        check=True,
        timeout=START_S,
    )
    first, *contexts = run.stdout.splitlines()
    return first.split()[1], {line.split()[-1]: line.split()[0] for line in contexts}


def told(demo: Service) -> tuple[str, dict[str, str]]:
    """The same of the running service."""
    digest = demo.digest()
    return digest["position"], {one["instance_id"]: one["digest"] for one in digest["contexts"]}


def published(demo: Service) -> int:
    """Ranks of which the table has batches."""
    services = demo.get("/services")[1]["services"]
    return sum(one["Sequence"] >= 0 for one in services)


def quiet(demo: Service) -> None:
    """Return when nothing is folded any more."""
    position = ""
    while position != (position := told(demo)[0]):
        time.sleep(0.5)


def interrupt(demo: Service) -> int:
    """Ctrl-C; the exit code."""
    assert demo.process is not None
    demo.process.send_signal(signal.SIGINT)
    return demo._reap()


def unclean_lines(demo: Service) -> list[str]:
    return [line for line in demo._log_path.read_text().splitlines() if not CLEAN_LINE.match(line)]


@pytest.mark.timeout(180)
def test_a_killed_demo_that_is_started_again_gives_the_same_answer_and_goes_on(
    demo: Service, base_port: int
) -> None:
    demo.start()
    command = said(demo, "TOKENS=")
    assert longest(paste(command)) > 0

    # The engines stand still, with a request under way, so that before and after can be compared.
    engines = engine_pids(base_port)
    assert len(engines) == ENGINES
    for pid in engines:
        os.kill(pid, signal.SIGSTOP)
    quiet(demo)
    answer, table = paste(command), told(demo)
    demo.kill()
    for pid in engines:
        os.kill(pid, signal.SIGCONT)
    assert verified(demo.data) == table

    demo.start()
    # What was under way at the kill is asked for again, so the answer may have become longer.
    assert longest(paste(command)) >= longest(answer)
    assert said(demo, "Found").startswith("Found the engines of the killed run")
    assert said(demo, "TOKENS=")
    until(
        lambda: demo.metric("reprise_bridge_replayed_batches_total") > 0,
        what="a replay of what was under way at the kill",
    )
    assert said(demo, "The last")
    until(lambda: told(demo)[0] != table[0], what="traffic")
    assert demo.metric("reprise_bridge_gaps_total") == 0
    assert demo.metric("reprise_publisher_degraded") == 0
    until(
        lambda: demo.metric("reprise_publisher_incarnation") == published(demo) > 0,
        what="one life of each rank that has had a request",
    )
    assert engine_pids(base_port) == engines

    assert interrupt(demo) == 0
    assert engine_pids(base_port) == set()
    assert unclean_lines(demo) == []


@pytest.mark.timeout(180)
def test_an_engine_that_died_meanwhile_is_started_anew_and_forgotten_first(
    demo: Service, base_port: int
) -> None:
    demo.start()
    said(demo, "TOKENS=")
    demo.kill()
    engines = engine_pids(base_port)
    os.kill(min(engines), signal.SIGKILL)
    demo.start()
    assert said(demo, "Found").startswith("Found 3 engines of the killed run")
    said(demo, "The last")
    assert len(engine_pids(base_port) - engines) == 1
    assert demo.metric("reprise_bridge_gaps_total") == 0
    assert demo.metric("reprise_publisher_degraded") == 0
    assert demo.stop() == 0
    assert engine_pids(base_port) == set()


@pytest.mark.timeout(180)
def test_a_chat_through_the_gateway_comes_back_to_the_engine_that_has_it(
    tmp_path: Path, base_port: int
) -> None:
    environment = {BASE_PORT_VARIABLE: str(base_port)}
    options = ("--demo", "--gateway", "127.0.0.1:0")
    with Service(tmp_path / "data", *options, environment=environment) as service:
        address = service.get("/gateway")[1]["address"]
        messages = [{"role": "user", "content": "What is a prefix cache? " * 20}]
        chat = {"model": "demo", "messages": messages}

        def ask(body: dict[str, Any]) -> httpx.Response:
            url = f"{address}/v1/chat/completions"
            return httpx.post(url, json=body, timeout=START_S)

        until(lambda: len(engine_pids(base_port)) == ENGINES, what="the engines")
        # Reprise has its tokens of an engine's `/tokenize`, and its events over a link.
        until(lambda: "reprise-decision" in ask(chat).headers, what="Reprise decides")
        said_first = ask(chat).json()["choices"][0]["message"]
        following = chat | {"messages": [*messages, said_first, {"role": "user", "content": "?"}]}

        def comes_back() -> bool:
            answer = ask(following).json()
            details = answer["usage"]["prompt_tokens_details"]
            return bool(
                answer["choices"][0]["message"] == said_first
                and details["cached_tokens"] >= len("What is a prefix cache? " * 20)
            )

        until(comes_back, what="the engine that has the first turn is sent the second")
        stream = ask(following | {"stream": True})
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.text.endswith("data: [DONE]\n\n")
        assert interrupt(service) == 0
        assert "\n".join(unclean_lines(service)) == ""


def test_ctrl_c_before_the_engines_are_up_leaves_nothing(demo: Service, base_port: int) -> None:
    demo.start()
    until(lambda: engine_pids(base_port), what="a first engine")
    assert interrupt(demo) == 0
    assert engine_pids(base_port) == set()
    assert unclean_lines(demo) == []


def test_a_service_goes_on_without_the_demo_that_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'lab.engines.engine' in sys.orig_argv:\n    os._exit(1)\n"
    )
    with Service(
        tmp_path / "data",
        "--demo",
        environment={"PYTHONPATH": str(tmp_path), BASE_PORT_VARIABLE: "0"},
    ) as service:
        until(lambda: "The demo has ended" in service.log(), what="a line")
        lines = service.log().splitlines()
        assert (
            "The demo has ended: Engine `engine-0` ended before it was ready;"
            " the service continues without it"
        ) in lines
        assert "Traceback" not in service.log()
        assert service.get("/ready")[0] == 200
        assert service.stop() == 0
