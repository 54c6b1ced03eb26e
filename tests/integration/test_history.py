"""The past of a running service: what it answered is what it says, later, that it answered then."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.load import Engine, Load
from tests.processes import Service, until


class Answer(NamedTuple):
    """One answer, and when it was given."""

    position: str
    state: str
    body: bytes
    asked: bytes
    time: float


def post(service: Service, path: str, body: bytes) -> tuple[Any, bytes]:
    request = urllib.request.Request(
        service.base_url + path, body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.headers, reply.read()


def ask(service: Service, body: bytes, as_of: str = "") -> Answer:
    asked_at = time.time()
    headers, answer = post(service, f"/query?as_of={as_of}" if as_of else "/query", body)
    return Answer(headers["Reprise-Position"], headers["Reprise-State"], answer, body, asked_at)


def register(service: Service, engine: Engine) -> None:
    status, answer = service.post("/register", engine.registration())
    assert status == 200, answer


def refusal(service: Service, path: str, body: bytes) -> tuple[int, str]:
    try:
        post(service, path, body)
    except urllib.error.HTTPError as error:
        return error.code, msgspec.json.decode(error.read())["reason"]
    raise AssertionError("Expected a refusal, got an answer")


def bodies(load: Load) -> list[bytes]:
    return [
        msgspec.json.encode({"model": "m", "block_size": 16, "token_ids": prompt})
        for prompt in load.sample()
    ]


def test_what_was_answered_is_told_later_across_kills_and_a_deleted_table(
    tmp_path: Path, seed: int
) -> None:
    load = Load(seed, [Engine("a", gpu_blocks=300, cpu_blocks=400), Engine("b")], prompts=200)
    given: list[Answer] = []
    try:
        with Service(tmp_path / "data") as service:
            for engine in load.engines:
                register(service, engine)
            load.start()
            for number in range(3):
                until(
                    lambda number=number: load.published() > 200 * (number + 1),  # type: ignore[misc]
                    what="the engines publish",
                )
                already = len({answer.position for answer in given})

                def has_moved(already: int = already) -> bool:
                    given.extend(ask(service, body) for body in bodies(load))
                    return len({answer.position for answer in given}) > already + 3

                until(has_moved, what="the table moves")
                service.restart()
            load.stop()
            compare(service, given)
            oldest, newest = given[0], given[-1]
            until(lambda: time.time() > newest.time + 0.5, what="a time that is past")
            at_time = ask(service, newest.asked, f"{newest.time + 0.5:.3f}")
            assert at_time.body == ask(service, newest.asked, at_time.position).body
            assert refusal(service, f"/query?as_of={time.time() + 60}", oldest.asked) == (
                400,
                "as_of_in_future",
            )
            assert refusal(service, "/query?as_of=1:1", oldest.asked) == (
                400,
                "as_of_of_another_log",
            )
            assert refusal(service, "/query?as_of=1970-01-02", oldest.asked) == (
                400,
                "as_of_too_old",
            )
            service.kill()
            for name in ("table", "history"):
                subprocess.run(["rm", "-r", str(tmp_path / "data" / name)], check=True)
            service.start()
            compare(service, given)
    finally:
        load.close()


def compare(service: Service, given: list[Answer]) -> None:
    """An answer is at least of its position, and at most of that of the next one, which was asked
    for when it had come.
    """
    for answer, following in zip(given, [*given[1:], given[-1]], strict=True):
        first, last = (int(one.position.partition(":")[2]) for one in (answer, following))
        told = []
        for offset in range(first, last + 1):
            again = ask(service, answer.asked, f"0:{offset}")
            assert again.position == f"0:{offset}"
            told.append(again.body)
            if again.body == answer.body:
                break
        assert answer.body in told, (answer.position, following.position)


def test_a_damaged_history_costs_the_past_alone(tmp_path: Path, seed: int) -> None:
    load = Load(seed, [Engine("a")], prompts=50)
    try:
        with Service(tmp_path / "data") as service:
            register(service, load.engines[0])
            load.start()
            until(lambda: load.published() > 50, what="the engine publishes")
            load.stop()
            until(lambda: bool(service.digest()["contexts"]), what="blocks are held")
            service.stop()
            for file in (tmp_path / "data" / "history").glob("*.log"):
                file.write_bytes(b"\xff" * file.stat().st_size)
            for file in (tmp_path / "data" / "history").glob("CURRENT"):
                file.write_bytes(b"nothing")
            service.start()
            answer = ask(service, bodies(load)[0])
            assert ask(service, answer.asked, answer.position).body == answer.body
    finally:
        load.close()


def test_explain_names_the_record_that_ended_a_prefix(tmp_path: Path) -> None:
    engine = Engine("a", gpu_blocks=8, cpu_blocks=8)
    prompt = list(range(64))
    body = msgspec.json.encode({"model": "m", "block_size": 16, "token_ids": prompt})
    try:
        with Service(tmp_path / "data") as service:
            register(service, engine)
            until(lambda: engine.publisher.subscribers, what="it is followed")
            engine.serve(prompt)
            until(lambda: b'"longest_matched":64' in ask(service, body).body, what="it is held")
            held = ask(service, body).position
            for number in range(20):
                engine.serve([1000 + number] * 128)
            until(
                lambda: b'"longest_matched":64' not in ask(service, body).body,
                what="it is evicted",
            )
            (tmp_path / "query.json").write_text(
                json.dumps(json.loads(body) | {"instance_id": "a"})
            )

            def told(path: str) -> dict[str, str]:
                command = [sys.executable, "-m", "reprise", "get", "--url", service.base_url]
                command += [path, "--body", str(tmp_path / "query.json")]
                ran = subprocess.run(
                    command, capture_output=True, text=True, check=True, timeout=60
                )
                assert path.endswith(held) or "stored" in ran.stdout
                lines = [line.split() for line in ran.stdout.splitlines()]
                return {line[0]: " ".join(line[1:]) for line in lines if line}

            now = told("/explain")
            assert (now["longest_matched"], now["prompt_tokens"]) == ("0", "64")
            assert now["ended_by.reason"] == "removed"
            then = told(f"/explain?as_of={held}")
            assert (then["longest_matched"], then["prompt_tokens"]) == ("64", "64")
            assert then["position"] == held
            assert then["ended_by"] == ""
            url = "/explain?model=m&block_size=16&instance_id=a&token_ids="
            with urllib.request.urlopen(
                service.base_url + url + ",".join(map(str, prompt)), timeout=60
            ) as reply:
                ended = msgspec.json.decode(reply.read())["ended_by"]
            assert ended["block"] == 0
            assert [change["what"] for change in ended["changes"]][-1] == "removed"
    finally:
        engine.publisher.close()
