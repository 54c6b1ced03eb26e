"""Each command as a process that inherits ignored signals, as from `nohup` or a shell's background
job: SIGINT and SIGTERM end it all the same, in order and without a traceback.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from devtools.broker import free_ports
from streams.log.embedded import EmbeddedLog
from tests.building import events_record, removed
from tests.processes import Service, until

BOUND_S = 30.0
DEAF = ("/bin/sh", "-c", 'trap "" INT TERM; exec "$@"', "sh")
"""Runs a command with both signals ignored."""


@contextmanager
def started(directory: Path, *arguments: str, says: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has both signals ignored when it starts, once it has said something."""
    output = directory / "output"
    with (
        output.open("wb") as to,
        subprocess.Popen(
            [*DEAF, sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=to,
            stderr=to,
        ) as process,
    ):

        def ready() -> bool:
            assert process.poll() is None, output.read_text()
            return says in output.read_text()

        try:
            until(ready, what=f"`{says}` by {arguments}")
            yield process
        finally:
            process.kill()


def ended_by(process: subprocess.Popen[bytes], number: signal.Signals, directory: Path) -> int:
    """The exit code after a signal; fails where there is a traceback."""
    process.send_signal(number)
    code = process.wait(BOUND_S)
    assert "Traceback" not in (directory / "output").read_text()
    return code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("role", "says"),
    [
        ("bridge", "Bridging to Kafka"),
        ("streams", "Metrics on"),
        ("serve", "Reprise answers on"),
    ],
)
def test_a_role_that_waits_for_kafka_ends(
    tmp_path: Path, role: str, says: str, number: signal.Signals
) -> None:
    (port,) = free_ports(1)
    where = ["--kafka", f"127.0.0.1:{port}", "--data", str(tmp_path / "data")]
    listens = ["--port", "0"] if role == "serve" else ["--metrics-port", "0"]
    with started(tmp_path, "reprise", role, *where, *listens, says=says) as process:
        assert ended_by(process, number, tmp_path) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_embedded_service_ends(tmp_path: Path, number: signal.Signals) -> None:
    arguments = ["reprise", "up", "--data", str(tmp_path / "data"), "--port", "0"]
    with started(tmp_path, *arguments, says="Reprise answers on") as process:
        assert ended_by(process, number, tmp_path) == 0


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2])
def test_the_embedded_service_ends_while_it_recovers(tmp_path: Path, after_s: float) -> None:
    data = tmp_path / "data"
    with Service(data) as service:
        for number in range(200):
            service.register(f"tcp://127.0.0.1:{number + 1}", instance_id=f"i{number}")
    arguments = ["reprise", "up", "--data", str(data), "--port", "0"]
    with started(tmp_path, *arguments, says="Reprise answers on") as process:
        time.sleep(after_s)
        assert ended_by(process, signal.SIGTERM, tmp_path) == 0
        assert "ERROR" not in (tmp_path / "output").read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_tail_ends(tmp_path: Path, number: signal.Signals, code: int) -> None:
    log = EmbeddedLog(tmp_path / "log")
    log.append([events_record(0, 0, [removed(0, [0])])])
    log.close()
    arguments = ["reprise", "tail", "--data", str(tmp_path), "--follow", "--from-beginning"]
    with started(tmp_path, *arguments, says="\n") as process:
        assert ended_by(process, number, tmp_path) == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        (["simulation.engines.engine", "--instance-id", "e"], {0}),
        (["simulation.traffic.load"], {-signal.SIGINT, -signal.SIGTERM}),
    ],
)
def test_a_simulated_engine_ends(
    tmp_path: Path, arguments: Sequence[str], codes: set[int], number: signal.Signals
) -> None:
    with started(tmp_path, *arguments, says="tcp://") as process:
        assert ended_by(process, number, tmp_path) in codes
