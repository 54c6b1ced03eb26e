import json
import os
import shlex
import threading
from collections.abc import Iterator

import msgspec
import pytest

from replay.conversations import Traffic
from replay.demo import Demo, DemoOptions
from replay.engine_process import EngineStartError
from replay.http_json import JsonConnection
from tests.unit.replay.stub_service import StubService

OPTIONS = DemoOptions(
    dp_ranks=(1, 2),
    traffic=Traffic(system_tokens=(64,), open_max=4),
    requests_per_s=400,
    base_port=0,
    line_every_s=0.1,
    curl_after_s=0.0,
)


@pytest.fixture
def service() -> Iterator[StubService]:
    stub = StubService()
    yield stub
    stub.close()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def ask(command: str) -> object:
    """What the curl command that the demo prints would get."""
    words = shlex.split(command)
    assert words[:2] == ["curl", "-s"]
    base, _, path = words[2].rpartition("/")
    connection = JsonConnection(base)
    answer = connection.request("POST", f"/{path}", json.loads(words[-1]))
    connection.close()
    return msgspec.json.decode(answer.body)


def test_demo_speaks_shows_a_working_command_and_leaves_nothing(service: StubService) -> None:
    stop = threading.Event()
    said: list[str] = []
    answers: list[object] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("curl"):
            answers.append(ask(line))
        if answers and said[-1].startswith("requests"):
            stop.set()

    demo = Demo(service.url, say=say, stop=stop, options=OPTIONS)
    demo.run()
    assert sum(line.startswith("curl") for line in said) == 1
    instances = msgspec.convert(answers[0], dict[str, dict[str, dict[str, object]]])["default"]
    assert any(msgspec.convert(i["longest_matched"], int) >= 48 for i in instances.values())
    assert "with the index" in said[-1]
    assert len(demo.pids) == 2
    assert all(gone(pid) for pid in demo.pids)
    assert service.registered == {}


def test_demo_that_is_stopped_before_it_began_ends(service: StubService) -> None:
    stop = threading.Event()
    stop.set()
    demo = Demo(service.url, say=lambda _: None, stop=stop, options=OPTIONS)
    demo.run()
    assert all(gone(pid) for pid in demo.pids)
    assert service.sequences == {}


def test_ctrl_c_ends_the_engines(service: StubService) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    demo = Demo(service.url, say=interrupt, options=OPTIONS)
    demo.run()
    assert demo.stop.is_set()
    assert all(gone(pid) for pid in demo.pids)


def test_without_a_service_the_demo_fails_and_leaves_nothing() -> None:
    options = msgspec.structs.replace(OPTIONS, service_wait_s=0.0)
    demo = Demo("http://127.0.0.1:1", say=lambda _: None, options=options)
    with pytest.raises(OSError):  # noqa: PT011
        demo.run()
    assert all(gone(pid) for pid in demo.pids)


def test_engine_that_does_not_start_ends_the_others(service: StubService) -> None:
    options = msgspec.structs.replace(OPTIONS, dp_ranks=(1, 0))
    demo = Demo(service.url, say=lambda _: None, options=options)
    with pytest.raises(EngineStartError):
        demo.run()
    assert all(gone(pid) for pid in demo.pids)


def test_ports_of_engines_do_not_overlap() -> None:
    demo = Demo("http://127.0.0.1:1", options=DemoOptions(base_port=20_000))
    ports: list[int] = []
    for engine in demo.engine_options():
        for endpoint in (engine.publisher.endpoint, engine.publisher.replay_endpoint):
            first = int(endpoint.rpartition(":")[2])
            ports += range(first, first + engine.dp_ranks)
        ports.append(engine.http_port)
    assert len(ports) == len(set(ports)) == 14
    assert min(ports) == 20_000
