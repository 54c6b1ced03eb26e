import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from lab.demo.demo import Demo, DemoOptions, lost_engines
from lab.engines.cache import CacheSizes
from lab.engines.parent_watch import identify
from lab.engines.process import EngineStartError, adopt_engine
from lab.traffic.conversations import Traffic
from lab.traffic.http_json import JsonConnection
from routing.costs import Costs
from tests.fakes import registration
from tests.unit.lab.demo.stub_service import StubService

OPTIONS = DemoOptions(
    dp_ranks=(1, 2),
    traffic=Traffic(system_tokens=(64,), open_max=4),
    requests_per_s=100,
    base_port=0,
    warm_up_s=0.3,
    first_after_s=1.5,
    costs=Costs(fixed_s=0.001, prefill_tokens_per_s=1e6),
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
    tokens, _, curl = command.partition("; ")
    numbers = tokens.removeprefix("TOKENS=")
    assert len(numbers.split(",")) % OPTIONS.sizes.block_size == 0, "whole blocks"
    words = shlex.split(curl.replace("$TOKENS", numbers))
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
    tables: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("TOKENS="):
            answers.append(ask(line))
        if "The last" in line:
            tables.append(line)
        if answers and tables:
            stop.set()

    demo = Demo(service.url, say=say, stop=stop, options=OPTIONS)
    demo.run()
    assert said[0].startswith("Warming up for")
    assert sum(line.startswith("TOKENS=") for line in said) == 1
    instances = msgspec.convert(answers[0], dict[str, dict[str, dict[str, object]]])["default"]
    held = [msgspec.convert(one["longest_matched"], int) for one in instances.values()]
    assert max(held) > min(held), "engines hold different parts of it"
    table = tables[0].splitlines()
    assert [line.split("  ")[0] for line in table[3:7]] == [
        "by /route",
        "by /query and load",
        "by /query alone",
        "at random",
    ]
    assert table[7].startswith("/route promised 5 ms and")
    assert len(table) == 8, "nothing failed"
    assert said[-1].startswith("The 2 simulated engines end with the demonstration")
    assert {report["event"] for report in service.reports} == {"first_token", "completed"}
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
    said: list[str] = []

    def interrupt(line: str) -> None:
        said.append(line)
        if len(said) == 1:
            raise KeyboardInterrupt

    demo = Demo(service.url, say=interrupt, options=OPTIONS)
    demo.run()
    assert demo.stop.is_set()
    assert "registrations and blocks were removed" in said[-1]
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


def free_ports(count: int) -> int:
    """The first of so many free ports in a row, below those that the system gives away."""
    for first in range(25_000 + os.getpid() % 300 * 20, 32_000, count):
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


@contextmanager
def killed_run(service: StubService, options: DemoOptions) -> Iterator[list[int]]:
    """The engines of a demonstration whose process was killed in the midst of its traffic."""
    script = (
        "import os, sys, msgspec\n"
        "from lab.demo.demo import PORTS_PER_ENGINE, Demo, DemoOptions\n"
        "options = msgspec.json.decode(sys.argv[2], type=DemoOptions)\n"
        "def say(line):\n"
        "    if line.startswith('TOKENS='):\n"
        "        print(*demo.pids, flush=True)\n"
        "        os.kill(os.getpid(), 9)\n"
        "demo = Demo(sys.argv[1], say=say, options=options)\n"
        "demo.run()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, service.url, msgspec.json.encode(options).decode()],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[4],
        check=False,
    )
    pids = [int(pid) for pid in run.stdout.split()]
    try:
        assert len(pids) == 2
        yield pids
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def ended(pid: int) -> bool:
    identity = identify(pid)
    return identity is None or not identity.alive


@pytest.fixture
def fixed() -> DemoOptions:
    return msgspec.structs.replace(
        OPTIONS, base_port=free_ports(40), owner="a", orphan_grace_s=30.0, hold_s=0.1
    )


def test_engines_of_a_killed_run_are_adopted_with_all_that_the_index_knows_of_them(
    service: StubService, fixed: DemoOptions
) -> None:
    with killed_run(service, fixed) as pids:
        registered, heard = dict(service.registered), len(service.unregistered)
        stop = threading.Event()
        said: list[str] = []

        def say(line: str) -> None:
            said.append(line)
            if "The last" in line:
                stop.set()

        demo = Demo(service.url, say=say, stop=stop, options=fixed)
        demo.run()
        assert said[0].startswith("Found the engines of the killed run; traffic continues in")
        assert said[2].startswith("TOKENS="), "before the traffic continues"
        assert demo.pids == pids
        assert len(registered) == 3
        assert service.unregistered[heard:] == sorted(registered), "only at the end"
        assert all(ended(pid) for pid in pids)
    for sequences in service.sequences.values():
        assert sorted(set(sequences)) == list(range(len(set(sequences)))), "a gap"


def test_engines_of_a_killed_run_are_found_where_their_wanted_ports_were_taken(
    service: StubService, fixed: DemoOptions, tmp_path: Path
) -> None:
    noted = tmp_path / "engines.json"
    options = msgspec.structs.replace(fixed, base_port=0, engines_path=str(noted))
    with killed_run(service, options) as pids:
        assert len(msgspec.json.decode(noted.read_bytes())) == 2
        stop = threading.Event()
        demo = Demo(service.url, say=lambda _: stop.set(), stop=stop, options=options)
        demo.run()
        assert demo.pids == pids
        assert all(ended(pid) for pid in pids)
        assert not noted.exists()


def test_engines_whose_parent_lives_are_left_alone(
    service: StubService, fixed: DemoOptions
) -> None:
    stop, began = threading.Event(), threading.Event()
    first = Demo(service.url, say=lambda _: began.set(), stop=stop, options=fixed)
    thread = threading.Thread(target=first.run)
    thread.start()
    try:
        assert began.wait(20)
        script = (
            "import sys, msgspec\n"
            "from lab.demo.demo import PORTS_PER_ENGINE, Demo, DemoOptions\n"
            "from lab.engines.process import adopt_engine\n"
            "options = msgspec.json.decode(sys.argv[1], type=DemoOptions)\n"
            "demo = Demo('http://127.0.0.1:1', options=options)\n"
            "print([adopt_engine(one) for one in demo.engine_options()])\n"
        )
        run = subprocess.run(
            [sys.executable, "-c", script, msgspec.json.encode(fixed)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[4],
            check=True,
        )
        assert run.stdout.strip() == b"[None, None]"
        assert not any(ended(pid) for pid in first.pids)
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("change", "are_ended"),
    [
        ({"owner": "b"}, False),  # another demonstration's, which may come back for them
        ({"sizes": CacheSizes(16, 10, 10)}, True),
        ({"model": "another"}, True),
    ],
)
def test_engines_that_do_not_fit_are_not_adopted_and_own_ones_are_ended(
    service: StubService, fixed: DemoOptions, change: dict[str, object], are_ended: bool
) -> None:
    with killed_run(service, fixed) as pids:
        stop = threading.Event()
        said: list[str] = []

        def say(line: str) -> None:
            said.append(line)
            stop.set()

        demo = Demo(
            service.url, say=say, stop=stop, options=msgspec.structs.replace(fixed, **change)
        )
        demo.run()
        assert not any("killed run" in line for line in said)
        assert not set(demo.pids) & set(pids)
        assert [ended(pid) for pid in pids] == [are_ended] * len(pids)


def test_engines_that_the_index_does_not_know_are_not_adopted(fixed: DemoOptions) -> None:
    killed, another = StubService(), StubService()
    try:
        with killed_run(killed, fixed) as pids:
            stop = threading.Event()
            demo = Demo(another.url, say=lambda _: stop.set(), stop=stop, options=fixed)
            demo.run()
            assert len(demo.pids) == 2
            assert not set(demo.pids) & set(pids)
    finally:
        killed.close()
        another.close()


def test_demo_waits_for_a_service_that_recovers(service: StubService) -> None:
    service.recovered = False
    stop = threading.Event()
    demo = Demo(service.url, say=lambda _: stop.set(), stop=stop, options=OPTIONS)
    thread = threading.Thread(target=demo.run)
    thread.start()
    stop.wait(0.3)
    assert demo.pids == []
    service.recovered = True
    thread.join(30)
    assert not thread.is_alive()
    assert len(demo.pids) == 2


def test_engines_of_another_demonstration_on_the_noted_ports_are_lost_and_left_alone(
    service: StubService, tmp_path: Path
) -> None:
    ours = msgspec.structs.replace(OPTIONS, owner="ours", engines_path=str(tmp_path / "ours"))
    theirs = msgspec.structs.replace(OPTIONS, owner="theirs", engines_path=str(tmp_path / "theirs"))
    stop = threading.Event()
    told: list[str] = []

    def look(line: str) -> None:
        if "Warming up" in line:
            (tmp_path / "ours").write_bytes((tmp_path / "theirs").read_bytes())
            is_lost, is_theirs = lost_engines(ours), lost_engines(theirs)
            for instance_id, dp_rank in sorted(service.registered):
                one = registration(instance_id, dp_rank=dp_rank)
                one = msgspec.structs.replace(one, labels=(("class", "simulated"),))
                assert is_lost(one)
                assert not is_theirs(one)
                told.append(instance_id)
            assert not is_lost(registration("engine-0")), "an engine that is no simulated one"
            assert not any(map(adopt_engine, Demo("", options=ours).engine_options()))
            stop.set()

    Demo(service.url, say=look, stop=stop, options=theirs).run()
    assert told == ["engine-0", "engine-1", "engine-1"]
    said: list[str] = []
    stop = threading.Event()

    def end(line: str) -> None:
        said.append(line)
        stop.set()

    Demo(service.url, say=end, stop=stop, options=ours).run()
    assert said[0] == "The engines of the killed run have ended; new ones start."
