"""How peers are found and started, and what is asked of them."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from devtools import dynamo
from lab.benchmarks.embedded.http_client import Client, Server, request_of
from lab.benchmarks.index import cores
from lab.benchmarks.index.blocks import chains
from lab.benchmarks.job_process import ChildProcess
from lab.benchmarks.peers import alone, indexers, load_generator
from lab.benchmarks.peers.indexers import CHECKED, checked_prompts
from lab.benchmarks.sizes import BLOCK_SIZE, SEED
from lab.engines.wire import BlockStored
from lab.traffic.event_load import LoadPlan, plan_events
from streams.kernel import native_available

OWN_NETWORK = """
import socket
from lab.benchmarks.peers.network import enter_own_network, exposure, is_own
before = is_own()
problem = enter_own_network()
print(problem or "entered", before, is_own(), exposure())
if not problem:
    assert enter_own_network() == "", "once is enough"
    with socket.create_server(("0.0.0.0", 0)) as server:
        socket.create_connection(("127.0.0.1", server.getsockname()[1])).close()
    try:
        socket.create_connection(("192.0.2.1", 9), timeout=5)
    except OSError as error:
        print(error.strerror)
"""


def test_a_network_of_its_own_has_loopback_and_nothing_else() -> None:
    said = subprocess.run(
        [sys.executable, "-c", OWN_NETWORK], capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    if not said[0].startswith("entered"):
        pytest.skip(f"no network of its own here: {said[0]}")
    assert said[0].endswith("True in a network of its own")
    assert said[1] == "Network is unreachable"


def test_the_named_interpreter_comes_before_that_of_make_peers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dynamo, "find_spec", lambda _: None)
    monkeypatch.setattr(dynamo, "INSTALLED", tmp_path / "python")
    monkeypatch.delenv(dynamo.VARIABLE, raising=False)
    assert dynamo.interpreter() == ""
    assert "`make peers` installs it" in indexers.missing()
    (tmp_path / "python").touch()
    assert dynamo.interpreter() == str(tmp_path / "python")
    assert indexers.missing() == ""
    monkeypatch.setenv(dynamo.VARIABLE, "/elsewhere/python")
    assert dynamo.interpreter() == "/elsewhere/python"


def test_the_prompts_that_are_checked_are_whole_and_end_with_the_last() -> None:
    plan = LoadPlan(blocks=40 * 8 * 4, blocks_per_event=4, block_size=2, chain_events=8, seed=3)
    found = checked_prompts(plan)
    assert len(found) == CHECKED + 1
    assert {len(prompt) for prompt in found} == {8 * 4 * 2}
    stored = [event for event in plan_events(plan) if isinstance(event, BlockStored)]
    ends = [[token for event in stored[at : at + 8] for token in event.token_ids] for at in (0, -8)]
    assert found[0] == ends[0]
    assert found[-1] == [token for event in stored[-8:] for token in event.token_ids]


@pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")
def test_a_listener_with_two_threads_answers() -> None:
    blocks = cores.TOKENS // BLOCK_SIZE
    [chain] = chains(blocks, SEED, blocks)
    request = request_of(cores.FORM, memoryview(chain.tokens).cast("I").tolist())
    with cores._listener(2, blocks, 1) as server:
        cores._check(server, request)
        assert server.busy([request] * 50) > 0


@pytest.mark.parametrize(("cpu_s", "limit"), [(1.79, False), (1.8, True)])
def test_a_load_generator_that_is_always_at_work_is_the_limit(cpu_s: float, limit: bool) -> None:
    asked = load_generator.GeneratedLoad(answered=300, seconds=2.0, cpu_s=cpu_s)
    assert (asked.rate, asked.is_limit) == (150.0, limit)


@pytest.mark.skipif(not load_generator.installed(), reason="no wrk")
@pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")
def test_the_load_generator_counts_its_own_cpu() -> None:
    blocks = cores.TOKENS // BLOCK_SIZE
    [chain] = chains(blocks, SEED, blocks)
    request = request_of(cores.FORM, memoryview(chain.tokens).cast("I").tolist())
    with cores._listener(1, blocks, 1) as server:
        asked = load_generator.ask(server.address, [request], seconds=1)
    assert asked.answered > 0
    assert 0 < asked.cpu_s <= asked.seconds + 1


def test_sockets_alone_answer_so_many_bytes_with_so_many() -> None:
    command = [sys.executable, "-m", "lab.benchmarks.peers.bare_sockets", "10", "3"]
    with ChildProcess(command) as process:
        address = ("127.0.0.1", process.hear(int))
        for parts in ((b"x" * 10,), (b"x" * 4, b"x" * 6)):  # one connection after the other
            client = Client(address)
            for _ in range(2):
                for part in parts:
                    assert not select.select([client], [], [], 0.05)[0], "it is not whole"
                    client.send(part)
                assert client.receive() == bytes(3)
            client.close()
        server = Server(address, process.pid)
        asked = [alone.AskedServer(name, server, [b"x" * 10] * 3) for name in ("theirs", "ours")]
        before = os.sched_getaffinity(0)
        figures = alone.measure(1024, asked, runs=2)
        assert os.sched_getaffinity(0) == before, "what was bound is let go"
    places = ("on one core", "on two cores") if len(before) > 1 else ()
    rows = {
        f"{name}, 1K tokens, one at a time, {place}: CPU" for place in places for name, *_ in asked
    }
    assert rows <= {one.name for one in figures}
    assert [len(one.runs) for one in figures] == [2] * 3 * len(places)


def test_one_request_at_a_time_is_compared_by_where_both_run() -> None:
    taken = {
        ("theirs", "here"): [8.0, 9.0],
        ("ours", "here"): [2.0, 3.0],
        ("theirs", "there"): [1.0],
    }
    known = {one.name: one.runs for one in alone.figures_of(1024, taken, "theirs")}
    row = "ours, 1K tokens, one at a time, here: CPU"
    assert known[row] == [2.0, 3.0]
    assert known[f"{row}, times less than Dynamo"] == [4.0, 3.0]
    assert "theirs, 1K tokens, one at a time, there: CPU" in known
    assert len(known) == 4
