"""Answers of a running service that is killed again and again: all that it kept is proven from its
log, beside the service and after it.
"""

import subprocess
import sys
from pathlib import Path

import msgspec

from streams.audit.log import ANSWERS
from tests.integration.test_history import ask, bodies, post, register
from tests.load import Engine, Load
from tests.processes import Service, until


def verify(data: Path) -> tuple[int, list[str]]:
    ended = subprocess.run(
        [sys.executable, "-m", "reprise", "audit", "verify", "--data", str(data)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, ended.stdout.splitlines()


def test_all_that_was_kept_is_proven_across_kills_and_a_changed_number_is_found(
    tmp_path: Path, seed: int
) -> None:
    load = Load(seed, [Engine("a"), Engine("b", dp_rank=1)], prompts=200)
    data = tmp_path / "data"
    given = 0
    try:
        with Service(data, "--set", "audit.rate=1") as service:
            for engine in load.engines:
                register(service, engine)
            load.start()
            for number in range(3):
                until(
                    lambda number=number: load.published() > 150 * (number + 1),  # type: ignore[misc]
                    what="the engines publish",
                )
                for body in bodies(load):
                    ask(service, body)
                    post(service, "/query?detail=1", body)
                    post(service, "/query?hits_only=1", body)
                    given += 3

                def counted(given: int = given) -> bool:
                    names = ("written", "dropped", "unsettled")
                    counts = [service.metric(f"reprise_audit_{name}_total") for name in names]
                    return sum(counts) > 0

                assert counted()
                code, lines = verify(data)
                assert (code, lines[-1].split("disagreed ")[1]) == (0, "0, beyond the log 0"), lines
                service.restart()
            load.stop()
            assert service.stop() == 0
    finally:
        load.close()
    code, lines = verify(data)
    assert code == 0, lines
    answers = int(lines[-1].split()[1].strip(","))
    assert 0.5 * given < answers <= given, lines
    assert f"agreed {answers}, disagreed 0, beyond the log 0" in lines[-1]
    sequence = tamper(data)
    code, lines = verify(data)
    assert code == 1
    assert sum("disagrees: answer" in line for line in lines) == 1
    assert f".{sequence} at position 0:" in lines[0]
    assert "disagreed 1," in lines[-1]


def tamper(data: Path) -> int:
    """Adds a block to what an instance is said to hold, in a record of its own at the end."""
    log = ANSWERS.opened(data)
    for entry in log.read(log.complete_from):
        record = msgspec.msgpack.decode(entry.value)
        for fields in record["answers"]:
            if fields[6] and fields[6][0][1]:
                fields[6][0][1] += 16
                fields[-1] += 1_000_000
                log.append([msgspec.msgpack.encode(record | {"answers": [fields]})])
                log.close()
                return int(fields[-1])
    raise AssertionError("Expected an answer that names a hit")
