"""Captures as commands: of a service, of engines and of Kafka, and what they are replayed into."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from brokers.broker_settings import KafkaSettings
from devtools import dynamo
from replay.capture.reader import Capture
from schemas.answer_states import AnswerState
from tests.dynamo import DynamoIndexer
from tests.load import Engine, Load
from tests.processes import Api, Service, until
from tests.unit.replay.histories import history, write_log

BOUND_S = 60.0
DIFFERENT = 3


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "reprise", *map(str, arguments)]


def ran(*arguments: object, code: int = 0) -> str:
    """What the command printed; it must end with this code, and without a traceback."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=BOUND_S, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    process.send_signal(number)
    out, err = process.communicate(timeout=BOUND_S)
    assert "Traceback" not in err, err
    return process.returncode, out + err


def digest_lines(printed: str) -> list[str]:
    return sorted(re.findall(r"^[0-9a-f]{16} .*$", printed, re.MULTILINE))


@pytest.fixture
def load() -> Iterator[Load]:
    made = Load(3, [Engine("a"), Engine("b")], prompts=60, pause_s=0.002)
    yield made
    made.close()


def settled(service: Service, load: Load) -> None:
    """The service has folded all that the engines have sent."""

    def is_folded() -> bool:
        _, services = service.get("/services")
        named = {one["InstanceID"]: one for one in services["services"]}
        return all(
            named.get(engine.instance_id, {}).get("Sequence") == engine.published - 1
            for engine in load.engines
        )

    until(is_folded, what="all batches")


def digests(service: Api) -> dict[str, str]:
    return {one["instance_id"]: one["digest"] for one in service.digest()["contexts"]}


def test_a_running_service_is_captured_and_the_capture_gives_its_digests(
    tmp_path: Path, load: Load
) -> None:
    capture, copy = tmp_path / "all.capture", tmp_path / "copy"
    with Service(tmp_path / "data") as service:
        for engine in load.engines:
            service.post("/register", engine.registration())
        load.start()
        until(lambda: load.published() > 200, what="some batches")
        during = ran("capture", "--data", service.data, "--out", tmp_path / "during")
        assert during.startswith("complete: ")
        load.stop()
        settled(service, load)
        live, position = digests(service), service.digest()["position"]
        ran("capture", "--data", service.data, "--out", capture, "--to", position)
        prompts = load.sample()
        answers = [service.query(prompt) for prompt in prompts]
        verified = ran("verify", "--data", service.data)
        assert service.get("/ready")[0] == 200
    replayed = ran("replay", capture)
    assert digest_lines(replayed) == digest_lines(verified)
    assert {line.split()[0] for line in digest_lines(replayed)} == set(live.values())
    assert "same digests of 2 contexts" in ran("replay", capture, "--compare", service.data)
    assert "differs" in ran("replay", tmp_path / "during", "--compare", capture, code=DIFFERENT)
    ran("load", capture, "--data", copy)
    assert digest_lines(ran("verify", "--data", copy)) == digest_lines(verified)
    drive_and_compare(tmp_path, capture, digest_lines(replayed))
    with served(capture) as api:
        assert digests(api) == live
        assert api.digest()["position"] == position
        for prompt, answer in zip(prompts, answers, strict=True):
            assert api.query(prompt) == answer


@contextmanager
def served(capture: Path) -> Iterator[Api]:
    with running("replay", capture, "--serve", "--port", "0") as process:
        assert process.stdout is not None
        api = Api()
        is_folded = False
        while not api.base_url or not is_folded:
            line = process.stdout.readline()
            assert line, process.stderr and process.stderr.read()
            is_folded |= " entries " in line
            if line.startswith("Reprise answers on "):
                api.base_url = line.split()[3]
        yield api
        code, said = ended(process, signal.SIGTERM)
        assert code in (0, -signal.SIGTERM), said


def test_what_is_served_from_a_capture_is_never_exact(tmp_path: Path, load: Load) -> None:
    capture = tmp_path / "all.capture"
    with Service(tmp_path / "data") as service:
        for engine in load.engines:
            service.post("/register", engine.registration())
        load.engines[0].serve(load.prompt(8))
        settled(service, load)
        for (
            engine
        ) in load.engines:  # until something comes live, the replay may be another engine's
            engine.serve(load.prompt(9))
        settled(service, load)
        body = {"model": "m", "block_size": 16, "token_ids": load.prompt(8)}

        def state(of: Api) -> str:
            return of.exchange("/query", body)[2]["reprise-state"]

        until(lambda: state(service) == AnswerState.EXACT, what="exact")
        ran("capture", "--data", service.data, "--out", capture)
        with served(capture) as api:
            assert state(api) == AnswerState.UNCONFIRMED
            unknown = body | {"model": "nobody's"}
            assert api.exchange("/query", unknown)[2]["reprise-state"] == AnswerState.UNCONFIRMED
            status, answer = api.post("/register", load.engines[1].registration())
            assert status >= 400
            assert "answers from a capture" in json.dumps(answer)
            _, services = api.get("/services")
            assert {one["InstanceID"] for one in services["services"]} == {"a", "b"}
            status, health = api.get("/health")
            assert "follows no engine" in json.dumps(health)


def test_engines_are_recorded_until_ctrl_c_and_drive_a_service_again(
    tmp_path: Path, load: Load
) -> None:
    capture = tmp_path / "frames"
    options: list[object] = ["capture", "--out", capture, "--model", "m", "--block-size", 16]
    for engine in load.engines:
        options += ["--from-zmq", engine.publisher.endpoint, "--instance", engine.instance_id]
        options += ["--replay", engine.publisher.replay_endpoint]
    load.start()
    with running(*options) as process:
        until(lambda: load.published() > 150, what="some batches")
        load.stop()
        last = [engine.published for engine in load.engines]
        until(lambda: captured_up_to(capture) == last, what="all batches in the file")
        code, said = ended(process, signal.SIGINT)
    assert code == 0, said
    assert said.startswith(f"complete: {sum(last)} entries")
    replayed = digest_lines(ran("replay", capture))
    assert len(replayed) == 2
    drive_and_compare(tmp_path, capture, replayed)


def captured_up_to(path: Path) -> list[int]:
    """How many messages of each publisher are in whole blocks of a file that is being written."""
    if not path.exists() or not path.stat().st_size:
        return []
    with Capture(path) as capture:
        counts = [0] * len(capture.header.publishers)
        for block in capture.blocks:
            counts[block.lane] += block.entries
    return counts


def drive_and_compare(tmp_path: Path, capture: Path, expected: Sequence[str]) -> None:
    """The capture as publishers, into a real service, which then has the same digests."""
    address = "tcp://127.0.0.1:0"
    options = ["replay", capture, "--as-publisher", address, "--replay-socket", address]
    with running(*options) as process, Service(tmp_path / "driven") as service:
        assert process.stdout is not None
        for _ in expected:
            endpoint, _, replay, name = process.stdout.readline().split()
            instance, tenant, rank = name.split("|")
            service.register(
                endpoint,
                replay_endpoint=replay,
                instance_id=instance,
                tenant_id=tenant,
                dp_rank=int(rank),
            )
        until(
            lambda: set(digests(service).values()) == {line.split()[0] for line in expected},
            what="the same digests",
        )
        assert service.metric("reprise_bridge_gaps_total") == 0
        code, said = ended(process, signal.SIGINT)
        assert code == 0, said


def test_embedded_to_kafka_to_embedded_gives_the_same_digests(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    data = write_log(tmp_path / "data", history(400))
    expected = digest_lines(ran("verify", "--data", data))
    assert len(expected) == 3
    kafka = ["--kafka", kafka_settings.bootstrap, "--topic-prefix", kafka_settings.topic_prefix]
    shape = ["--events-partitions", "2", "--registry-partitions", "2"]
    ran("capture", "--data", data, "--out", tmp_path / "1")
    assert "heartbeats" in ran("load", tmp_path / "1", *kafka, *shape)
    assert "at or beyond" in ran("load", tmp_path / "1", *kafka, *shape, code=1)
    assert "complete" in ran("capture", *kafka, "--out", tmp_path / "2")
    with Capture(tmp_path / "2") as capture:
        assert {block.lane for block in capture.blocks} == {0, 1}
        assert all(source.complete for source in capture.header.partitions)
    assert digest_lines(ran("replay", tmp_path / "2")) == expected
    ran("load", tmp_path / "2", "--data", tmp_path / "back")
    assert digest_lines(ran("verify", "--data", tmp_path / "back")) == expected
    assert "same digests" in ran("replay", tmp_path / "2", "--compare", data)
    ran("capture", *kafka, "--out", tmp_path / "b", "--instance", "b", "--from", "0:0,1:0")
    assert digest_lines(ran("replay", tmp_path / "b")) == [
        line for line in expected if line.endswith(" / b")
    ]
    refused = ran("capture", *kafka, "--out", tmp_path / "x", "--from", "7:0", code=1)
    assert "which has the partitions 0, 1, got --from `7:0`" in refused


def test_a_capture_of_a_log_that_is_interrupted_is_readable(tmp_path: Path) -> None:
    data = write_log(tmp_path / "data", history(60) * 400)
    out = tmp_path / "cut"
    with running("capture", "--data", data, "--out", out) as process:
        until(out.exists, what="the file")
        code, said = ended(process, signal.SIGINT)
    with Capture(out) as capture:
        assert capture.damage is None
        assert capture.summary is not None
        if capture.summary.ended == "interrupted":
            assert code == 130, said
            assert "The capture was not finished: interrupted" in capture.notes[0]
    assert "folded" in ran("replay", out)


@pytest.mark.skipif(
    not dynamo.interpreter(),
    reason=f"no {dynamo.PACKAGE}; {dynamo.VARIABLE} may name a Python that has it",
)
def test_dynamos_indexer_is_driven_by_a_capture(tmp_path: Path) -> None:
    engine = Engine("a", gpu_blocks=4000)  # nothing is evicted: tiers mean another thing there
    capture = tmp_path / "all.capture"
    with Service(tmp_path / "data") as service:
        service.post("/register", engine.registration())
        for number in range(40):
            engine.serve(Load.prompt(number))
        settled(service, Load(1, [engine]))
        answers = {number: service.longest(Load.prompt(number)) for number in range(40)}
    engine.publisher.close()
    ran("capture", "--data", service.data, "--out", capture)
    options = ["replay", capture, "--as-publisher", "tcp://127.0.0.1:0", "--renumber"]
    indexer = DynamoIndexer(1, tmp_path / "dynamo.log")
    try:
        with running(*options) as process:
            assert process.stdout is not None
            indexer.follow("m", 7, process.stdout.readline().split()[0], 16)
            assert process.stdout.readline().startswith("sent ")
            found: dict[int, int] = {}

            def is_the_same() -> bool:
                for number in answers:
                    scores = indexer.longest_of_workers("m", Load.prompt(number))
                    found[number] = scores.get(7, 0)
                return found == answers

            until(is_the_same, what="the same answers")
    finally:
        indexer.close()
