import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from lab.engines.cache import CacheSizes, Offload
from lab.engines.control import EngineServer
from lab.engines.engine import (
    Engine,
    EngineOptions,
    EngineReady,
    EngineState,
    GenerateAnswer,
    parse_options,
)
from lab.engines.process import (
    EngineProcess,
    EngineStartError,
    adopt_engine,
    arguments,
    stop_engines,
)
from lab.engines.publisher import PublisherOptions
from lab.traffic.http_json import JsonConnection
from routing.costs import Costs
from tests.processes import until
from tests.unit.lab.demo.stub_service import NaiveFollower
from tests.unit.lab.event_batch import EventBatch

WAIT_MS = 10_000
SIZES = CacheSizes(block_size=2, gpu_blocks=4, cpu_blocks=8)
OPTIONS = EngineOptions(instance_id="e0", sizes=SIZES, dp_ranks=2)


@contextmanager
def engine(options: EngineOptions = OPTIONS) -> Iterator[Engine]:
    opened = Engine(options)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def calls(ready: EngineReady) -> Iterator[JsonConnection]:
    connection = JsonConnection(f"http://{ready.http_host}:{ready.http_port}")
    try:
        yield connection
    finally:
        connection.close()


def generate(
    connection: JsonConnection, tokens: list[int], rank: int | None = None
) -> GenerateAnswer:
    answer = connection.request("POST", "/generate", {"token_ids": tokens, "dp_rank": rank})
    assert answer.status == 200, answer.body
    return msgspec.json.decode(answer.body, type=GenerateAnswer)


def follow_from_start(ready: EngineReady, dp_rank: int) -> NaiveFollower:
    """What a follower that joins late knows after a replay."""
    follower = NaiveFollower()
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.set(zmq.LINGER, 0)
        dealer.connect(ready.ranks[dp_rank].replay_endpoint)
        dealer.send_multipart([b"", bytes(8)])
        for _ in range(PublisherOptions().buffer_batches + 1):
            assert dealer.poll(WAIT_MS)
            frames = dealer.recv_multipart()
            if not frames[-1]:
                return follower
            for event in msgspec.msgpack.decode(frames[-1], type=EventBatch).events:
                follower.apply(event)
    raise AssertionError("a replay has an end")


def until_replayed(ready: EngineReady, dp_rank: int, held: set[tuple[int, str]]) -> None:
    until(
        lambda: follow_from_start(ready, dp_rank).held == held,
        what=f"a replay of rank {dp_rank} gives what the engine says it holds",
    )


def test_generate_reports_what_was_cached() -> None:
    with engine() as opened, calls(opened.ready) as connection:
        first = generate(connection, [1, 2, 3, 4, 5], 0)
        assert (first.cached_tokens, first.prompt_tokens, first.dp_rank) == (0, 5, 0)
        assert generate(connection, [1, 2, 3, 4, 5], 0).cached_tokens == 4
        assert generate(connection, [1, 2, 3, 4, 5], 1).cached_tokens == 0


def test_engine_takes_the_rank_with_least_work_where_none_is_given() -> None:
    with engine() as opened, calls(opened.ready) as connection:
        ranks = [generate(connection, [token] * 5).dp_rank for token in range(4)]
        assert sorted(ranks) == [0, 0, 1, 1]


def test_truth_is_what_the_publishers_said() -> None:
    with engine() as opened, calls(opened.ready) as connection:
        for start in range(5):
            generate(connection, list(range(start, start + 7)), start % 2)
        truth = msgspec.json.decode(connection.request("GET", "/truth").body)
        for rank in (0, 1):
            held = {
                (block, medium)
                for medium in ("GPU", "CPU")
                for block in truth["ranks"][str(rank)][medium]
            }
            until_replayed(opened.ready, rank, held)
        asked = connection.request("POST", "/truth", {"token_ids": [4, 5, 6, 7, 8, 9, 10]})
        ranks = msgspec.json.decode(asked.body)["ranks"]
        assert ranks["0"] == {"any": 6, "GPU": 6, "CPU": 6}
        assert ranks["1"]["any"] == 0


def test_ready_tells_who_it_is_and_how_far_it_has_come() -> None:
    with engine() as opened, calls(opened.ready) as connection:
        generate(connection, [1, 2, 3, 4], 1)
        generate(connection, [5, 6], 1)

        def state() -> EngineState:
            return msgspec.json.decode(connection.request("GET", "/ready").body, type=EngineState)

        until(lambda: state().batches == [0, 2], what="two batches of rank 1 are published")
        assert (state().ready, state().options, state().requests) == (opened.ready, OPTIONS, 2)


def test_it_says_its_load_and_takes_other_costs() -> None:
    slow = msgspec.structs.replace(OPTIONS, costs=Costs(fixed_s=0.1))
    with engine(slow) as opened, calls(opened.ready) as connection:
        idle = {"running": 0, "waiting": 0}
        answer = connection.request("GET", "/load")
        assert msgspec.json.decode(answer.body) == {"ranks": {"0": idle, "1": idle}}
        costs = Costs(fixed_s=0.05, prefill_tokens_per_s=1e9, token_squared_s=0.0)
        assert connection.request("POST", "/costs", costs).status == 200
        for rank in (0, 1):
            assert generate(connection, [1, 2], rank).ttft_s == pytest.approx(0.05, rel=1e-3)
    with engine() as opened, calls(opened.ready) as connection:
        assert connection.request("POST", "/costs", Costs()).status == 400


def test_clear_forgets_and_announces() -> None:
    with engine() as opened, calls(opened.ready) as connection:
        generate(connection, [1, 2, 3, 4], 0)
        assert connection.request("POST", "/clear").status == 200
        assert generate(connection, [9, 9], 0).cached_tokens == 0

        def forgotten() -> bool:
            follower = follow_from_start(opened.ready, 0)
            return len(follower.held) == 2 and (9, 9) in follower.prefixes.values()

        until(forgotten, what="a replay ends with what was stored after the clearing")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/generate", {"token_ids": [1], "dp_rank": 2}, 400),
        ("POST", "/generate", {"token_ids": [-1]}, 400),
        ("POST", "/generate", {"token_ids": "x"}, 400),
        ("POST", "/generate", None, 400),
        ("GET", "/generate", None, 404),
        ("POST", "/lose", {"batches": 3}, 200),
        ("POST", "/adopt", {"pid": 1}, 404),
    ],
)
def test_bad_requests_are_answered_and_the_connection_lives(
    method: str, path: str, body: object, status: int
) -> None:
    with engine() as opened, calls(opened.ready) as connection:
        assert connection.request(method, path, body).status == status
        assert generate(connection, [1, 2, 3]).cached_tokens == 0


def test_costs_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--instance-id=e", '--costs={"fixed_s": -1}'])
    assert "Expected costs in JSON" in capsys.readouterr().err


def test_options_survive_the_command_line() -> None:
    publisher = PublisherOptions(
        endpoint="tcp://127.0.0.1:7000",
        replay_endpoint="",
        topic="kv@e0",
        buffer_batches=7,
        high_water_mark=8,
        wire="0.17",
        any_port_if_taken=True,
    )
    options = EngineOptions(
        instance_id="-e 0",
        model="m",
        sizes=SIZES,
        offload=Offload.ON_EVICTION,
        dp_ranks=3,
        publisher=publisher,
        http_port=7100,
        owner="/a directory",
        orphan_grace_s=2.5,
        costs=Costs(fixed_s=0.5),
    )
    assert parse_options(arguments(options)) == (options, os.getpid())


def test_options_can_be_given_one_by_one() -> None:
    one = ["--instance-id=e", "--gpu-blocks=5", "--endpoint=tcp://*:1", "--parent-pid=1"]
    options = EngineOptions(
        instance_id="e",
        sizes=CacheSizes(gpu_blocks=5),
        publisher=PublisherOptions(endpoint="tcp://*:1"),
    )
    assert parse_options(one) == (options, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_answers_and_ends_cleanly_on_a_signal(number: signal.Signals) -> None:
    process = EngineProcess(OPTIONS)
    try:
        ready = process.await_ready()
        assert (ready.instance_id, ready.pid, len(ready.ranks)) == ("e0", process.pid, 2)
        with calls(ready) as connection:
            assert generate(connection, [1, 2, 3, 4], 1).cached_tokens == 0
            assert generate(connection, [1, 2, 3, 4, 5], 1).cached_tokens == 4
        follower = follow_from_start(ready, 1)
        assert follower.longest((1, 2, 3, 4), 2) == 4
        os.kill(process.pid, number)
        assert process.reap(time.monotonic() + 10) == 0
    finally:
        stop_engines([process])


def test_process_that_cannot_bind_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    with engine() as opened:
        taken = msgspec.structs.replace(OPTIONS, http_port=opened.ready.http_port)
        process = EngineProcess(taken)
        try:
            with pytest.raises(EngineStartError, match="Engine `e0` ended before it was ready"):
                process.await_ready()
        finally:
            stop_engines([process])
        assert "lab.engines.engine:" in capfd.readouterr().err


def orphan(grace_s: float) -> EngineReady:
    """An engine whose parent has ended."""
    script = (
        "import os, msgspec\n"
        "from lab.engines.engine import EngineOptions\n"
        "from lab.engines.process import EngineProcess\n"
        f"options = EngineOptions(instance_id='orphan', orphan_grace_s={grace_s})\n"
        "process = EngineProcess(options)\n"
        "print(msgspec.json.encode(process.await_ready()).decode(), flush=True)\n"
        "os._exit(0)\n"
    )
    parent = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[4],
        check=True,
    )
    return msgspec.json.decode(parent.stdout, type=EngineReady)


def test_engine_ends_when_its_parent_is_gone() -> None:
    pid = orphan(0).pid
    until(lambda: not _runs(pid), what=f"the end of engine {pid}")


def test_orphan_is_adopted_and_ended_by_who_adopted_it() -> None:
    ready = orphan(60)
    options = EngineOptions(instance_id="orphan", http_port=ready.http_port)
    adopted = adopt_engine(options)
    assert adopted is not None
    try:
        assert (adopted.pid, adopted.ready, adopted.alive) == (ready.pid, ready, True)
        assert adopted.state.options.orphan_grace_s == 60
    finally:
        stop_engines([adopted])
    assert not adopted.alive
    assert adopt_engine(options) is None
    stop_engines([adopted])


def test_what_is_no_engine_is_not_adopted() -> None:
    server = EngineServer("127.0.0.1", 0, routes={("GET", "/ready"): lambda _: {"ready": True}})
    try:
        assert adopt_engine(EngineOptions(instance_id="e", http_port=server.port)) is None
        assert adopt_engine(EngineOptions(instance_id="e")) is None
    finally:
        server.close()


def test_client_that_was_killed_leaves_no_trace(capfd: pytest.CaptureFixture[str]) -> None:
    with engine() as opened:
        with socket.create_connection(("127.0.0.1", opened.ready.http_port)) as client:
            client.sendall(b"POST /truth HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
            # Closing resets the connection.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with calls(opened.ready) as connection:
            generate(connection, [1, 2])
        until(
            lambda: not any("process_request_thread" in one.name for one in threading.enumerate()),
            what="no request is served any more",
        )
    assert capfd.readouterr().err == ""


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "State:\tZ" not in status


@pytest.mark.parametrize("prompt", [list(range(12)), "twelve bytes"])
def test_an_engine_answers_as_openais_interface_does(prompt: str | list[int]) -> None:
    engine = Engine(EngineOptions(instance_id="e", sizes=CacheSizes(4, 100, 100)))
    try:
        connection = JsonConnection(f"http://127.0.0.1:{engine.ready.http_port}")
        asked = {"model": "demo", "prompt": prompt, "max_tokens": 3}
        usages = []
        for _ in range(2):
            answer = connection.request("POST", "/v1/completions", asked)
            assert answer.status == 200, answer.body
            said = msgspec.json.decode(answer.body)
            assert said["choices"][0]["finish_reason"] == "length"
            usages.append(said["usage"])
        connection.close()
    finally:
        engine.close()
    assert [one["prompt_tokens"] for one in usages] == [12, 12]
    assert usages[0]["completion_tokens"] == 3
    held = [one["prompt_tokens_details"]["cached_tokens"] for one in usages]
    assert held == [0, 8]


CHAT_PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}
CHAT_AS_TEXT = "<user>hello\n<assistant>"


@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/completions"])
def test_a_stream_says_what_a_whole_answer_says(path: str) -> None:
    asked = CHAT if "chat" in path else {"prompt": CHAT_AS_TEXT, "max_tokens": 100}
    engine = Engine(EngineOptions(instance_id="e", sizes=CacheSizes(4, 100, 100)))
    try:
        connection = JsonConnection(f"http://127.0.0.1:{engine.ready.http_port}")
        whole = msgspec.json.decode(connection.request("POST", path, asked).body)
        options = {"stream": True, "stream_options": {"include_usage": True}}
        answer = connection.request("POST", path, asked | options)
        connection.close()
    finally:
        engine.close()
    *events, done, rest = answer.body.decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    *pieces, last = [json.loads(one.removeprefix("data: ")) for one in events]
    [choice] = whole["choices"]
    text = choice["message"]["content"] if "chat" in path else choice["text"]
    assert text == "This is e, an engine without a model."
    streamed = [one["choices"][0] for one in pieces]
    assert len(streamed) > 5, "the words come one by one"
    assert text == "".join(
        one["delta"].get("content", "") if "chat" in path else one["text"] for one in streamed
    )
    ends = [choice["finish_reason"], *(one["finish_reason"] for one in streamed)]
    assert ends == ["stop", *[None] * (len(streamed) - 1), "stop"]
    assert last["choices"] == []
    said = {key: value for key, value in whole["usage"].items() if key != "prompt_tokens_details"}
    assert said == {"prompt_tokens": 23, "completion_tokens": 37, "total_tokens": 60}
    assert last["usage"] == said | {"prompt_tokens_details": {"cached_tokens": 20}}


def test_the_next_turn_of_a_chat_begins_with_the_tokens_of_the_last_one() -> None:
    engine = Engine(EngineOptions(instance_id="e", sizes=CacheSizes(1, 1000), dp_ranks=2))
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{engine.ready.http_port}") as client:

            def ask(path: str, asked: object, rank: str = "1") -> Any:
                return client.post(path, json=asked, headers={"X-data-parallel-rank": rank}).json()

            first = ask(CHAT_PATH, CHAT)["choices"][0]["message"]
            following = {"messages": [*CHAT["messages"], first, {"role": "user", "content": "?"}]}
            usage = ask(CHAT_PATH, following)["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == 23 + 37
            assert ask("/tokenize", following)["count"] == usage["prompt_tokens"]
            other = ask(CHAT_PATH, following, rank="0")["usage"]
            assert other["prompt_tokens_details"]["cached_tokens"] == 0, "it is another rank's"
            assert "to be a rank" in ask(CHAT_PATH, CHAT, rank="-1")["error"]
            assert "messages or a prompt" in ask(CHAT_PATH, {})["error"]
    finally:
        engine.close()
